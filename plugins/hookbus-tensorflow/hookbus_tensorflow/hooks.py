"""Lets hooks of TensorFlow take part in sessions of hookbus as they are."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from hookbus import SessionRunArgs, UsageError
from hookbus.errors import GraphFinalizedError
from hookbus_tensorflow import context
from hookbus_tensorflow.graph import TFGraph
from hookbus_tensorflow.session import TFSession

_SessionRunArgs = tf.compat.v1.train.SessionRunArgs
_SessionRunValues = tf.compat.v1.train.SessionRunValues
_FIXED = (str, tf.Tensor, tf.Operation, tf.Variable)
_NOTHING = object()


class RunEvents:
    """Calls the ``before_run`` and ``after_run`` of a hook of TensorFlow.

    Args:
        hook: the hook.
    """

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def request_of(self, run_context: Any) -> Any:
        """Return the answer of the hook's ``before_run``."""
        return self.hook.before_run(run_context.session.context_of(run_context))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Give the hook the results of the run."""
        seen = run_context.session.context_of(run_context)
        options, record = seen.record(run_values)
        values = _SessionRunValues(run_values.results, options, record)
        self.hook.after_run(seen, values)


class TFHook(RunEvents):
    """A ``SessionRunHook`` of TensorFlow on the bus.

    It gets all that TensorFlow's own sessions give it: ``begin`` with the ``tf.Graph`` as
    the default graph, the ``tf.compat.v1.Session``, a ``SessionRunContext`` and
    ``SessionRunValues`` of TensorFlow. Only the coordinator is hookbus', with the same
    methods.

    Args:
        hook: the hook.
    """

    def __init__(self, hook: Any) -> None:
        super().__init__(hook)
        self._asked: Any = _NOTHING  # what cannot change and was asked for last
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
        with session.graph.tf_graph.as_default():
            self._tell("after_create_session", session.tf_session, coord)

    def before_run(self, run_context: Any) -> Any:
        """Ask the hook for its fetches and feeds."""
        session: TFSession = run_context.session
        try:
            request = self.request_of(run_context)
        except RuntimeError as error:
            self._explain(error, "before_run")
            raise
        if not isinstance(request, _SessionRunArgs):  # None, or what hooks of hookbus give
            return request
        fetches, feeds, options = request
        if fetches is self._asked and not feeds and options is None:
            return self._args
        found = fetches_of(fetches, session.graph)
        own = context.to_hookbus(options)
        if feeds or own is not None:
            return SessionRunArgs(found, feeds or None, own)
        if (
            self._args.fetches.__class__ is not found.__class__
            or self._args.fetches != found
        ):
            self._args = SessionRunArgs(found)
        self._asked = fetches if isinstance(fetches, _FIXED) else _NOTHING
        return self._args

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Give the hook the results of the run."""
        try:
            super().after_run(run_context, run_values)
        except RuntimeError as error:
            self._explain(error, "after_run")
            raise

    def end(self, session: TFSession) -> None:
        """Let the hook finish."""
        with session.graph.tf_graph.as_default():
            self._tell("end", session.tf_session)

    def _tell(self, event: str, *arguments: Any) -> None:
        try:
            getattr(self.hook, event)(*arguments)
        except RuntimeError as error:
            self._explain(error, event)
            raise

    def _explain(self, error: RuntimeError, event: str) -> None:
        """Raise an error that names the hook, if it has added an op too late."""
        if str(error) == "Graph is finalized and cannot be modified.":
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
