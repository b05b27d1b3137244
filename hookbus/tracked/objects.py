"""Tracks the objects of a custom loop, whose states checkpoints contain."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import attrs

from hookbus.checkpoint.codec import too_deep
from hookbus.errors import (
    CheckpointError,
    CheckpointMismatchError,
    StateRefused,
    Undo,
    UsageError,
)
from hookbus.graph.node import plain_name
from hookbus.library.base import (
    Beside,
    FleetingValues,
    LiveState,
    LiveValue,
    RandomSource,
    Tracked,
)
from hookbus.library.lookup import libraries
from hookbus.logs import log
from hookbus.random_state import RandomGenerators, sources
from hookbus.tracked.forms import Forms, changed_forms, forms_of, with_first_forms
from hookbus.tracked.kinds import tracked_as
from hookbus.tracked.leaves import Leaves
from hookbus.tracked.rewinding import drawn_part, with_part
from hookbus.tracked.write_backs import WriteBacks


@attrs.frozen(eq=False)
class TrackedStates:
    """The parts of a checkpoint about tracked objects, each by the names of the objects.

    Attributes:
        states: their states.
        pending: their work that is not finished; None to leave it as it is.
        modes: the switches that the program has set.
        forms: the forms that arrays had before the first step, of those that have changed.
    """

    states: Mapping[str, Any]
    pending: Mapping[str, Any] | None = attrs.field(factory=dict)
    modes: Mapping[str, Any] = attrs.field(factory=dict)
    forms: Mapping[str, Forms] = attrs.field(factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> TrackedStates:
        """Return the parts that a checkpoint has; older ones only have states."""
        parts = (state.get(part, {}) for part in ("tracked", "pending", "modes", "forms"))
        return cls(*parts)

    def beside(self) -> dict[str, Any]:
        """Return the parts that hooks do not see, by name; empty ones are left out."""
        parts = {"pending": self.pending, "modes": self.modes, "forms": self.forms}
        return {name: part for name, part in parts.items() if part}


class Tracking:
    """All objects that one session tracks.

    Args:
        keeps_states: whether the session saves the objects, or puts them back.

    Attributes:
        generators: the random generators of the process and those that are tracked.
        is_complete: whether the first step has begun, after which no further object is
            tracked.
        starts: when the program began for the first time, the states of tracked generators,
            and the parts of other objects with which it draws and counts. A resumed program
            draws the same numbers on its way to its place.
    """

    def __init__(self, keeps_states: bool = True) -> None:
        self._keeps_states = keeps_states
        self.generators: RandomGenerators = RandomGenerators(
            self._all_sources, self._drawn_with
        )
        self._tracked: dict[str, Tracked] = {}
        self._saved: TrackedStates | None = None
        self.is_complete: bool = False
        self._restores_again = False
        self._restores_generators = self._restores_all = True
        self.starts: dict[str, Any] = {}
        self._forms: dict[str, Forms] = {}
        self._write_backs = WriteBacks()

    def restore_from(
        self,
        saved: TrackedStates,
        *,
        again: bool,
        generators: bool,
        every: bool,
        starts: Mapping[str, Any],
    ) -> None:
        """Restore objects from *saved* when they are tracked.

        Args:
            saved: their states in the checkpoint.
            again: whether to keep *saved* as it is, for :meth:`restore_again`.
            generators: whether to restore random generators as well.
            every: whether :meth:`check` requires the same names here and in *saved*.
            starts: see the attribute; what a program draws with gets these states until
                :meth:`restore_again`.
        """
        self._saved, self._restores_again = saved, again
        self._restores_generators, self._restores_all = generators, every
        self.starts = {**starts}

    @property
    def is_empty(self) -> bool:
        """Whether the program tracks no object so far."""
        return not self._tracked

    def begin_anew(self) -> None:
        """Give counters the values with which the program began.

        A resumed program goes through its passes again, and counts them.
        """
        for name, tracked in self._tracked.items():
            if tracked.rewinds and name in self.starts:
                self._rewind(name, self.starts[name])

    def restore_again(self, generators: bool) -> None:
        """Restore the objects that are tracked by now once more.

        *generators* is whether random generators are among them, and the keys in others.
        """
        saved, self._restores_again = self._saved or TrackedStates({}), False
        if not generators:
            own = self._sources()
            states = {n: each for n, each in saved.states.items() if n not in own}
            for name in states.keys() & self._tracked.keys():
                counts = self._tracked[name].rewinds == "whole"
                part = self._drawn_part(name, counts=counts)
                states[name] = with_part(states[name], part)
            saved = attrs.evolve(saved, states=states)
        self.put_back(saved, resumes=True)
        if self.is_complete:
            self._saved = None

    def put_generators(self, saved: Mapping[str, Any]) -> None:
        """Give the random generators that are tracked by now their saved states."""
        states = {name: saved[name] for name in self._sources() if name in saved}
        self.put_back(TrackedStates(states, pending=None))

    def put_back(self, saved: TrackedStates, resumes: bool = False) -> None:
        """Give all objects a saved state, in place.

        Args:
            saved: their states in the checkpoint.
            resumes: whether the program is at the place of the checkpoint, so that the
                switches that it had set there are its own.
        """
        for name, tracked in self._tracked.items():
            if name in saved.states:
                _put(name, tracked, saved, resumes)

    def add(self, things: Mapping[str, Any]) -> dict[str, Any]:
        """Track objects; return them by name, restored if the checkpoint has them.

        Raises:
            UsageError: a name is already used, or an object cannot be tracked.
            CheckpointMismatchError: a saved state does not fit; nothing is restored.
        """
        things = {plain_name(name): thing for name, thing in things.items()}
        for name in things:
            if name in self._tracked:
                raise UsageError(f"{name!r} is already tracked; track each object once")
            if self.is_complete:
                raise UsageError(
                    f"{name!r} is tracked too late: track it before the first step"
                )
        added = {name: tracked_as(name, thing) for name, thing in things.items()}
        every = {**self._tracked, **added}
        values = {name: tracked.value for name, tracked in every.items()}
        for library in libraries().values():
            library.check(values)
        for tracked in every.values():
            if tracked.introduce is not None:
                tracked.introduce(values)
            if tracked.watch is not None and self._keeps_states:
                tracked.watch(values)
        parts = self._saved or TrackedStates({})
        both = {
            name
            for name, tracked in added.items()
            if name in parts.states
            and (self._restores_generators or tracked.source is None)
        }
        _check_fit({name: added[name] for name in both}, parts)
        new = [name for name in added if name not in parts.states]
        if new and self._saved is not None and not self._restores_all:
            log.info("the checkpoint has no state for these objects", objects=new)
        self._tracked.update(added)
        parts = self._begin_with(parts, added, both)
        return {
            name: _put(name, tracked, parts, True) if name in both else tracked.value
            for name, tracked in added.items()
        }

    def _begin_with(
        self, saved: TrackedStates, added: Mapping[str, Tracked], both: Iterable[str]
    ) -> TrackedStates:
        """Return the states with which objects begin when they are added.

        A program that will go through its passes again draws as when it began.
        """
        if self._restores_again:  # an object may keep parts of a state, and change them
            states = {name: copy.deepcopy(saved.states[name]) for name in both}
            for name in states.keys() & self.starts.keys():
                states[name] = self._as_at_start(name, states[name])
            saved = attrs.evolve(saved, states=states)
        for name, tracked in added.items():
            if tracked.rewinds:
                self._forms[name] = forms_of(name, tracked.get())
            start = tracked.get() if tracked.source else self._drawn_part(name)
            if start is not None:
                self.starts.setdefault(name, start)
        return saved

    def add_all(self, things: Mapping[str, Any]) -> None:
        """Track the objects of a graph, or, in a recovery, restore them again.

        Raises:
            UsageError, CheckpointMismatchError: as :meth:`add`.
        """
        if things and self._tracked.keys() >= things.keys():
            saved, self._saved = self._saved or TrackedStates({}), None
            self.put_back(saved)
        else:
            self.add(things)

    def live(self, names: Iterable[str]) -> dict[str, LiveValue]:
        """Return the values inside some tracked objects that hooks see, by node name."""
        return {
            name + part: value
            for name in names
            for part, value in self._tracked[name].live().items()
        }

    def states(self, names: Iterable[str]) -> dict[str, LiveState]:
        """Return the objects whose values come and go, in a form that finds these."""
        found: dict[str, LiveState] = {}
        for name in names:
            tracked = self._tracked[name]
            if tracked.write is not None:
                found[name] = Leaves(name, tracked.get, tracked.write)
            elif tracked.fleeting is not None:
                found[name] = FleetingValues(name, tracked.fleeting)
        return found

    def check(self) -> None:
        """Check, at the first step, that a restored checkpoint has the same names.

        A session that does not train restores those that both have.

        Raises:
            CheckpointMismatchError: the tracked names differ from the checkpoint's.
        """
        if self.is_complete:
            return
        self.is_complete = True
        here, parts = self._tracked, self._saved
        if not self._restores_again:
            self._saved = None
        if parts is None or not self._restores_all:
            return
        saved = parts.states
        faults = [
            f"{name!r} is only in the checkpoint" for name in saved if name not in here
        ]
        faults += [
            f"{name!r} is not in the checkpoint" for name in here if name not in saved
        ]
        if faults:
            raise CheckpointMismatchError(
                "the tracked names differ from those in the restored checkpoint: "
                f"{'; '.join(faults)}. Track the same names as before, or give another "
                "checkpoint_dir"
            )

    def capture(self, step: int) -> TrackedStates:
        """Return the state of each object, and what belongs to it, by name.

        Args:
            step: the global step of the save.

        Raises:
            CheckpointError: a state has too many levels.
        """
        states = {name: tracked.get() for name, tracked in self._tracked.items()}
        for name, state in states.items():
            why = too_deep(state)
            if why:
                raise CheckpointError(f"the state of the tracked object {name!r} {why}")
        self._write_backs.note(states, step)
        pending = {name: tracked.pending for name, tracked in self._tracked.items()}
        modes = {name: tracked.modes for name, tracked in self._tracked.items()}
        forms = {
            name: changed_forms(first, forms_of(name, states[name]))
            for name, first in self._forms.items()
        }
        forms = {name: each for name, each in forms.items() if each}
        return TrackedStates(states, _beside(pending), _beside(modes), forms)

    def aside(self) -> Undo:
        """Return a block that has no effect on the training, whatever it computes.

        It may draw random numbers: the generators are restored. Tracked objects compute as
        in an evaluation, if their library knows how.
        """
        states, evaluating = self.generators.capture(), contextlib.ExitStack()
        with evaluating:
            for tracked in self._tracked.values():
                if tracked.evaluating is not None:
                    evaluating.enter_context(tracked.evaluating())
            leave = evaluating.pop_all().close

        def undo() -> None:
            try:
                leave()
            finally:
                self.generators.restore(states)

        return Undo(undo)

    def own_names(self) -> set[str]:
        """Return the names of objects whose state differs between processes."""
        return {name for name, tracked in self._tracked.items() if not tracked.is_alike}

    def generator_states(self) -> dict[str, Any]:
        """Return the states of the tracked generators, by the names of the objects."""
        return {name: source.capture() for name, source in self._sources().items()}

    def _as_at_start(self, name: str, saved: Any) -> Any:
        """Return a saved state with which the program draws as when it began."""
        tracked, start = self._tracked[name], self.starts[name]
        if tracked.source is not None:
            return start
        with StateRefused(f"the tracked object {name!r}"):
            return with_part(saved, start, counts=tracked.rewinds == "whole")

    def _drawn_part(self, name: str, *, counts: bool = True) -> Any:
        """Return the part of an object with which programs draw; None without one."""
        tracked = self._tracked[name]
        return drawn_part(tracked.get(), counts=counts) if tracked.rewinds else None

    def _rewind(self, name: str, part: Mapping[str, Any]) -> None:
        """Put back a part of an object with which programs draw."""
        tracked = self._tracked[name]
        with StateRefused(f"the tracked object {name!r}"):
            tracked.put(with_part(tracked.get(), part))

    def _drawn_with(self) -> dict[str, Beside]:
        """Return the parts of all objects with which programs draw, as `_all_sources`."""
        return {
            f"tracked.{name}": Beside(
                partial(self._drawn_part, name), partial(self._rewind, name)
            )
            for name, tracked in self._tracked.items()
            if tracked.rewinds
        }

    def _all_sources(self) -> dict[str, RandomSource]:
        """Return the generators of the process and those that are tracked."""
        tracked = {f"tracked.{name}": source for name, source in self._sources().items()}
        return {**sources(), **tracked}

    def _sources(self) -> dict[str, RandomSource]:
        found = {name: tracked.source for name, tracked in self._tracked.items()}
        return {name: source for name, source in found.items() if source is not None}


def _put(name: str, tracked: Tracked, saved: TrackedStates, resumes: bool) -> Any:
    """Give an object what a checkpoint holds of it; return the value for the caller."""
    with StateRefused(f"the tracked object {name!r}"):
        if tracked.pending is not None and saved.pending is not None:
            tracked.pending.put(saved.pending.get(name))
        if tracked.modes is not None and resumes and name in saved.modes:
            tracked.modes.put(saved.modes[name])
        return tracked.put(saved.states[name])


def _beside(parts: Mapping[str, Beside | None]) -> dict[str, Any]:
    """Return the parts that are not None, by name."""
    found = {name: part.get() for name, part in parts.items() if part is not None}
    return {name: each for name, each in found.items() if each is not None}


def _check_fit(added: Mapping[str, Tracked], saved: TrackedStates) -> None:
    """Check that tracked objects can take their saved states.

    Raises:
        CheckpointMismatchError: one cannot.
    """
    faults: list[str] = []
    for name, tracked in added.items():
        with StateRefused(f"the tracked object {name!r}"):
            state = with_first_forms(name, saved.states[name], saved.forms.get(name, {}))
            faults += tracked.faults(state)
    if faults:
        raise CheckpointMismatchError(
            "the tracked objects do not fit the restored checkpoint: "
            f"{'; '.join(faults)}. Track the same objects as before, or give another "
            "checkpoint_dir"
        )
