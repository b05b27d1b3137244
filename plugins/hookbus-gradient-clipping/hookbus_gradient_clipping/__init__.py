"""Limits gradients before each update: by their common norm, by value, or adaptively."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import attrs

import hookbus
from hookbus import Graph, SessionRunHook, UsageError
from hookbus.validation import numeric

_NAME = "gradient-clipping"
_EPSILON, _LEAST_WEIGHTS = 1e-6, 1e-3  # those of the papers and of PyTorch


@attrs.define(eq=False)
class GradientClippingHook(SessionRunHook):
    """Limits the gradients of each update, like ``clip_grad_norm_`` of PyTorch.

    The papers are arXiv:1211.5063 for *norm* and arXiv:2102.06171 for *adaptive*. The units
    of a weight are the parts along its first axis; a vector is one unit.

    Args:
        norm: the largest norm of all gradients, taken as one vector. If theirs is larger,
            all are scaled down alike.
        value: the largest absolute value of each number.
        adaptive: the largest norm of each unit's gradient, in units of the norm of the
            unit's weights.
        gradients: the names of the gradients. Each is a value, or a tree of values.
        weights: the names of what *adaptive* compares each of them with; PyTorch's names
            need none.

    Raises:
        UsageError: there is not exactly one limit, or not one weight for each gradient.

    >>> from hookbus import Graph, SingularMonitoredSession
    >>> graph = Graph()
    >>> w = graph.variable("w", 0.0)
    >>> gradient = graph.op(lambda: -20.0, name="gradient")
    >>> train = graph.train_op(lambda w, gradient: w - gradient, name="train", updates="w")
    >>> hook = GradientClippingHook(value=1.0, gradients="gradient")
    >>> with SingularMonitoredSession(graph, hooks=[hook]) as session:
    ...     _ = session.run("train")
    ...     float(session.run("w"))
    1.0
    """

    options = hookbus.HookOptions(main_setting="norm")

    norm: float | None = attrs.field(default=None, validator=numeric(above=0))
    value: float | None = attrs.field(default=None, validator=numeric(above=0))
    adaptive: float | None = attrs.field(default=None, validator=numeric(above=0))
    gradients: Sequence[str] | str = ("model:grads",)
    weights: Sequence[str] | str = ()

    def __attrs_post_init__(self) -> None:
        """Check that the settings fit each other."""
        limits = self.norm, self.value, self.adaptive
        if sum(limit is not None for limit in limits) != 1:
            raise UsageError(f"{_NAME} takes one limit: norm, value or adaptive")
        self.gradients, self.weights = _names(self.gradients), _names(self.weights)
        if len(self.weights) not in (0, len(self.gradients)) or not self.gradients:
            raise UsageError(f"{_NAME}: name gradients, and no weights or one for each")

    def begin(self, graph: Graph) -> None:
        """Wrap the gradients."""
        if self.norm is not None:
            first, *others = self.gradients
            graph.wrap([first, *others] if others else first, self._by_norm)
        for name in self.gradients if self.value is not None else ():
            graph.wrap(name, self._by_value)
        for number, name in enumerate(self.gradients if self.adaptive is not None else ()):
            of_module = name.replace(":grads", ":parameters").removesuffix(":grad")
            weights = self.weights[number] if self.weights else of_module
            if weights == name:
                raise UsageError(f"{_NAME}: name the weights of {name!r}, with weights=")
            graph.wrap(name, self._by_weights, reads={"weights": weights})

    def _by_norm(self, gradients: Any, xp: Any) -> Any:
        leaves: list[Any] = []
        _mapped(leaves.append, gradients)
        if leaves and _is_torch(leaves[0]):
            clip = importlib.import_module("torch.nn.utils").clip_grad_norm_
            clip([SimpleNamespace(grad=leaf) for leaf in leaves], self.norm)
            return gradients
        xp = _numpy_for(leaves, xp)
        squares = (xp.sum(xp.abs(leaf) ** 2) for leaf in leaves)
        scale = xp.minimum(1.0, self.norm / (xp.sqrt(sum(squares)) + _EPSILON))

        def scaled(leaf: Any) -> Any:  # in its own dtype
            return leaf * (scale.astype(leaf.dtype) if hasattr(leaf, "dtype") else scale)

        return _mapped(scaled, gradients)

    def _by_value(self, gradient: Any, xp: Any) -> Any:
        most: Any = self.value

        def clipped(leaf: Any) -> Any:
            numpy = _numpy_for([leaf], xp)
            clip = leaf.clamp_ if _is_torch(leaf) else partial(numpy.clip, leaf)
            return clip(-most, most)

        return _mapped(clipped, gradient)

    def _by_weights(self, gradient: Any, weights: Any, xp: Any) -> Any:
        def clipped(leaf: Any, weight: Any) -> Any:
            of_torch = _is_torch(leaf)
            np = importlib.import_module("torch") if of_torch else _numpy_for([leaf], xp)
            most = self.adaptive * np.clip(_norms(weight, np), _LEAST_WEIGHTS, None)
            norms = np.clip(_norms(leaf, np), _EPSILON, None)
            return np.where(norms > most, leaf * (most / norms), leaf)

        return _mapped(clipped, gradient, weights)


def _names(given: Sequence[str] | str) -> Sequence[str]:
    return (given,) if isinstance(given, str) else tuple(given)


def _norms(value: Any, np: Any) -> Any:
    """Return the norm of each unit, in a form that fits the value."""
    axes = tuple(range(1, value.ndim)) or None
    squares = np.abs(value) ** 2
    total = np.sum(squares, axis=axes, keepdims=True) if axes else np.sum(squares)
    return np.sqrt(total)


def _mapped(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to each value of a tree, with those at its place in other trees."""
    if isinstance(tree, Mapping):
        return {k: _mapped(fn, each, *(o[k] for o in others)) for k, each in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [_mapped(fn, *each) for each in zip(tree, *others, strict=True)]
        return getattr(type(tree), "_make", type(tree))(parts)
    return fn(tree, *others)


def _numpy_for(leaves: Sequence[Any], xp: Any) -> Any:
    """Return the array namespace of a backend, or NumPy for numbers of Python."""
    of_python = not any(hasattr(leaf, "dtype") for leaf in leaves)
    return importlib.import_module("numpy") if of_python else xp


def _is_torch(value: Any) -> bool:
    return hasattr(value, "clamp_")
