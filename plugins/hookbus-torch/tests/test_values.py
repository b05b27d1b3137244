"""How tensors reach hooks and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hookbus_torch.library import TorchLibrary

from hookbus import CheckpointError, UsageError
from hookbus.backend import Packed

LIBRARY = TorchLibrary()
NATIVE = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
WIDENED = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def some(dtype: torch.dtype) -> torch.Tensor:
    """Six numbers that each dtype holds exactly."""
    return torch.tensor([[0, 1, 2], [1, 0.5, 4]], dtype=torch.float32).to(dtype)


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
def test_a_hook_gets_an_array_of_the_same_dtype(dtype):
    (array,) = LIBRARY.on_host([some(dtype)])
    assert str(array.dtype) == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(array, some(dtype).tolist())


@pytest.mark.parametrize("dtype", WIDENED, ids=str)
def test_numbers_that_numpy_cannot_hold_arrive_as_float32_exactly(dtype):
    (array,) = LIBRARY.on_host([some(dtype)])
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, some(torch.float32).numpy())


def test_what_a_hook_got_does_not_change_when_the_training_goes_on():
    weight = torch.nn.Parameter(torch.zeros(3))
    (array,) = LIBRARY.on_host([weight])
    with torch.no_grad():
        weight.add_(1)
    assert array.tolist() == [0, 0, 0]


def test_values_with_a_history_conjugated_transposed_or_empty_arrive():
    loss = (torch.ones(2, requires_grad=True) * 2).sum()
    conjugated = torch.tensor([1 + 2j]).conj()
    transposed = torch.arange(6).reshape(2, 3).T
    given = [loss, conjugated, transposed, torch.empty(0, 3), "text", torch.Size([2])]
    arrays = LIBRARY.on_host(given)
    assert arrays[0] == 4
    assert arrays[0].shape == ()
    assert arrays[1].tolist() == [1 - 2j]
    assert arrays[2].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert arrays[3].shape == (0, 3)
    assert arrays[4:] == ["text", torch.Size([2])]


def test_a_sparse_value_arrives_dense():
    sparse = torch.eye(2).to_sparse()
    assert LIBRARY.on_host([sparse])[0].tolist() == [[1, 0], [0, 1]]


def test_a_tensor_without_data_is_a_usage_error():
    with pytest.raises(
        UsageError, match="a tensor on the device 'meta', which has no data"
    ):
        LIBRARY.on_host([torch.empty(2, device="meta")])


@pytest.mark.parametrize("dtype", [*NATIVE, *WIDENED], ids=str)
@pytest.mark.parametrize(
    "value",
    [
        lambda dtype: some(dtype),
        lambda dtype: some(dtype).T,
        lambda dtype: some(dtype)[:, ::2],
        lambda dtype: some(dtype)[0, 1],
        lambda dtype: some(dtype)[:0],
    ],
    ids=["whole", "transposed", "strided", "scalar", "empty"],
)
def test_what_is_packed_comes_back_bit_for_bit(dtype, value):
    tensor = value(dtype)
    packed = LIBRARY.pack(tensor)
    again = LIBRARY.unpack(packed)
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert packed.nbytes == packed.data().nbytes == tensor.nbytes
    ours, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (again, tensor))
    assert torch.equal(ours, theirs)


def test_packing_a_dense_tensor_copies_nothing():
    tensor = torch.zeros(4)
    packed = LIBRARY.pack(tensor)
    tensor.fill_(1)
    assert np.frombuffer(packed.data(), np.float32).tolist() == [1, 1, 1, 1]


def test_an_unpacked_tensor_can_be_written():
    again = LIBRARY.unpack(Packed("float32", (1,), 4, lambda: memoryview(bytearray(4))))
    assert again.add_(1).tolist() == [1]


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.eye(2).to_sparse(), "sparse_coo"),
        (torch.empty(2, device="meta"), "on the device 'meta', which has no data"),
    ],
)
def test_a_tensor_that_cannot_be_saved_is_refused(tensor, kind):
    with pytest.raises(CheckpointError, match=f"a tensor is {kind}, which cannot be saved"):
        LIBRARY.pack(tensor)


def test_a_dtype_of_a_later_pytorch_is_named():
    with pytest.raises(CheckpointError, match="has no dtype 'float3'"):
        LIBRARY.unpack(Packed("float3", (1,), 1, lambda: memoryview(b"x")))


def test_what_is_no_tensor_is_not_packed():
    assert LIBRARY.pack(torch.Size([1])) is None
