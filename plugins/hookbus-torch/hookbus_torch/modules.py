"""Saves and restores modules in place, and gives hooks the values inside them.

Names are those of the bare module: ``torch.compile`` and the wrappers for several devices
leave no trace in them, so checkpoints of a wrapped and of a bare module fit both.
"""

from __future__ import annotations

import contextlib
import difflib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from hookbus import Role, UsageError, log
from hookbus.backend import Beside, LiveValue, Tracked
from hookbus.errors import NoValueYetError
from hookbus_torch import gradients, sharded, values
from hookbus_torch.moments import ALL, Call, updates_of

_WRAPPERS: Mapping[type, str] = {
    torch.nn.DataParallel: "module",
    torch.nn.parallel.DistributedDataParallel: "module",
    torch._dynamo.OptimizedModule: "_orig_mod",
}
"""Modules that only wrap another one, with the name of the attribute that holds it."""
_WARNED: weakref.WeakSet[Module] = weakref.WeakSet()
"""Modules that do not resume exactly, for which the warning was logged."""
_HALVES = frozenset({torch.float16, torch.bfloat16})
_MOST_NAMES = 6
"""The most parameters that a message lists if only one of two states has them."""


def tracked(name: str, module: Module) -> Tracked:
    """Return how to save a module, to restore it in place, and the values for hooks.

    Raises:
        UsageError: a parameter or buffer has no data yet, or its elements share memory.
    """
    _check_has_data(name, module)
    sharded.reshard(module)

    def get() -> dict[str, Any]:
        names, state = _plain_names(module), module.state_dict()
        return sharded.parts_of({_plain(key, names): v for key, v in state.items()})

    def put(state: Any) -> Module:
        # The dict is that of the module, because it notes the versions of its parts.
        names, here = _plain_names(module), module.state_dict()
        for key in here:
            here[key] = sharded.restored(here[key], state[_plain(key, names)])
        module.load_state_dict(here)
        torch.clear_autocast_cache()  # as after a write
        _warn_of_unsaved_generators(name, module)
        return module

    for key, value in get().items():
        if isinstance(value, torch.Tensor):
            values.check_layout(name, f".{key}", value)
    return Tracked(
        get,
        put,
        module,
        lambda state: _faults(name, get(), state),
        live=lambda: dict(_live(name, module)),
        evaluating=lambda: evaluating(module),
        is_alike=sharded.is_alike((*module.parameters(), *module.buffers())),
        pending=gradients.pending(lambda: parameters_of(module)),
        modes=_modes(module),
        introduce=partial(_introduce, module),
    )


def _warn_of_unsaved_generators(name: str, module: Module) -> None:
    """Warn once of parts whose dropout no checkpoint makes exact.

    cuDNN draws the dropout between the layers of a recurrent network from a state of its
    own, which PyTorch neither shows nor sets.
    """
    paths = [path for path, part in module.named_modules() if _draws_in_cudnn(part)]
    if paths and module not in _WARNED:
        _WARNED.add(module)
        log.warning(
            "this run would not resume exactly",
            why=f"cuDNN draws the dropout inside {', '.join(paths) or name}, and no "
            "checkpoint holds its state",
            hint="torch.backends.cudnn.enabled = False, or Dropout modules between layers",
            by="torch",
        )


def _draws_in_cudnn(part: Module) -> bool:
    if not isinstance(part, torch.nn.RNNBase) or part.num_layers < 2 or not part.dropout:
        return False
    return torch.backends.cudnn.enabled and any(each.is_cuda for each in part.parameters())


def _introduce(module: Module, tracked: Mapping[str, Any]) -> None:
    """Tell the moments of a module which optimizers train it."""
    inside = weakref.ref(module)

    def parameters() -> Iterator[tuple[str, torch.Tensor]]:
        found = inside()
        return iter(()) if found is None else parameters_of(found)

    optimizers = map(gradients.bare, tracked.values())
    updates_of(module).introduce(filter(None, optimizers), parameters)


@contextlib.contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """Compute with a module in evaluation mode and without gradients, then put it back."""
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(modes[0][1])  # a module may have acted on eval(), and undo it now
        for each, mode in modes:
            each.training = mode


