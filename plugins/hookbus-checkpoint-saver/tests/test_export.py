"""The codec writes plain files of safetensors, which the library itself reads."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hookbus_safetensors import SafetensorsCodec
from safetensors import deserialize
from safetensors.numpy import load

from hookbus import UsageError

NATIVE = {
    np.bool_: "BOOL",
    **{getattr(np, f"int{bits}"): f"I{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(np, f"uint{bits}"): f"U{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(np, f"float{bits}"): f"F{bits}" for bits in (16, 32, 64)},
    ml_dtypes.bfloat16: "BF16",
    ml_dtypes.float8_e4m3fn: "F8_E4M3",
    ml_dtypes.float8_e5m2: "F8_E5M2",
}
"""The dtypes of the format, and its names for them."""
OTHERS = [
    np.zeros(2, np.complex64),
    np.zeros(2, "<M8[D]"),
    np.array(["text"]),
    np.zeros(2, [("a", "i4")]),
    np.array([None]),
]


def exported(metadata: Any = None, **values: Any) -> bytes:
    """Return the content of the file with these values."""
    file = io.BytesIO()
    SafetensorsCodec().export(values, metadata or {}, file)
    return file.getvalue()


@pytest.mark.parametrize("dtype", NATIVE, ids=lambda dtype: dtype.__name__)
def test_every_dtype_of_the_format_comes_back(dtype):
    """With its shape and bits, whatever its order in memory."""
    array = np.arange(6).astype(dtype).reshape(2, 3).T
    (found,) = deserialize(exported(w=array))
    assert found[0] == "w"
    assert (found[1]["dtype"], found[1]["shape"]) == (NATIVE[dtype], [3, 2])
    assert bytes(found[1]["data"]) == np.ascontiguousarray(array).tobytes()


def test_other_byte_orders_become_that_of_the_format():
    found = load(exported(w=np.arange(3, dtype=">f8")))["w"]
    assert (found.tolist(), found.dtype) == ([0, 1, 2], np.float64)


def test_numbers_become_arrays_without_an_axis():
    found = load(exported(a=1.5, b=2**63 - 1, c=True, d=np.float32(0.5)))
    assert [(v.dtype.name, v.shape, v.item()) for _, v in sorted(found.items())] == [
        ("float64", (), 1.5),
        ("int64", (), 2**63 - 1),
        ("bool", (), True),
        ("float32", (), 0.5),
    ]


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: value.dtype.name)
def test_a_dtype_that_the_format_lacks_is_an_error(value):
    """As raw bytes, which a checkpoint has in its place, nobody else could use it."""
    with pytest.raises(
        UsageError, match=r"^'w' has the dtype .*, which a safetensors file"
    ):
        exported(w=value)


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_a_name_that_the_format_cannot_hold_is_an_error(name):
    with pytest.raises(UsageError, match="a safetensors file cannot hold an array named"):
        exported(**{name: np.zeros(1)})
