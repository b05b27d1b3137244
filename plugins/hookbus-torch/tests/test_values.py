"""Tests that tensors reach hooks and checkpoints."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from hookbus_torch import values
from hookbus_torch.library import TorchLibrary

from hookbus import CheckpointError, GraphError, UsageError
from hookbus.backend import Packed, unpacked

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
    negated = conjugated.imag
    given = [loss, conjugated, transposed, torch.empty(0, 3), negated, "text"]
    arrays = LIBRARY.on_host(given)
    assert arrays[0] == 4
    assert arrays[0].shape == ()
    assert arrays[1].tolist() == [1 - 2j]
    assert arrays[2].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert arrays[3].shape == (0, 3)
    assert arrays[4].tolist() == [-2]
    assert arrays[5] == "text"


def test_a_sparse_value_arrives_dense():
    sparse = torch.eye(2).to_sparse()
    assert LIBRARY.on_host([sparse])[0].tolist() == [[1, 0], [0, 1]]


def test_a_tensor_without_data_is_a_usage_error():
    with pytest.raises(
        UsageError, match="a tensor on the device 'meta', which has no data"
    ):
        LIBRARY.on_host([torch.empty(2, device="meta")])


def test_values_of_a_device_arrive_in_one_buffer_and_large_ones_alone():
    large = torch.arange(2**19, dtype=torch.float32)
    given = [
        torch.tensor(True),
        torch.tensor([1.5, 2.5], dtype=torch.float64),
        large,
        torch.arange(6).reshape(2, 3).T,
        torch.empty(0, 3),
        torch.tensor(1 + 2j),
    ]
    arrays = values._transfer(torch.device("cpu"), given)
    for array, tensor in zip(arrays, given, strict=True):
        expected = tensor.numpy()
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.flags.aligned
        assert array.flags.writeable or not array.shape
        np.testing.assert_array_equal(array, expected)


def test_one_tensor_that_several_hooks_want_is_moved_once():
    loss = torch.tensor(2.0, dtype=torch.bfloat16)
    first, second = LIBRARY.on_host([loss, loss])
    assert first is second


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor_fits_no_array_and_no_checkpoint(layout):
    parts = [torch.ones(2), torch.ones(3)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    with pytest.raises(UsageError, match=r"a nested tensor, .*; report tensor.to_padded"):
        LIBRARY.on_host([nested])
    with pytest.raises(CheckpointError, match="a tensor is nested, which cannot be saved"):
        LIBRARY.pack(nested)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="PyTorch lacks it")
def test_two_numbers_in_a_byte_fit_no_array_but_are_saved():
    pairs = torch.tensor([18, 52], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(UsageError, match=r"holds two numbers .*view\(torch.uint8\)"):
        LIBRARY.on_host([pairs])
    again = LIBRARY.unpack(LIBRARY.pack(pairs))
    assert again.view(torch.uint8).tolist() == [18, 52]


@pytest.mark.filterwarnings("ignore:DTensor random operators")  # PyTorch 2.4
def test_a_distributed_tensor_is_refused_with_what_to_report(tmp_path):
    distributed = torch.distributed
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    tensors = importlib.import_module("torch.distributed.tensor")
    if not hasattr(tensors, "distribute_tensor"):  # before PyTorch 2.5
        tensors = importlib.import_module("torch.distributed._tensor")
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        tensor = tensors.distribute_tensor(torch.ones(2), mesh, [tensors.Replicate()])
        with pytest.raises(UsageError, match=r"report tensor.full_tensor\(\)"):
            LIBRARY.on_host([tensor])
        with pytest.raises(CheckpointError, match="a tensor is distributed"):
            LIBRARY.pack(tensor)
    finally:
        distributed.destroy_process_group()


READ_ONLY = np.ones(2, np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "value",
    [[1, 1], READ_ONLY, np.ones(2)[::-1], torch.ones(2, dtype=torch.float64)],
    ids=["list", "read-only", "reversed", "float64"],
)
def test_numbers_of_any_origin_are_written_into_a_tensor(value):
    tensor = torch.zeros(2)
    LIBRARY.tracked("average", tensor).live()[""].put(value)
    assert tensor.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("tensor", "value"),
    [(torch.zeros((), dtype=torch.int64), 1.7), (torch.zeros(()), 1 + 2j)],
    ids=["fraction", "complex"],
)
def test_numbers_that_would_be_cut_are_refused(tensor, value):
    live = LIBRARY.tracked("count", tensor).live()[""]
    with pytest.raises(
        GraphError, match=r"'count' is a tensor .* and cannot take a tensor"
    ):
        live.put(value)
    assert tensor == 0


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


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "told"),
    [
        *(
            (dtype, (1,), 1, f"has the dtype '{dtype}', which torch here does not have")
            for dtype in ("float3", "qint8", "quint8", "quint4x2", "qint32", "double", "")
        ),
        ("float32", (2**30,), 0, r"/w has 0 bytes, and float32 of .* has 4294967296"),
        ("float32", (3,), 8, r"/w has 8 bytes, and float32 of the shape \(3,\) has 12"),
        ("float32", (-2, -1), 8, r"has the shape \(-2, -1\), which no value has"),
        ("float32", (2.0,), 8, r"has the shape \(2\.0,\), which no value has"),
        ("float32", (0, 2**62, 2**62), 0, r"has the shape \(0, .*\), which no value has"),
    ],
)
def test_a_tensor_that_pytorch_never_packs_is_refused(dtype, shape, size, told):
    packed = Packed(dtype, shape, size, lambda: memoryview(bytearray(size)))
    with pytest.raises(CheckpointError, match=told):
        unpacked("torch", packed, "/w")


@pytest.mark.filterwarnings("ignore:B?Complex.* support is experimental")
def test_the_size_of_each_dtype_is_known():
    for name, dtype in values.DTYPES.items():
        if LIBRARY.itemsize(name) is None:
            assert "qint" in name or "quint" in name
        else:
            empty = torch.empty((2, 3), dtype=dtype)
            assert LIBRARY.pack(empty).nbytes == 6 * LIBRARY.itemsize(name)


def test_what_is_no_tensor_is_not_packed():
    assert LIBRARY.pack(torch.Size([1])) is None
