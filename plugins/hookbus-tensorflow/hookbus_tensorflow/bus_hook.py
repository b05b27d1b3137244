"""Carries a hookbus session, with plugins and flags, inside a loop of TensorFlow."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import tensorflow as tf

from hookbus import Config, DrivenSession, Outcome, OutOfRangeError, StepRequest, UsageError
from hookbus_tensorflow.bus_graph import BusGraph, BusSession
from hookbus_tensorflow.session import TFProgram

v1: Any = tf.compat.v1


_INSTEAD = "train with the MonitoredSession of hookbus_tensorflow"


class BusHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """One hook of TensorFlow that carries plugins, flags and checkpoints of hookbus.

    Give it to TensorFlow's own ``MonitoredTrainingSession``, or to anything else that
    takes a ``tf.compat.v1.train.SessionRunHook``. TensorFlow runs the loop. The hooks of
    hookbus fetch tensors by name or as they are, and their requests to stop, save and
    assign are served.

    TensorFlow does not tell a hook of an error. This hook notices an error that leaves the
    ``with`` block of the session, and its hooks get ``on_exception``. For errors before the
    session is created, use the hook itself as a block around the session: ``with BusHook()
    as bus, MonitoredTrainingSession(hooks=[bus]) as session``.

    Args:
        hooks: hooks of hookbus and of TensorFlow, called after all plugins, in this order.
        checkpoint_dir: where hookbus saves all global variables and the state of hooks,
            and restores them from. TensorFlow's own checkpoints are left alone; give that
            directory to only one of both. None saves nothing.
        config: which plugins are on; by default the process's.

    >>> from hookbus import Config, SessionRunArgs, SessionRunHook
    >>> class StopHook(SessionRunHook):
    ...     def before_run(self):
    ...         return SessionRunArgs("loss")
    ...     def after_run(self, run_context, run_values):
    ...         if run_values.results < 5:
    ...             run_context.request_stop("the loss is below 5")
    >>> quiet = Config(autoload=False, header=False)
    >>> with tf.Graph().as_default():
    ...     step = v1.train.get_or_create_global_step()
    ...     w = v1.get_variable("w", initializer=4.0)
    ...     loss = tf.identity(w * w, name="loss")
    ...     with tf.control_dependencies([loss]):
    ...         train = tf.group(w.assign_sub(1.0), step.assign_add(1))
    ...     bus = BusHook([StopHook()], config=quiet)
    ...     with v1.train.MonitoredTrainingSession(hooks=[bus]) as session:
    ...         while not session.should_stop():
    ...             _ = session.run(train)
    >>> bus.outcome.kind, bus.outcome.who, bus.outcome.why, bus.outcome.step
    ('stopped', 'stop', 'the loss is below 5', 3)
    """

    def __init__(
        self,
        hooks: Iterable[Any] = (),
        checkpoint_dir: str | Path | None = None,
        config: Config | None = None,
    ) -> None:
        self._arguments = tuple(hooks), checkpoint_dir, config
        self._driven: DrivenSession | None = None
        self._request: StepRequest | None = None
        self._plans: dict[tuple[tuple[str, ...], frozenset[str]], TFProgram] = {}
        self._plan: TFProgram
        self._fetches: Any = None
        self._nodes: list[str] = []
        self._graph: BusGraph
        self._session: BusSession

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the session; None before its end."""
        return None if self._driven is None else self._driven.outcome

    def begin(self) -> None:
        """Call every ``begin``; hooks may add to the ``tf.Graph`` and to hookbus' graph.

        Raises:
            UsageError: another session of TensorFlow still uses this hook.
        """
        if self._is_open:
            raise UsageError(
                "BusHook is part of a session that has not ended; make a BusHook for "
                "each session"
            )
        hooks, checkpoint_dir, config = self._arguments
        self._graph = BusGraph(v1.get_default_graph())
        self._driven = DrivenSession(
            self._graph,
            hooks,
            checkpoint_dir,
            config=config,
            serves={"feed"},
            loop="TensorFlow's session",
            instead={"skip": _INSTEAD, "rollback": _INSTEAD},
        )
        self._reported(self._driven.begin)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Restore hookbus' checkpoint, and call every ``after_create_session``."""
        assert self._driven is not None
        driven = self._driven
        self._request = self._fetches = None
        self._plans.clear()
        coord.register_thread(_CloseWatch(self._left))
        self._session = BusSession(self._graph, session)
        self._reported(lambda: driven.created(self._session))
        if driven.stop is not None:
            coord.request_stop()

    def before_run(self, run_context: Any) -> Any:
        """Call every ``before_run``; return the requests as TensorFlow's arguments."""
        assert self._driven is not None
        if self._request is not None:  # the run failed, and the program goes on
            self._request = None
            self._driven.cancel_step()
        fetches = run_context.original_args.fetches
        if fetches is not self._fetches:
            self._fetches, self._nodes = fetches, self._graph.nodes_in(fetches)
        request = self._request = self._driven.before_step(self._nodes)
        key = request.fetches, frozenset(request.feeds)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._session.compile(*key)
        self._plan = plan
        given = self._graph.elements_of(request.feeds)
        feeds = {element.thing: request.feeds[name] for name, element in given.items()}
        options = None
        if request.options.trace_level:
            options = v1.RunOptions(trace_level=request.options.trace_level)
        return v1.train.SessionRunArgs(
            self._session.natives(plan) or None, feeds or None, options
        )

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Call every ``after_run``, serve the requests of hooks, and pass a stop on."""
        assert self._driven is not None
        request, self._request = self._request, None
        assert request is not None
        if request.options.trace_level:
            request.metadata.native = run_values.run_metadata
        given = {**(run_values.results or {}), **request.feeds}
        values = self._session.complete(self._plan, given)
        self._session.refresh()
        if self._driven.after_step(dict(zip(request.fetches, values, strict=True))):
            run_context.request_stop()

    def end(self, session: Any) -> None:  # noqa: ARG002 (TensorFlow's)
        """End the session; a run that ended the input counts as the end of input.

        Raises:
            KeyboardInterrupt, SystemExit: a signal ended the session.
        """
        assert self._driven is not None
        error = sys.exception() if self._request is not None else None
        if isinstance(error, tf.errors.OutOfRangeError):
            self._driven.failed(OutOfRangeError(str(error.message)))
        else:
            self._driven.end()

    def __enter__(self) -> BusHook:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._driven is not None and self._is_open:
            if error is not None:
                self._driven.failed(error)
            else:
                self._driven.end()

    @property
    def _is_open(self) -> bool:
        return self._driven is not None and self._driven.outcome is None

    def _reported(self, event: Callable[[], None]) -> None:
        """Send an event that TensorFlow calls before it watches for errors."""
        try:
            event()
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            raise  # TensorFlow may create the session again
        except BaseException as error:
            assert self._driven is not None
            self._driven.failed(error)
            raise

    def _left(self) -> None:
        """Tell hooks of the error that leaves the block of TensorFlow's session."""
        error = sys.exception()
        if self._is_open and error is not None and _leaves_block(sys._getframe()):
            assert self._driven is not None
            self._driven.failed(error)


class _CloseWatch(threading.Thread):
    """A thread that never starts; the coordinator asks for it when its session closes."""

    def __init__(self, closed: Callable[[], None]) -> None:
        super().__init__(name="hookbus", daemon=True)
        self._closed = closed

    def is_alive(self) -> bool:
        """Return False."""
        self._closed()
        return False


def _leaves_block(frame: FrameType | None) -> bool:
    """Return whether a block of TensorFlow is being left.

    After a preemption the coordinator also joins its threads, but the session goes on.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "__exit__" and module.startswith("tensorflow."):
            return True
        frame = frame.f_back
    return False
