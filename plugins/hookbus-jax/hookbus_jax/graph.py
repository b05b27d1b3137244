"""Defines the graph whose ops JAX compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hookbus import Graph
from hookbus_jax.values import form_of


class JaxGraph(Graph):
    """A graph of functions that JAX can trace.

    A session compiles all ops of a request as one function, so XLA drops values that nobody
    fetches. An op gets tracers, and ``jax.numpy`` as ``xp``. The op returns arrays, or
    dicts, lists and tuples of arrays.

    A variable may be a tree: a dict, list or tuple of arrays, or any other pytree. Arrays
    keep their shape and dtype. A key of ``jax.random`` can also be a variable.

    Args:
        donate: whether a run gives XLA the memory of the variables that it replaces, so
            that a model needs it once and not twice. A variable that the run also fetches
            keeps its memory, and one that was fetched before is copied first. Nothing is
            donated in a run that may fail after the compiled function has begun: one with
            ops on the host after it, with callbacks or foreign functions in it, or with
            ``jax_debug_nans`` on. After an error of the device itself the session cannot go
            on; a new one starts from the newest checkpoint.

    >>> import jax.numpy as jnp
    >>> graph = JaxGraph()
    >>> params = graph.variable("params", {"w": jnp.zeros(2), "b": 0.0})
    >>> x = graph.placeholder("x")
    >>> @graph.train_op(updates="params", outputs="loss")
    ... def train(params, x):
    ...     loss, slope = jax.value_and_grad(lambda p: ((p["w"] * x).sum() - p["b"]) ** 2)(
    ...         {"w": params["w"] + 1.0, "b": params["b"]}
    ...     )
    ...     return jax.tree.map(lambda p, g: p - 0.5 * g, params, slope), {"loss": loss}
    >>> @graph.op(host=True)
    ... def text(x):
    ...     return " ".join(map(str, x))
    >>> import jax
    >>> from hookbus import Config, MonitoredSession
    >>> quiet = Config(autoload=False, header=False)
    >>> with MonitoredSession(graph, config=quiet) as session:
    ...     text, loss, _ = session.run(["text", "loss", "train"], {"x": jnp.ones(2)})
    >>> text, float(loss)
    ('1.0 1.0', 4.0)
    """

    backend = "hookbus_jax.session:JaxSession"

    def __init__(self, *, donate: bool = False) -> None:
        super().__init__()
        self.donate = donate
        self._host: set[str] = set()

    @property
    def host_ops(self) -> frozenset[str]:
        """The names of the ops that run in Python, on the host."""
        return frozenset(self._host)

    def check_initial(self, name: str, value: Any) -> None:
        """Check that a variable can begin with a value: arrays or numbers, or a tree.

        Raises:
            GraphError: JAX cannot hold it.
        """
        form_of(value, f"variable {name!r} is given")

    def op(
        self, fn: Callable[..., Any] | None = None, *, host: bool = False, **options: Any
    ) -> Any:
        """Add a node computed from others; also a decorator.

        Args:
            fn: the function, as in :meth:`Graph.op`; JAX must be able to trace it.
            host: whether it runs in Python, outside the compiled function, for text and
                files. Such an op gets NumPy arrays, and may return anything.
            options: as in :meth:`Graph.op`.

        Raises:
            GraphError: as :meth:`Graph.op`.
        """
        if fn is None:
            return partial(self.op, host=host, **options)
        return self._placed(super().op(fn, **options), host)

    def train_op(
        self, fn: Callable[..., Any] | None = None, *, host: bool = False, **options: Any
    ) -> Any:
        """Add a node that updates variables and advances ``global_step``.

        Args:
            fn: the function, as in :meth:`Graph.train_op`; JAX must be able to trace it.
            host: as in :meth:`op`.
            options: as in :meth:`Graph.train_op`.

        Raises:
            GraphError: as :meth:`Graph.train_op`.
        """
        if fn is None:
            return partial(self.train_op, host=host, **options)
        return self._placed(super().train_op(fn, **options), host)

    def wrap(
        self,
        node: Any,
        fn: Callable[..., Any] | None = None,
        *,
        host: bool = False,
        **options: Any,
    ) -> Any:
        """Change the value that the readers of a node see; also a decorator.

        Args:
            node: the node, or its name.
            fn: the function, as in :meth:`Graph.wrap`; JAX must be able to trace it.
            host: as in :meth:`op`.
            options: as in :meth:`Graph.wrap`.

        Raises:
            GraphError: as :meth:`Graph.wrap`.
        """
        if fn is None:
            return partial(self.wrap, node, host=host, **options)
        return self._placed(super().wrap(node, fn, **options), host)

    def _placed(self, node: Any, host: bool) -> Any:
        if host:
            self._host.add(node.name)
        else:
            self._host.discard(node.name)  # a session has removed one of this name
        return node
