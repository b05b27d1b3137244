"""Finds the first value of a model that is not finite, in the order of the computation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch.nn import Module
from torch.utils._pytree import tree_leaves

from hookbus import (
    Graph,
    HookOptions,
    SessionRunContext,
    SessionRunHook,
    TrainingError,
    UsageError,
    hookimpl,
)
from hookbus.backend import blame
from hookbus_torch.modules import parameters_of, parts_of

NAME = "locate-nan"


class NotFiniteError(TrainingError):
    """A value of the model is NaN or infinite."""


@attrs.define(eq=False)
class LocateNanHook(SessionRunHook):
    """Ends the training at the first value of a tracked module that is not finite.

    It looks at the parameters when the session starts and after each step, at the inputs
    and outputs of each module when it is called, and at the gradients of outputs and
    parameters when they are computed. This waits for the device each time, so switch it on
    for the steps before a failure, and not for a whole run.

    The modules inside a compiled one are not called one by one, so it looks at the whole.

    Args:
        gradients: whether to look at gradients. A ``GradScaler`` makes infinite ones on
            purpose, and leaves them out.

    Raises:
        NotFiniteError: a value is NaN or infinite.
        UsageError: the program tracks no module.

    >>> from hookbus import Config, MonitoredSession
    >>> quiet = Config(autoload=False, header=False)
    >>> model = torch.nn.Linear(2, 1)
    >>> try:
    ...     with MonitoredSession(hooks=[LocateNanHook()], config=quiet) as session:
    ...         _ = session.track(model=model)
    ...         with session.step():
    ...             loss = model(torch.tensor([[1.0, float("inf")]])).sum()
    ... except NotFiniteError as error:
    ...     print(error)
    locate-nan: the input of 'model' is inf at [0, 1], in step 1
    """

    options = HookOptions(only_observes=True, ranks="all")

    gradients: bool = True
    _graph: Graph | None = attrs.field(default=None, init=False)
    _context: SessionRunContext | None = attrs.field(default=None, init=False)
    _handles: list[Any] = attrs.field(factory=list, init=False)
    _modules: dict[str, Module] = attrs.field(factory=dict, init=False)

    def begin(self, graph: Graph) -> None:
        """Keep the graph, which knows the modules when the first step begins."""
        self._graph = graph

    def before_run(self, run_context: SessionRunContext) -> None:
        """Begin to watch; before the first step look at the parameters as they are."""
        self._context = run_context
        if not self._handles:
            self._watch()
            self._check_parameters("at the start")

    def after_run(self) -> None:
        """Look at the parameters that the step has left."""
        self._check_parameters("after the update")
        self._context = None

    @hookimpl
    def cancelled(self) -> None:
        """Watch nothing until the next step."""
        self._context = None

    def end(self) -> None:
        """Leave the modules alone."""
        self._leave()

    def on_exception(self) -> None:
        """Leave the modules alone."""
        self._leave()

    def _leave(self) -> None:
        self._context = None
        while self._handles:
            self._handles.pop().remove()

    def _watch(self) -> None:
        """Look at all values that the modules make from now on.

        Raises:
            UsageError: there is no module.
        """
        assert self._graph is not None
        tracked = self._graph.tracked
        self._modules = {n: each for n, each in tracked.items() if isinstance(each, Module)}
        if not self._modules:
            raise UsageError(
                f"{NAME} has nothing to watch: the program tracks no module of PyTorch; "
                "use session.track(model=model)"
            )
        for name, module in self._modules.items():
            for path, part in parts_of(name, module):
                entered = part.register_forward_pre_hook(
                    self._on_input(path), with_kwargs=True
                )
                left = part.register_forward_hook(self._on_output(path))
                self._handles += [entered, left]
            if self.gradients:
                for key, parameter in parameters_of(module):
                    if parameter.requires_grad:
                        look = self._on_gradient(f"parameter '{name}.{key}'")
                        self._handles.append(parameter.register_hook(look))

    def _on_input(self, path: str) -> Callable[..., None]:
        def look(_: Module, args: Any, kwargs: Any) -> None:
            self._check(f"the input of {path!r}", (args, kwargs))

        return look

    def _on_output(self, path: str) -> Callable[..., None]:
        def look(_: Module, __: Any, output: Any) -> None:
            if self._context is None:
                return
            self._check(f"the output of {path!r}", output)
            if self.gradients:
                for tensor in _tensors(output):
                    if tensor.requires_grad:
                        tensor.register_hook(self._on_gradient(f"output of {path!r}"))

        return look

    def _on_gradient(self, what: str) -> Callable[[torch.Tensor], None]:
        def look(gradient: torch.Tensor) -> None:
            self._check(f"the gradient of the {what}", gradient)

        return look

    def _check_parameters(self, when: str) -> None:
        for name, module in self._modules.items():
            for key, parameter in parameters_of(module):
                self._check(f"the parameter '{name}.{key}' {when}", parameter)

    def _check(self, what: str, value: Any) -> None:
        """Look at the tensors in a value.

        Raises:
            NotFiniteError: one is not finite.
        """
        context = self._context
        if context is None:  # an evaluation between two steps
            return
        for tensor in _tensors(value):
            with torch.no_grad():
                found = _first_not_finite(tensor)
            if found is not None:
                error = NotFiniteError(self._message(what, *found, context))
                blame(error, NAME, f"raised by plugin {NAME}")
                raise error

    def _message(
        self, what: str, number: float, index: list[int], context: SessionRunContext
    ) -> str:
        """Return the message: the value, its place, and the values of the inputs in use."""
        given = ", ".join(
            f"{number} of {name!r}" for name, number in context.input_numbers.items()
        )
        epoch = context.epoch
        where = f"; input {given}" if given else ""
        where += f" in epoch {epoch}" if given and epoch is not None else ""
        place = f" at {index}" if index else ""
        step = context.global_step + 1
        return f"{NAME}: {what} is {number:g}{place}, in step {step}{where}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested structures that can hold NaN."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and (
            leaf.is_floating_point() or leaf.is_complex()
        ):
            yield leaf


def _first_not_finite(tensor: torch.Tensor) -> tuple[float, list[int]] | None:
    """Return the first element that is not finite, and its index; None without one."""
    if tensor.is_meta or tensor.numel() == 0:
        return None
    local = getattr(tensor, "to_local", None)  # of a model that is split over ranks
    values = tensor.detach() if local is None else local().detach()
    if values.layout != torch.strided:
        values = values.coalesce().values() if values.is_sparse else values.to_dense()
    finite = torch.isfinite(values)
    if bool(finite.all()):
        return None
    index = [int(each) for each in (~finite).nonzero()[0]]
    element = values[tuple(index)] if index else values
    number = element.real if element.is_complex() else element
    return (float(number) if not math.isfinite(float(number)) else math.nan), index


__all__ = ["LocateNanHook", "NotFiniteError"]
