"""Saves and restores modules in place, and gives hooks the values inside them.

Names are those of the bare module: what ``torch.compile`` and the wrappers for several
devices put around it leaves no trace in them, so a checkpoint of one fits the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import Module

from hookbus import NoValueYetError, UsageError
from hookbus.backend import LiveValue, Tracked
from hookbus_torch import values

_WRAPPERS: Mapping[type, str] = {
    torch.nn.DataParallel: "module",
    torch.nn.parallel.DistributedDataParallel: "module",
    torch._dynamo.OptimizedModule: "_orig_mod",
}
"""Modules that only wrap another one, with the name of the attribute that holds it."""


def tracked(name: str, module: Module) -> Tracked:
    """Return how to save a module, to restore it in place, and what hooks see of it."""

    def get() -> dict[str, Any]:
        names = _plain_names(module)
        return {_plain(key, names): value for key, value in module.state_dict().items()}

    def put(state: Any) -> Module:
        names = _plain_names(module)
        here = {key: state[_plain(key, names)] for key in module.state_dict()}
        module.load_state_dict(here)
        return module

    return Tracked(
        get,
        put,
        module,
        lambda state: _faults(name, get(), state),
        live=lambda: dict(_live(name, module)),
        evaluating=lambda: evaluating(module),
    )


@contextlib.contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """Compute with a module in evaluation mode and without gradients, then put it back."""
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for each, mode in modes:
            each.training = mode


def bare(module: Module) -> Module:
    """Return the module inside its wrappers."""
    while (attribute := _wrapped_by(module)) is not None:
        module = getattr(module, attribute)
    return module


def check_once(tracked: Mapping[str, Any]) -> None:
    """Check that no module is tracked under two names.

    Raises:
        UsageError: one is, or is a part of another one.
    """
    found: dict[int, str] = {}
    named = {
        name: bare(thing) for name, thing in tracked.items() if isinstance(thing, Module)
    }
    for name, module in named.items():
        other = found.setdefault(id(module), name)
        if other != name:
            raise UsageError(
                f"{other!r} and {name!r} are the same module; track each object once"
            )
    for name, module in named.items():
        for path, part in module.named_modules():
            other = found.get(id(part), name)
            if other != name:
                raise UsageError(
                    f"{other!r} is a part of {name!r} ('{name}.{path}'), which saves it "
                    f"already; track {name!r} alone"
                )


def _wrapped_by(module: Module) -> str | None:
    return next(
        (name for kind, name in _WRAPPERS.items() if isinstance(module, kind)), None
    )


def _plain_names(module: Module) -> dict[str, str]:
    """Return the path of each module inside a module to its path without wrappers."""
    plain, inside = {"": ""}, {"": _wrapped_by(module)}
    for path, part in module.named_modules(remove_duplicate=False):
        if not path:
            continue
        parent, _, leaf = path.rpartition(".")
        inside[path] = _wrapped_by(part)
        if leaf == inside[parent]:
            plain[path] = plain[parent]
        else:
            plain[path] = f"{plain[parent]}.{leaf}".lstrip(".")
    return plain


def _plain(key: str, names: Mapping[str, str]) -> str:
    """Return the name of a parameter or buffer without wrappers."""
    owner, _, leaf = key.rpartition(".")
    return f"{names.get(owner, owner)}.{leaf}".lstrip(".")


def _faults(name: str, here: Mapping[str, Any], saved: Any) -> Iterator[str]:
    """Yield why a saved module cannot be restored into the one that is here."""
    if not isinstance(saved, Mapping):
        yield f"{name!r} is a module here and {values.form_of(saved)} in the checkpoint"
        return
    for key, value in here.items():
        if key not in saved:
            yield f"'{name}.{key}' is only in the module"
        else:
            yield from values.faults(f"{name}.{key}", value, saved[key])
    for key in saved:
        if key not in here:
            yield f"'{name}.{key}' is only in the checkpoint"


def _live(name: str, module: Module) -> Iterator[tuple[str, LiveValue]]:
    """Yield the values that hooks see of a module, by the part of their name behind its."""
    names = _plain_names(module)
    for path, part in module.named_modules(remove_duplicate=False):
        plain = names[path]
        inside = f".{plain}" if plain else ""
        if _wrapped_by(part) is None:
            yield f"{inside}:output", _output(f"{name}{inside}:output", part, module)
        for leaf in (*part._parameters, *part._buffers):
            key = f"{inside}.{leaf}"
            write = partial(_write, f"{name}{key}", part, leaf)
            yield key, LiveValue(partial(_read, part, leaf), write)
            if leaf in part._parameters:
                full = f"{name}{key}:grad"
                yield f"{key}:grad", LiveValue(partial(_gradient, full, part, leaf))
    yield ":grad_norm", LiveValue(partial(_gradient_norm, f"{name}:grad_norm", module))


def _read(owner: Module, leaf: str) -> Any:
    value = getattr(owner, leaf)
    return None if value is None else value.detach()


def _write(name: str, owner: Module, leaf: str, value: Any) -> None:
    values.write(name, getattr(owner, leaf), value)


def _gradient(name: str, owner: Module, leaf: str) -> torch.Tensor:
    gradient = getattr(getattr(owner, leaf), "grad", None)
    if gradient is None:
        raise _no_gradient(name)
    return gradient.detach()


def _gradient_norm(name: str, module: Module) -> torch.Tensor:
    """Return the norm of all gradients as one vector, where they are."""
    found = [p.grad.detach() for p in module.parameters() if p.grad is not None]
    if not found:
        raise _no_gradient(name)
    norms = torch._foreach_norm(found)
    return torch.linalg.vector_norm(
        torch.stack([norm.to(norms[0].device) for norm in norms])
    )


def _no_gradient(name: str) -> NoValueYetError:
    return NoValueYetError(
        f"{name!r} has no value: when the step ended, there was no gradient. Call "
        "backward() in the step, and zero_grad() at its beginning instead of its end",
        name,
    )


def _output(name: str, part: Module, whole: Module) -> LiveValue:
    """Return the output of a module's last call, which is kept only while hooks ask."""
    kept: list[Any] = []
    handles: list[Any] = []

    def keep(_: Module, __: Any, output: Any) -> None:
        kept[:] = [_detached(output)]

    def arm() -> Callable[[], None]:
        if not handles:
            handles.append(part.register_forward_hook(keep))
        return disarm

    def disarm() -> None:
        kept.clear()
        if not _is_compiled(whole):  # there the hook is a part of the compiled code
            handles.pop().remove()

    def get() -> Any:
        if not kept:
            raise NoValueYetError(_no_output(name, part, whole), name)
        return kept[0]

    return LiveValue(get, arm=arm)


def _no_output(name: str, part: Module, whole: Module) -> str:
    if _is_compiled(whole) and part is not whole:
        return (
            f"{name!r} has no value: the model was compiled before a hook asked for it. "
            "Ask for it in the first step, or return it from the model and report it"
        )
    return f"{name!r} has no value: the module was not called in the step"


def _is_compiled(module: Module) -> bool:
    """Return whether ``torch.compile`` or ``module.compile()`` was applied to a module."""
    kind, own = torch._dynamo.OptimizedModule, "_compiled_call_impl"
    parts = module.modules()
    return any(isinstance(p, kind) or getattr(p, own, None) is not None for p in parts)


def _detached(output: Any) -> Any:
    """Return an output without its history, which would keep the whole step in memory."""
    if isinstance(output, torch.Tensor):
        return output.detach()
    if isinstance(output, dict):
        return {key: _detached(value) for key, value in output.items()}
    if isinstance(output, list | tuple) and type(output) in (list, tuple):
        return type(output)(_detached(value) for value in output)
    return output
