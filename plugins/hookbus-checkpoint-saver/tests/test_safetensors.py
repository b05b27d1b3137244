"""Every value that can be saved comes back as it was: type, dtype, shape, order, bits."""

from __future__ import annotations

import math
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hookbus_safetensors import SafetensorsCodec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hookbus
from hookbus import CheckpointFiles
from tests.support.profiles import examples

Array = np.ndarray[Any, Any]

PLAIN = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(max_len=5),
    hnp.unicode_string_dtypes(max_len=5),
    st.sampled_from([np.dtype("V3"), np.dtype(np.longdouble), np.dtype(np.clongdouble)]),
)
STRUCTURED = hnp.array_dtypes(st.one_of(PLAIN, hnp.array_dtypes(PLAIN, max_size=2)))
DTYPES = st.one_of(PLAIN, STRUCTURED)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)


@st.composite
def dense_arrays(draw: st.DrawFn) -> Array:
    """Return an array in C order; numbers have any bits, NaN payloads among them."""
    return filled(draw, draw(DTYPES), draw(SHAPES))


def filled(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Fill an array of a dtype, a structure's field by field."""
    if dtype.names is not None:
        whole = np.zeros(shape, dtype)
        for name in dtype.names:
            field = whole[name]
            field[...] = filled(draw, field.dtype, field.shape)
        return whole
    if dtype.kind in "bSU":
        return draw(hnp.arrays(dtype, shape))
    raw = np.random.default_rng(draw(st.integers(0, 999)))
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(bytearray(raw.bytes(size)), dtype).reshape(shape)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Return an array of any memory layout: transposed, strided, reversed, broadcast."""
    array = draw(dense_arrays())
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2])) for _ in range(array.ndim)]
    array = array[(..., *(slice(None, None, step) for step in steps))]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(1, 2)), *array.shape))
    return array


@st.composite
def numpy_scalars(draw: st.DrawFn) -> Any:
    """Return a scalar of any dtype in the machine's byte order, as NumPy's all are."""
    array = draw(dense_arrays())
    return array.ravel()[0] if array.size else np.float32(0)


FLOATS = st.one_of(
    st.floats(),
    st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("<d", raw)[0]),
)
NAN_BITS = (0x7FF8000000000123, 0xFFF8000000000001)
"""Two NaNs that are not the usual one: they carry a message, and a sign."""

KEYS = st.one_of(
    st.text(max_size=3),
    st.sampled_from(["$", "a/b", "/", "", "array", "__metadata__"]),
    st.integers(),
    st.binary(max_size=3),
    st.none(),
    st.tuples(st.integers(), st.text(max_size=2)),
    st.sampled_from([np.int64(3), np.str_("x")]),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    FLOATS,
    st.complex_numbers(),
    st.binary(max_size=8),
    st.text(max_size=8),
    numpy_scalars(),
    arrays(),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=6,
)
RELAXED = settings(
    max_examples=examples(240),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def round_trip(value: Any) -> Any:
    """Write a value with the codec, and read it back."""
    with tempfile.TemporaryDirectory() as folder:
        SafetensorsCodec().write({"value": value}, CheckpointFiles(folder))
        return SafetensorsCodec().read(Path(folder))["value"]


def assert_same(old: Any, new: Any) -> None:
    """Compare types and bits, all the way down."""
    assert type(new) is type(old)
    if isinstance(old, np.ndarray):
        assert new.dtype == old.dtype
        assert new.shape == old.shape
        assert bits(new) == bits(old)
        assert_layout(old, new)
    elif isinstance(old, np.generic):
        assert new.dtype == old.dtype
        assert bits(np.asarray(new)) == bits(np.asarray(old))
    elif isinstance(old, float):
        assert struct.pack("<d", new) == struct.pack("<d", old)
    elif isinstance(old, complex):
        assert_same([old.real, old.imag], [new.real, new.imag])
    elif isinstance(old, Mapping):
        assert_same(list(old), list(new))
        assert_same(list(old.values()), list(new.values()))
    elif isinstance(old, list | tuple):
        assert len(new) == len(old)
        for one, other in zip(old, new, strict=True):
            assert_same(one, other)
    else:
        assert new == old


def assert_layout(old: Array, new: Array) -> None:
    """Check that an array owns aligned memory, its axes in the order of another's."""
    assert new.flags.owndata
    assert new.flags.aligned
    assert memory_order(new) == memory_order(old.copy(order="K"))


def memory_order(array: Array) -> list[int]:
    """Return the axes from the slowest to the fastest; those of size 1 do not count."""
    axes = [axis for axis in range(array.ndim) if array.shape[axis] > 1]
    return sorted(axes, key=lambda axis: -array.strides[axis]) if array.size else []


def bits(array: Array) -> Any:
    """Return an array's bytes without the padding that a structure or a float may have."""
    if array.dtype.names is not None:
        return [bits(array[name]) for name in array.dtype.names]
    if array.dtype in (np.longdouble, np.clongdouble):
        extended = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, 16)
        return extended[:, :10].tobytes()
    return array.tobytes()


