"""Encodes the values of a checkpoint: arrays as safetensors, the rest as JSON.

The format safetensors knows no order but C. So each array is written as the C-ordered array
with the same memory layout, and transposed when it is read.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import numpy as np
from safetensors import SafetensorError

from hookbus import CheckpointError, CheckpointFiles, HookbusError, UsageError
from hookbus.backend import Packed, library_name, library_named, plugin_for, unpacked
from hookbus_safetensors.file import (
    METADATA,
    ArrayFile,
    StoredArray,
    is_native,
    pieces_of,
    write_arrays,
)

_ARRAYS = "arrays.safetensors"
_TREE = "state.json"
_TAG = "$"
_ML_DTYPES = "ml_dtypes"
"""The library that adds bfloat16 and float8 to NumPy; imported if an array has them."""
_DAMAGE = (
    ArithmeticError,  # a number that no array has
    AttributeError,
    LookupError,
    RecursionError,  # thousands of brackets
    SyntaxError,  # NumPy raises it for some descriptions of dtypes
    TypeError,
    ValueError,
    struct.error,
    SafetensorError,
)
"""The errors of reading content that :meth:`SafetensorsCodec.write` never writes."""


class SafetensorsCodec:
    """Writes a nested structure as ``state.json`` and ``arrays.safetensors``.

    Everything keeps its type, and arrays their dtype, byte order, shape and memory order.
    A strided view comes back as a dense array, with its axes in the order of the view.
    """

    def write(self, state: Mapping[str, Any], files: CheckpointFiles) -> None:
        """Write *state* into two files.

        Raises:
            CheckpointError: a value has a type that cannot be written.
        """
        arrays: dict[str, StoredArray] = {}
        tree = _Writer(arrays).encode(state, "")
        with files.open(_TREE) as file:
            file.write(json.dumps(tree, allow_nan=False).encode())
        with files.open(_ARRAYS) as file:
            write_arrays(arrays, file)

    def read(self, directory: Path) -> dict[str, Any]:
        """Read the structure that :meth:`write` wrote.

        Raises:
            CheckpointError: the files are damaged.
            UsageError: the library that defines a dtype is not installed, or no plugin
                knows the library of a value.
            PluginError: the plugin of a library cannot read one of its own values.
        """
        for name in (_TREE, _ARRAYS):
            _check_is_file(directory / name)
        try:
            tree = json.loads((directory / _TREE).read_text("utf-8"))
            with ArrayFile.opened(directory / _ARRAYS) as arrays:
                state = _decode(tree, arrays)
        except HookbusError:
            raise
        except _DAMAGE as error:
            raise CheckpointError(f"its values cannot be read: {error!r}") from error
        if not isinstance(state, dict):
            raise CheckpointError("its values cannot be read: they are not a mapping")
        return state

    def export(
        self, values: Mapping[str, Any], metadata: Mapping[str, str], file: BinaryIO
    ) -> None:
        """Write values as a plain file of safetensors, which every tool for it can read.

        Arrays of another byte order are written in that of the format, little-endian.
        Numbers become arrays without an axis, of 64 bits.

        Raises:
            UsageError: safetensors has no such dtype, or no such name.
            CheckpointError: the library of a value refuses to pack it.
        """
        arrays = {name: _exported(name, value) for name, value in values.items()}
        write_arrays(arrays, file, metadata)


def _exported(name: str, value: Any) -> StoredArray:
    """Return a value as a file for other programs holds it.

    Raises:
        UsageError: safetensors has no such dtype, or no such name.
        CheckpointError: the library of the value refuses to pack it.
    """
    if name == METADATA or not _is_text(name):
        raise UsageError(f"a safetensors file cannot hold an array named {name!r}")
    library = library_name(value)
    packed = None if library is None else library_named(library).pack(value)
    pieces: Callable[[], Iterator[Any]]
    if packed is None:
        array = np.asarray(value)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        pieces = partial(pieces_of, array)
        dtype, shape, nbytes = array.dtype.name, array.shape, array.nbytes
    else:
        pieces = partial(_whole, packed)
        dtype, shape, nbytes = packed.dtype, packed.shape, packed.nbytes
    if not is_native(dtype):
        raise UsageError(
            f"{name!r} has the dtype {dtype}, which a safetensors file cannot hold; load "
            "the state with hookbus.load_tracked(), and convert it"
        )
    return StoredArray.of(dtype, shape, nbytes, pieces)


def _whole(packed: Packed) -> Iterator[Any]:
    """Yield the bytes of a packed value in one piece, which is copied only now."""
    yield packed.data()


@attrs.frozen
class _Writer:
    """Turns values into JSON and puts arrays aside.

    Attributes:
        arrays: every array that was written, by its path in the structure.
        inside: ids of the containers being written, to detect one that contains itself.
    """

    arrays: dict[str, StoredArray]
    inside: set[int] = attrs.field(factory=set)

    def encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        plain = _PLAIN.get(kind)
        if plain is not None:
            return plain(value)
        if kind is np.ndarray:
            return self._array(value, path)
        if isinstance(value, np.generic):
            return {_TAG: "scalar", "array": self._array(np.asarray(value), path)}
        if kind in (list, tuple) or isinstance(value, Mapping):
            return self._container(value, path)
        return self._packed(value, path)

    def _container(self, value: Any, path: str) -> Any:
        if id(value) in self.inside:
            raise CheckpointError(f"{path} contains itself, and cannot be saved")
        self.inside.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self._mapping(value, path)
            if _is_plain(value):
                items = list(value)
            else:
                items = [self.encode(v, f"{path}/{i}") for i, v in enumerate(value)]
            return items if type(value) is list else {_TAG: "tuple", "items": items}
        finally:
            self.inside.remove(id(value))

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        if all(type(key) is str and _is_text(key) for key in value) and _TAG not in value:
            return {key: self.encode(v, f"{path}/{key}") for key, v in value.items()}
        pairs = [
            [self.encode(k, f"{path}/key {i}"), self.encode(v, f"{path}/value {i}")]
            for i, (k, v) in enumerate(value.items())
        ]
        return {_TAG: "dict", "pairs": pairs}

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        axes = _axes_by_stride(value)
        ordered = value.transpose(axes)
        tree = {
            _TAG: "array",
            "key": self._free_key(path),
            "dtype": _describe(value.dtype, path),
            "shape": [*ordered.shape],
            "axes": axes,
        }
        if _dtype(tree).char != value.dtype.char:
            tree["char"] = value.dtype.char  # C's long and long long have one descriptor
        self.arrays[tree["key"]] = StoredArray.of(
            None if value.dtype.str.startswith(">") else value.dtype.name,
            ordered.shape,
            value.nbytes,
            lambda: pieces_of(ordered),
        )
        return tree

    def _packed(self, value: Any, path: str) -> Any:
        name = library_name(value)
        try:
            packed = None if name is None else library_named(name).pack(value)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        if packed is None:
            raise _no_such_type(value, path)
        key, shape = self._free_key(path), [*packed.shape]
        self.arrays[key] = StoredArray.of(
            packed.dtype, shape, packed.nbytes, lambda: iter([packed.data()])
        )
        dtype = packed.dtype
        return {_TAG: "packed", "library": name, "key": key, "dtype": dtype, "shape": shape}

    def _free_key(self, path: str) -> str:
        while path in self.arrays:  # a key with a slash may equal the path of another one
            path += "'"
        return path


def _no_such_type(value: Any, path: str) -> CheckpointError:
    kind, plugin = f"{type(value).__module__}.{type(value).__qualname__}", plugin_for(value)
    if plugin is None:
        why = "cannot be saved; give arrays, numbers, strings, lists, tuples, dicts"
    else:
        why = f"is not saved without the plugin of its library: pip install {plugin}"
    return CheckpointError(f"{path or 'the state'} has the type {kind}, which {why}")


def _describe(dtype: np.dtype[Any], path: str) -> Any:
    """Return a JSON description from which :func:`_from_description` makes the dtype.

    Raises:
        CheckpointError: no description of the dtype leads back to it.
    """
    if dtype.hasobject:
        raise CheckpointError(
            f"{path} is an array of Python objects, which cannot be saved"
        )
    dtype = np.lib.format.drop_metadata(dtype)
    description = _description(dtype)
    if not _describes(description, dtype):
        raise CheckpointError(
            f"{path} has the dtype {dtype}, which cannot be saved, because it would come "
            "back as another one; convert the array, for example with astype('float32')"
        )
    return description


def _description(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _description(base), "shape": list(shape)}
    if dtype.fields is None:
        if dtype.type.__module__ == _ML_DTYPES:
            return {_ML_DTYPES: dtype.name}
        return np.lib.format.dtype_to_descr(dtype)
    with contextlib.suppress(ValueError):
        # Readable, but not for fields that overlap or have another order than in memory.
        whole = np.lib.format.dtype_to_descr(dtype)
        if _describes(whole, dtype):
            return whole
    fields: Mapping[str, Any] = dtype.fields
    names = dtype.names or ()
    return {
        "names": list(names),
        "formats": [_description(fields[name][0]) for name in names],
        "offsets": [fields[name][1] for name in names],
        "itemsize": dtype.itemsize,
    }


def _describes(description: Any, dtype: np.dtype[Any]) -> bool:
    try:
        return _from_description(description) == dtype
    except TypeError:  # NumPy's own descriptor of a dtype that another library defines
        return False


def _axes_by_stride(array: np.ndarray[Any, Any]) -> list[int]:
    """Return the axes from the slowest to the fastest: their order in a dense copy."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def _check_is_file(path: Path) -> None:
    """Refuse a missing file, and one that would block or never end, like a pipe."""
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        is_file = False
    if not is_file:
        raise CheckpointError(f"its values cannot be read: {path.name} is not a file")


