"""Moves tensors to the host, and packs them for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hookbus import CheckpointError, GraphError, UsageError
from hookbus.backend import LiveValue, Packed, Tracked

_TOGETHER = 2**20
"""Tensors of at most so many bytes leave a device in one buffer, larger ones alone."""


def on_host(values: Sequence[Any]) -> Sequence[Any]:
    """Return tensors as NumPy arrays that do not change, each device's in one transfer."""
    moved: dict[int, Any] = {}
    waiting: dict[torch.device, list[torch.Tensor]] = {}
    for value in values:
        if id(value) in moved or not isinstance(value, torch.Tensor):
            continue
        usual = value.dtype in _USUAL and value.layout is torch.strided and value.is_cpu
        plain = moved[id(value)] = value.detach() if usual else _plain(value)
        if plain.is_cpu:
            moved[id(value)] = plain.numpy().copy()  # the training goes on in place
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
    tensor = tensor.detach()
    if tensor.is_meta:
        raise UsageError("a hook asks for a tensor on the device 'meta', which has no data")
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    wide = _WIDER.get(tensor.dtype)
    if wide is not None:
        tensor = tensor.to(wide)
    return tensor.resolve_conj().resolve_neg()


def _transfer(device: torch.device, tensors: list[torch.Tensor]) -> list[Any]:
    """Copy tensors of one device to the host and wait once for all of them."""
    small = [tensor for tensor in tensors if tensor.nbytes <= _TOGETHER]
    buffers = {id(t): _start_copy(t) for t in tensors if t.nbytes > _TOGETHER}
    packed: Any = None
    if small:
        packed = _start_copy(torch.cat([_bytes_of(tensor) for tensor in small]))
    torch.get_device_module(device).current_stream(device).synchronize()
    arrays, start = [], 0
    for tensor in tensors:
        if id(tensor) in buffers:
            arrays.append(buffers[id(tensor)].numpy())
            continue
        part = packed[start : start + tensor.nbytes].numpy()
        start += tensor.nbytes
        dtype = torch.empty((), dtype=tensor.dtype).numpy().dtype
        arrays.append(np.frombuffer(part.tobytes(), dtype).reshape(tensor.shape))
    return arrays


def _start_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Begin to copy a tensor to the host; the copy is complete after a synchronization."""
    pinned = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    return host.copy_(tensor, non_blocking=True)


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
_USUAL = frozenset({torch.float32, torch.float64, torch.int64, torch.bool})
"""Dtypes of values that need no preparation on the CPU; this is asked in each step."""


def form_of(value: Any) -> str:
    """Return what a message says of a value: its kind, shape and dtype."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a tensor of shape {tuple(value.shape)} and dtype {dtype}"
    return f"a {type(value).__name__}"


def pack(value: Any) -> Packed | None:
    """Return a tensor as bytes on the host; None for anything else of PyTorch."""
    if not isinstance(value, torch.Tensor):
        return None
    tensor = value.detach()
    name = str(tensor.dtype).removeprefix("torch.")
    for kind, unfit in (
        ("distributed", hasattr(tensor, "full_tensor")),
        ("on the device 'meta', which has no data", tensor.is_meta),
        (str(tensor.layout).removeprefix("torch."), tensor.layout is not torch.strided),
        ("quantized", tensor.is_quantized),
        (f"of dtype {name}", name not in DTYPES),
    ):
        if unfit:
            raise CheckpointError(f"a tensor is {kind}, which cannot be saved")

    def data() -> memoryview:
        host = tensor.cpu().resolve_conj().resolve_neg()
        return memoryview(_bytes_of(host).numpy())

    return Packed(name, tuple(tensor.shape), tensor.nbytes, data)


def unpack(packed: Packed) -> torch.Tensor:
    """Return a packed tensor, on the CPU."""
    dtype = DTYPES.get(packed.dtype)
    if dtype is None:
        raise CheckpointError(f"PyTorch {torch.__version__} has no dtype {packed.dtype!r}")
    if not packed.nbytes:
        return torch.empty(packed.shape, dtype=dtype)
    return torch.frombuffer(packed.data(), dtype=dtype).reshape(packed.shape)


def tracked(name: str, tensor: torch.Tensor) -> Tracked:
    """Return how to save a tensor, and to restore it in place."""

    def put(state: Any) -> torch.Tensor:
        write(name, tensor, state)
        return tensor

    live = LiveValue(tensor.detach, lambda value: write(name, tensor, value))
    return Tracked(
        tensor.detach,
        put,
        tensor,
        lambda state: faults(name, tensor, state),
        live=lambda: {"": live},
    )


def write(name: str, tensor: torch.Tensor, value: Any) -> None:
    """Write a value into a tensor, which stays where it is and of its dtype.

    Raises:
        GraphError: the value has another shape, or no numbers.
    """
    try:
        given = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(f"{name!r} is {form_of(tensor)}; {error}") from error
    if given.shape != tensor.shape:
        raise GraphError(f"{name!r} is {form_of(tensor)}, and cannot take {form_of(given)}")
    with torch.no_grad():
        tensor.copy_(given)


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
