"""``hookbus predict``: one JSON object a line, in a file that is whole or not there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

OUTPUT = Path("out/predictions.jsonl")


@pytest.fixture(autouse=True)
def _folder():
    OUTPUT.parent.mkdir()


def lines(text):
    """Return the objects that were written, strictly JSON."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_it_writes_an_object_for_each_example(trained, about):
    """Arrays of a batch fall into its rows, and numbers are numbers."""
    done = about("predict", "--output", str(OUTPUT))
    assert (done.returncode, done.stdout) == (0, "")
    found = lines(OUTPUT.read_text())
    expected = [n + half for n in range(10) for half in (0, 0.5)]
    assert found == [{"y": 2.75 * x, "large": 2.75 * x > 4} for x in expected]
    assert f"predicted to={OUTPUT} examples=20" in done.stderr
    assert [path.name for path in OUTPUT.parent.iterdir()] == [OUTPUT.name]


@pytest.mark.long
def test_it_writes_an_object_for_each_batch(trained, about):
    """--batches leaves the arrays as they come."""
    done = about("predict", "--output", str(OUTPUT), "--batches")
    assert lines(OUTPUT.read_text())[1] == {"y": [2.75, 4.125], "large": [False, True]}
    assert "batches=10" in done.stderr


@pytest.mark.long
def test_it_writes_the_predictions_that_are_named(trained, about):
    """--predict-keys leaves the others out."""
    flags = ("--predict-keys", "large", "--checkpoint-path", "runs/model/ckpt-0")
    assert about("predict", "--output", str(OUTPUT), *flags).returncode == 0
    found = lines(OUTPUT.read_text())
    assert found == [{"large": n + half > 4} for n in range(10) for half in (0, 0.5)]


@pytest.mark.long
def test_stdout_has_nothing_but_the_predictions(trained, about):
    """With --output -; what the user's code prints goes to stderr."""
    done = about("predict", "--output", "-", "--batches")
    assert len(lines(done.stdout)) == 10
    assert "batch 9" in done.stderr
    assert not list(OUTPUT.parent.iterdir())


@pytest.mark.long
def test_what_is_no_file_is_not_replaced(trained, about):
    """A pipe gets the lines itself."""
    done = about("predict", "--output", "/dev/stdout", "--batches")
    assert done.returncode == 0
    assert len(lines(done.stdout)) == 10
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.long
def test_a_link_stays_a_link(trained, about):
    """The file that it leads to is replaced."""
    link = Path("link.jsonl")
    link.symlink_to(OUTPUT)
    OUTPUT.write_text("before\n")
    assert about("predict", "--output", str(link)).returncode == 0
    assert link.is_symlink()
    assert len(lines(OUTPUT.read_text())) == 20


VALUES = """
from hookbus import Graph

def other_fn(features, mode):
    values = {"e": %s}
    features.graph.op(lambda x: values, name="all", reads={"x": features}, outputs=("e",))
    return EstimatorSpec(mode, predictions=%s)

class Word:
    pass

def other():
    return Estimator(other_fn, "runs/model")

def one():
    return [np.zeros(1)]
"""
WHOLE = "{'e': 'all.e'}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("value", "predictions", "expected"),
    [
        ("np.float32([0.5])", WHOLE, {"e": 0.5}),
        ("np.int8([[1, 2]])", WHOLE, {"e": [1, 2]}),
        ("np.array([np.nan])", WHOLE, {"e": None}),
        ("np.array([[1, np.inf, -np.inf]])", WHOLE, {"e": [1, None, None]}),
        ("np.array(['a NaN'])", WHOLE, {"e": "a NaN"}),
        ("np.array([b'bytes'])", WHOLE, {"e": "bytes"}),
        ("[{'deep': np.float64(2)}]", WHOLE, {"e": {"deep": 2}}),
        ("[None]", WHOLE, {"e": None}),
        ("np.array([0.25])", "'all.e'", {"prediction": 0.25}),
        ("np.array([[1, 2]])", "'all.e'", {"prediction": [1, 2]}),
    ],
)
def test_any_value_becomes_json(value, predictions, expected, trained, estimator, hookbus):
    """An array is a list, a number a number; NaN is null; bytes are read as UTF-8."""
    estimator(VALUES % (value, predictions))
    done = hookbus("predict", "model:other", "--input", "model:one", "--output", "-")
    assert (done.returncode, lines(done.stdout)) == (0, [expected]), done.stderr