@RELAXED
@given(arrays())
def test_every_array_comes_back_as_it_was(array: Array) -> None:
    """An array keeps dtype, byte order, shape, memory order and bits."""
    assert_same(array, round_trip(array))


@RELAXED
@given(VALUES)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    """Numbers, strings, lists, tuples and dicts keep their types at every depth."""
    assert_same(value, round_trip(value))


@settings(RELAXED, max_examples=examples(40))
@given(st.lists(LEAVES, min_size=1, max_size=8))
def test_every_variable_comes_back_through_a_session(values: list[Any]) -> None:
    """Variables that a session saves are restored as they were by the next session."""
    with tempfile.TemporaryDirectory() as folder:
        with session_of(values, folder):
            pass
        with session_of([blank(value) for value in values], folder) as session:
            held = session.run_step_fn(
                lambda step_context: step_context.session.variables()
            )
            for number, value in enumerate(values):
                assert_same(value, held[f"v{number}"])


def blank(value: Any) -> Any:
    """Return the initial value of a variable that can take *value*."""
    if isinstance(value, np.ndarray):
        return np.zeros(value.shape)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return type(value)("NaT", "s")  # NumPy 2.5 deprecates one without a unit
    return (
        0
        if isinstance(value, complex | float | int | np.number | np.void)
        else type(value)()
    )


def session_of(values: list[Any], folder: str) -> hookbus.MonitoredSession:
    """Open a session whose variables are *values*, and which saves at once."""
    graph = hookbus.Graph()
    for number, value in enumerate(values):
        graph.variable(f"v{number}", value)
    return hookbus.MonitoredTrainingSession(
        graph,
        checkpoint_dir=folder,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=hookbus.Config(autoload=False),
    )


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.zeros((0, 3)),
        np.zeros((2, 0), order="F"),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
        np.arange(24).reshape(2, 3, 4)[::-1, ::2, 1:],
        np.broadcast_to(np.arange(3), (4, 3)),
        np.frombuffer(b"x" + bytes(range(16)), "<f8", offset=1),
        np.arange(4, dtype=">f4"),
        np.array([True, False]),
        np.array(["", "snow \u2603"]),
        np.array([b"", b"a\0b"]),
        np.array(["2024-02-29", "NaT"], "M8[D]"),
        np.array([1 + 2j, complex("nan-infj")]),
        np.array([(1, (2.5, b"x"))], [("a", "i1"), ("b", [("c", ">f8"), ("d", "S3")])]),
        np.zeros(2, [("grid", "i2", (2, 3))]),
        np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}".replace(" ", ""),
)
def test_each_kind_of_array_comes_back(array: Array) -> None:
    """Each dtype and layout that has gone wrong somewhere comes back as it was."""
    assert_same(array, round_trip(array))


