"""JAX's values go to the host and through checkpoints as they are, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import jax.experimental
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hookbus_jax.library import JaxLibrary
from hookbus_safetensors import SafetensorsCodec

from hookbus import CheckpointError, CheckpointFiles, UsageError
from hookbus.backend import Packed, library_of, on_host, unpacked
from tests.support.profiles import cases

NAMES = """
    bool int2 int4 int8 int16 int32 uint4 uint8 uint16 uint32 float16 float32 bfloat16
    complex64 float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn
    float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
"""
DTYPES = [name for name in NAMES.split() if hasattr(jnp, name)]
# JAX has it in another place until 0.7.
enable_x64 = getattr(jax, "enable_x64", None)
if enable_x64 is None:
    enable_x64 = jax.experimental.enable_x64
SOME = ["bool", "int4", "int32", "float32", "bfloat16", "float8_e4m3fn"]


def through_a_checkpoint(value, tmp_path):
    """Write a value with the codec of checkpoints, and read it."""
    codec, folder = SafetensorsCodec(), Path(tempfile.mkdtemp(dir=tmp_path))
    codec.write({"value": value}, CheckpointFiles(folder))
    return codec.read(folder)["value"]


def bits(array):
    return np.asarray(array).tobytes()


@pytest.mark.parametrize("shape", [(), (2, 0), (4, 2)])
@pytest.mark.parametrize("dtype", cases(SOME, DTYPES))
def test_every_dtype_comes_back_bit_for_bit(dtype, shape, tmp_path):
    size = int(np.prod(shape))
    array = jnp.arange(size).reshape(shape).astype(dtype)
    back = through_a_checkpoint(array, tmp_path)
    assert isinstance(back, jax.Array)
    assert (back.dtype, back.shape, bits(back)) == (array.dtype, shape, bits(array))


def test_special_numbers_come_back_bit_for_bit(tmp_path):
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float8_e5m2):
        array = jnp.array([np.nan, -np.inf, -0.0, 1.0]).astype(dtype)
        assert bits(through_a_checkpoint(array, tmp_path)) == bits(array)


def test_wide_numbers_come_back_where_jax_has_them(tmp_path):
    """Without x64 they would come back as others, so that is refused."""
    with enable_x64(True):
        array = jnp.array([1 / 3, 2.0])
        assert array.dtype == np.float64
        assert bits(through_a_checkpoint(array, tmp_path)) == bits(array)
        library = JaxLibrary()
        packed = library.pack(array)
    with pytest.raises(UsageError, match=r"float64, and JAX .*'jax_enable_x64', True"):
        library.unpack(packed)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_keys_come_back_with_their_generator(impl, shape, tmp_path):
    key = jax.random.split(jax.random.key(7, impl=impl), shape)
    back = through_a_checkpoint(key, tmp_path)
    assert (back.dtype, back.shape) == (key.dtype, shape)
    assert bits(jax.random.key_data(back)) == bits(jax.random.key_data(key))


def test_a_raw_key_is_an_array(tmp_path):
    back = through_a_checkpoint(jax.random.PRNGKey(3), tmp_path)
    assert bits(jax.random.normal(back)) == bits(jax.random.normal(jax.random.PRNGKey(3)))


def test_an_array_of_several_devices_is_saved_whole(tmp_path):
    assert len(jax.devices()) == 2
    mesh = jax.sharding.Mesh(jax.devices(), "d")
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    array = jax.device_put(jnp.arange(8.0), where)
    assert bits(through_a_checkpoint(array, tmp_path)) == bits(np.arange(8, dtype="f"))


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "told"),
    [
        *(
            (dtype, (1,), 1, f"has the dtype '{dtype}', which jax here does not have")
            for dtype in ("float3", "O", "key:other", "key:", "str", "V4", "f4", ">f4")
        ),
        ("float32", (2**30,), 0, r"/w has 0 bytes, and float32 of .* has 4294967296"),
        (
            "key:threefry2x32",
            (2,),
            8,
            r"/w has 8 bytes, and key:threefry2x32 of the shape \(2,\) has 16",
        ),
        ("key:threefry2x32", (-1,), 8, r"has the shape \(-1,\), which no value has"),
    ],
)
def test_an_array_that_jax_never_packs_is_refused(dtype, shape, size, told):
    packed = Packed(dtype, shape, size, lambda: memoryview(bytearray(size)))
    with pytest.raises(CheckpointError, match=told):
        unpacked("jax", packed, "/w")


def test_the_size_of_each_dtype_is_known():
    for name in ("bool", "int4", "uint64", "bfloat16", "float8_e4m3fn", "complex64"):
        with enable_x64(True):
            packed = JaxLibrary().pack(jnp.zeros((2, 3), name))
        assert packed.nbytes == 6 * JaxLibrary().itemsize(packed.dtype)
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        packed = JaxLibrary().pack(jax.random.key(1, impl=impl))
        assert packed.nbytes == JaxLibrary().itemsize(packed.dtype)


def test_hooks_get_numpy_arrays_of_dtypes_that_numpy_has():
    key = jax.random.key(1)
    values = {
        "bfloat16": jnp.ones(2, jnp.bfloat16),
        "nested": [(jnp.full((), 0.5, jnp.float8_e4m3fn), "text")],
        "small": jnp.array([-3], jnp.int4),
        "usual": jnp.ones(2, jnp.float16),
        "key": key,
        "number": 3,
    }
    host = on_host(values)
    assert (host["bfloat16"].dtype, host["bfloat16"].tolist()) == (np.float32, [1, 1])
    assert (host["nested"][0][0].dtype, host["nested"][0][1]) == (np.float32, "text")
    assert (host["small"].dtype, host["small"].tolist()) == (np.int32, [-3])
    assert (type(host["usual"]), host["usual"].dtype) == (np.ndarray, np.float16)
    assert host["key"].tolist() == jax.random.key_data(key).tolist()
    assert host["number"] == 3


def test_arrays_of_ml_dtypes_are_numpys():
    """They belong to no library, as before."""
    assert library_of(np.ones(2, ml_dtypes.bfloat16)) is None
    assert isinstance(library_of(jnp.ones(2)), JaxLibrary)
    assert isinstance(library_of(jax.random.key(0)), JaxLibrary)


def test_other_values_of_jax_are_no_plain_values(tmp_path):
    with pytest.raises(CheckpointError, match="ShapeDtypeStruct, which cannot be saved"):
        through_a_checkpoint(jax.ShapeDtypeStruct((2,), jnp.float32), tmp_path)
