"""Moves tensors to the host, and packs them for checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hookbus import CheckpointError, GraphError, Role, UsageError
from hookbus.backend import LiveValue, Packed, Tracked, overlaps
from hookbus_torch import gradients

_TOGETHER = 2**20
"""Tensors of at most so many bytes leave a device in one buffer, larger ones alone."""


def on_host(values: Sequence[Any]) -> Sequence[Any]:
    """Return tensors as NumPy arrays on the host, in one transfer from each device.

    A tensor with one number and no axis becomes a NumPy number, as in TensorFlow. The
    arrays do not change when the training goes on. bfloat16 and the float8 types become
    float32, which holds each of their numbers. Values that are no tensors stay as they are.

    Raises:
        UsageError: a tensor has no data, like one on the device ``meta``.
    """
    if len(values) == 1:  # a loss, in nearly every step
        (only,) = values
        if only.__class__ in _CLASSES and only.is_cpu and not only.dim():
            number = _OF_ITEMS.get(only.dtype)
            if number is not None:
                return (number(only.item()),)
    moved: dict[int, Any] = {}
    waiting: dict[torch.device, list[torch.Tensor]] = {}
    for value in values:
        if id(value) in moved or not isinstance(value, torch.Tensor):
            continue
        plain = moved[id(value)] = value if _is_usual(value) else _plain(value)
        if plain.is_cpu:  # a copy: the training goes on in place
            moved[id(value)] = plain.numpy(force=True).copy()[()]
        else:
            waiting.setdefault(plain.device, []).append(plain)
    if waiting:
        arrived = {
            id(tensor): array
            for device, tensors in waiting.items()
            for tensor, array in zip(tensors, _transfer(device, tensors), strict=True)
        }
        moved = {key: arrived.get(id(plain), plain) for key, plain in moved.items()}
    return [moved.get(id(value), value) for value in values]


def _is_usual(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an array in the memory of the host already."""
    return (
        tensor.__class__ in _CLASSES
        and tensor.dtype in _NUMBERS
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor of a dtype that NumPy has, where it is.

    Raises:
        UsageError: it has no data here.
    """
    if hasattr(tensor, "full_tensor"):
        raise UsageError(
            "a hook asks for a distributed tensor; report tensor.full_tensor(), in which "
            "all processes take part"
        )
    if tensor.is_nested:
        raise UsageError(
            "a hook asks for a nested tensor, which no array can hold; report "
            "tensor.to_padded_tensor(0.0), or its parts"
        )
    tensor = tensor.detach()
    if tensor.is_meta:
        raise UsageError("a hook asks for a tensor on the device 'meta', which has no data")
    if tensor.dtype in _PAIRS:
        raise UsageError(
            f"a hook asks for a tensor of dtype {name_of(tensor.dtype)}, which holds two "
            "numbers in a byte; report tensor.view(torch.uint8)"
        )
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    wide = _WIDER.get(tensor.dtype)
    if wide is not None:
        tensor = tensor.to(wide)
    return tensor.resolve_conj().resolve_neg()


def _transfer(device: torch.device, tensors: list[torch.Tensor]) -> list[Any]:
    """Copy tensors of one device to the host and wait once for all of them.

    On CUDA the copies run one after the other on the current stream, into pinned memory. On
    other devices each copy waits itself.
    """
    small = [tensor for tensor in tensors if tensor.nbytes <= _TOGETHER]
    buffers = {id(t): _start_copy(t) for t in tensors if t.nbytes > _TOGETHER}
    packed: Any = None
    if small:
        packed = _start_copy(torch.cat([_bytes_of(tensor) for tensor in small]))
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    arrays, start = [], 0
    for tensor in tensors:
        if id(tensor) in buffers:
            arrays.append(buffers[id(tensor)].numpy())
            continue
        part = packed[start : start + tensor.nbytes].numpy().copy()  # aligned
        start += tensor.nbytes
        dtype = torch.empty((), dtype=tensor.dtype).numpy().dtype
        arrays.append(part.view(dtype).reshape(tensor.shape)[()])
    return arrays


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the host: itself, or a copy.

    From CUDA it moves into pinned memory, which PyTorch keeps for the next one: a copy into
    fresh memory takes longer than writing it to a disk.
    """
    if not tensor.is_cuda:
        return tensor.cpu()
    host = _start_copy(tensor)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host


def _start_copy(tensor: torch.Tensor, host: torch.Tensor | None = None) -> torch.Tensor:
    """Begin to copy a tensor to the host; on CUDA it is there after a synchronization.

    It goes into *host*, a tensor of its form, or into new memory.
    """
    pinned = tensor.is_cuda
    if host is None:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    return host.copy_(tensor, non_blocking=pinned)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a dense tensor as a flat tensor, without a copy if possible."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _dtypes() -> dict[str, torch.dtype]:
    """Return the dtypes of values that this PyTorch has, by name."""
    found = {name: getattr(torch, name) for name in dir(torch)}
    dtypes = {name: d for name, d in found.items() if isinstance(d, torch.dtype)}
    return {name: d for name, d in dtypes.items() if str(d) == f"torch.{name}"}


DTYPES: Mapping[str, torch.dtype] = _dtypes()
_WIDER = {
    **{d: torch.float32 for name, d in DTYPES.items() if name.startswith("float8")},
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
"""The dtypes that NumPy lacks, and those that hold their numbers exactly."""
_PAIRS = frozenset(d for name, d in DTYPES.items() if name.startswith("float4"))
_QUANTIZED = ("qint", "quint")
_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter})
_NUMBERS: Mapping[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}
"""Dtypes of values that need no preparation on the CPU, and NumPy's; asked in each step."""
_OF_ITEMS = dict(_NUMBERS)
"""These dtypes, each with the function that makes a NumPy number of an item."""
if isinstance(np.float32(1) * 1.0, np.float32):  # NumPy 2
    # Its constructor takes longer than all else that on_host() does for a loss.
    _OF_ITEMS[torch.float32] = np.float32(1).__mul__


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype, like ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def form_of(value: Any) -> str:
    """Return a description of a value for messages: its kind, shape and dtype."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {name_of(value.dtype)}"
    return f"a {type(value).__name__}"


def pack(value: Any) -> Packed | None:
    """Return a tensor as bytes on the host; None for anything else of PyTorch."""
    if not isinstance(value, torch.Tensor):
        return None
    tensor = value.detach()
    name = name_of(tensor.dtype)
    for kind, unfit in (
        ("distributed", hasattr(tensor, "full_tensor")),
        ("nested", tensor.is_nested),
        ("on the device 'meta', which has no data", tensor.is_meta),
        (str(tensor.layout).removeprefix("torch."), tensor.layout is not torch.strided),
        ("quantized", tensor.is_quantized),
        (f"of dtype {name}", name not in DTYPES),
    ):
        if unfit:
            raise CheckpointError(f"a tensor is {kind}, which cannot be saved")

    def data() -> memoryview:
        host = _on_host(tensor).resolve_conj().resolve_neg()
        return memoryview(_bytes_of(host).numpy())

    return Packed(name, tuple(tensor.shape), tensor.nbytes, data)


def copied(value: Any, before: Any) -> Any:
    """Return a copy of a tensor on the CPU, in the memory of an earlier copy if that fits.

    On CUDA the copy is made after the work that the current stream has, into pinned
    memory: so it has the values of now, whatever the program does next on that stream.
    """
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    tensor = value.detach()
    unfit = tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta
    if unfit or tensor.is_nested or hasattr(tensor, "full_tensor"):
        return tensor  # pack() refuses it
    fits = isinstance(before, torch.Tensor) and before.shape == tensor.shape
    fits = fits and before.dtype == tensor.dtype and before.is_cpu
    return _start_copy(tensor, before if fits else None)


def await_devices() -> None:
    """Wait until the CUDA devices have done all work that they have now."""
    cuda = torch.cuda
    for n in range(cuda.device_count() if cuda.is_initialized() else 0):
        if cuda.memory_allocated(n):
            cuda.synchronize(n)


def itemsize(dtype: str) -> int | None:
    """Return the bytes of an element of a dtype of dense tensors, by its name."""
    known = DTYPES.get(dtype)
    return None if known is None or dtype.startswith(_QUANTIZED) else known.itemsize


def unpack(packed: Packed) -> torch.Tensor:
    """Return a packed tensor, on the CPU."""
    dtype = DTYPES[packed.dtype]
    if not packed.nbytes:
        return torch.empty(packed.shape, dtype=dtype)
    return torch.frombuffer(packed.data(), dtype=dtype).reshape(packed.shape)


def check_layout(name: str, path: str, tensor: torch.Tensor) -> None:
    """Refuse to track a tensor into which no state can be written.

    Raises:
        UsageError: its elements share memory.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        return
    if overlaps(tensor.shape, tensor.stride()):
        raise UsageError(
            f"cannot track {name!r}: the elements of '{name}{path}' share memory, as those "
            "of expand() do, so that a state cannot be written into it: clone() the tensor"
        )