@pytest.mark.parametrize(
    "kind",
    sorted(
        {t for t in np.sctypeDict.values() if t is not np.object_}, key=lambda t: t.__name__
    ),
)
def test_each_numpy_scalar_type_is_kept(kind: type[np.generic]) -> None:
    """A NumPy scalar comes back with the very class that it had."""
    if kind in (np.datetime64, np.timedelta64):
        scalar = kind(1, "s")
    else:
        scalar = kind(b"1" if kind in (np.void, np.bytes_) else 1)
    assert_same(scalar, round_trip(scalar))


QUIET, LOUD = (struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in NAN_BITS)


@pytest.mark.parametrize(
    "number",
    [
        *(0.0, -0.0, 5e-324, 0.1, 1e308, math.inf, -math.inf, math.nan, QUIET, LOUD),
        *(complex(-0.0, QUIET), complex(math.inf, -0.0)),
    ],
)
def test_odd_numbers_keep_every_bit(number: complex) -> None:
    """Signs of zero and the payloads of NaN come back, of Python's numbers and NumPy's."""
    kind = np.float64 if type(number) is float else np.complex128
    for value in (number, kind(number), np.array([number])):
        assert_same(value, round_trip(value))


@pytest.mark.parametrize("scalar", [np.str_("a\0"), np.bytes_(b"a\0"), np.void(b"a\0")])
def test_trailing_zeros_of_a_scalar_are_kept(scalar: np.generic) -> None:
    """A string scalar may end in zeros, unlike an element of a string array."""
    assert round_trip(scalar) == scalar


@pytest.mark.parametrize("size", [1, 4300, 4301, 20_000])
def test_whole_numbers_of_any_size_come_back(size: int) -> None:
    """An int is exact, though Python limits the digits that it turns into text."""
    number = 10**size - 1
    assert round_trip({"n": -number, number: "key"}) == {"n": -number, number: "key"}


@pytest.mark.parametrize("codes", [[0xD800], [0xDCFF], [0xD83D, 0xDE00], [0], [0x2028]])
def test_strings_that_are_no_valid_unicode_come_back(codes: list[int]) -> None:
    """Surrogates, as file names can hold them, are neither lost nor joined."""
    text = "".join(map(chr, codes))
    assert round_trip([text, {text: 1}]) == [text, {text: 1}]


def test_an_array_below_a_key_with_surrogates_comes_back() -> None:
    """The name under which an array lies in the file may be invalid Unicode."""
    key = chr(0xDCFF)
    assert round_trip({key: np.ones(2)})[key].tolist() == [1.0, 1.0]


def test_a_structure_with_titles_comes_back() -> None:
    """read() can read everything that write() takes: titles of fields included."""
    array = np.zeros(2, np.dtype([(("title", "name"), "i4")]))
    assert_same(array, round_trip(array))


