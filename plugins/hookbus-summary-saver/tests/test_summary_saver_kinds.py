"""Tests which values each kind of summary takes, as TensorBoard's reader sees them."""

from __future__ import annotations

import io
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from hookbus import UsageError

NAN, INFINITY = float("nan"), float("inf")
EPSILON = float(np.finfo(float).eps)
LARGEST = float(np.finfo(float).max)


def pixels(events, tag: str = "x") -> list[np.ndarray]:
    """Return the images under a tag, decoded."""
    found = [event.encoded_image_string for event in events.Images(tag)]
    return [np.asarray(Image.open(io.BytesIO(each))) for each in found]


def words(events) -> list[str]:
    """Return the text under the tag x: one string for each part of it."""
    (event,) = events.Tensors("x")
    return [part.decode() for part in event.tensor_proto.string_val]


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        Fraction(4, 2),
        Decimal(2),
        np.int8(2),
        np.float16(2),
        np.array(2),
        np.array(2.0),
        np.array([2]),
        np.array([[2.0]]),
    ],
    ids=repr,
)
def test_a_scalar_is_a_number_or_an_array_that_holds_one(record, value):
    """Of Python or of NumPy, of any shape."""
    (event,) = record("scalar", value).Scalars("x")
    assert (event.step, event.value) == (1, 2.0)


@pytest.mark.parametrize("value", [INFINITY, -INFINITY, NAN, True, np.False_, 1e39, 1e-46])
def test_a_scalar_may_be_any_number(record, value):
    """NaN, infinity and booleans are scalars; single precision, as in TensorFlow."""
    with np.errstate(over="ignore"):
        expected = np.float32(value)
    (event,) = record("scalar", value).Scalars("x")
    assert np.array_equal(event.value, expected, equal_nan=True)


@pytest.mark.parametrize(
    "value",
    [None, "2", b"2", np.str_("2"), [2], {"a": 2}, 2j, np.zeros(0), np.zeros(2), 10**400],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_scalar_is_a_clear_error(record, value):
    """It names the summary and the type, and ends the training in the first run."""
    with pytest.raises(
        UsageError, match=rf"'x' is not a valid scalar.*{type(value).__name__}"
    ):
        record("scalar", value)


def checked(histogram, values) -> None:
    """Compare a histogram with the finite numbers that it is made of."""
    values = np.asarray(values, np.float64).reshape(-1)
    assert (histogram.num, sum(histogram.bucket)) == (values.size, values.size)
    assert (histogram.min, histogram.max) == (values.min(), values.max())
    assert len(histogram.bucket) == len(histogram.bucket_limit)
    limits = np.array(histogram.bucket_limit)
    assert (limits[1:] > limits[:-1]).all()
    for limit, below in zip(limits, np.cumsum(histogram.bucket), strict=True):
        assert (values < limit).sum() <= below <= (values <= limit).sum()


@pytest.mark.parametrize(
    "value",
    [
        [3.0],
        3,
        [0.0, 0.0],
        [1e20] * 3,
        [1.0, 1.0 + EPSILON],
        [0.1, 0.1, 0.1 + 2e-17],
        [-LARGEST, LARGEST],
        [LARGEST, LARGEST],
        [5e-324, 0.0],
        [2**62, -(2**62)],
        [[1, 2], [3, 4]],
        np.arange(24).reshape(2, 3, 4),
        np.array([0, 2**64 - 1], np.uint64),
        np.array([-128, 127], np.int8),
        np.linspace(-1, 1, 101, dtype=np.float16),
        np.array([True, False, True]),
    ],
    ids=lambda value: repr(value)[:30].replace("\n", ""),
)
def test_a_histogram_counts_each_number(record, value):
    """Of any shape and type; also numbers that are alike, or huge."""
    (event,) = record("histogram", value).Histograms("x")
    checked(event.histogram_value, value)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64, np.int64]),
        arrays.array_shapes(min_dims=0, max_dims=3),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
@example(value=np.array([0.0, -5e-324]))
def test_any_finite_numbers_make_a_histogram(record, value):
    """No array of numbers fails, and none of them is lost."""
    rmtree("out", ignore_errors=True)
    (event,) = record("histogram", value).Histograms("x")
    checked(event.histogram_value, value)


@pytest.mark.parametrize(
    ("value", "left_out"), [([1.0, NAN, 2.0], 1), ([INFINITY, 1.0, -INFINITY, 2.0], 2)]
)
def test_what_is_not_finite_is_left_out_with_a_warning(record, lines, value, left_out):
    """The others make the histogram."""
    (event,) = record("histogram", value).Histograms("x")
    checked(event.histogram_value, [1.0, 2.0])
    warning = {"histogram": "x", "values": left_out, "log_level": "warning"}
    assert {"event": "left out values that are not finite", **warning} in lines


@pytest.mark.parametrize(("value", "warnings"), [([NAN, INFINITY], 1), ([], 0)])
def test_no_finite_number_makes_no_histogram(record, lines, value, warnings):
    """There is nothing to show, and the training goes on."""
    assert record("histogram", value).Tags()["histograms"] == []
    assert len([line for line in lines if line["log_level"] == "warning"]) == warnings


