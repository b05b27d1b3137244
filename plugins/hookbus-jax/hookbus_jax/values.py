"""Moves arrays to the host, packs them for checkpoints, and states the form of trees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np

from hookbus import CheckpointError, GraphError, UsageError
from hookbus.backend import Packed

_KEY = "key:"
"""The beginning of the dtype of a packed key; the name of its generator follows."""
_WEAK = "weak:"
"""The beginning of the dtype of an array that takes the dtype of what it meets."""


def on_host(values: Sequence[Any]) -> Sequence[Any]:
    """Return arrays as NumPy arrays; all copies start before the first one is awaited.

    An array with one number and no axis becomes a NumPy number, as in TensorFlow. bfloat16
    and the float8 types become float32, which holds each of their numbers, small integers
    become int32, and keys become their data. Other values stay as they are.

    Raises:
        UsageError: an array is traced, so it has no value.
    """
    arrays = [_numbers(v) if isinstance(v, jax.Array) else v for v in values]
    for array in arrays:
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
    return [np.asarray(a)[()] if isinstance(a, jax.Array) else a for a in arrays]


def _numbers(array: jax.Array) -> jax.Array:
    """Return an array of a dtype that NumPy has, where it is.

    Raises:
        UsageError: it is traced.
    """
    if isinstance(array, jax.core.Tracer):
        raise UsageError(f"a hook asks for an array that {why_not_saved(array)}")
    if is_key(array.dtype):
        return jax.random.key_data(array)
    if array.dtype.isbuiltin != 1:  # ml_dtypes: bfloat16, float8, int4
        return array.astype(_WIDER[_rank(array.dtype)])
    return array


def is_key(dtype: Any) -> bool:
    """Return whether a dtype is that of keys, as ``jax.random.key`` makes them."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def _rank(dtype: Any) -> int:
    """Return the kind of a dtype, so that each kind holds those before it."""
    return next(n for n, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind))


_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
_WIDER = (jnp.bool_, jnp.int32, jnp.float32, jnp.complex64)
"""The dtypes that hold all numbers of a small one of each kind."""


def pack(value: Any) -> Packed | None:
    """Return an array as bytes; None for anything else of JAX.

    Raises:
        CheckpointError: other processes hold parts of it, or it was deleted.
    """
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return None
    fault = why_not_saved(value)
    if fault:
        raise CheckpointError(f"an array {fault}")
    name, array = str(value.dtype), value
    if getattr(value, "weak_type", False):  # keys have no such attribute
        name = _WEAK + name
    if is_key(value.dtype):
        name, array = _KEY + str(jax.random.key_impl(value)), jax.random.key_data(value)

    def data() -> memoryview:
        # Some dtypes of ml_dtypes support no buffers, so the bytes are seen as integers.
        host = np.ascontiguousarray(np.asarray(array))
        flat: Any = host.reshape(-1).view(np.uint8)
        return memoryview(flat)

    return Packed(name, value.shape, array.size * array.dtype.itemsize, data)


def why_not_saved(value: Any) -> str | None:
    """Return why an array cannot be saved; None if it can."""
    if isinstance(value, jax.core.Tracer):
        return (
            "is traced: it has no value before the compiled function runs; use what the "
            "function returns"
        )
    if not isinstance(value, jax.Array):
        return None
    if value.is_deleted():
        return (
            "was deleted: a function that got it donated it; give that function a copy, or "
            "save the array that it returned"
        )
    if not value.is_fully_addressable:
        return (
            "is distributed over processes, which cannot be saved; gather it with "
            "jax.experimental.multihost_utils.process_allgather"
        )
    return None


def itemsize(dtype: str) -> int | None:
    """Return the bytes of an element of a dtype, or of a key; None if JAX has none such."""
    dtype = dtype.removeprefix(_WEAK)
    if dtype.startswith(_KEY):
        words = _words_of(dtype.removeprefix(_KEY))
        return None if words is None else 4 * math.prod(words)
    try:
        found = jnp.dtype(dtype)
        is_number = any(jnp.issubdtype(found, kind) for kind in _KINDS)
    except (TypeError, ValueError, SyntaxError):
        return None
    is_ours = is_number and found.isnative and str(found) == dtype
    return found.itemsize if is_ours else None


def _words_of(impl: str) -> tuple[int, ...] | None:
    """Return the shape of the data of one key, in words; None if there is no such kind."""
    try:
        return tuple(jax.random.key_data(jax.random.key(0, impl=impl)).shape)
    except ValueError:
        return None


def unpack(packed: Packed) -> jax.Array:
    """Return a packed array.

    Raises:
        UsageError: the dtype is switched off.
    """
    if packed.dtype.startswith(_KEY):
        impl: Any = packed.dtype.removeprefix(_KEY)
        content = packed.data() if packed.nbytes else b""
        shape = (*packed.shape, *(_words_of(impl) or ()))
        words = np.frombuffer(content, np.uint32).reshape(shape)
        return jax.random.wrap_key_data(jnp.asarray(words), impl=impl)
    dtype = jnp.dtype(packed.dtype.removeprefix(_WEAK))
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UsageError(
            f"the checkpoint has an array of dtype {dtype}, and JAX would make it another "
            "one here: jax.config.update('jax_enable_x64', True)"
        )
    host = np.frombuffer(packed.data(), dtype) if packed.nbytes else np.empty(0, dtype)
    array = jnp.array(host.reshape(packed.shape), copy=True)
    return _weak(array) if packed.dtype.startswith(_WEAK) else array