def parameters_of(module: Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters of a module by their names without wrappers.

    One that several parts share comes with each of its names.
    """
    names = _plain_names(module)
    for key, parameter in module.named_parameters(remove_duplicate=False):
        yield _plain(key, names), parameter


def parts_of(name: str, module: Module) -> Iterator[tuple[str, Module]]:
    """Yield the modules that are called one by one, each with its path below a name.

    Of a wrapper its inside comes; of a compiled module the whole, which is one call.
    """
    names = _plain_names(module)
    compiled: list[str] = []
    for path, part in module.named_modules():
        if any(not above or path.startswith(f"{above}.") for above in compiled):
            continue
        if _is_compiled([part]) or isinstance(part, torch._dynamo.OptimizedModule):
            compiled.append(path)
        elif _wrapped_by(part) is not None:
            continue
        yield f"{name}.{names[path]}".rstrip("."), part


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


def _modes(module: Module) -> Beside:
    """Return how to save and restore what a program switches in a module.

    That is whether each part trains, and whether each parameter gets gradients. A module
    that was switched as a whole since its last training, to try it out, has the modes of
    the last save.
    """
    kept: dict[str, bool] = {}

    def get() -> dict[str, dict[str, bool]]:
        if gradients.trained_in(module) in (None, module.training):
            names = _plain_names(module)
            kept.clear()
            for path, part in module.named_modules(remove_duplicate=False):
                kept[names[path]] = part.training  # a wrapper comes before its inside
        grads = {name: p.requires_grad for name, p in parameters_of(module)}
        return {"training": dict(kept), "requires_grad": grads}

    def put(saved: Any) -> None:
        names, training = _plain_names(module), saved["training"]
        for path, part in module.named_modules(remove_duplicate=False):
            part.training = training.get(names[path], part.training)
        grads = saved["requires_grad"]
        for name, parameter in parameters_of(module):
            parameter.requires_grad_(grads.get(name, parameter.requires_grad))

    return Beside(get, put)


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


def _check_has_data(name: str, module: Module) -> None:
    """Refuse to track a module whose values are not made yet.

    Raises:
        UsageError: it is one.
    """
    names = _plain_names(module)
    for key, value in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(value):
            what, todo = "gets its shape from the first batch", "call the module once"
        elif value.is_meta:
            what, todo = "is on the device 'meta'", "use to_empty() and initialize it"
        else:
            continue
        raise UsageError(
            f"cannot track {name!r}: '{name}.{_plain(key, names)}' {what} and has no data "
            f"yet; {todo} before session.track()"
        )


def _faults(name: str, here: Mapping[str, Any], saved: Any) -> Iterator[str]:
    """Yield why a saved module cannot be restored into the one that is here."""
    if not isinstance(saved, Mapping):
        yield f"{name!r} is a module here and {values.form_of(saved)} in the checkpoint"
        return
    others = [*sharded.faults(name, here.get(sharded.KEY), saved.get(sharded.KEY))]
    if others:  # the parts have other shapes then, which is no news
        yield from others
        return
    for key, value in here.items():
        if key in saved:
            yield from values.faults(f"{name}.{key}", value, saved[key])
    yield from _only_in("module", "checkpoint", name, here, saved)
    yield from _only_in("checkpoint", "module", name, saved, here)


def _only_in(
    this: str, that: str, name: str, one: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[str]:
    """Yield messages on the names that only one of two states has, with similar ones."""
    alone = [key for key in one if key not in other]
    for key in alone[:_MOST_NAMES]:
        alike = [k for k in other if k not in one and _shape(other[k]) == _shape(one[key])]
        close = difflib.get_close_matches(key, alike, 1)
        hint = f" (the {that} has '{name}.{close[0]}')" if close else ""
        yield f"'{name}.{key}' is only in the {this}{hint}"
    if len(alone) > _MOST_NAMES:
        more = len(alone) - _MOST_NAMES
        yield f"{more} more names of {name!r} are only in the {this}"


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None)


def _live(name: str, module: Module) -> Iterator[tuple[str, LiveValue]]:
    """Yield the values of a module for hooks, by their names without the module's."""
    names, updates = _plain_names(module), updates_of(module)
    chains: dict[str, list[Module]] = {}
    with_output: set[str] = set()
    for path, part in module.named_modules(remove_duplicate=False):
        above = chains[path.rpartition(".")[0]] if path else []
        chains[path] = [*above, part]
        inside = f".{names[path]}" if names[path] else ""
        if inside not in with_output:  # a wrapper comes first, and has the whole output
            with_output.add(inside)
            yield f"{inside}:output", _output(f"{name}{inside}:output", chains[path])
            if not path or any(True for _ in part.parameters()):
                read = partial(_gradient_norm, f"{name}{inside}:grad_norm", part)
                shared = not sharded.is_alike(part.parameters())
                yield (
                    f"{inside}:grad_norm",
                    LiveValue(read, is_shared=shared, role="gradient"),
                )
        for leaf in _leaves(part):
            key, shared = f"{inside}.{leaf}", sharded.is_sharded(getattr(part, leaf))
            write = partial(_write, f"{name}{key}", part, leaf)
            role: Role = "parameter" if leaf in part._parameters else "buffer"
            yield (
                key,
                LiveValue(
                    partial(_read, part, leaf),
                    None if shared else write,
                    is_shared=shared,
                    role=role,
                ),
            )
            if role == "parameter":
                read = partial(_gradient, f"{name}{key}:grad", part, leaf)
                yield (
                    f"{key}:grad",
                    LiveValue(
                        read,
                        is_shared=shared,
                        moment=updates,
                        part=key[1:],
                        role="gradient",
                    ),
                )
    # All parameters, and all gradients, have names of their own.
    shared = not sharded.is_alike(module.parameters())
    read = partial(_parameters, module)
    yield ":parameters", LiveValue(read, is_shared=shared, role=None)
    read = partial(_gradients, f"{name}:grads", module)
    yield (
        ":grads",
        LiveValue(read, is_shared=shared, moment=updates, part=ALL, role=None),
    )


def _leaves(part: Module) -> Iterator[str]:
    """Yield the names of a module's own parameters and buffers, without those unused."""
    for each in (part._parameters, part._buffers):
        yield from (leaf for leaf, value in each.items() if value is not None)


def _read(owner: Module, leaf: str) -> Any:
    value = getattr(owner, leaf)
    return None if value is None else sharded.whole(value)


def _write(name: str, owner: Module, leaf: str, value: Any) -> None:
    values.write(name, getattr(owner, leaf), value)


def _gradient(name: str, owner: Module, leaf: str) -> torch.Tensor:
    gradient = getattr(getattr(owner, leaf), "grad", None)
    if gradient is None:
        raise _no_gradient(name)
    return sharded.whole(gradient)


def _parameters(module: Module) -> dict[str, torch.Tensor]:
    """Return the parameters by name."""
    return {name: parameter.detach() for name, parameter in parameters_of(module)}


def _gradients(name: str, module: Module) -> dict[str, torch.Tensor]:
    """Return the gradients that there are, by the names of their parameters."""
    every = {key: p.grad for key, p in parameters_of(module)}
    found = {key: grad.detach() for key, grad in every.items() if grad is not None}
    if not found:
        raise _no_gradient(name)
    return found


def _gradient_norm(name: str, module: Module) -> torch.Tensor:
    """Return the norm of all gradients as one vector, where they are."""
    found = [p.grad.detach() for p in module.parameters() if p.grad is not None]
    if not found:
        raise _no_gradient(name)
    split = [g for g in found if sharded.is_sharded(g)]
    here = [g for g in found if not sharded.is_sharded(g)]
    dense = [g.coalesce().values() if g.is_sparse else g for g in here]
    # The norm of half gradients may be beyond their dtype.
    halves = [g for g in dense if g.dtype in _HALVES]
    norms = [*torch._foreach_norm(halves, 2, torch.float32)] if halves else []
    others = [g for g in dense if g.dtype not in _HALVES]
    norms += torch._foreach_norm(others) if others else ()
    norms += sharded.gradient_norm(split)
    return torch.linalg.vector_norm(
        torch.stack([norm.to(norms[0].device) for norm in norms])
    )


def _no_gradient(name: str) -> NoValueYetError:
    return NoValueYetError(
        f"{name!r} has no value: when the step ended, there was no gradient. Call "
        "backward() in the step, and zero_grad() at its beginning instead of its end",
        name,
    )


def _output(name: str, chain: Sequence[Module]) -> LiveValue:
    """Return the output of a module's last call, which is kept only while hooks ask.

    The value is a copy: a later module may work in place, like ``ReLU(inplace=True)``.

    Args:
        name: the name of the value.
        chain: the modules that contain the module, from the tracked one to itself.
    """
    kept: list[Any] = []
    handles: list[Any] = []
    arms: list[None] = []

    def keep(_: Module, __: Any, output: Any) -> None:
        kept[:] = [tree_map_only(torch.Tensor, _copied, output)]

    def capture() -> Callable[[], None]:
        if not arms:
            kept.clear()
        if not handles:
            handles.append(chain[-1].register_forward_hook(keep))
        arms.append(None)
        return disarm

    def disarm() -> None:
        arms.pop()
        if not arms and not _is_compiled(chain):  # else it is a part of the compiled code
            handles.pop().remove()

    def get() -> Any:
        if not kept:
            raise NoValueYetError(_no_output(name, chain), name)
        return kept[0] if arms else kept.pop()

    return LiveValue(
        get,
        capture=capture,
        moment=Call(chain[-1]),
        role="output",
        forget=kept.clear,
    )


def _no_output(name: str, chain: Sequence[Module]) -> str:
    if _is_compiled(chain):
        return (
            f"{name!r} has no value: the model was compiled before a hook asked for it. "
            "Ask for it in the first step, or return it from the model and report it"
        )
    return (
        f"{name!r} has no value: the module was not called in the step, or only by code "
        "that was compiled before a hook asked for it. Ask for it in the first step, or "
        "report it"
    )


def _is_compiled(chain: Sequence[Module]) -> bool:
    """Return whether the last of nested modules runs as a part of compiled code.

    Hooks of a module that ``torch.compile`` wraps run outside the compiled code, and those
    of ``module.compile()`` inside.
    """
    *outer, part = chain
    wraps = any(isinstance(each, torch._dynamo.OptimizedModule) for each in outer)
    own = "_compiled_call_impl"
    return wraps or any(getattr(each, own, None) is not None for each in (*outer, part))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy without its history, which would keep the whole step in memory."""
    return tensor.detach().clone()
