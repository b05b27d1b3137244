"""``hookbus checkpoints DIRECTORY diff`` tells what differs between two checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    Graph,
    MonitoredTrainingSession,
    SessionRunHook,
    compare_checkpoints,
)
from hookbus.checkpoint.codec import DEFAULT, load_codec
from hookbus.checkpoint.files import CheckpointFiles
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from tests.support import stored
from tests.support.in_process import run_here
from tests.support.shelves import QUIET, RUNS, checkpoints, train

DATES = np.array(["2020-01-01", "NaT"], "M8[D]")
PAIRS = np.array([(1, 0.5), (2, 0.5)], [("a", "i4"), ("b", "f8")])


def write(step: int, state: dict[str, Any], *ranks: dict[str, Any]) -> None:
    """Write a checkpoint with exactly this state, and the states of other ranks."""
    codec = load_codec()

    def fill(files: CheckpointFiles) -> None:
        codec.write({"variables": {}, **state}, files)
        for rank, own in enumerate(ranks, 1):
            folder = files.directory / f"rank-{rank}"
            folder.mkdir()
            part = CheckpointFiles(folder)
            codec.write({"variables": {}, **own}, part)
            for file, record in part.records.items():
                files.records[f"rank-{rank}/{file}"] = record

    stored.write(Store(RUNS), Manifest(step, DEFAULT, "me", "a test", {}, {}), fill)


def diff(one: Any = 1, other: Any = 2) -> list[dict[str, Any]]:
    """Return the differences that the command has for programs, without what is null."""
    code, shown = checkpoints(RUNS, "diff", one, other, "--json")
    found = json.loads(shown)
    assert code == (0 if found["equal"] else 1)
    assert found["equal"] is not bool(found["differences"])
    return [{k: v for k, v in d.items() if v is not None} for d in found["differences"]]


def of_value(one: Any, other: Any) -> dict[str, Any] | None:
    """Return the difference of two values of one name, without its name; None if equal."""
    write(1, {"tracked": {"x": {"v": one}}})
    write(2, {"tracked": {"x": {"v": other}}})
    found = diff()
    if not found:
        return None
    (only,) = found
    assert (only.pop("part"), only.pop("name")) == ("tracked", "x.v")
    return only


def test_it_tells_what_a_training_has_changed():
    """Under the names that hooks know, with the largest difference of floating values."""
    train()
    assert checkpoints(RUNS, "diff", 2, 4) == (
        1,
        "a is runs/ckpt-2 (step 2), b is runs/ckpt-4 (step 4)\n"
        "PART     NAME              DIFFERENCE\n"
        "tracked  model.w           3 of 6 elements, by up to 3\n"
        "tracked  model.n           2 of 4 elements\n"
        f"tracked  draw.state.state  {generator(2)} and {generator(4)}\n",
    )


def generator(step: int) -> str:
    """Return the state of the generator of the training after a step, as it is shown."""
    draw = np.random.default_rng(1)
    draw.random(step)
    return repr(draw.bit_generator.state["state"]["state"])


class CountsHook(SessionRunHook):
    """Counts runs, and has that in checkpoints."""

    def __init__(self) -> None:
        self.runs = 0

    def after_run(self) -> None:
        self.runs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"runs": self.runs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.runs = state["runs"]


def test_of_a_graph_it_compares_variables_inputs_and_hooks():
    """And the random generators of the process."""
    graph = Graph()
    graph.variable("w", np.zeros(2))
    graph.variable("layer/b", 1.5)
    graph.input("x", lambda: range(10))
    graph.train_op(lambda w, x: w + x, name="train", updates="w")
    hooks = [CountsHook(), StopAtStepHook(last_step=3)]
    with MonitoredTrainingSession(
        graph, checkpoint_dir=RUNS, hooks=hooks, config=QUIET
    ) as session:
        while not session.should_stop():
            session.run("train")
            np.random.random()
    found = {(d["part"], d["name"]): d for d in diff(0, 3)}
    assert found["variables", "w"] == {
        "part": "variables",
        "name": "w",
        "kind": "value",
        "largest": 3.0,
        "different": 2,
        "elements": 2,
    }
    assert ("variables", "layer/b") not in found
    assert found["inputs", "x"]["kind"] == found["random", "numpy"]["kind"] == "state"
    assert found["hooks", "counts"]["kind"] == "state"
    assert ("random", "python") not in found


def test_equal_checkpoints_are_exit_code_0():
    """Their steps, hooks and times may be others."""
    write(1, {"tracked": {"x": {"a": np.arange(3), "b": [1, "s", None, True, 0.5]}}})
    write(22, {"tracked": {"x": {"b": [1, "s", None, True, 0.5], "a": np.arange(3)}}})
    assert checkpoints(RUNS, "diff", 1, 22) == (
        0,
        "runs/ckpt-1 (step 1) and runs/ckpt-22 (step 22) are equal\n",
    )
    assert json.loads(checkpoints(RUNS, "diff", 22, 1, "--json")[1]) == {
        "schema": 1,
        "a": {"path": "runs/ckpt-22", "step": 22},
        "b": {"path": "runs/ckpt-1", "step": 1},
        "equal": True,
        "differences": [],
    }


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (np.zeros(3), np.array([0, 0.5, -2]), (2.0, 2, 3)),
        (np.zeros(3, "f2"), np.array([0, 0.5, -2], "f2"), (2.0, 2, 3)),
        (np.zeros(2, ">f4"), np.array([0, 0.5], ">f4"), (0.5, 1, 2)),
        (np.zeros(2, "c8"), np.array([0, 3 + 4j], "c8"), (5.0, 1, 2)),
        (np.zeros((2, 2), order="F"), np.eye(2, order="F"), (1.0, 2, 4)),
        (np.float32(1), np.float32(1.5), (0.5, 1, 1)),
        (np.array([np.nan, 1.0]), np.array([np.nan, 2.0]), (1.0, 1, 2)),
        (np.array([np.nan, 1.0]), np.array([0.0, 3.0]), ("nan", 2, 2)),
        (np.array([np.inf, 1.0]), np.array([-np.inf, 1.0]), ("inf", 1, 2)),
        (np.array([1e308]), np.array([-1e308]), ("inf", 1, 1)),
        (np.array([0.0, 1.0]), np.array([-0.0, 1.0]), (0.0, 0, 2)),
        (np.arange(3), np.arange(3)[::-1].copy(), (None, 2, 3)),
        (np.array([0], "u8"), np.array([2**64 - 1], "u8"), (None, 1, 1)),
        (np.array([True, False]), np.array([True, True]), (None, 1, 2)),
        (np.array(["a", "b"]), np.array(["a", "c"]), (None, 1, 2)),
        (DATES, DATES + np.timedelta64(1, "D"), (None, 1, 2)),
        (PAIRS, PAIRS[::-1].copy(), (None, 2, 2)),
        (np.zeros(2**21 + 5), np.linspace(0, 1, 2**21 + 5), (1.0, 2**21 + 4, 2**21 + 5)),
    ],
)
def test_arrays_are_compared_element_by_element(one, other, found):
    """Floating ones by their distance, others by the number that differ."""
    largest, different, elements = found
    told = {} if largest is None else {"largest": largest}
    told |= {"kind": "value", "different": different, "elements": elements}
    assert of_value(one, other) == told
    assert of_value(one, one) is None


def test_numbers_of_a_library_that_numpy_lacks_are_compared():
    """As floating numbers: bfloat16, for example."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    one, other = (np.array([1, v], ml_dtypes.bfloat16) for v in (2.0, 2.5))
    told = {"kind": "value", "largest": 0.5, "different": 1, "elements": 2}
    assert of_value(one, other) == told


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (0.5, 2.0, {"a": "0.5", "b": "2.0", "largest": 1.5}),
        (0.5, float("nan"), {"a": "0.5", "b": "nan", "largest": "nan"}),
        (0.0, -0.0, {"a": "0.0", "b": "-0.0", "largest": 0.0}),
        (3, 4, {"a": "3", "b": "4"}),
        ("adam", "sgd", {"a": "'adam'", "b": "'sgd'"}),
    ],
)
def test_plain_values_are_shown(one, other, found):
    told = {"kind": "value", **found, "different": 1, "elements": 1}
    assert of_value(one, other) == told
    assert of_value(one, one) is None


