"""Presents one run to hooks: its requests, its results, and how to make requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions, Session
from hookbus.graph.node import Node
from hookbus.hooks.hook import SessionRunArgs
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.inbox import StopKind
from hookbus.hooks.outcome import RollbackPlace
from hookbus.hooks.requests import CurrentHook, Requests, RunRequests
from hookbus.hooks.timer import pause


class RunServices(Protocol):
    """The services of the session to the contexts of its runs."""

    requests: Requests
    current_hook: CurrentHook

    def emit(self, event: str, /, **arguments: Any) -> list[Any]:
        """Send an event to all hooks; return their answers without the Nones."""

    def writable(self, node: Node | str, value: Any) -> str:
        """Return the name of a variable that the current hook may set to *value*."""

    def check_write(self, kind: Kind) -> None:
        """Check that the current hook may write variables at once in a run of a kind."""

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables values at once."""

    def planned_end(self) -> int | None:
        """Return the global step at which the session is expected to end."""

    def epoch(self) -> int | None:
        """Return the number of the open pass of a custom loop over its input."""

    def evaluation(self) -> str | None:
        """Return the name of the evaluation that is under way."""

    def input_numbers(self) -> Mapping[str, int]:
        """Return the number of the last value that each input has given."""

    def is_ending(self) -> bool:
        """Return whether a signal or the coordinator ends the session."""

    def was_stopped(self) -> bool:
        """Return whether a stop that a hook asked for took effect."""


@attrs.frozen(eq=False)
class RunFrame:
    """The parts that all runs of one kind on one backend session share.

    Attributes:
        services: the services of the monitored session.
        session: the backend session.
        kind: the kind of the runs.
    """

    services: RunServices
    session: Session
    kind: Kind


