"""How a checkpoint's values become bytes: arrays as safetensors, the rest as JSON.

safetensors 0.8 writes the raw buffer of an array and takes it for C order when it reads,
which scrambles any array in another order (safetensors issue 825). So each array is
written as the C-ordered array that has its memory layout, and turned back when read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from safetensors.numpy import load_file, save_file

from hookbus import CheckpointError

_ARRAYS = "arrays.safetensors"
_TREE = "state.json"
_TAG = "$"
_NATIVE = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class SafetensorsCodec:
    """Writes a nested structure as ``state.json`` and ``arrays.safetensors``.

    Everything keeps its type, and arrays their dtype, byte order, shape and memory order.
    An array that is a strided view comes back dense, its axes in the order of the view.
    """

    def write(self, state: Mapping[str, Any], directory: Path) -> None:
        """Write *state* into *directory*.

        Raises:
            CheckpointError: a value has a type that cannot be written.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        tree = _Writer(arrays).encode(state, "")
        (directory / _TREE).write_text(json.dumps(tree, allow_nan=False), "utf-8")
        save_file(arrays, directory / _ARRAYS)

    def read(self, directory: Path) -> dict[str, Any]:
        """Read what :meth:`write` wrote.

        Raises:
            CheckpointError: the files are damaged.
        """
        try:
            tree = json.loads((directory / _TREE).read_text("utf-8"))
            state = _decode(tree, load_file(directory / _ARRAYS))
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise CheckpointError(f"its values cannot be read: {error!r}") from error
        if not isinstance(state, dict):
            raise CheckpointError("its values cannot be read: there is no mapping")
        return state


@attrs.frozen
class _Writer:
    """Turns values into JSON and puts arrays aside."""

    arrays: dict[str, np.ndarray[Any, Any]]

    def encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            # As bits: JSON has no infinity, and NaN has many.
            return value if np.isfinite(value) else {_TAG: "float", "bits": _bits(value)}
        if kind is complex:
            parts = [_bits(value.real), _bits(value.imag)]
            return {_TAG: "complex", "bits": parts}
        if kind is bytes:
            return {_TAG: "bytes", "hex": value.hex()}
        if kind is list:
            return [self.encode(v, f"{path}/{i}") for i, v in enumerate(value)]
        if kind is tuple:
            return {_TAG: "tuple", "items": self.encode(list(value), path)}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, np.generic):
            return self._scalar(value, path)
        if kind is np.ndarray:
            return self._array(value, path)
        raise CheckpointError(
            f"{path or 'the state'} has the type {kind.__module__}.{kind.__qualname__}, "
            "which cannot be saved; give arrays, numbers, strings, lists, tuples, dicts"
        )

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        if type(value) is not dict:
            value = dict(value)
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.encode(v, f"{path}/{key}") for key, v in value.items()}
        pairs = [
            [self.encode(k, f"{path}/key"), self.encode(v, f"{path}/{k}")]
            for k, v in value.items()
        ]
        return {_TAG: "dict", "pairs": pairs}

    def _scalar(self, value: np.generic, path: str) -> Any:
        return {_TAG: "scalar", "array": self._array(np.asarray(value), path)}

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        if value.dtype.hasobject:
            raise CheckpointError(
                f"{path} is an array of Python objects, which cannot be saved"
            )
        dense = value.copy(order="K")
        axes = _axes_by_stride(dense)
        key = path
        while key in self.arrays:  # a key with a slash may spell another one's path
            key += "'"
        self.arrays[key] = _storable(dense.transpose(axes))
        return {
            _TAG: "array",
            "key": key,
            "dtype": np.lib.format.dtype_to_descr(value.dtype),
            "shape": [value.shape[axis] for axis in axes],
            "axes": axes,
        }


def _axes_by_stride(array: np.ndarray[Any, Any]) -> list[int]:
    """Return the axes from the slowest to the fastest: their order in memory."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    return sorted(range(array.ndim), key=lambda axis: -array.strides[axis])


def _storable(ordered: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return C-ordered bytes in a dtype that safetensors has, for other tools' sake."""
    ordered = np.ascontiguousarray(ordered).reshape(ordered.shape)
    if ordered.dtype.str.lstrip("<|=") in _NATIVE:
        return ordered
    # Big-endian, complex, structured, dates …: the bytes as they are.
    return np.frombuffer(ordered.tobytes(), dtype=np.uint8)


def _decode(tree: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(tree, list):
        return [_decode(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _TAG not in tree:
        return {key: _decode(value, arrays) for key, value in tree.items()}
    return _READERS[tree[_TAG]](tree, arrays)


def _read_array(
    tree: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    dtype = np.lib.format.descr_to_dtype(_descriptor(tree["dtype"]))
    stored, axes = arrays[tree["key"]], tree["axes"]
    # A copy: what the reader hands out may be a view of a file or of odd alignment.
    owned = np.empty(tree["shape"], dtype=dtype)
    owned.reshape(-1).view(np.uint8)[...] = stored.reshape(-1).view(np.uint8)
    if axes == sorted(axes):
        return owned
    return owned.transpose(np.argsort(axes)).copy(order="K")


def _descriptor(read: Any) -> Any:
    """Undo what JSON makes of a structured dtype's descriptor: lists for tuples."""
    if not isinstance(read, list):
        return read
    return [
        (entry[0], _descriptor(entry[1]), *[tuple(rest) for rest in entry[2:]])
        for entry in read
    ]


def _bits(value: float) -> str:
    return struct.pack("<d", value).hex()


def _float(bits: str) -> float:
    (value,) = struct.unpack("<d", bytes.fromhex(bits))
    return float(value)


_READERS: Mapping[str, Callable[[Any, Mapping[str, np.ndarray[Any, Any]]], Any]] = {
    "float": lambda tree, _: _float(tree["bits"]),
    "complex": lambda tree, _: complex(*map(_float, tree["bits"])),
    "bytes": lambda tree, _: bytes.fromhex(tree["hex"]),
    "tuple": lambda tree, arrays: tuple(_decode(tree["items"], arrays)),
    "dict": lambda tree, arrays: {
        _decode(key, arrays): _decode(value, arrays) for key, value in tree["pairs"]
    },
    "scalar": lambda tree, arrays: _read_array(tree["array"], arrays)[()],
    "array": lambda tree, arrays: _read_array(tree, arrays),
}
"""How each tagged kind of value is read."""