@pytest.mark.parametrize(
    ("one", "other", "forms"),
    [
        (np.zeros(2), np.zeros(3), ("ndarray float64 (2,)", "ndarray float64 (3,)")),
        (np.zeros(2, "f4"), np.zeros(1), ("ndarray float32 (2,)", "ndarray float64 (1,)")),
        (
            np.zeros(2, "f4"),
            np.zeros(2, "i4"),
            ("ndarray float32 (2,)", "ndarray int32 (2,)"),
        ),
        (np.float64(0), np.zeros(()), ("float64 float64 ()", "ndarray float64 ()")),
        (0.0, 0, ("float", "int")),
        (1, True, ("int", "bool")),
        ({}, [], ("dict", "list")),
        (None, np.zeros(1), ("NoneType", "ndarray float64 (1,)")),
    ],
)
def test_another_form_is_a_difference(one, other, forms):
    """Whatever the values are."""
    a, b = forms
    assert of_value(one, other) == {"kind": "form", "a": a, "b": b}
    assert f" {a} and {b}\n" in checkpoints(RUNS, "diff", 1, 2)[1]


def test_what_only_one_has_is_told():
    """Values, whole objects, hooks and parts."""
    write(1, {"tracked": {"x": {"a": 1, "b.c": 2}}, "hooks": {"old": {}}})
    write(2, {"tracked": {"x": {"a": 1, "b": {"c": 2}}, "y": 0.5}, "params": {"lr": 0.1}})
    assert checkpoints(RUNS, "diff", 1, 2)[1].splitlines()[2:] == [
        "tracked  x.b.c  only in a: int",
        "tracked  x.b.c  only in b: int",
        "tracked  y      only in b: float",
        "hooks    old    only in a",
        "params   -      differs",
    ]