class SessionRunContext:
    """One run, as hooks see it: its requests, and methods to make more requests.

    One object serves all hooks in both phases of a run.

    Attributes:
        global_step: the global step before the run, an int.

    >>> from hookbus import SessionRunHook
    >>> from hookbus.testing import run_steps
    >>> class DoubleHook(SessionRunHook):
    ...     def after_run(self, run_context):
    ...         if run_context.global_step == 1:  # before the run that has just ended
    ...             run_context.assign({"rate": 0.2})
    >>> run_steps(DoubleHook(), steps=3, variables={"rate": 0.1}).variables["rate"]
    0.2
    """

    __slots__ = ("_asked", "_feed_dict", "_fetches", "_frame", "_phase", "global_step")

    _frame: RunFrame
    _fetches: Any
    _feed_dict: Mapping[Node | str, Any] | None
    _phase: Literal["opening", "asking", "asked", "failed", "over"]
    _asked: RunRequests | None
    global_step: int

    @property
    def session(self) -> Session:
        """The backend session; runs through it reach no hook."""
        return self._frame.session

    @property
    def kind(self) -> Kind:
        """The purpose of the run: ``train``, ``eval``, ``predict`` or ``aux``."""
        return self._frame.kind

    @classmethod
    def of(
        cls,
        frame: RunFrame,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        global_step: int,
    ) -> SessionRunContext:
        """Return the context of a run behind every ``before_run``; for the session."""
        context = cls()
        context._frame, context.global_step = frame, global_step
        context._fetches, context._feed_dict = fetches, feed_dict
        context._phase, context._asked = "asked", None
        return context

    @classmethod
    def before_all(cls, frame: RunFrame, global_step: int) -> SessionRunContext:
        """Return a context for the time before the first run; for the session."""
        context = cls.of(frame, None, None, global_step)
        context._phase = "opening"
        return context

    @property
    def is_opening(self) -> bool:
        """Whether it belongs to ``before_training``, when there is no run yet."""
        return self._phase == "opening"

    @property
    def is_over(self) -> bool:
        """Whether the run failed, or its requests are served; it takes no more then."""
        return self._phase == "over"

    @property
    def is_asking(self) -> bool:
        """Whether a ``before_run`` of the run is still to come, or under way."""
        return self._phase == "asking"

    @property
    def has_failed(self) -> bool:
        """Whether the run is a step that failed; a hook can only have it undone."""
        return self._phase == "failed"

    @property
    def asked(self) -> RunRequests:
        """The requests of hooks in the run, which the session serves."""
        if self._asked is None:
            self._asked = RunRequests()
        return self._asked

    def fail(self) -> None:
        """Forget all requests, and take only one to undo the step; for the session."""
        self._asked, self._phase = None, "failed"

    def close(self) -> None:
        """Take no further request; for the session, not for hooks."""
        self._phase = "over"

    @contextlib.contextmanager
    def reopened(self) -> Iterator[None]:
        """Take requests in a block after the run; for the session, not for hooks."""
        was_over, self._phase = self.is_over, "asked"
        try:
            yield
        finally:
            if was_over:
                self.close()

    @property
    def original_args(self) -> SessionRunArgs:
        """The caller's own fetches and feeds, without those of hooks.

        As in TensorFlow they are the caller's objects, which hooks must not change.
        """
        return SessionRunArgs(self._fetches, self._feed_dict)

    @property
    def last_step(self) -> int | None:
        """The global step at which the session is expected to end, or None if unknown.

        In a custom loop, the end of ``session.epochs`` counts, if each epoch has one pass.
        Without it, that of the open pass of ``session.iterate`` does, even if another pass
        follows.
        """
        return self._frame.services.planned_end()

    @property
    def epoch(self) -> int | None:
        """The number of the epoch in a custom loop, from 0.

        Without ``session.epochs`` it is the number of the outermost open pass of
        ``session.iterate``. None between two passes, and in a loop that calls neither.
        """
        return self._frame.services.epoch()

    @property
    def evaluation(self) -> str | None:
        """The name of the evaluation that the run is a part of.

        None outside of evaluations, and in one without a name: see :attr:`kind`.
        """
        return self._frame.services.evaluation()

    @property
    def input_numbers(self) -> Mapping[str, int]:
        """The number of the value that the run works on, by input, counted from 0.

        A number counts the values of the current pass over the input. In a custom loop the
        innermost open pass of ``session.iterate`` counts, under its name or ``iterate``.
        """
        return self._frame.services.input_numbers()

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked to stop."""
        asked = self._asked
        return self._frame.services.was_stopped() or (
            asked is not None and asked.stop is not None
        )

    def request_stop(
        self,
        reason: str = "asked to stop",
        kind: StopKind = "stopped",
        label: str | None = None,
    ) -> None:
        """Ask for the end of the session after this run.

        All hooks still get this run's ``after_run``. The request cannot be withdrawn.

        Args:
            reason: the reason, in words, for the outcome.
            kind: the kind of the outcome. ``preempted`` ends the session like SIGTERM: it
                saves a checkpoint after this run, and its block exits with the code 75, so
                that a scheduler starts the program again and the training continues.
            label: a word for the programs that read the outcome, in addition to the reason,
                like ``pruned``.

        Raises:
            UsageError: the run is over: it failed, or the session has served its requests;
                or there is no such kind, or the label is no text.
        """
        services = self._frame.services
        who = services.current_hook.name
        services.requests.request_stop(who, reason, self, kind, label)

    def request_save(self, why: str = "asked to save", keep: bool = False) -> None:
        """Ask for a checkpoint after the last ``after_run`` of this run.

        ``veto_save`` and ``before_save`` ask for the checkpoint that is being written;
        ``after_save`` asks for one after the next run.

        Args:
            why: the reason, in words.
            keep: never prune this checkpoint; its manifest says so, and *why*.

        Raises:
            UsageError: the run is over: it failed, or the session has served its requests.
        """
        services = self._frame.services
        services.requests.request_save(services.current_hook.name, why, self, keep)

    def assign(self, values: Mapping[Node | str, Any], now: bool = False) -> None:
        """Ask for variables to be set.

        An assignment from ``before_run`` is committed with the run's own updates and is
        not visible to its reads. An assignment from ``after_run`` is committed before the
        next run and before any save; one from ``veto_save`` or ``before_save`` before that
        checkpoint is written, and one from ``after_save``, or between two steps of a custom
        loop from ``evaluated`` or ``epoch_ended``, before the next run.

        Args:
            values: the values by variable.
            now: write them at once. The next reader of a variable sees the value: the run
                itself after ``before_run``, and the hooks after this one through
                ``session``. The values stay even if the run fails.

        Raises:
            UsageError: the run is over: it failed, or the session has served its requests;
                or with *now*, no hook is being called, the run evaluates, or variables are
                swapped.
            UnknownNodeError: there is no node of that name.
            GraphError: a node is not a variable, or is the global step, or the value has
                another shape than the variable.
            WriteConflictError: another party writes the same variable in this run.
        """
        services = self._frame.services
        if now:
            services.check_write(self.kind)
        named = {services.writable(node, value): value for node, value in values.items()}
        services.requests.assign(services.current_hook.name, named, self, later=not now)
        if now:
            services.write(named)

    def request_rollback(
        self,
        why: str = "asked to roll back",
        skip_inputs: bool = True,
        *,
        to: RollbackPlace = "checkpoint",
    ) -> None:
        """Ask the session to go back to its newest good checkpoint after this run.

        After the last ``after_run`` the session restores the checkpoint as after a
        preemption: variables, the global step, the states of hooks, generators and the
        position in the input. The changes, assignments and save requests of this run are
        gone. The session continues from the checkpoint, and a stop waits until the session
        comes to this step again. In a custom loop, the session restores tracked objects in
        place, and the open pass of ``session.iterate`` goes back. A pass cannot go back if
        it is over an iterator, or if the checkpoint is older than the pass. Then it
        continues with its next value.

        With ``to="step"`` a custom loop goes back to where it pulled the value in hand of
        ``session.iterate``. The state comes from memory, and the loop gets the same value
        once more. The hook that asks keeps its own state, so that it can do something else
        this time, like wrapping the value with a part of it. It has to declare
        ``HookOptions(rolls_back="step")``.

        Args:
            why: the reason, in words, for the log.
            skip_inputs: whether to leave out the values that this run took from inputs when
                the session comes to them again, also after a kill. A step never does.
            to: ``"checkpoint"`` or ``"step"``.

        Raises:
            UsageError: the run is over: it failed, or the session has served its requests.
                The run itself raises one if the session saves nothing or has no good
                checkpoint, or if a backend or a loop cannot do it, and a TrainingError if
                it goes back too often; see :class:`Recovery`.
        """
        services = self._frame.services
        who = services.current_hook.name
        services.requests.request_rollback(who, why, skip_inputs, self, to)

    def skip_update(self) -> None:
        """Ask in ``before_run`` that this run does not update the model.

        Its train ops run, but their updates are not committed. All else is as in any run:
        the global step advances, inputs are used, outputs have new values, assignments are
        committed. Hooks see the skip as ``run_values.skipped``. In a custom loop,
        ``step.skipped`` asks the loop not to update.

        Raises:
            UsageError: every ``before_run`` of the run was called, or its kind is not
                ``train``. The run itself raises one if no train op runs.
        """
        services = self._frame.services
        services.requests.skip_update(services.current_hook.name, self)

    def wait(self, seconds: float) -> bool:
        """Wait inside the run; return whether the whole time passed.

        A signal that ends the session, or a stop of its coordinator, ends the wait early,
        even one from before the call. Other ways of waiting do not notice them.

        Args:
            seconds: the longest time to wait.
        """
        return pause(seconds, self._frame.services.is_ending)

    def emit(self, event: str, /, **arguments: Any) -> list[Any]:
        """Send an event to all hooks and return their answers without the Nones.

        For ``logged``, ``measured`` and events that plugins add themselves.

        Args:
            event: the event's name.
            arguments: all arguments of the event, by name. Each hook gets those it names.
        """
        return self._frame.services.emit(event, **arguments)


@attrs.define(eq=False)
class SessionRunValues:
    """The results of one run for one hook. Do not modify it.

    Attributes:
        results: the values, in the structure of the hook's fetches; None without fetches.
        options: the merged options of the run.
        run_metadata: the backend's record of the run; empty unless it was traced.
        global_step: the global step after the run, an int.
        skipped: whether a hook had the run skip its update.

    >>> from hookbus import SessionRunArgs, SessionRunHook
    >>> from hookbus.testing import run_steps
    >>> class PrintHook(SessionRunHook):
    ...     def before_run(self):
    ...         return SessionRunArgs({"loss": "loss"})
    ...     def after_run(self, run_values):
    ...         print(run_values.global_step, run_values.results)
    >>> _ = run_steps(PrintHook(), values={"loss": [0.5, 0.25]})
    1 {'loss': 0.5}
    2 {'loss': 0.25}
    """

    results: Any
    options: RunOptions
    run_metadata: RunMetadata
    global_step: int
    skipped: bool = False


CommonValues: TypeAlias = tuple[RunOptions, RunMetadata, int, bool]
"""The fields of a SessionRunValues after its results, which all hooks of a run share."""


class UsualRunValues(SessionRunValues):
    """The results of a run that is not traced and skips nothing; most runs are such.

    Their common parts belong to the class, because each hook gets its own object
    in each run.
    """

    __slots__ = ()
    __init__ = object.__init__
    options: RunOptions = RunOptions()
    run_metadata: RunMetadata = RunMetadata()
    skipped = False


UsualRunValues.__name__ = UsualRunValues.__qualname__ = "SessionRunValues"
