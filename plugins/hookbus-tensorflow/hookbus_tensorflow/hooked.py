"""Calls hooks of TensorFlow around the runs of a plain session of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import tensorflow as tf

from hookbus import ChiefSessionCreator, Config, MonitoredSession, SessionRunArgs
from hookbus.backend import EmbeddedSession, Execution, Graph, Node
from hookbus.errors import FeedConflictError
from hookbus_tensorflow.context import TFContext, merged, to_hookbus
from hookbus_tensorflow.hooks import RunEvents

v1: Any = tf.compat.v1

_CALLER = "caller"
"""The node for the fetches of the caller. No tensor that is fed can have such a name."""


class HookedSession:
    """Runs a ``tf.compat.v1.Session`` with hooks of TensorFlow, and does nothing else.

    Each run calls every ``before_run``, runs the session once for all, and calls every
    ``after_run``, as the sessions of TensorFlow do. It calls no other method of the hooks.
    No plugin takes part, no flag applies, and signals are left to the program.

    Args:
        sess: the session.
        hooks: the hooks, in this order.
    """

    def __init__(self, sess: Any, hooks: Iterable[Any]) -> None:
        self._sess = sess
        graph = _Names()
        self._runs = runs = _PlainSession(graph, sess)
        self._monitored = MonitoredSession(
            session_creator=ChiefSessionCreator(graph, backend=lambda _: runs),
            hooks=_hooks_on(runs, hooks),
            config=Config(autoload=False, header=False),
            kind="eval",  # hookbus neither saves nor agrees with other processes
            watch_signals=False,
        )

    @property
    def graph(self) -> Any:
        """The ``tf.Graph`` of the session."""
        return self._sess.graph

    def should_stop(self) -> bool:
        """Return whether a hook has asked to stop."""
        return self._monitored.should_stop()

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run once, with all that the hooks ask for.

        Args:
            fetches: as in ``tf.compat.v1.Session.run``.
            feed_dict: as there; it is not changed.
            options: as there; the options of hooks are merged into it.
            run_metadata: as there.

        Raises:
            RuntimeError: a hook has asked to stop before, or two parties feed one tensor.
        """
        call = _Call(
            fetches,
            feed_dict,
            options or v1.RunOptions(),
            run_metadata or v1.RunMetadata(),
        )
        feeds, around = _named(feed_dict), self._runs.call
        self._runs.call = call
        try:
            return self._monitored.run(_CALLER, feeds)
        except FeedConflictError as error:
            who = "a SessionRunHook and user" if error.node in feeds else "two hooks"
            raise FeedConflictError(
                f"Same tensor is fed by {who}. Conflict(s): {error.node}", error.node
            ) from error
        finally:
            self._runs.call = around  # that of a hook's own call, which is refused


@attrs.define(eq=False)
class _Call:
    """One call of ``run``, in TensorFlow's terms.

    Attributes:
        fetches, feed_dict: those of the caller.
        options, run_metadata: those of the run.
        fetched: the fetches of each party, by the name of the node for them.
        fed: the feeds of each hook that has some.
        context: the run as hooks see it; None before the first hook.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None
    options: Any
    run_metadata: Any
    fetched: dict[str, Any] = attrs.field(init=False)
    fed: list[Mapping[Any, Any]] = attrs.field(factory=list)
    context: _CallContext | None = None

    @fetched.default
    def _begin_with_caller(self) -> dict[str, Any]:
        return {_CALLER: self.fetches}

    @property
    def feeds(self) -> Mapping[Any, Any] | None:
        """The feeds of all; if no hook feeds, the very object of the caller."""
        if not self.fed:
            return self.feed_dict
        united: dict[Any, Any] = {}
        for feeds in (*self.fed, self.feed_dict or {}):
            united.update(feeds)
        return united


class _CallContext(TFContext):
    """The context of a run that shows the arguments of ``run`` as they are."""

    def __init__(self, ours: Any, tf_session: Any, call: _Call) -> None:
        super().__init__(ours, tf_session)
        self._call = call

    @property
    def original_args(self) -> Any:
        """The caller's own fetches and feeds."""
        return v1.train.SessionRunArgs(self._call.fetches, self._call.feed_dict)

    def record(self, run_values: Any) -> tuple[Any, Any]:  # noqa: ARG002 (of hookbus)
        """Return the options of the run and TensorFlow's record of it."""
        return self._call.options, self._call.run_metadata


