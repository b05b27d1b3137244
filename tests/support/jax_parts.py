"""Gives the training runs with JAX in the zoo their data, and ends that can be compared."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# No array of JAX here: the server of the zoo imports this, and forks.
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = (X[:, :3].sum(1) > 0).astype(np.int32)
ROWS = 8
STEPS = len(X) // ROWS


def batches(order: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the data in an order, in batches."""
    for start in range(0, len(X), ROWS):
        rows = np.asarray(order)[start : start + ROWS]
        yield X[rows], Y[rows]


def dense(key: Any, *sizes: int) -> dict[str, Any]:
    """Return the parameters of a network with some layers."""
    keys = jax.random.split(key, len(sizes) - 1)
    return {
        f"layer{n}": {"w": jax.random.normal(keys[n], shape) / 3, "b": jnp.zeros(shape[1])}
        for n, shape in enumerate(itertools.pairwise(sizes))
    }


def logits_of(params: Any, x: Any) -> Any:
    """Return the output of such a network."""
    *hidden, last = params.values()
    for layer in hidden:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def compiled_again(function: Any, forms: int = 1) -> int:
    """Return how often this process has compiled a function, and had no need to.

    Args:
        function: the function.
        forms: how many forms its arguments have. Some optimizers begin with weak numbers,
            which are strong after the first step.
    """
    jitted = getattr(function, "jitted_fn", getattr(function, "_cached", function))
    return max(0, jitted._cache_size() - forms)


def end_of(**trees: Any) -> Any:
    """Return all about the leaves of trees, and the states of generators."""
    found: dict[str, Any] = {}
    for name, tree in trees.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            found[name + jax.tree_util.keystr(path)] = _all_about(leaf)
    return found, random.random(), float(np.random.rand())


def _all_about(leaf: Any) -> Any:
    """Return the bits of a leaf, and where they are."""
    if not isinstance(leaf, jax.Array):
        return leaf
    bits, kind = leaf, None
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        bits, kind = jax.random.key_data(leaf), str(jax.random.key_impl(leaf))
    devices = sorted(device.id for device in leaf.devices())
    where = [devices, bits.committed, type(leaf.sharding).__name__, str(leaf.sharding)]
    dtype = [str(leaf.dtype), kind, getattr(leaf, "weak_type", None)]
    return [dtype, leaf.shape, where, np.asarray(bits)]
