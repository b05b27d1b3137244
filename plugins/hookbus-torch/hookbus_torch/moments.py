"""Changes values on their way: outputs of modules, and what an optimizer's update reads.

Only hooks of the tracked modules and optimizers themselves are used, so others in the
process are not touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary, ref

import attrs
import torch
from torch.nn import Module
from torch.optim import Optimizer

from hookbus import GraphError

ALL: Final = "*"
"""The part that is all gradients of a module, as a dict by the names of parameters."""

Parameters: TypeAlias = Callable[[], Iterable[tuple[str, torch.Tensor]]]
Change: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Takes values by name, and returns those to use instead."""


@attrs.frozen(eq=False)
class Call:
    """The call of a module that trains; its output is changed before others get it.

    Attributes:
        module: the module.
    """

    module: Module

    def change(self, parts: Mapping[str, Any], fn: Change) -> Callable[[], None]:
        """Have callers of the module get a changed output while it trains."""
        (name,) = parts

        def changed(module: Module, _: Any, output: Any) -> Any:
            return fn({name: output})[name] if module.training else output

        # First, so that hooks which read the output get the changed one.
        handle = self.module.register_forward_hook(changed, prepend=True)
        return lambda: handle.remove()


@attrs.frozen(eq=False)
class Rate:
    """A learning rate, which has another value for one update.

    Attributes:
        get: returns it.
        put: sets it.
    """

    get: Callable[[], Any]
    put: Callable[[Any], None]


@attrs.define(eq=False)
class Updates:
    """The updates of the tracked optimizers that train a module, or of one optimizer.

    Values are changed right before each update, when gradients are summed up, averaged over
    ranks and, with a scaler, unscaled. A rate is as before after the update.

    It keeps no module and no optimizer alive.
    """

    _optimizers: Sequence[ref[Optimizer]] = ()
    _parameters: Parameters = tuple

    def introduce(
        self, optimizers: Iterable[Optimizer], parameters: Parameters = tuple
    ) -> None:
        """Take the optimizers, and what returns the parameters of the module, by name."""
        self._optimizers, self._parameters = [*map(ref, optimizers)], parameters

    def change(self, parts: Mapping[str, Any], fn: Change) -> Callable[[], None]:
        """Have each update use changed gradients and rates.

        Raises:
            GraphError: no tracked optimizer makes updates from them.
        """
        wanted = {part for part in parts.values() if isinstance(part, str)}
        with contextlib.ExitStack() as ends:
            fitting = 0
            for optimizer in filter(None, (each() for each in self._optimizers)):
                trained = self.trained_by(optimizer)
                if wanted - {ALL} <= trained.keys() and (trained or not wanted):
                    ends.callback(_Update(optimizer, self, parts, fn).begin())
                    fitting += 1
            if not fitting:
                raise GraphError(
                    "no tracked optimizer makes updates from it; track the one that does"
                )
            return ends.pop_all().close

    def trained_by(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        """Return the parameters of the module that an optimizer trains, each once."""
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for name, parameter in self._parameters():
            if id(parameter) in own:
                found.setdefault(id(parameter), (name, parameter))
        return dict(found.values())


@attrs.define(eq=False)
class _Update:
    """Changes what one optimizer reads, in each of its updates.

    Attributes:
        optimizer: the optimizer.
        updates: knows the parameters by name.
        parts: the part of each value, by the value's name.
        fn: changes the values.
    """

    optimizer: Optimizer
    updates: Updates
    parts: Mapping[str, Any]
    fn: Change
    _has_rates: bool = attrs.field(init=False)
    _trained: dict[str, torch.Tensor] = attrs.field(factory=dict, init=False)
    _sizes: list[int] | None = attrs.field(default=None, init=False)
    _rates: list[Any] = attrs.field(factory=list, init=False)

    def begin(self) -> Callable[[], None]:
        """Change values from now on; return how to end that."""
        self._has_rates = any(isinstance(part, Rate) for part in self.parts.values())
        handles = [self.optimizer.register_step_pre_hook(self._before)]
        if self._has_rates:
            handles.append(self.optimizer.register_step_post_hook(self._after))

        def end() -> None:
            for handle in handles:
                handle.remove()

        return end

    def _before(self, _: Optimizer, args: Any, options: Any) -> Any:
        """Change the values, or have a closure that computes gradients change them."""
        closure = options.get("closure", args[1] if len(args) > 1 else None)
        if closure is None or self._has_rates:
            self._change()
            return None

        def computed() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._change()
            return loss

        if "closure" in options:
            return args, {**options, "closure": computed}
        return (args[0], computed, *args[2:]), options

    def _change(self) -> None:
        _unscale(self.optimizer)
        gradients = self._gradients()
        values: dict[str, Any] = {}
        for name, part in self.parts.items():
            if isinstance(part, Rate):
                values[name] = part.get()
            elif part == ALL:
                values[name] = dict(gradients)
            elif part in gradients:
                values[name] = gradients[part]
        if len(values) < len(self.parts) or not (gradients or self._has_rates):
            self._check_none(values)
            return
        self._keep_rates()
        with torch.no_grad():
            changed = self.fn(values)
            for name, part in self.parts.items():
                if isinstance(part, Rate):
                    part.put(changed[name])
                elif part == ALL:
                    for key, new in changed[name].items():
                        _overwrite(gradients[key], new)
                else:
                    _overwrite(gradients[part], changed[name])

    def _gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients that the update uses, by name."""
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        if sizes != self._sizes:
            self._trained, self._sizes = self.updates.trained_by(self.optimizer), sizes
        found = ((name, p.grad) for name, p in self._trained.items())
        return {name: gradient for name, gradient in found if gradient is not None}

    def _check_none(self, values: Mapping[str, Any]) -> None:
        """Check that an update without some of the gradients is without all of them.

        Raises:
            GraphError: it has some.
        """
        for name in self.parts if values else ():
            if name not in values:
                raise GraphError(
                    f"{name!r} has no gradient in an update that has others, and a wrap "
                    "takes them together; wrap all gradients of the module, which leaves "
                    "out those that are missing"
                )

    def _keep_rates(self) -> None:
        if self._has_rates:
            rates = [group["lr"] for group in self.optimizer.param_groups]
            self._rates = [r.clone() if isinstance(r, torch.Tensor) else r for r in rates]

    def _after(self, *_: Any) -> None:
        """Set the rates as they were before the update."""
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=False):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        self._rates = []


def updates_of(thing: Module | Optimizer) -> Updates:
    """Return the updates of a module or an optimizer, always the same object."""
    return _updates.setdefault(thing, Updates())


_updates: WeakKeyDictionary[Module | Optimizer, Updates] = WeakKeyDictionary()


def _unscale(optimizer: Optimizer) -> None:
    """Unscale the gradients that a scaler has left to the update, as it would do itself."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    inverse = scale.double().reciprocal().float()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(inverse.to(parameter.grad.device))
    vars(optimizer)["grad_scale"] = None


def _overwrite(gradient: torch.Tensor, new: Any) -> None:
    """Write into a gradient, which another object may hold, unless it was changed so."""
    if new is not gradient:
        gradient.copy_(new)
