"""Lets hooks of TensorFlow take part in sessions of hookbus as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hookbus import GraphFinalizedError, SessionRunArgs, UsageError
from hookbus_tensorflow import context
from hookbus_tensorflow.graph import TFGraph
from hookbus_tensorflow.session import TFSession

_train = tf.compat.v1.train


class TFHook:
    """A ``SessionRunHook`` of TensorFlow on the bus.

    It gets what TensorFlow's own sessions give it: ``begin`` with the ``tf.Graph`` as the
    default graph, the ``tf.compat.v1.Session``, a ``SessionRunContext`` and
    ``SessionRunValues`` of TensorFlow. Only the coordinator is hookbus', with the same
    methods.

    Args:
        hook: the hook.
    """

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self._fetches: Any = None
        self._args = SessionRunArgs()

    def begin(self, graph: Any) -> None:
        """Let the hook add ops.

        Raises:
            UsageError: the session does not run a graph of TensorFlow.
        """
        if not isinstance(graph, TFGraph):
            raise UsageError(
                f"{type(self.hook).__name__} is a hook of TensorFlow and needs a session "
                f"with a TFGraph; this session has a {type(graph).__name__}"
            )
        with graph.tf_graph.as_default():
            self.hook.begin()

    def after_create_session(self, session: TFSession, coord: Any) -> None:
        """Give the hook the new session of TensorFlow."""
        with self._in_session(session, "after_create_session"):
            self.hook.after_create_session(session.tf_session, coord)

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        """Ask the hook what it wants from the run."""
        session: TFSession = run_context.session
        with self._in_session(session, "before_run"):
            request = self.hook.before_run(session.context_of(run_context))
        if request is None:
            return None
        graph = session.graph
        fetches = fetches_of(request.fetches, graph)
        own = context.to_hookbus(request.options)
        if request.feed_dict or own is not None:
            return SessionRunArgs(fetches, request.feed_dict or None, own)
        if self._fetches.__class__ is not fetches.__class__ or self._fetches != fetches:
            self._fetches, self._args = fetches, SessionRunArgs(fetches)
        return self._args

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Give the hook the results of the run."""
        session: TFSession = run_context.session
        seen = session.context_of(run_context)
        values = _train.SessionRunValues(run_values.results, *seen.record(run_values))
        with self._in_session(session, "after_run"):
            self.hook.after_run(seen, values)

    def end(self, session: TFSession) -> None:
        """Let the hook finish."""
        with self._in_session(session, "end"):
            self.hook.end(session.tf_session)

    @contextlib.contextmanager
    def _in_session(self, session: TFSession, event: str) -> Iterator[None]:
        """Make the graph the default one, and explain why no op can be added to it."""
        try:
            with session.graph.tf_graph.as_default():
                yield
        except RuntimeError as error:
            if str(error) != "Graph is finalized and cannot be modified.":
                raise
            raise GraphFinalizedError(
                f"{type(self.hook).__name__} adds an op to the tf.Graph in {event}(), and "
                "the graph is finalized; add ops in begin()"
            ) from error


def fetches_of(fetches: Any, graph: TFGraph) -> Any:
    """Return fetches with TensorFlow's meaning of names: ``loss`` is the op, not its value.

    Objects of TensorFlow become nodes, which are found faster.
    """

    def node(part: Any) -> Any:
        if isinstance(part, str):
            with contextlib.suppress(KeyError, ValueError):  # a node of hookbus, or a slip
                part = graph.tf_graph.as_graph_element(part)
        if part is None or isinstance(part, str):
            return part
        found = graph.leaf(part)
        return part if found is None else found

    return context.mapped(node, fetches)
