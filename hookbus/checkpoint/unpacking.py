"""Checks values of libraries in checkpoints, and has the libraries unpack them.

A checkpoint may come from anybody. A library that gets a dtype, a shape and bytes that do
not fit each other may read beyond the bytes, or end the process.
"""

from __future__ import annotations

from typing import Any

from hookbus.errors import CheckpointError, HookbusError, PluginError
from hookbus.library.base import Library, Packed
from hookbus.library.lookup import library_named

_MOST_BYTES = 2**63 - 1
"""The most bytes that a value can have."""


def unpacked(name: str, packed: Packed, key: str) -> Any:
    """Return a value of a library out of a checkpoint.

    Args:
        name: the library.
        packed: the value.
        key: its place in the checkpoint, for messages.

    Raises:
        CheckpointError: no plugin ever packs such a value.
        UsageError: no plugin knows the library, or it is set up differently here.
        PluginError: the plugin cannot read one of its own values.
    """
    library = library_named(name)
    try:
        _check_packed(name, library, packed, key)
        return library.unpack(packed)
    except HookbusError:
        raise
    except Exception as error:  # the checkpoint is good, so no error of a damaged one
        raise PluginError(
            f"the plugin of {name} cannot read {key}, which has the dtype {packed.dtype} "
            f"and the shape {packed.shape}: {type(error).__name__}: {error}"
        ) from error


def _check_packed(name: str, library: Library, packed: Packed, key: str) -> None:
    size = library.itemsize(packed.dtype)
    if size is None:
        raise CheckpointError(
            f"its {key} has the dtype {packed.dtype!r}, which {name} here does not have"
        )
    shape, extent = packed.shape, size
    whole = all(type(n) is int and 0 <= n <= _MOST_BYTES for n in shape)
    for n in shape if whole else ():
        extent *= n or 1  # also of nothing: a library computes with the other axes
    if not whole or extent > _MOST_BYTES:
        raise CheckpointError(f"its {key} has the shape {shape}, which no value has")
    needed = 0 if 0 in shape else extent
    if needed != packed.nbytes:
        raise CheckpointError(
            f"its {key} has {packed.nbytes} bytes, and {packed.dtype} of the shape {shape} "
            f"has {needed}"
        )