def _decode(tree: Any, arrays: ArrayFile) -> Any:
    if isinstance(tree, list):
        return tree if _is_plain(tree) else [_decode(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _TAG not in tree:
        return {key: _decode(value, arrays) for key, value in tree.items()}
    return _READERS[tree[_TAG]](tree, arrays)


def _read_array(tree: Mapping[str, Any], arrays: ArrayFile) -> np.ndarray[Any, Any]:
    dtype, shape = _dtype(tree), tree["shape"]
    stored, axes = arrays.size(tree["key"]), tree["axes"]
    if dtype.hasobject:
        raise ValueError(f"the dtype {dtype} would point at Python objects")
    # Before anything of that size is made. NumPy makes S1 of S0, so ask it for the size.
    size = math.prod(shape) * np.empty(0, dtype).itemsize
    if size != stored:
        raise ValueError(f"an array of {size} bytes is stored in {stored}")
    owned = np.empty(shape, dtype=dtype)
    if size:
        arrays.fill(owned, tree["key"])
    if axes == sorted(axes):
        return owned
    return owned.transpose(np.argsort(axes)).copy(order="K")


def _read_packed(tree: Mapping[str, Any], arrays: ArrayFile) -> Any:
    key, dtype = tree["key"], str(tree["dtype"])
    content = np.empty(arrays.size(key), np.uint8)
    arrays.fill(content, key)
    packed = Packed(dtype, tuple(tree["shape"]), content.nbytes, lambda: content.data)
    return unpacked(str(tree["library"]), packed, key)


def _dtype(tree: Mapping[str, Any]) -> np.dtype[Any]:
    char: Any = tree.get("char")
    return np.dtype(char) if char else _from_description(tree["dtype"])


def _from_description(read: Any) -> np.dtype[Any]:
    if not isinstance(read, dict):
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(_descriptor(read))
        return dtype
    if _ML_DTYPES in read:
        return _ml_dtype(read[_ML_DTYPES])
    spec: Any
    if "base" in read:
        spec = (_from_description(read["base"]), tuple(read["shape"]))
    else:
        spec = {**read, "formats": [_from_description(one) for one in read["formats"]]}
    made: np.dtype[Any] = np.dtype(spec)
    return made


def _ml_dtype(name: str) -> np.dtype[Any]:
    try:
        ml_dtypes = importlib.import_module(_ML_DTYPES)
    except ImportError as error:  # no CheckpointError: the checkpoint is good
        raise UsageError(
            f"the checkpoint has an array of dtype {name}, which the library ml_dtypes "
            "defines: pip install ml_dtypes"
        ) from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def _descriptor(read: Any) -> Any:
    """Turn the lists that JSON makes of a structured dtype's tuples back into tuples."""
    if not isinstance(read, list):
        return read
    return [
        (
            tuple(name) if isinstance(name, list) else name,
            _descriptor(kind),
            *map(tuple, shape),
        )
        for name, kind, *shape in read
    ]


def _is_plain(items: Sequence[Any]) -> bool:
    """Return whether JSON holds all items as they are: integers of at most 64 bits.

    The state of a random generator is a tuple of 625; without this each would be a call.
    """
    return {*map(type, items)} == {int} and -(2**63) <= min(items) <= max(items) < 2**64


def _is_text(text: str) -> bool:
    """Return whether a str survives JSON: surrogates do not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _int(value: int) -> Any:
    # Python limits the digits of decimal numbers that it reads, not of hexadecimal ones.
    return value if value.bit_length() <= 64 else {_TAG: "int", "hex": hex(value)}


def _str(value: str) -> Any:
    if _is_text(value):
        return value
    return {_TAG: "str", "hex": value.encode("utf-32-le", "surrogatepass").hex()}


def _float_bits(value: float) -> Any:
    # JSON has no infinity, and NaN has many forms.
    return value if np.isfinite(value) else {_TAG: "float", "bits": _bits(value)}


def _text(code_points: str) -> str:
    return bytes.fromhex(code_points).decode("utf-32-le", "surrogatepass")


def _bits(value: float) -> str:
    return struct.pack("<d", value).hex()


def _float(bits: str) -> float:
    (value,) = struct.unpack("<d", bytes.fromhex(bits))
    return float(value)


_PLAIN: Mapping[type, Callable[[Any], Any]] = {
    int: _int,
    str: _str,
    float: _float_bits,
    complex: lambda v: {_TAG: "complex", "bits": [_bits(v.real), _bits(v.imag)]},
    bytes: lambda v: {_TAG: "bytes", "hex": v.hex()},
    # As arrays, these two would lose trailing NULs.
    np.str_: lambda v: {_TAG: "np.str", "text": _str("".join(v))},
    np.bytes_: lambda v: {_TAG: "np.bytes", "hex": bytearray(v).hex()},
}
"""Writers of values without parts."""

_READERS: Mapping[str, Callable[[Any, ArrayFile], Any]] = {
    "int": lambda tree, _: int(tree["hex"], 16),
    "str": lambda tree, _: _text(tree["hex"]),
    "np.str": lambda tree, arrays: np.str_(_decode(tree["text"], arrays)),
    "np.bytes": lambda tree, _: np.bytes_(bytes.fromhex(tree["hex"])),
    "float": lambda tree, _: _float(tree["bits"]),
    "complex": lambda tree, _: complex(*map(_float, tree["bits"])),
    "bytes": lambda tree, _: bytes.fromhex(tree["hex"]),
    "tuple": lambda tree, arrays: tuple(_decode(tree["items"], arrays)),
    "dict": lambda tree, arrays: {
        _decode(key, arrays): _decode(value, arrays) for key, value in tree["pairs"]
    },
    "scalar": lambda tree, arrays: _read_array(tree["array"], arrays)[()],
    "array": lambda tree, arrays: _read_array(tree, arrays),
    "packed": lambda tree, arrays: _read_packed(tree, arrays),
}
"""Readers of each tagged kind of value."""
