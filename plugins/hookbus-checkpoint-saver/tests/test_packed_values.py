"""Values of libraries, as their plugins pack them, and the file that all tools can read."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hookbus_safetensors.file
import ml_dtypes
import numpy as np
import pytest
from hookbus_safetensors import SafetensorsCodec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import deserialize, safe_open
from safetensors.numpy import load_file

from hookbus import CheckpointError, CheckpointFiles, PluginError, UsageError
from hookbus.backend import Library
from tests.support.libraries import install_library
from tests.support.profiles import examples

SIZES = {"bool": 1, "bfloat16": 2, "float8_e4m3fn": 1, "float32": 4, "complex32": 4}


@pytest.fixture(scope="module", autouse=True)
def _library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have a small library installed, with values of its own."""
    with pytest.MonkeyPatch.context() as patch:
        install_library(tmp_path_factory.mktemp("site"), patch)
        yield


def made(kind: str, *arguments: Any) -> Any:
    """Return an object of the library."""
    return getattr(sys.modules["fakelib"], kind)(*arguments)


def tensor(dtype: str, shape: tuple[int, ...], content: bytes) -> Any:
    """Return a value of the library."""
    return made("Tensor", dtype, shape, content)


def written(state: Mapping[str, Any], folder: Path) -> CheckpointFiles:
    """Write a state; return the files that the codec wrote."""
    files = CheckpointFiles(folder)
    SafetensorsCodec().write(state, files)
    return files


def dtypes_in(folder: Path) -> dict[str, str]:
    """Return the dtypes in the file of arrays, by the names of the arrays."""
    arrays = deserialize((folder / "arrays.safetensors").read_bytes())
    return {name: entry["dtype"] for name, entry in arrays}


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, tuple[int, ...], bytes]:
    """Return the dtype, the shape and the bytes of a tensor."""
    dtype = draw(st.sampled_from(sorted(SIZES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    size = int(np.prod(shape)) * SIZES[dtype]
    return dtype, shape, draw(st.binary(min_size=size, max_size=size))


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    st.recursive(
        tensors(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=5,
    )
)
def test_values_of_a_library_come_back(tmp_path_factory: Any, value: Any) -> None:
    """Each keeps dtype, shape and bits, wherever it stands in a state."""

    def filled(part: Any) -> Any:
        if isinstance(part, tuple):
            return tensor(*part)
        if isinstance(part, dict):
            return {key: filled(inner) for key, inner in part.items()}
        return [filled(inner) for inner in part]

    folder = tmp_path_factory.mktemp("files")
    written({"value": filled(value)}, folder)
    assert SafetensorsCodec().read(folder)["value"] == filled(value)


def test_dtypes_have_their_own_names_in_the_file(tmp_path: Path) -> None:
    """Other tools read an array by its dtype; one that the format lacks is raw bytes."""
    values = {
        "parameter": made("Parameter", "bfloat16", (2,), b"abcd"),
        "fp8": tensor("float8_e5m2", (1, 2), b"ab"),
        "odd": tensor("complex32", (1,), b"abcd"),
        "numpy": np.ones(2, ml_dtypes.bfloat16),
        "numpy8": np.ones(2, ml_dtypes.float8_e4m3fn),
        "half": np.ones(1, np.float16),
        "swapped": np.ones(1, ">f4"),
        "complex": np.ones(1, np.complex64),
    }
    written(values, tmp_path)
    assert dtypes_in(tmp_path) == {
        "/parameter": "BF16",
        "/fp8": "F8_E5M2",
        "/odd": "U8",
        "/numpy": "BF16",
        "/numpy8": "F8_E4M3",
        "/half": "F16",
        "/swapped": "U8",
        "/complex": "U8",
    }
    with safe_open(tmp_path / "arrays.safetensors", framework="np") as file:
        assert file.get_tensor("/numpy").tolist() == [1.0, 1.0]
        assert file.get_slice("/fp8").get_shape() == [1, 2]
        assert file.get_slice("/odd").get_shape() == [4]


def test_the_library_safetensors_reads_the_file(tmp_path: Path) -> None:
    """Each array is aligned, behind a header of a multiple of eight bytes."""
    arrays = {
        f"a{number}-\u2603": np.arange(number).astype(dtype)
        for number, dtype in enumerate("?bBhHiIlLefd")
    }
    written(arrays, tmp_path)
    path = tmp_path / "arrays.safetensors"
    found = load_file(path)
    assert {name: array.tolist() for name, array in found.items()} == {
        f"/{name}": array.tolist() for name, array in arrays.items()
    }
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    for name, entry in json.loads(content[8 : 8 + length]).items():
        assert entry["data_offsets"][0] % found[name].itemsize == 0


@settings(max_examples=examples(100), deadline=None)
@given(hnp.arrays("u2", hnp.array_shapes(max_dims=4, max_side=5)), st.data())
def test_an_array_in_any_layout_is_written_in_pieces(array: Any, data: Any) -> None:
    """The pieces are its bytes in C order, and none but a view is larger than a block."""
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    array = array[(..., *(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))),))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hookbus_safetensors.file, "_PIECE", 8)
        pieces = list(hookbus_safetensors.file.pieces_of(array))
    assert b"".join(map(bytes, pieces)) == array.tobytes()
    assert all(p.nbytes <= 8 or np.shares_memory(p, array) for p in pieces)