def tracked(name: str, tensor: torch.Tensor) -> Tracked:
    """Return how to save a tensor, and to restore it in place.

    Raises:
        UsageError: its elements share memory.
    """
    check_layout(name, "", tensor)

    def put(state: Any) -> torch.Tensor:
        write(name, tensor, state)
        return tensor

    role: Role = "parameter" if tensor.requires_grad else "state"
    live = LiveValue(tensor.detach, lambda value: write(name, tensor, value), role=role)
    return Tracked(
        tensor.detach,
        put,
        tensor,
        lambda state: faults(name, tensor, state),
        live=lambda: {"": live},
        is_alike=True,
        pending=gradients.pending(lambda: iter([("", tensor)])),
    )


def write(name: str, tensor: torch.Tensor, value: Any) -> None:
    """Write a value into a tensor, which stays where it is and of its dtype.

    Raises:
        GraphError: the value has another shape, no numbers, or numbers of a kind that the
            dtype cannot hold, like fractions in a tensor of integers.
    """
    if isinstance(value, np.ndarray):  # PyTorch takes no read-only or reversed ones
        value = value.copy()
    try:
        given = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(f"{name!r} is {form_of(tensor)}; {error}") from error
    fits = given.shape == tensor.shape and torch.can_cast(given.dtype, tensor.dtype)
    if not fits:
        raise GraphError(f"{name!r} is {form_of(tensor)}, and cannot take {form_of(given)}")
    with torch.no_grad():
        tensor.copy_(given)
    torch.clear_autocast_cache()  # of torch.autocast: it has weights in half precision


def faults(path: str, here: Any, saved: Any) -> Iterator[str]:
    """Yield why a saved value cannot be written into a tensor."""
    if not isinstance(here, torch.Tensor):
        return
    if (
        not isinstance(saved, torch.Tensor)
        or saved.shape != here.shape
        or saved.dtype != here.dtype
    ):
        yield f"{path!r} is {form_of(here)} here and {form_of(saved)} in the checkpoint"