def _weak(array: jax.Array) -> jax.Array:
    """Return an array with the same bits, which takes the dtype of what it meets.

    Raises:
        CheckpointError: JAX has no such array of this dtype.
    """
    kinds = {jnp.bool_: False, jnp.integer: 0, jnp.floating: 0.0, jnp.complexfloating: 0j}
    number = next(n for kind, n in kinds.items() if jnp.issubdtype(array.dtype, kind))
    # An array that is filled with a number of Python is weak, and stays so when it is set.
    weak = jnp.full(array.shape, number).at[...].set(array)
    if weak.dtype != array.dtype or not weak.weak_type:
        raise CheckpointError(f"JAX has no weak array of dtype {array.dtype}")
    return weak


@attrs.frozen(eq=False)
class Form:
    """The form of a variable: the structure of its tree, the shape and dtype of each leaf.

    Attributes:
        tree: the structure.
        paths: the path of each leaf, like ``['dense']['w']``; empty for a bare array.
        shapes: the shape of each leaf.
        dtypes: the dtype of each leaf.
        plain: whether the tree has no nodes but dicts, lists and tuples.
    """

    tree: Any
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    plain: bool

    def leaves(self, value: Any, name: str, who: str) -> list[Any]:
        """Return the leaves of a value that fits; *who* gives it to the variable *name*.

        Raises:
            GraphError: it does not fit.
        """
        leaves: list[Any]
        leaves, tree = jax.tree.flatten(value)
        if tree != self.tree:
            if not self.plain and isinstance(value, Mapping) and {*value} == {*self.paths}:
                leaves = [value[path] for path in self.paths]  # as a checkpoint holds it
            else:
                raise GraphError(
                    f"variable {name!r} is {_shown(self.tree)}, and {who} writes "
                    f"{_shown(tree)}"
                )
        for leaf, path, shape, dtype in zip(
            leaves, self.paths, self.shapes, self.dtypes, strict=True
        ):
            there = f"variable {name!r}{path and f' at {path}'}"
            given, has = _aval(leaf, f"{who} writes into {there}")
            if given != shape:
                raise GraphError(
                    f"{there} has the shape {shape} and cannot take the shape {given} "
                    f"from {who}"
                )
            if not _fits(has, dtype):
                raise GraphError(
                    f"{there} has the dtype {dtype} and cannot take {has} from {who}"
                )
        return leaves

    def saved(self, value: Any) -> Any:
        """Return a value for a checkpoint, which knows dicts, lists and tuples alone."""
        if self.plain:
            return value
        return dict(zip(self.paths, jax.tree.leaves(value), strict=True))


def form_of(value: Any, who: str) -> Form:
    """Return the form of a variable that begins with a value.

    Raises:
        GraphError: JAX cannot hold a part of it. The message begins with *who*.
    """
    found, tree = jax.tree_util.tree_flatten_with_path(value)
    avals = [_aval(leaf, who) for _, leaf in found]
    return Form(
        tree,
        tuple(jax.tree_util.keystr(path) for path, _ in found),
        tuple(shape for shape, _ in avals),
        tuple(dtype for _, dtype in avals),
        _is_plain(value),
    )


def _aval(leaf: Any, who: str) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype that a leaf has in JAX."""
    try:
        found = jax.typeof(leaf)
    except (TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"{who} a {type(leaf).__name__}, which JAX cannot hold") from error
    return tuple(found.shape), found.dtype


def _fits(given: Any, dtype: Any) -> bool:
    """Return whether numbers of a dtype become those of another one of the same kind."""
    if is_key(given) or is_key(dtype):
        return bool(given == dtype)
    return _rank(given) <= _rank(dtype)


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain(part) for key, part in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or jax.tree_util.all_leaves([value])


def _shown(tree: Any) -> str:
    if tree == jax.tree.structure(0):
        return "an array"
    return f"the tree {str(tree).removeprefix('PyTreeDef(').removesuffix(')')}"


def owned(leaf: Any, dtype: Any, old: Any = None) -> jax.Array:
    """Return a leaf as an array that nobody else has, where *old* is."""
    array = jnp.array(leaf, dtype=None if is_key(dtype) else dtype, copy=True)
    return array if old is None else placed(array, old)


def placed(array: jax.Array, like: jax.Array) -> jax.Array:
    """Return an array on the devices of another one, if those were chosen for that."""
    # Keys do not show whether they are on the default device by choice.
    committed = jax.random.key_data(like) if is_key(like.dtype) else like
    return jax.device_put(array, like.sharding) if committed.committed else array


def converted(leaf: Any, dtype: Any) -> Any:
    """Return a leaf of a compiled function with a dtype."""
    return leaf if is_key(dtype) else jax.lax.convert_element_type(leaf, dtype)


def is_deleted(value: Any) -> bool:
    """Return whether an array in a value was deleted."""
    leaves = jax.tree.leaves(value)
    return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves)


def not_arrays(value: Any) -> Iterator[Any]:
    """Yield the leaves of a value that JAX cannot hold."""
    for leaf in jax.tree.leaves(value):
        try:
            jax.typeof(leaf)
        except (TypeError, ValueError, OverflowError):
            yield leaf