def test_what_a_library_refuses_is_named_by_its_place(tmp_path: Path) -> None:
    """The library knows why, and the codec where."""
    value = {"model": [tensor("secret", (1,), b"x")]}
    with pytest.raises(CheckpointError, match=r"^/model/0: a tensor has the dtype secret"):
        written(value, tmp_path)


def test_another_object_of_a_library_is_refused_like_any(tmp_path: Path) -> None:
    """A library packs plain values only."""
    with pytest.raises(
        CheckpointError, match=r"^/w has the type fakelib.Device, which can"
    ):
        written({"w": made("Device")}, tmp_path)


def test_a_value_whose_plugin_is_missing_names_it(tmp_path: Path) -> None:
    """Of a well-known library, hookbus knows which plugin to install."""
    array = type("Array", (), {"__module__": "jax"})()
    told = r"^/w has the type jax.Array, which is not saved .*: pip install hookbus-jax$"
    with pytest.raises(CheckpointError, match=told):
        written({"w": array}, tmp_path)


def test_a_plugin_that_packs_other_bytes_than_it_said_is_named(tmp_path: Path) -> None:
    """A file would be damaged, so the save fails."""
    with pytest.raises(PluginError, match=r"packs /w into 1 bytes, and announced 2"):
        written({"w": tensor("lying", (1,), b"x")}, tmp_path)


def test_errors_of_reading_tell_a_bad_checkpoint_from_a_bad_plugin(tmp_path: Path) -> None:
    """An error that the plugin does not expect leaves a good checkpoint alone."""
    for number, (dtype, kind, told) in enumerate(
        [
            ("unpacked", CheckpointError, "^there is no dtype unpacked$"),
            (
                "failing",
                PluginError,
                r"^the plugin of fakelib cannot read /w, .* no failing",
            ),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        written({"w": tensor(dtype, (1,), b"x")}, folder)
        with pytest.raises(kind, match=told):
            SafetensorsCodec().read(folder)


@pytest.mark.parametrize(
    ("forged", "told"),
    [
        ({"dtype": "odd"}, "/w has the dtype 'odd', which fakelib here does not have"),
        ({"dtype": 3}, "/w has the dtype '3', which fakelib here does not have"),
        ({"dtype": "bool"}, r"/w has 8 bytes, and bool of the shape \(2,\) has 2"),
        ({"shape": []}, r"/w has 8 bytes, and float32 of the shape \(\) has 4"),
        ({"shape": [-1, -2]}, r"/w has the shape \(-1, -2\), which no value has"),
        ({"shape": [True, 2]}, r"/w has the shape \(True, 2\), which no value has"),
        ({"shape": [0, 2**62, 2]}, r"/w has the shape \(0, .*\), which no value has"),
        ({"shape": [2**80, 0]}, r"/w has the shape \(.*, 0\), which no value has"),
        ({"shape": "ab"}, r"/w has the shape \('a', 'b'\), which no value has"),
        ({"shape": 2}, "its values cannot be read: TypeError"),
    ],
)
def test_a_library_gets_no_value_that_it_never_packs(
    forged: Any, told: str, tmp_path: Path
) -> None:
    """A library may read beyond its bytes, or end the process."""
    written({"w": tensor("float32", (2,), b"abcdefgh")}, tmp_path)
    tree = json.loads((tmp_path / "state.json").read_text())
    tree["w"].update(forged)
    (tmp_path / "state.json").write_text(json.dumps(tree))
    with pytest.raises(CheckpointError, match=told):
        SafetensorsCodec().read(tmp_path)


def test_a_library_that_does_not_tell_sizes_is_named() -> None:
    """Otherwise nothing that it packs could be checked."""

    class Silent(Library):
        pass

    with pytest.raises(PluginError, match="Silent packs values without giving the siz"):
        Silent().itemsize("float32")


def test_a_value_of_an_unknown_library_names_what_to_install(tmp_path: Path) -> None:
    """The checkpoint is good, so the error does not call it damaged."""
    written({"w": tensor("float32", (1,), b"abcd")}, tmp_path)
    tree = (tmp_path / "state.json").read_text().replace("fakelib", "jax")
    (tmp_path / "state.json").write_text(tree)
    with pytest.raises(UsageError, match=r"has values of jax, .*: pip install hookbus-jax"):
        SafetensorsCodec().read(tmp_path)


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    """A session compares hashes to find out whether a checkpoint has the current state."""

    def state() -> dict[str, Any]:
        return {
            "w": np.arange(6.0).reshape(2, 3).T,
            "strided": np.arange(8)[::2],
            "t": tensor("float32", (1,), b"abcd"),
            "n": (1, "x", None),
        }

    one, other = CheckpointFiles(), written(state(), tmp_path)
    SafetensorsCodec().write(state(), one)
    assert one.records == other.records
