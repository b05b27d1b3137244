"""Provides what a session has for a custom loop: inputs, epochs, steps, evaluations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from hookbus.errors import ArgumentTypeError, UsageError
from hookbus.hooks.hook_options import Kind, check_kind
from hookbus.hooks.outcome import NOBODY
from hookbus.lifecycle.state import RUNNING, SessionState
from hookbus.loop.evaluation import Evaluation
from hookbus.loop.inputs import Passes, Values, hold, track, wrapping
from hookbus.loop.step import SeveralSteps, Step, StepAside
from hookbus.tracked.held import Held
from hookbus.validation import check_increment, check_name

T = TypeVar("T")


class CustomLoop:
    """The methods of a session for a loop without a graph.

    The session sets the attributes before its first event.
    """

    _state: SessionState
    _passes: Passes
    _step: Step | None = None
    """The step that is entered again and again."""

    def track(self, /, **things: Any) -> Any:
        """Save objects of a custom loop with every checkpoint.

        If the restored checkpoint contains them, they are restored immediately, in place:
        each stays the same object and gets the saved state.

        Args:
            things: the objects by name: an array that can be written into; a dict, list or
                deque of arrays, numbers, strings and further containers, also named tuples
                and pytrees of JAX; a NumPy Generator or RandomState; a ``random.Random``;
                anything with ``state_dict`` and ``load_state_dict``; or a pair of functions
                ``(get, set)``. For a value that the loop replaces, see :meth:`hold`.

        Returns:
            The object, or for several objects a dict by name. For a pair, the result of
            ``get``.

        Raises:
            UsageError: an object cannot be restored in place, or its name is already used.
            CheckpointMismatchError: the checkpoint holds another shape, dtype or structure;
                none of the objects is changed.

        >>> import numpy as np
        >>> from hookbus import Config, MonitoredSession
        >>> w = np.zeros(2)
        >>> with MonitoredSession(config=Config(autoload=False)) as session:
        ...     session.track(w=w) is w
        True
        """
        self._state.check_custom_loop("track()")
        return track(self._state, things)

    def hold(self, /, **values: Any) -> Held:
        """Hold values that the loop replaces, and save them with every checkpoint.

        This is :meth:`track` for values that cannot change: a pytree of JAX, like a
        ``TrainState`` of flax or a state of optax, a bare array or key, a number, a named
        tuple. The loop reads and replaces the attributes of the result::

            held = session.hold(state=state)
            held.state = update(held.state, batch)

        If the restored checkpoint contains a value, the attribute has it at once. A
        roll-back replaces it as well.

        Args:
            values: the first values, by name.

        Returns:
            An object with an attribute for each value, and no others.

        Raises:
            UsageError: a value cannot be saved, or its name is already used.
            CheckpointMismatchError: the checkpoint holds another shape, dtype or structure.

        >>> from hookbus import Config, MonitoredSession
        >>> with MonitoredSession(config=Config(autoload=False)) as session:
        ...     held = session.hold(point=(1.5, 2.5), count=0)
        ...     held.count += 1
        ...     held
        Held(point=(1.5, 2.5), count=1)
        """
        self._state.check_custom_loop("hold()")
        return hold(self._state, values)

    def iterate(self, iterable: Iterable[T], *, name: str | None = None) -> Values[T]:
        """Iterate over the input of a custom loop; end when the session stops.

        The code that runs for one value is a unit: the session saves, stops and goes back
        where the next value is pulled, and where the pass ends. Checkpoints contain the
        position: a loop that was killed starts from the beginning, and skips the values
        that it has already used. Passes may be nested; then the innermost one counts.
        Leaving a pass with ``break`` or ``return`` ends it.

        A pass that begins after a stop leaves the session's block, with an exception that
        the block catches.

        Args:
            iterable: yields the same values in every run of the program; shuffle inside
                it.
            name: the name under which hooks may wrap the values, with
                :meth:`Graph.wrap`; without one, no hook can.

        Returns:
            An iterator; it has a length if the iterable has one.
        """
        return self._values("iterate()", iterable, name, None)

    def enumerate(
        self, iterable: Iterable[T], start: int = 0, *, name: str | None = None
    ) -> Values[tuple[int, T]]:
        """Iterate like :meth:`iterate`, with the index of each value.

        In a resumed pass the index goes on: a value has the index that it has in a pass
        without an interruption.

        Args:
            iterable: as in :meth:`iterate`.
            start: the index of the first value.
            name: as in :meth:`iterate`.
        """
        return self._values("enumerate()", iterable, name, start)

    def epochs(self, count: int) -> Values[int]:
        """Yield the numbers of the epochs that are not finished, from 0.

        A resumed run continues in its own epoch, with the random generators as they were
        when that epoch began. So code between passes, like a shuffle, repeats itself
        exactly, and nothing of finished epochs runs again. After the last epoch the session
        writes its last checkpoint; it does not contain changes by the code after the loop.

        A stop ends the loop quietly. The rest of the body of its epoch runs once, and so
        does the code after the loop.

        Args:
            count: the number of all epochs. More than in the finished run before
                continue that training.

        Raises:
            UsageError: the training before has come further, the session has a loop over
                epochs already, a pass is open, or the session has a graph.
            ArgumentTypeError: *count* is not a whole number.
        """
        self._state.check_custom_loop("epochs()", "use loop(), and Estimator for epochs")
        if isinstance(count, bool) or not isinstance(count, int):
            raise ArgumentTypeError(f"epochs() takes a whole number, given: {count!r}")
        passes, position = self._passes, self._state.contents.position
        return Values(range(count), position.epochs(count, passes))

    def _values(
        self, what: str, iterable: Iterable[Any], name: str | None, start: int | None
    ) -> Values[Any]:
        self._state.check_custom_loop(what)
        if name is not None and not isinstance(name, str):
            raise ArgumentTypeError(f"the name of {what} must be a str, given: {name!r}")
        if self._state.loop.block == "evaluation":
            raise UsageError(
                f"{what} inside evaluation(): iterate over the data without the session, "
                "which keeps the position of the training"
            )
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise ArgumentTypeError(
                f"session.{what} takes an iterable, not a {type(iterable).__name__}"
            )
        state = self._state
        values = state.contents.position.iterate(
            iterable, self._passes, wrapping(state, name), start, name
        )
        return Values(iterable, values)

    def step(self, *, kind: Kind | None = None, increment: int = 1) -> Step:
        """Run one step of a custom loop as a block.

        Entering the block calls ``before_run``. Leaving it normally counts the step and
        calls ``after_run``. An error leaves the block; the step is not retried.

        Entering it after a stop raises SessionStoppedError, which leaves a loop that does
        not check :meth:`should_stop`. The session's block catches the error, and the
        program continues after the block.

        Args:
            kind: the purpose of the step, by default the session's; an ``aux`` step is
                allowed after a stop.
            increment: the number of global steps that the block counts, for a call that
                does several, like ``jax.lax.scan``. A step of another kind counts none.

        Raises:
            UsageError: the session has a graph, or *increment* is below 1.
            ArgumentTypeError: *increment* is not a whole number.

        >>> from hookbus import Config, MonitoredSession
        >>> with MonitoredSession(config=Config(autoload=False)) as session:
        ...     with session.step(increment=8):
        ...         pass
        ...     session.global_step
        8
        """
        state, step = self._state, self._step
        if (
            step is None
            or increment is not step.increment  # it may be True, which equals 1
            or kind is not None
            or state.phase is not RUNNING
        ):
            state.check_custom_loop("step()")
            check_kind(kind)
            check_increment("step", increment)
            if kind is not None and kind != state.kind:
                step = StepAside(state, kind)
            elif increment != 1:
                step = SeveralSteps(state, state.kind, increment)
            else:
                step = Step(state, state.kind)
            state.contents.position.expect(step.increment)
            if kind is None:
                self._step = step
        if state.bus.current.name is not NOBODY:
            self._refuse_inside_event()
        return step

    def evaluation(
        self, name: str | None = None, *, reduce: Literal["none", "mean"] = "none"
    ) -> Evaluation:
        """Evaluate the model of a custom loop as a block, between two steps.

        Hooks get the means over the reports in the block as ``evaluated``. Random numbers
        that are drawn in the block have no effect on the training. Also allowed after a
        stop.

        A loop that resumes repeats the blocks from before its checkpoint. They do not reach
        hooks, whose state contains them already.

        Args:
            name: distinguishes several evaluations, for example on other data.
            reduce: how to combine the means of several processes: ``"none"`` gives each
                process its own, ``"mean"`` is over the values of all processes. For
                ``"mean"``, all processes must evaluate.

        Raises:
            UsageError: the session has a graph, the name has a slash, or there is no such
                reduction.
            ArgumentTypeError: the name is not a str.

        >>> from hookbus import MonitoredSession
        >>> with MonitoredSession() as session:
        ...     with session.evaluation("val") as evaluation:
        ...         evaluation.report(loss=1.0, weight=32)
        ...         evaluation.report(loss=2.0, weight=32)
        ...     evaluation.metrics
        {'loss': 1.5}
        """
        self._state.check_custom_loop(
            "evaluation()", "use the plugin in-memory-evaluator, or run(..., kind='eval')"
        )
        check_name("the name of evaluation()", name)
        self._refuse_inside_event()
        return Evaluation(self._state, name, reduce)

    @property
    def resuming(self) -> bool:
        """Whether a resumed program repeats code from before its checkpoint.

        It is true in a custom loop until the program comes to the place of the checkpoint.
        """
        return self._state.contents.position.resuming

    def _refuse_inside_event(self) -> None:
        """Refuse a run inside an event: it would forget the requests of hooks."""
        who = self._state.bus.current.name
        if who is not NOBODY:
            raise UsageError(
                f"hook {who!r} cannot run the session that calls it; use run_context."
                "session.run(), which calls no hook"
            )