@pytest.mark.parametrize("offsets", [[4, 0], [0, 0]], ids=["out of order", "overlapping"])
def test_a_structure_with_odd_offsets_comes_back(offsets: list[int]) -> None:
    """Where fields lie in memory does not matter to the one who saves."""
    layout = {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": offsets}
    array = np.zeros(2, np.dtype(layout))
    assert_same(array, round_trip(array))


def test_metadata_of_a_dtype_does_not_keep_an_array_from_being_saved() -> None:
    """NumPy's own remarks on a dtype are no part of the value."""
    array = np.ones(2, np.dtype("i4", metadata={"unit": "m"}))
    assert_same(array, round_trip(array))


def test_keys_that_spell_the_same_path_do_not_mix() -> None:
    """A key with a slash is another place than a nested dict."""
    value = {"a/b": np.zeros(2), "a": {"b": np.ones(2)}, "a/b'": np.full(2, 2.0)}
    assert_same(value, round_trip(value))


def test_arrays_are_readable_for_other_tools(tmp_path: Path) -> None:
    """Plain arrays lie in the file under their path, in a dtype that all tools have."""
    from safetensors.numpy import load_file

    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    SafetensorsCodec().write({"variables": {"w": weights}}, CheckpointFiles(tmp_path))
    found = load_file(tmp_path / "arrays.safetensors")
    assert list(found) == ["/variables/w"]
    assert_same(weights, found["/variables/w"].copy())


ML_DTYPES = sorted(
    name
    for name, kind in vars(ml_dtypes).items()
    if isinstance(kind, type) and issubclass(kind, np.generic)
)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_dtypes_of_ml_dtypes_come_back(name: str) -> None:
    """Arrays and scalars of bfloat16, float8 and the like, also in a structure."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.arange(6).astype(dtype).reshape(2, 3).T
    structure = np.zeros(2, [("a", dtype), ("b", dtype, (2,)), ("c", [("d", dtype)])])
    assert_same(array, round_trip(array))
    assert_same(array[1, 1], round_trip(array[1, 1]))
    assert_same(structure, round_trip(structure))


def test_a_dtype_whose_library_is_missing_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is good, so the error does not call it damaged."""
    SafetensorsCodec().write(
        {"w": np.zeros(1, ml_dtypes.bfloat16)}, CheckpointFiles(tmp_path)
    )
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(hookbus.UsageError, match=r"dtype bfloat16.* pip install ml_dtypes"):
        SafetensorsCodec().read(tmp_path)


def test_a_part_of_a_structure_with_odd_offsets_may_be_an_array() -> None:
    """Fields that overlap come back, also where one has a shape."""
    layout = {"names": ["a", "b"], "formats": [("i4", (2,)), "i2"], "offsets": [0, 0]}
    array = np.zeros(2, np.dtype(layout))
    array["a"] = [[1, 2], [3, 4]]
    assert_same(array, round_trip(array))


def test_a_dtype_that_would_not_come_back_is_refused(tmp_path: Path) -> None:
    """The error of the save names the place, the dtype and what to do."""
    layout = {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 0]}
    odd = np.zeros(2, np.dtype({**layout, "titles": ["t", "u"]}))
    told = r"/variables/w has the dtype .*'titles'.* cannot be saved.* astype\("
    with pytest.raises(hookbus.CheckpointError, match=told):
        SafetensorsCodec().write({"variables": {"w": odd}}, CheckpointFiles(tmp_path))


class Opaque:
    """A type that no codec knows."""


@pytest.mark.parametrize(
    "value",
    [
        Opaque(),
        {1, 2},
        frozenset(),
        range(3),
        print,
        Path("x"),
        bytearray(b"x"),
        hookbus.ExitCode.OK,
        np.array([Opaque()]),
        np.zeros(1, [("a", "O")]),
        np.ma.zeros(2),
        np.recarray(1, "i4,f8"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_saved_is_refused_by_its_place(value: Any, tmp_path: Path) -> None:
    """A value of another type is an error that says where in the state it stands."""
    state = {"hooks": {"my-hook": [0, {"best": value}]}}
    with pytest.raises(
        hookbus.CheckpointError, match=r"/hooks/my-hook/1/best .*cannot be saved"
    ):
        SafetensorsCodec().write(state, CheckpointFiles(tmp_path))


def test_a_list_that_contains_itself_is_refused(tmp_path: Path) -> None:
    """A structure without an end is an error of its own, not one of the interpreter."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(hookbus.CheckpointError, match="/v"):
        SafetensorsCodec().write({"v": endless}, CheckpointFiles(tmp_path))


@pytest.mark.parametrize("name", ["state.json", "arrays.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 20, b"[1]", b'{"$": "no such"}'])
def test_damaged_files_are_a_checkpoint_error(
    name: str, content: bytes, tmp_path: Path
) -> None:
    """Whatever the files hold, reading them ends in one kind of error."""
    SafetensorsCodec().write({"w": np.ones(3)}, CheckpointFiles(tmp_path))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(hookbus.CheckpointError, match="cannot be read"):
        SafetensorsCodec().read(tmp_path)
