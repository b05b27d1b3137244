"""Lets hooks watch an ordinary PyTorch script: ``hookbus run --attach torch train.py``."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hookbus import TrainerAdapter, log
from hookbus.errors import SessionStoppedError

_MOST_ALONE = 20
"""How many steps an optimizer does while the others do none, until these do not count."""
_LINES = """it needs the loop; these lines bring it:
    with hookbus.MonitoredTrainingSession(checkpoint_dir="runs/one") as session:
        session.track(model=model, optimizer=optimizer)
        for epoch in session.epochs(epochs):
            for x, y in session.iterate(loader):
                with session.step() as step:
                    ...  # as before
                    step.report(loss=loss)"""


class ScriptAdapter(TrainerAdapter):
    """Carries a session in a script that knows nothing of hookbus.

    A step ends when each optimizer of the script has done its own step; one that does
    none while another does twenty is not waited for. The ``loss`` is
    the sum of what ``backward()`` was called on in the step; of the calls in the closure of
    an optimizer, the first one. The modules whose parameters are trained are tracked: as
    ``model``, or under the names of the script's variables if there are several; and so are
    the optimizers.

    The script computes what it computes without hooks, as long as no hook changes a value.
    """

    trainer_name = "the script"
    instead = MappingProxyType(dict.fromkeys(("skip", "feed", "rollback", "save"), _LINES))

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._optimizers: list[Optimizer] = []
        self._stepped = Counter[Optimizer]()
        self._inside: Optimizer | None = None
        self._losses: list[torch.Tensor] = []
        self._unscaled: tuple[Any, Any] = None, None
        self._hooks = contextlib.ExitStack()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what the script calls, for a block."""
        with self._hooks:
            before, after = self._before_update, self._after_update
            self._hooks.callback(register_optimizer_step_pre_hook(before).remove)
            self._hooks.callback(register_optimizer_step_post_hook(after).remove)
            self._replace(Optimizer, "__init__", self._making)
            # The method of tensors calls it as well.
            self._replace(torch.autograd, "backward", self._backward)
            self._replace(torch.amp.GradScaler, "scale", self._scaling)
            self._first = register_module_forward_pre_hook(self._forward)
            self._hooks.callback(self._first.remove)
            yield
        if self.session is None:
            log.warning(
                "the script has trained nothing that hookbus could watch",
                why="no optimizer of torch.optim has done a step",
            )

    def _replace(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Have a function surround another one, until the block ends."""
        function = getattr(owner, name)

        def replaced(*args: Any, **kwargs: Any) -> Any:
            return around(function, *args, **kwargs)

        setattr(owner, name, replaced)
        self._hooks.callback(setattr, owner, name, function)

    def _making(self, function: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Note an optimizer that the script makes."""
        made = function(optimizer, *args, **kwargs)
        self._optimizers.append(optimizer)
        return made

    def _backward(self, function: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the loss."""
        self._begin()
        scaled, unscaled = self._unscaled
        loss = unscaled if tensors is scaled else tensors
        is_number = isinstance(loss, torch.Tensor) and loss.numel() == 1
        if is_number and not (self._inside is not None and self._losses):
            self._losses.append(loss.detach().reshape(()))
        return function(tensors, *args, **kwargs)

    def _scaling(self, function: Any, scaler: Any, outputs: Any) -> Any:
        """Note the loss that a GradScaler multiplies."""
        scaled = function(scaler, outputs)
        self._unscaled = scaled, outputs
        return scaled

    def _forward(self, module: torch.nn.Module, *_: Any) -> None:
        """Begin the first step when a module that is trained first computes."""
        if (
            torch.is_grad_enabled()
            and module.training
            and _trains(self._optimizers, module)
        ):
            self._begin()

    def _begin(self, *_: Any) -> None:
        """Begin a step, unless one is open; begin the session with the first one."""
        if self.session is None:
            if not self._optimizers:
                return
            self._first.remove()
            modules = _modules_of(self._optimizers)
            names = _names(modules, "model") | _names(self._optimizers, "optimizer")
            if not self.start({name: each for each, name in names.items()}):
                self._leave()
            for module in modules:
                self._hooks.callback(
                    module.register_forward_pre_hook(self._computes).remove
                )
        self.step_begins()

    def _computes(self, module: torch.nn.Module, *_: Any) -> None:
        if torch.is_grad_enabled() and module.training:
            self._begin()

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._begin()
        self._inside = optimizer

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        """End the step, if all optimizers have done one of their own."""
        self._inside = None
        self._stepped[optimizer] += 1
        if self._stepped[optimizer] > _MOST_ALONE:
            self._optimizers = [*self._stepped]
        if any(not self._stepped[each] for each in self._optimizers):
            return
        losses, self._losses = self._losses, []
        self._stepped.clear()
        self._unscaled = None, None
        values: Mapping[str, Any] = {"loss": _sum_of(losses)} if losses else {}
        if self.step_ended(values) is not None:
            self._leave()

    def _leave(self) -> None:
        """Leave the script, which a hook has stopped.

        Raises:
            SessionStoppedError: always; the block of the adapter catches it.
        """
        stop = self.stop
        assert stop is not None
        raise SessionStoppedError(f"{stop.who} stopped the script ({stop.why})")


@contextlib.contextmanager
def attach() -> Iterator[None]:
    """Let hooks watch the steps of the optimizers in a block.

    The block is left when a hook stops the training.
    """
    adapter = ScriptAdapter()
    with adapter, adapter.watching():
        yield


def _sum_of(losses: list[torch.Tensor]) -> Any:
    """Return a function that adds the losses of a step up, if a hook wants that."""
    return losses[0] if len(losses) == 1 else lambda: sum(losses[1:], losses[0])


def _parameters_of(optimizers: list[Optimizer]) -> set[int]:
    return {
        id(p) for each in optimizers for group in each.param_groups for p in group["params"]
    }


def _trains(optimizers: list[Optimizer], module: torch.nn.Module) -> bool:
    """Return whether an optimizer has a parameter of a module."""
    trained = _parameters_of(optimizers)
    return any(id(parameter) in trained for parameter in module.parameters())


def _modules_of(optimizers: list[Optimizer]) -> list[torch.nn.Module]:
    """Return the modules that are trained, and no parts of them, the oldest first."""
    trained = _parameters_of(optimizers)
    # By type: isinstance() asks odd objects for their class, which may warn or fail.
    found = gc.get_objects()
    modules = [each for each in found if issubclass(type(each), torch.nn.Module)]
    ours = [m for m in modules if any(id(p) in trained for p in m.parameters())]
    parts = {id(part) for module in ours for part in module.modules() if part is not module}
    return [module for module in ours if id(module) not in parts]


def _names(things: list[Any], usual: str) -> dict[Any, str]:
    """Return the name of each object: the usual one, or of several those of variables."""
    if len(things) == 1:
        return {things[0]: usual}
    found: dict[Any, str] = {}
    for number, thing in enumerate(things):
        name = _variable_of(thing) or f"{usual}_{number}"
        taken = found.values()
        found[thing] = name if name not in taken else f"{name}_{number}"
    return found


def _variable_of(thing: Any) -> str | None:
    """Return the name of the script's variable, or of an attribute of its ``self``."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not re.match(r"(hookbus|torch)(_|\.|$)", module):
            owner = getattr(frame.f_locals.get("self"), "__dict__", {})
            for variables in (frame.f_locals, owner, frame.f_globals):
                for name, value in variables.items():
                    if value is thing and not name.startswith("_"):
                        return name
        frame = frame.f_back
    return None