class _Names(Graph):
    """A graph in which each name is a node: one for all fetches of a party, or one feed.

    TensorFlow takes fetches and feeds apart itself. So hooks fetch and feed whatever a
    ``tf.compat.v1.Session`` accepts.
    """

    def __init__(self) -> None:
        self._found: dict[str, Node] = {}
        super().__init__()

    def find(self, name: str) -> Node | None:
        """Return the node of any name."""
        if name == "global_step":  # it is added, like any graph's
            return None
        node = self._found.get(name)
        if node is None:
            node = self._found[name] = Node(name, "native", graph=self)
        return node


class _PlainSession(EmbeddedSession):
    """Executes each run as one run of a ``tf.compat.v1.Session``.

    ``global_step`` is the number of runs: the graph of TensorFlow may lack one.

    Args:
        graph: the names.
        sess: the session of TensorFlow; its owner closes it.

    Attributes:
        call: the call that is being served; None between two.
    """

    # The caller gets every error of TensorFlow.
    preemption_errors: tuple[type[Exception], ...] = ()

    def __init__(self, graph: _Names, sess: Any) -> None:
        super().__init__(graph)
        self._sess = sess
        self.call: _Call | None = None

    def compile(
        self,
        fetches: Sequence[str],
        feeds: frozenset[str],  # noqa: ARG002 (TensorFlow checks them)
        host: Sequence[str] = (),
    ) -> Any:
        """Return the names whose values a run returns."""
        return (*fetches, *host)

    def execute(self, execution: Execution) -> Sequence[Any]:
        """Run TensorFlow once, with the fetches, feeds and options of all.

        The call has the feeds under the keys of each party, and TensorFlow's record.
        """
        call, program = self.call, execution.program
        assert call is not None
        values = self._sess.run(
            fetches={name: call.fetched[name] for name in program},
            feed_dict=call.feeds,
            options=merged(execution.options.native, call.options),
            run_metadata=call.run_metadata,
        )
        self.global_step += 1
        return [values[name] for name in program]

    def context_of(self, run_context: Any) -> _CallContext:
        """Return TensorFlow's context of the current run, one for all hooks."""
        call = self.call
        assert call is not None
        if call.context is None:
            call.context = _CallContext(run_context, self._sess, call)
        return call.context


class _RunHook(RunEvents):
    """A hook of TensorFlow of which only the two events of runs are called.

    Args:
        hook: the hook.
        name: the name of the node for its fetches.
        runs: has the call that is being served.
    """

    def __init__(self, hook: Any, name: str, runs: _PlainSession) -> None:
        super().__init__(hook)
        self._name, self._runs = name, runs
        self._usual = SessionRunArgs(name)

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        """Ask the hook, and keep its answer in TensorFlow's terms for the run."""
        request, call = self.request_of(run_context), self._runs.call
        if request is None:
            return None
        assert call is not None
        fetches = None
        if request.fetches is not None:
            fetches, call.fetched[self._name] = self._name, request.fetches
        if request.feed_dict:
            call.fed.append(request.feed_dict)
        elif request.options is None and fetches is not None:
            return self._usual
        return SessionRunArgs(
            fetches, _named(request.feed_dict), to_hookbus(request.options)
        )


def _hooks_on(runs: _PlainSession, hooks: Iterable[Any]) -> list[Any]:
    """Return hooks of hookbus for those of TensorFlow.

    A session names a hook by its class in the notes on its errors.
    """
    return [
        type(type(hook).__name__, (_RunHook,), {})(hook, f"hook {place}", runs)
        for place, hook in enumerate(hooks)
    ]


def _named(feeds: Mapping[Any, Any] | None) -> dict[Node | str, Any]:
    """Return feeds by the name of what is fed, so that hookbus compares the parties'."""
    return {_name_of(key): value for key, value in (feeds or {}).items()}


def _name_of(key: Any) -> str:
    """Return the name of a tensor; TensorFlow also takes that as the key."""
    if isinstance(key, str):
        return key
    return str(getattr(key, "name", f"{type(key).__name__} {id(key)}"))
