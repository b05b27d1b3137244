"""Tests the directories of training runs: what is found there, and what is wrong there."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import hookbus_live.sources as sources
import numpy as np
import pytest
from hookbus_live.runs import Library, RunDirectory, directories_below, verified

import hookbus
from hookbus import MonitoredTrainingSession
from hookbus.tracking import Record

QUIET = hookbus.Config(autoload=False, header=False)


def write(path: Path, *lines: object, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("\n".join(json.dumps(line) for line in lines) + end)
    return path


def metric(step: int, **values: object) -> dict[str, object]:
    return {"step": step, "time": 1700000000.0 + step, **values}


def read(folder: Path = Path("run")) -> RunDirectory:
    run = RunDirectory(folder, folder.name)
    run.refresh()
    return run


def values_of(run: RunDirectory, name: str) -> list[float]:
    found = run.curve(name, "step")
    return [] if found is None else found[1].tolist()


def test_metrics_are_read_as_they_come():
    """Only what is new is read; null is NaN; text and lists are left out."""
    path = write(Path("run/metrics.jsonl"), metric(1, loss=1.0, note="a", **{"val/a": 2}))
    run = read()
    write(path, metric(2, loss=None))
    run.refresh()

    assert values_of(run, "loss")[0] == 1.0
    assert math.isnan(values_of(run, "loss")[1])
    assert values_of(run, "val/a") == [2.0]
    assert "note" not in run.names()
    assert run.details(())["problems"] == []


def test_an_unfinished_line_is_read_when_it_is_whole():
    """A run may be writing it right now."""
    path = write(Path("run/metrics.jsonl"), metric(1, loss=1.0))
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    run = read()

    assert values_of(run, "loss") == [1.0]
    assert run.details(())["problems"] == []
    with path.open("a") as file:
        file.write('ss": 0.5}\n')
    run.refresh()
    assert values_of(run, "loss") == [1.0, 0.5]


def test_a_line_that_a_kill_has_cut_is_left_out():
    """The page says so, and shows the rows that the resumed run wrote after it."""
    path = write(Path("run/metrics.jsonl"), metric(1, loss=1.0))
    with path.open("a") as file:
        file.write('{"step": 2, "lo\n')
    write(path, metric(2, loss=0.5), ["no", "object"], {"loss": 3.0})

    run = read()
    assert values_of(run, "loss") == [1.0, 0.5]
    assert run.details(())["problems"] == [
        "metrics.jsonl: 3 lines could not be read and were left out"
    ]


def test_a_file_that_begins_anew_is_read_anew():
    """Somebody has removed the directory and trains again."""
    path = write(Path("run/metrics.jsonl"), metric(1, loss=1.0), metric(2, loss=2.0))
    run = read()
    path.unlink()
    write(path, metric(1, loss=9.0))
    run.refresh()

    assert values_of(run, "loss") == [9.0]


def test_journals_of_trackers_are_read():
    """Values, hyperparameters and the outcome; a roll-back takes values back."""
    journal = Path("run/tracking/mlflow.jsonl")
    write(journal, {"journal": 1, "run": "0" * 32})
    records = [
        Record("params", 0, {"rate": 0.5}),
        Record("metrics", 1, {"loss": 1.0}),
        Record("metrics", 2, {"loss": 2.0}),
        Record("rollback", 1, {}),
        Record("metrics", 2, {"loss": 3.0}),
        Record("evaluation", 2, {"accuracy": 0.5}, evaluation="val"),
        Record("outcome", 2, {"kind": "completed", "who": "caller", "why": "done"}),
    ]
    write(journal, *(json.loads(record.to_json()) for record in records))
    run = read()

    assert values_of(run, "loss") == [1.0, 3.0]
    assert values_of(run, "val/accuracy") == [0.5]
    assert run.details(())["params"] == {"rate": 0.5}
    assert run.details(())["outcome"]["kind"] == "completed"


def test_a_value_that_two_files_have_is_shown_once():
    """The metrics of hookbus come first."""
    write(Path("run/metrics.jsonl"), metric(1, loss=1.0))
    write(Path("run/tracking/x.jsonl"), {"journal": 1, "run": "0"})
    written = json.loads(Record("metrics", 5, {"loss": 7.0, "more": 8.0}).to_json())
    write(Path("run/tracking/x.jsonl"), written)
    run = read()

    assert values_of(run, "loss") == [1.0]
    assert values_of(run, "more") == [8.0]


def test_event_files_of_any_program_are_read():
    """Scalars of both formats are shown, pictures and texts are not."""
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter("run")
    plain = [Summary.Value(tag="loss", simple_value=0.5)]
    tensor = TensorProto(dtype=1, float_val=[0.25])
    plain += [Summary.Value(tag="new", tensor=tensor)]
    content = TensorProto(dtype=2, tensor_content=np.float64(4.0).tobytes())
    plain += [Summary.Value(tag="bytes", tensor=content)]
    plain += [Summary.Value(tag="text", tensor=TensorProto(dtype=7, string_val=[b"a"]))]
    writer.add_event(Event(step=3, wall_time=100.0, summary=Summary(value=plain)))
    writer.flush()
    run = read()
    assert {name: values_of(run, name) for name in run.names()} == {
        "loss": [0.5],
        "new": [0.25],
        "bytes": [4.0],
    }
    later = Summary(value=[Summary.Value(tag="loss", simple_value=0.125)])
    writer.add_event(Event(step=4, wall_time=101.0, summary=later))
    writer.close()
    run.refresh()
    assert values_of(run, "loss") == [0.5, 0.125]


def test_a_file_that_only_has_the_name_of_an_event_file_is_a_problem():
    """The other files of the directory are shown."""
    pytest.importorskip("tensorboard")
    write(Path("run/metrics.jsonl"), metric(1, loss=1.0))
    Path("run/events.out.tfevents.1").write_bytes(b"no events at all" * 10)
    run = read()

    assert values_of(run, "loss") == [1.0]
    (problem,) = run.details(())["problems"]
    assert problem.startswith("events.out.tfevents.1 ")


def test_a_real_training_is_found_with_its_checkpoints_and_outcome():
    """Each has its reason and its size; a damaged one is bad."""
    with MonitoredTrainingSession(checkpoint_dir="runs/a", config=QUIET) as session:
        session.record({"rate": 0.5})
        model = session.track(model={"w": np.zeros(3)})
        for batch in session.iterate(range(3)):
            with session.step():
                model["w"] += batch
    (directory,) = directories_below(Path("runs"))
    run = read(directory)
    about, details = run.about(), run.details(["checkpoints"])

    assert (about["state"], about["step"]) == ("completed", 3)
    assert details["params"] == {"rate": 0.5}
    rows = details["checkpoints"]
    assert [(row["name"], row["saved_by"], row["state"]) for row in rows] == [
        ("ckpt-0", "checkpoint-saver", "not verified"),
        ("ckpt-3", "checkpoint-saver", "not verified"),
    ]
    assert rows[1]["why"] == "end: completed"
    assert rows[1]["bytes"] > 0
    assert verified(directory, "ckpt-3") == "good"
    assert "there is no checkpoint" in verified(directory, "../a/ckpt-3")
    arrays = directory / "ckpt-3" / "arrays.safetensors"
    data = bytearray(arrays.read_bytes())
    data[-1] ^= 1
    arrays.write_bytes(data)
    assert "arrays.safetensors" in verified(directory, "ckpt-3")


def test_the_outcome_of_an_earlier_start_does_not_count():
    """A run that was started again is running."""
    write(Path("run/outcome.json"), {"kind": "preempted", "step": 1})
    long_ago = time.time() - 100
    os.utime("run/outcome.json", (long_ago, long_ago))
    assert read().about()["state"] == "preempted"
    write(Path("run/metrics.jsonl"), metric(2, loss=1.0))

    assert read().about()["state"] == "running"


def test_a_training_without_a_sign_of_life_is_silent():
    """It may have been killed."""
    path = write(Path("run/metrics.jsonl"), metric(2, loss=1.0))
    long_ago = time.time() - 1000
    os.utime(path, (long_ago, long_ago))

    about = read().about()
    assert about["state"] == "silent"
    assert about["silent_secs"] >= 1000


def test_the_library_finds_new_trainings():
    """Checkpoints and hidden folders are not searched."""
    write(Path("runs/b/c/metrics.jsonl"), metric(1, loss=1.0))
    write(Path("runs/b/ckpt-1/metrics.jsonl"), metric(1, loss=1.0))
    write(Path("runs/.hidden/metrics.jsonl"), metric(1, loss=1.0))
    library = Library(Path("runs"))
    library.refresh()
    first = library.runs["b/c"]
    write(Path("runs/a/metrics.jsonl"), metric(1, loss=1.0))
    library.refresh()

    assert [*library.runs] == ["a", "b", "b/c"]
    assert library.runs["b/c"] is first


def test_an_event_file_without_tensorboard_says_what_to_install(monkeypatch):
    """The package is not needed for the other files."""
    import builtins

    real = builtins.__import__

    def fail(name, *args, **kwargs):
        if name.startswith("tensorboard"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    Path("run").mkdir()
    Path("run/events.out.tfevents.1").write_bytes(b"x")
    source = sources.EventFiles(Path("run"))
    monkeypatch.setattr(builtins, "__import__", fail)
    source.refresh()

    assert "pip install tensorboard" in source.values.problems[0]
