"""Converts the options and the record of a run between TensorFlow and hookbus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hookbus.backend import RunMetadata, RunOptions

_LARGEST = ("trace_level", "timeout_in_ms", "inter_op_thread_pool")
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
    options = tf.compat.v1.RunOptions() if into is None else into
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
    ours = isinstance(found, tf.compat.v1.RunMetadata)
    return found if ours else tf.compat.v1.RunMetadata()