@pytest.mark.parametrize("kind", ["histogram", "image"])
@pytest.mark.parametrize(
    "value",
    [None, "words", [1j], [[1.0], [2.0, 3.0]], [object()], {"a": 1}],
    ids=["none", "str", "complex", "ragged", "objects", "dict"],
)
def test_what_is_no_array_of_numbers_is_a_clear_error(record, kind, value):
    """It names the summary, its kind and the type."""
    told = rf"'x' is not a valid {kind} \(type {type(value).__name__}.*array of numbers"
    with pytest.raises(UsageError, match=told):
        record(kind, value)


@pytest.mark.parametrize(
    ("shape", "channels"), [((4, 5), 1), ((4, 5, 1), 1), ((4, 5, 3), 3), ((4, 5, 4), 4)]
)
def test_an_image_has_one_three_or_four_channels(record, shape, channels):
    """Grey, RGB or RGBA; each pixel comes back as it was."""
    value = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    events = record("image", value)
    (event,), (found,) = events.Images("x"), pixels(events)
    assert (event.step, event.height, event.width) == (1, 4, 5)
    assert np.array_equal(found.reshape(4, 5, channels), value.reshape(4, 5, channels))


@pytest.mark.parametrize(("batch", "shown"), [(0, 0), (1, 1), (3, 3), (5, 3)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_of_a_batch_the_first_three_are_shown(record, batch, shown, channels):
    """Under names with a number; a batch may well be empty."""
    value = np.arange(batch * 4 * 5 * channels, dtype=np.uint8)
    value = value.reshape(batch, 4, 5, channels)
    events = record("image", value)
    assert events.Tags()["images"] == [f"x/{number}" for number in range(shown)]
    for number in range(shown):
        (found,) = pixels(events, f"x/{number}")
        assert np.array_equal(found.reshape(4, 5, channels), value[number])


@pytest.mark.parametrize(
    "shape",
    [(), (5,), (4, 5, 2), (4, 5, 5), (2, 4, 5, 2), (1, 2, 4, 5, 3), (0, 5), (2, 4, 0, 3)],
)
def test_another_shape_is_a_clear_error(record, shape):
    """It tells the shape and those that there may be."""
    with pytest.raises(
        UsageError, match=r"'x' is not a valid image .*\(height, width\)"
    ) as caught:
        record("image", np.zeros(shape))
    assert f"shape {shape}" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_go_from_0_to_1(record, dtype):
    """Values beyond are cut off; a value that is no number is black."""
    value = np.array([[0, 0.25, 1, 1.5], [-1, NAN, INFINITY, -INFINITY]], dtype)
    (found,) = pixels(record("image", value))
    assert found.tolist() == [[0, 64, 255, 255], [0, 0, 255, 0]]


@pytest.mark.parametrize(
    ("dtype", "value", "shown"),
    [
        (np.bool_, [0, 1], [0, 255]),
        (np.uint8, [0, 200, 255], [0, 200, 255]),
        (np.int8, [-128, -1, 127], [0, 0, 127]),
        (np.int16, [-300, 7, 300], [0, 7, 255]),
        (np.uint16, [7, 65535], [7, 255]),
        (np.int64, [-(2**62), 7, 2**62], [0, 7, 255]),
        (np.uint64, [7, 2**64 - 1], [7, 255]),
    ],
)
def test_whole_numbers_go_from_0_to_255(record, dtype, value, shown):
    """Values beyond are cut off; bools are black and white."""
    (found,) = pixels(record("image", np.array([value], dtype)))
    assert found.tolist() == [shown]


def test_an_image_may_be_made_of_lists(record):
    """As NumPy would read it."""
    (found,) = pixels(record("image", [[0.0, 1.0], [1.0, 0.0]]))
    assert found.tolist() == [[0, 255], [255, 0]]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("words", "words"),
        ("wörds *of* 3 ≥ 2", "wörds *of* 3 ≥ 2"),
        (b"words", "words"),
        ("wörds".encode("latin-1"), "w�rds"),
        (np.str_("words"), "words"),
        (np.bytes_(b"words"), "words"),
        (np.array("words"), "words"),
        (["a", "b"], "a\n\nb"),
        (("a", b"b", np.str_("c")), "a\n\nb\n\nc"),
        (np.array(["a", "bb"]), "a\n\nbb"),
        (np.array([b"a", b"bb"]), "a\n\nbb"),
        (np.array(["a", "bb"], object), "a\n\nbb"),
        ("", ""),
        ([], ""),
    ],
    ids=repr,
)
def test_text_is_a_str_or_a_sequence_of_them(record, value, shown):
    """A sequence makes paragraphs; bytes are read as UTF-8, whatever they are."""
    assert words(record("text", value)) == [shown]


def test_text_is_what_the_text_plugin_of_tensorboard_shows(record):
    """Under the very name that was declared."""
    events = record("text", "words")
    assert events.Tags()["tensors"] == ["x"]
    assert events.SummaryMetadata("x").plugin_data.plugin_name == "text"


@pytest.mark.parametrize(
    "value",
    [None, 3, [1, 2], ["a", 1], np.array([1.0]), np.array([["a"]]), {"a": "b"}],
    ids=repr,
)
def test_what_is_no_text_is_a_clear_error(record, value):
    """It names the summary and the type."""
    told = (
        rf"'x' is not a valid text \(type {type(value).__name__}.*give a str, or a sequence"
    )
    with pytest.raises(UsageError, match=told):
        record("text", value)


def test_what_was_recorded_before_an_error_can_be_read(record, steps_in):
    """The file is closed as in any other failure."""
    with pytest.raises(UsageError):
        record("scalar", None)
    assert len(list(Path("out").iterdir())) == 1