def test_bits_that_mean_the_same_numbers_are_told():
    of_value(np.zeros(2), -np.zeros(2))
    shown = checkpoints(RUNS, "diff", 1, 2)[1]
    assert "x.v   equal numbers of other bits, like 0.0 and -0.0\n" in shown


def test_the_parts_of_all_ranks_are_compared():
    """Also of another number of ranks."""
    draws = [{"tracked": {"draw": {"seed": n}}} for n in range(3)]
    write(1, draws[0], draws[1])
    write(2, draws[0], draws[2], draws[1])
    assert diff() == [
        {
            "part": "rank-1/tracked",
            "name": "draw.seed",
            "kind": "value",
            "a": "1",
            "b": "2",
            "different": 1,
            "elements": 1,
        },
        {"part": "rank-2/tracked", "name": "draw.seed", "kind": "only in b", "b": "int"},
    ]


def test_one_of_a_failed_session_and_one_that_was_set_aside_can_be_compared():
    train()
    shutil.copytree(RUNS / "ckpt-4", RUNS / "failed/ckpt-4")
    (RUNS / "ckpt-5").rename(RUNS / "ckpt-5.bad")
    assert diff(4, "failed/ckpt-4") == []
    assert diff("ckpt-5.bad", "failed/ckpt-4")[0]["name"] == "model.w"


def test_a_damaged_one_is_exit_code_1():
    train()
    (RUNS / "ckpt-2/arrays.safetensors").write_bytes(b"")
    code, shown = checkpoints(RUNS, "diff", 2, 4)
    assert code == 1
    assert shown.startswith(
        "ERROR: cannot restore runs/ckpt-2: its file arrays.safetensors has 0 bytes instead"
    )


@pytest.mark.long
def test_what_a_library_prints_is_no_part_of_the_answer(process):
    """A program reads stdout, and nothing but JSON."""
    train()
    Path("noisy.py").write_text(
        "import builtins, sys\n"
        "from hookbus.cli import main\n"
        "import hookbus_safetensors as codec\n"
        "read = codec.SafetensorsCodec.read\n"
        "codec.SafetensorsCodec.read = lambda *a: print('noise') or read(*a)\n"
        "sys.exit(main(['checkpoints', 'runs', 'diff', '2', '4', '--json']))\n"
    )
    done = process("noisy.py")
    assert (done.returncode, "noise" in done.stderr) == (1, True)
    assert json.loads(done.stdout)["equal"] is False


def test_the_words_of_the_command_are_its_own():
    """A directory may have the name of an action."""
    train()
    RUNS.rename("diff")
    assert run_here(["checkpoints", "diff", "diff", "2", "4"])[0] == 1


def test_programs_compare_the_values_inside_the_states_of_hooks():
    """Each has a difference of its own, if that is asked for; else each hook."""
    write(1, {"hooks": {"counts": {"seen": 1, "best": {"loss": 0.5}}}})
    write(2, {"hooks": {"counts": {"seen": 2, "best": {"loss": 0.5}}}})
    paths = [f"{RUNS}/ckpt-{step}" for step in (1, 2)]
    (whole,) = compare_checkpoints(*paths)
    assert (whole.name, whole.kind) == ("counts", "state")
    (value,) = compare_checkpoints(*paths, inside_hooks=True)
    assert (value.part, value.name, value.one) == ("hooks", "counts.seen", "1")
