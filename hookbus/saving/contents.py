"""Gathers the contents of a checkpoint from a session, and gives them back to a session."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from hookbus import random_state
from hookbus.backend.protocol import Session
from hookbus.checkpoint.parts import check_parts
from hookbus.checkpoint.reader import Restored
from hookbus.errors import CheckpointError, NoGoodCheckpointError, StateRefused
from hookbus.graph.graph import Graph
from hookbus.logs import log
from hookbus.passes.place import BEFORE_ALL
from hookbus.passes.position import ProgramPosition
from hookbus.random_state import RestoredGenerators
from hookbus.saving.hook_state import (
    Stateful,
    load_hooks,
    saved_states,
    settings_of,
    states_of,
)
from hookbus.saving.matching import compare, leave_out, report_dtypes
from hookbus.tracked.leaves import leaves
from hookbus.tracked.objects import TrackedStates, Tracking

T = TypeVar("T")


def continues_always(_ended: str | None) -> bool:
    """Return True: a session continues in the input, however the session before ended."""
    return True


def continues_input(ended: str | None) -> bool:
    """Return whether a session that may train again continues in the input.

    It starts from the beginning if the previous session used the input up, or if its
    caller left the loop. *ended* is how that session ended; None if it did not.
    """
    return ended not in ("completed", "end_of_input")


_KEPT_FORM = 1
"""The number of the form in which another loop keeps the state of the hooks."""
_KEPT = "variables", "hooks", "settings", "params"


def check_kept(state: Any) -> None:
    """Check the form of a state that another loop has kept.

    Raises:
        CheckpointError: it has another form.
    """
    is_known = isinstance(state, Mapping) and state.get("form") == _KEPT_FORM
    if not is_known or not all(isinstance(state.get(part), Mapping) for part in _KEPT):
        raise CheckpointError(
            "load_state_dict() got something that is not from state_dict() of a "
            "DrivenSession, or from one of a later version of hookbus"
        )


@attrs.frozen(eq=False)
class Snapshot:
    """The values of one save, read once, and the version of the session at that time.

    Attributes:
        tracked: the parts about tracked objects, of which hooks see the states.
        since: when the session began to read them, on the clock of ``time.monotonic``.
    """

    variables: Mapping[str, Any]
    tracked: TrackedStates
    version: int
    since: float

    def values(self) -> dict[str, Any]:
        """Return each number and array in it, by name."""
        values = dict(self.variables)
        for name, state in self.tracked.states.items():
            values.update(leaves(name, state))
        return values


@attrs.frozen(eq=False)
class FrozenPosition:
    """The position of input and generators at the end of the training, for the last save.

    Attributes:
        step: the global step; after a further step the position is not valid.
        position: the part of a checkpoint that contains it.
        generators: the states of the tracked generators.
    """

    step: int
    position: Mapping[str, Any]
    generators: Mapping[str, Any]


@attrs.define(eq=False)
class Contents:
    """The parts of one session that its checkpoints contain.

    Attributes:
        hooks: the hooks that have a state, by name.
        tracking: the objects of a custom loop.
        position: the place of a custom loop in its program.
        rollbacks: returns the count of roll-backs that a resumed session needs.
        resumes_input: takes the kind of the previous session's end, or None; returns
            whether this session continues in the input.
        params: the hyperparameters that the program has recorded, or those of the restored
            checkpoint.
        generators: restores the random generators of the process.
        graph: the finalized graph. It knows which plugins own nodes, and which variables
            are never saved; a custom loop may track further ones.
    """

    hooks: Mapping[str, Stateful]
    tracking: Tracking
    position: ProgramPosition
    rollbacks: Callable[[], Mapping[str, Any]]
    resumes_input: Callable[[str | None], bool] = continues_always
    params: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    generators: RestoredGenerators = attrs.field(factory=RestoredGenerators, init=False)
    graph: Graph = attrs.field(factory=Graph, init=False)
    _saved_names: frozenset[str] | None = attrs.field(default=None, init=False)
    _owners: Mapping[str, str] = attrs.field(factory=dict, init=False)
    _has_recorded: bool = attrs.field(default=False, init=False)
    _frozen: FrozenPosition | None = attrs.field(default=None, init=False)
    _start: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    _repeats: bool = attrs.field(default=False, init=False)
    _before_steps: Restored | None = attrs.field(default=None, init=False)

    def take_graph(self, saved_names: frozenset[str] | None, graph: Graph) -> None:
        """Take over the finalized graph, and the names of the saved variables.

        *saved_names* is None if all of them are saved.
        """
        self._saved_names, self._owners, self.graph = saved_names, graph.owners, graph

    def record(self, params: Mapping[str, Any]) -> None:
        """Add hyperparameters; the first ones replace those of the restored checkpoint."""
        before = self.params
        if before and not self._has_recorded:
            every = sorted(before.keys() | params.keys())
            changed = [name for name in every if before.get(name) != params.get(name)]
            if changed:
                log.info("parameters differ from those of the checkpoint", changed=changed)
        self.params = {**before, **params} if self._has_recorded else params
        self._has_recorded = True

    def freeze_position(self, session: Session) -> None:
        """Keep the current position of input and generators for the last checkpoint.

        Called when the training has ended. Evaluations and hooks may still pull values and
        draw numbers, and a resumed session must not miss those.
        """
        step = session.global_step
        if self._frozen is None or self._frozen.step != step:
            position = self._position(session)
            generators = self.tracking.generator_states()
            self._frozen = FrozenPosition(step, position, generators)

    def unfreeze_position(self) -> None:
        """Let the next checkpoint contain the position that is current by then."""
        self._frozen = None

    def snapshot(self, session: Session) -> Snapshot:
        """Read the values of a save; the state of each tracked object is read once."""
        since, variables = time.monotonic(), self._saved(session.snapshot())
        tracked = self.tracking.capture(session.global_step)
        return Snapshot(variables, tracked, session.version, since)

    def check(self, state: Mapping[str, Any]) -> None:
        """Check the form of a checkpoint's parts, and of the states of the hooks here.

        Raises:
            NoGoodCheckpointError: hookbus, or a hook, never writes such a part.
        """
        check_parts(state)
        saved = state.get("hooks", {})
        for name in self.hooks.keys() & saved.keys():
            fault = self.hooks[name].fault_in(saved[name])
            if fault:
                raise NoGoodCheckpointError(f"its values cannot be read: {fault}")

    def gather(
        self, session: Session, snapshot: Snapshot, *, is_chief: bool
    ) -> dict[str, Any]:
        """Return the contents of a checkpoint.

        Several ranks save together. The chief saves the parts that all ranks share, and
        each rank saves its own parts.
        """
        variables, tracked = snapshot.variables, snapshot.tracked.states
        owners = {name: who for name, who in self._owners.items() if name in variables}
        state: dict[str, Any] = {"variables": variables, "owners": owners}
        state |= {"tracked": tracked, "hooks": states_of(self.hooks)}
        state["settings"] = settings_of(self.hooks)
        state |= snapshot.tracked.beside()
        if self.params:
            state["params"] = self.params
        rollbacks = self.rollbacks()
        if rollbacks:
            state["rollbacks"] = rollbacks
        backend = session.state_dict()
        if backend:
            state["backend"] = backend
        frozen = self._frozen
        if frozen is None or frozen.step != session.global_step:
            state |= self._position(session)
        else:
            state |= {"tracked": {**tracked, **frozen.generators}, **frozen.position}
        if is_chief:
            return state
        own = self.tracking.own_names()
        tracked = {n: each for n, each in state["tracked"].items() if n in own}
        state.pop("modes", None)
        return {**state, "variables": {}, "owners": {}, "tracked": tracked}

    def load(self, session: Session, restored: Restored, training: bool) -> None:
        """Give a session the contents of a checkpoint, without the states of its hooks.

        Args:
            session: the session of the backend.
            restored: the checkpoint.
            training: whether the graph must have all variables of the checkpoint, the
                program must track all of its objects, and the session may continue in the
                input.

        Raises:
            CheckpointMismatchError: another graph wrote it.
        """
        here, saved = self._saved(session.describe()), restored.state["variables"]
        if not training or self._saved_names is not None:
            saved = {name: value for name, value in saved.items() if name in here}
        owners = restored.state.get("owners", {})  # older checkpoints have none
        ours = leave_out(here, saved, self._owners, "variables of a hook are new")
        saved = leave_out(saved, here, owners, "variables of a hook are left out")
        compare(session, ours, saved, self._owners, restored.path)
        report_dtypes(session, here, saved)
        _write(session, restored, saved)
        if training and not self._has_recorded:
            self.params = restored.state.get("params", {})
        resumes = training and self.resumes_input(restored.manifest.ended)
        if resumes:
            session.seek(restored.state.get("inputs", {}))
            if "passes" in restored.state:
                states = restored.state.get("random", {})
                self.position.load_state_dict(
                    restored.state["passes"],
                    lambda generators: self._arrive(states, generators),
                    self.tracking.begin_anew,
                )
        again = self.position.resuming
        tracked, start = TrackedStates.of(restored.state), restored.state.get("start", {})
        if not training:  # it evaluates a model as the program has prepared it
            tracked = TrackedStates(tracked.states, pending=None)
        # A program that saves no place in passes, because it has none.
        steps = resumes and self.graph.takes_reports and "passes" in restored.state
        steps &= bool(tracked.states) and not again
        self._before_steps = restored if steps else None
        self._start = start.get("random", {})
        self._repeats = again or self._before_steps is not None
        self.tracking.restore_from(
            tracked,
            again=again,
            generators=restored.is_own,
            every=training,
            starts=start.get("tracked", {}),
        )

    def kept(self, session: Session) -> dict[str, Any]:
        """Return the state of the hooks, for a loop that keeps it in its own checkpoint.

        Raises:
            CheckpointError: the state of a hook cannot be saved.
        """
        variables, states = self._saved(session.snapshot()), states_of(self.hooks)
        return {
            "form": _KEPT_FORM,
            "global_step": session.global_step,
            "variables": copy.deepcopy(variables),
            "hooks": {name: self.hooks[name].copied(each) for name, each in states.items()},
            "settings": settings_of(self.hooks),
            "params": copy.deepcopy(dict(self.params)),
        }

    def load_kept(self, session: Session, kept: Mapping[str, Any]) -> None:
        """Give the hooks a state from :meth:`kept`, which :func:`check_kept` has checked.

        Variables and states of hooks that are not on are left out.
        """
        here = self._saved(session.describe())
        found = {n: value for n, value in kept["variables"].items() if n in here}
        session.write(found)
        load_hooks(self.hooks, saved_states(self.hooks, kept), None)
        self.params = kept["params"]

    def begin_generators(self, restored: Restored | None) -> None:
        """Give the generators the states with which the program goes on.

        A resumed program that is on its way to its place has the states of the start.
        """
        if restored is not None:
            states = self._start if self._repeats else {}
            self.generators.restore(states or restored.state.get("random", {}))
        if not self._start:
            self._start = random_state.capture()

    def put_generators(self) -> None:
        """Give the generators of a program without passes the states for its next step.

        A resumed program repeats the code before its steps, which draws as at the start. It
        has come to its place when it has tracked its objects.
        """
        restored = self._before_steps
        if restored is None or not restored.is_own:
            return
        self.generators.restore(restored.state.get("random", {}))
        self.tracking.put_generators(restored.state["tracked"])

    def place_of(self, restored: Restored) -> Mapping[str, Any]:
        """Return the place of a custom loop in a checkpoint to which it goes back."""
        if not self.resumes_input(restored.manifest.ended):
            return BEFORE_ALL  # the program of this session began anew there
        place: Mapping[str, Any] = restored.state.get("passes", BEFORE_ALL)
        return place

    def put_back(
        self, session: Session, restored: Restored, seek: Callable[[], None] | None
    ) -> None:
        """Give a custom loop the contents of a checkpoint, as :meth:`load` does.

        *seek* moves its input back; None leaves it where it is.
        """
        saved, tracked = restored.state["variables"], TrackedStates.of(restored.state)
        here = self._saved(session.describe())
        _write(session, restored, {n: value for n, value in saved.items() if n in here})
        if seek is not None:
            # As in a session that resumes: the input may use and change what is tracked.
            states = copy.deepcopy(tracked.states)
            self.tracking.put_back(attrs.evolve(tracked, states=states))
            seek()
        self.tracking.put_back(tracked)

    def _position(self, session: Session) -> Mapping[str, Any]:
        """Return the current position of input and generators."""
        state = {
            "inputs": session.positions(),
            "passes": self.position.state_dict(),
            "random": random_state.capture(),
        }
        if self.graph.takes_reports:
            state["start"] = {"random": self._start, "tracked": self.tracking.starts}
        return state

    def _saved(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return those of the variables that checkpoints hold."""
        names, unsaved = self._saved_names, self.graph.unsaved
        held = (values.keys() if names is None else names) - unsaved
        return {name: value for name, value in values.items() if name in held}

    def _arrive(self, states: Mapping[str, Any], generators: bool) -> None:
        """Undo the changes that a resumed program made on its way to the checkpoint.

        *generators* is whether the random generators get *states*, those of the checkpoint.
        """
        self.tracking.restore_again(generators)
        if generators:
            self.generators.restore(states)


def _write(session: Session, restored: Restored, variables: Mapping[str, Any]) -> None:
    """Give a session variables of a checkpoint, its step and its state of the backend."""
    with StateRefused("the backend"):
        session.load_state_dict(restored.state.get("backend", {}))
    session.write(variables)
    session.global_step = restored.manifest.global_step
