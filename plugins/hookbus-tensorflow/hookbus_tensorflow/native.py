"""Opens sessions of TensorFlow, and writes into their variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hookbus import log
from hookbus.errors import NotReadyError
from hookbus_tensorflow.errors import meaningful
from hookbus_tensorflow.graph import TFGraph


class NativeSession(tf.compat.v1.Session):  # type: ignore[misc]
    """TensorFlow's session, which reports runs that hooks and programs do themselves."""

    def __init__(self, graph: TFGraph, ran: Callable[[Any, Any], None]) -> None:
        super().__init__(graph.master, graph.tf_graph, graph.session_config)
        self._ran = ran

    def run(
        self,
        fetches: Any,
        feed_dict: Any = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run part of the graph."""
        with meaningful():
            values = super().run(fetches, feed_dict, options, run_metadata)
        self._ran(fetches, feed_dict)
        return values


def opened(graph: TFGraph, ran: Callable[[Any, Any], None]) -> Any:
    """Return a session of TensorFlow that is ready for use."""
    if graph.session_creator is not None:
        return graph.session_creator.create_session()
    session = NativeSession(graph, ran)
    try:
        _initialize(session, graph.scaffold, graph.restore_from)
    except BaseException:
        session.close()
        raise
    return session


def _initialize(session: Any, scaffold: Any, restore_from: str | None) -> None:
    """Give all variables their first values, as TensorFlow's own sessions do.

    Raises:
        NotReadyError: some variable has no value afterwards.
    """
    if restore_from is not None:
        scaffold.saver.restore(session, restore_from)
        log.info("restored from a checkpoint of TensorFlow", path=restore_from)
    else:
        if scaffold.init_op is not None:
            session.run(scaffold.init_op, feed_dict=scaffold.init_feed_dict)
        if scaffold.init_fn is not None:
            scaffold.init_fn(session)
    if scaffold.local_init_op is not None:
        session.run(scaffold.local_init_op, feed_dict=scaffold.local_init_feed_dict)
    missing = () if scaffold.ready_op is None else session.run(scaffold.ready_op)
    if len(missing):
        names = ", ".join(repr(name.decode()) for name in missing)
        raise NotReadyError(
            f"Init operations did not make model ready: {names} have no value. Init op: "
            f"{scaffold.init_op.name}, init fn: {scaffold.init_fn}"
        )


def start_queues(session: Any) -> Any:
    """Start the threads that fill the queues of a graph; return their coordinator.

    An error in one of them closes its queue, which ends the input.
    """
    coord = tf.compat.v1.train.Coordinator(clean_stop_exception_types=())
    if session.graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS):
        with session.graph.as_default():
            tf.compat.v1.train.start_queue_runners(session, coord)
    return coord


def assign(session: Any, values: Iterable[tuple[Any, Any]]) -> None:
    """Give variables new values, in as few runs as possible; no op is added."""
    feeds: dict[str, tuple[Any, Any]] = {}
    targets: list[Any] = []
    for variable, value in values:
        initial = variable.initializer.inputs[1]
        if initial.name in feeds:  # two variables with one initial value
            session.run(targets, dict(feeds.values()))
            feeds, targets = {}, []
        dtype = initial.dtype.base_dtype.as_numpy_dtype
        # A copy: TensorFlow takes the memory of an aligned array for the variable.
        feeds[initial.name] = initial, np.array(value, dtype)
        targets.append(variable.initializer)
    if targets:
        session.run(targets, dict(feeds.values()))
