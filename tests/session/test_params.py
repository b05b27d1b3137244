"""Hyperparameters that a program records reach hooks, checkpoints and the outcome."""

from __future__ import annotations

import argparse
import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    hookimpl,
)
from hookbus.checkpoint.reader import read_newest
from hookbus.errors import ArgumentTypeError, SessionClosedError

OFF = Config(autoload=False, header=False)
GIVEN = {"lr": 0.1, "layers": [64, 10], "note": None, "data": {"name": "digits"}}
saving = functools.partial(
    MonitoredTrainingSession,
    checkpoint_dir="runs",
    save_summaries_steps=None,
    log_step_count_steps=None,
    config=OFF,
)


class TrackerHook(SessionRunHook):
    """Notes what the program records."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    @hookimpl
    def params_recorded(self, params: Any, global_step: int) -> None:
        self.told.append((params, global_step))


def train(params: Any, graph: bool, *hooks: Any) -> MonitoredSession:
    """Record parameters, and do two steps."""
    made = Graph() if graph else None
    if made is not None:
        made.train_op(lambda: None, name="train")
    with saving(made, hooks=hooks) as session:
        if params is not None:
            session.record(params)
        for _ in range(2):
            if made is not None:
                session.run("train")
                continue
            with session.step():
                pass
    return session


def outcome() -> dict[str, Any]:
    """Return the content of outcome.json."""
    content: dict[str, Any] = json.loads(Path("runs/outcome.json").read_text("utf-8"))
    return content


@pytest.mark.parametrize("graph", [True, False])
def test_recorded_parameters_are_everywhere(graph, capsys):
    """Hooks, the newest checkpoint, the outcome and outcome.json have them; no log line."""
    hook = TrackerHook()
    session = train(GIVEN, graph, hook)
    assert hook.told == [(GIVEN, 0)]
    assert session.outcome.params == GIVEN
    assert outcome()["params"] == GIVEN
    assert read_newest("runs").state["params"] == GIVEN
    assert "digits" not in capsys.readouterr().err


@pytest.mark.parametrize("graph", [True, False])
def test_a_resumed_session_keeps_them_until_its_program_records_others(graph, capsys):
    """A hook is told at each start; what has changed is logged by name."""
    train(GIVEN, graph)
    assert train(None, graph).outcome.params == GIVEN
    assert "params" in outcome()
    capsys.readouterr()
    hook, changed = TrackerHook(), {"lr": 0.2, "layers": [64, 10], "note": None}
    train(changed, graph, hook)
    assert hook.told == [(changed, 4)]
    assert outcome()["params"] == read_newest("runs").state["params"] == changed
    line = "parameters differ from those of the checkpoint changed=['data', 'lr']"
    assert line in capsys.readouterr().err


def test_further_calls_add_to_them():
    """A program may know some of them later."""
    hook = TrackerHook()
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        session.record({"a": 1, "b": 2})
        session.record({"b": 3})
    assert hook.told == [({"a": 1, "b": 2}, 0), ({"a": 1, "b": 3}, 0)]
    assert session.outcome.params == {"a": 1, "b": 3}
    with pytest.raises(SessionClosedError, match=r"record\(\) on a closed session"):
        session.record({"a": 1})


def test_without_parameters_files_are_as_before():
    """Neither the outcome nor a checkpoint has an empty entry."""
    train(None, True)
    assert "params" not in outcome()
    assert "params" not in read_newest("runs").state


def test_parsed_arguments_are_parameters():
    """The namespace of argparse needs no conversion."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    with MonitoredSession(config=OFF) as session:
        session.record(parser.parse_args(["--lr", "0.5"]))
        session.record({"size": np.int64(3), "shape": (2, np.float32(0.5))})
    assert session.outcome.params == {"lr": 0.5, "size": 3, "shape": [2, 0.5]}


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"out": [Path("x")]}, "params['out'][0] is of type PosixPath; expected a number"),
        ({"a": {"fn": print}}, "params['a']['fn'] is of type builtin_function_or_method"),
        ({"w": np.zeros(2)}, "params['w'] is of type ndarray; expected a number, a str"),
        ({"a": {3: 1}}, "params['a'] has the key 3; expected a str"),
        ({"a": nested(60)}, "is nested too deeply"),
        ([1], "session.record() takes a dict or the arguments of argparse, not list"),
    ],
)
def test_what_no_tracker_could_hold_is_an_error_that_names_it(params, told):
    """Nothing is recorded then."""
    session = MonitoredSession(config=OFF)
    with session, pytest.raises(ArgumentTypeError, match=re.escape(told)):
        session.record({"lr": 1, **params} if isinstance(params, dict) else params)
    assert session.outcome.params == {}
