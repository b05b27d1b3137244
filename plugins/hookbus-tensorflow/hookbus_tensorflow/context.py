"""Shows a run to TensorFlow: its context, its options and its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from hookbus import OpRecord
from hookbus.backend import Node, RunMetadata, RunOptions

_train = tf.compat.v1.train
_RunMetadata = tf.compat.v1.RunMetadata
_RunOptions = tf.compat.v1.RunOptions
_LARGEST = ("trace_level", "timeout_in_ms", "inter_op_thread_pool")
_INTERNAL = {"_SOURCE", "_SINK"}
_ANY = ("output_partition_graphs", "report_tensor_allocations_upon_oom")


def to_hookbus(options: Any) -> RunOptions | None:
    """Return TensorFlow's options of a run as hookbus has them."""
    return None if options is None else RunOptions(options.trace_level, (options,))


def merged(every: Iterable[Any], into: Any = None) -> Any:
    """Return the union of options as TensorFlow unites those of hooks.

    Args:
        every: the options of each party, in order.
        into: the options to change; by default new ones.
    """
    options = _RunOptions() if into is None else into
    for each in every:
        for field in _LARGEST:
            setattr(options, field, max(getattr(options, field), getattr(each, field)))
        for field in _ANY:
            setattr(options, field, getattr(options, field) or getattr(each, field))
        debug, more = options.debug_options, each.debug_options
        if more.debug_tensor_watch_opts:
            debug.debug_tensor_watch_opts.extend(more.debug_tensor_watch_opts)
        if more.reset_disk_byte_usage:
            debug.reset_disk_byte_usage = True
    return options


def to_tensorflow(options: RunOptions) -> Any:
    """Return hookbus' options of a run as TensorFlow has them."""
    native = merged(options.native)
    native.trace_level = max(native.trace_level, options.trace_level)
    return native


def record_of(metadata: RunMetadata) -> Any:
    """Return TensorFlow's record of a run, which is empty unless the run was traced."""
    found = metadata.native
    return found if isinstance(found, _RunMetadata) else _RunMetadata()


class TFContext(tf.compat.v1.train.SessionRunContext):  # type: ignore[misc]
    """The context of a run as TensorFlow's hooks see it.

    Attributes:
        ours: the context as hooks of hookbus see it.
    """

    def __init__(self, ours: Any, tf_session: Any) -> None:
        super().__init__(None, tf_session)
        self.ours = ours
        self._record: tuple[Any, Any] | None = None

    @property
    def original_args(self) -> Any:
        """The caller's own fetches and feeds, without those of hooks."""
        args = self.ours.original_args
        return _train.SessionRunArgs(_things(args.fetches), args.feed_dict)

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked to stop."""
        return bool(self.ours.stop_requested)

    def request_stop(self) -> None:
        """Ask for the end of the session after this run."""
        self.ours.request_stop()

    def record(self, run_values: Any) -> tuple[Any, Any]:
        """Return the options of the run and TensorFlow's record of it."""
        if self._record is None:
            metadata, options = run_values.run_metadata, run_values.options
            plain = not (options.trace_level or options.native)
            native = _RunOptions() if plain else to_tensorflow(options)
            self._record = native, record_of(metadata)
        return self._record


def _things(fetches: Any) -> Any:
    """Return fetches with the objects of TensorFlow in the places of their nodes."""

    def thing(part: Any) -> Any:
        element = part.graph.element(part.name) if isinstance(part, Node) else None
        return part if element is None else element.thing

    return mapped(thing, fetches)


def mapped(change: Callable[[Any], Any], fetches: Any) -> Any:
    """Return a nesting of lists, tuples and dicts with each part changed."""
    cls = fetches.__class__
    if cls is list or cls is tuple:
        return cls(mapped(change, part) for part in fetches)
    if isinstance(fetches, dict) and cls.__init__ is dict.__init__:
        return cls((key, mapped(change, part)) for key, part in fetches.items())
    if isinstance(fetches, tuple) and hasattr(fetches, "_make"):
        return cls(*(mapped(change, part) for part in fetches))
    return change(fetches)


def traced(
    call: Callable[..., Any],
    fed: Sequence[Any],
    options: RunOptions,
    metadata: RunMetadata,
) -> Sequence[Any]:
    """Let TensorFlow run with options; put its record into *metadata*."""
    native = to_tensorflow(options)
    record = _RunMetadata()
    began, epoch = time.perf_counter(), time.time()
    values: Sequence[Any] = call(*fed, options=native, run_metadata=record)
    metadata.native = record
    metadata.start, metadata.seconds = began, time.perf_counter() - began
    metadata.ops = _records(record, began - epoch)
    return values


def _records(record: Any, offset: float) -> list[OpRecord]:
    """Return the ops that TensorFlow has traced, in the order in which they ended."""
    found = [
        OpRecord(
            node.node_name,
            "op",
            node.all_start_micros / 1e6 + offset,
            node.all_end_rel_micros / 1e6,
        )
        for device in record.step_stats.dev_stats
        for node in device.node_stats
        if node.node_name not in _INTERNAL
    ]
    return sorted(found, key=lambda each: each.start + each.seconds)