@pytest.mark.long
def test_a_value_that_json_cannot_have_is_named(trained, estimator, hookbus):
    """By its type, with what to do about it: exit code 4, and no file."""
    estimator(VALUES % ("[Word()]", WHOLE))
    named = ("model:other", "--input", "model:one", "--output", OUTPUT)
    done = hookbus("predict", *named)
    assert done.returncode == 4
    assert "ERROR: the predictions hold a Word, which JSON cannot represent" in done.stderr
    assert not list(OUTPUT.parent.iterdir())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("flags", "code", "part"),
    [
        ([], 4, "hookbus predict needs --output FILE"),
        (["--output", "out"], 4, "--output out: cannot write it: Is a directory"),
        (["--output", "model.py/x"], 4, "--output model.py/x: cannot write it: Not a dir"),
        (["--output", "x" * 300], 4, "cannot write it: File name too long"),
        (["--output", "no/x"], 4, "--output no/x: cannot write it: No such file"),
        (
            ["--output=-", "--predict-keys=lrage"],
            4,
            "there are 'y', 'large'; did you mean 'large'",
        ),
        (
            ["--output=-", "--predict-keys=a,y"],
            4,
            "has 'a', which is not a prediction; there",
        ),
        (["--output=-", "--batche"], 4, "did you mean '--batches'?"),
        (["--output=-", "--model-dir=empty"], 1, "no checkpoint in model_dir='empty'"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(flags, code, part, trained, hookbus):
    """With the exit code of any other command, and nothing written."""
    done = hookbus("predict", "model:make", "--input", "model:numbers", *flags)
    assert (done.returncode, done.stdout) == (code, "")
    assert part in next(x for x in done.stderr.splitlines() if x.startswith("ERROR: "))
    assert "Traceback" not in done.stderr
    assert not list(OUTPUT.parent.iterdir())


@pytest.mark.long
def test_a_failure_leaves_the_file_as_it_was(trained, estimator, hookbus):
    """Predictions are whole or not there, and nothing is left beside."""
    estimator("def breaking():\n    yield from numbers()\n    raise OSError('gone')\n")
    OUTPUT.write_text("before\n")
    named = ("model:estimator", "--input", "model:breaking", "--output", OUTPUT)
    done = hookbus("predict", *named)
    assert done.returncode == 1
    assert "OSError: gone" in done.stderr
    assert [path.read_text() for path in OUTPUT.parent.iterdir()] == ["before\n"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 2)], ids=["term", "int"]
)
def test_a_signal_leaves_no_part_of_a_file(number, code, trained, about):
    """It ends in good order, with the batch that it came in."""
    done = about("predict", "--output", str(OUTPUT), SIGNAL=str(int(number)))
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert not list(OUTPUT.parent.iterdir())


@pytest.mark.long
def test_flags_of_plugins_act(trained, about, watcher):
    """A plugin that serves predictions sees every batch."""
    done = about("predict", "--watcher=told", "--output", str(OUTPUT))
    assert "told 10 end_of_input" in done.stderr
    assert "watcher" not in about("predict", "--output", str(OUTPUT)).stderr


@pytest.mark.long
def test_a_name_may_be_as_long_as_names_can_be(trained, about):
    """The unfinished file has its own name."""
    output = OUTPUT.with_name("x" * 255)
    assert about("predict", "--output", str(output)).returncode == 0
    assert [path.name for path in OUTPUT.parent.iterdir()] == [output.name]


@pytest.mark.long
def test_a_reader_that_has_seen_enough_is_no_error(trained, estimator):
    """As in ``hookbus predict ... | head -1``, however much is left to write."""
    estimator("def many():\n    for _ in range(500): yield from numbers()\n")
    command = f"{sys.executable} -m hookbus predict model:estimator --input model:many "
    command += "--output - 2> err | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert lines(done.stdout) == [{"y": 0.0, "large": False}]
    seen = [line for line in Path("err").read_text().splitlines() if "batch" not in line]
    assert "session ended" in seen[-1]
    assert "Traceback" not in "".join(seen)
