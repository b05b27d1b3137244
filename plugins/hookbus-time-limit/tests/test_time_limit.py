"""Tests that time-limit ends a run in time, and that it goes on afterwards."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_safetensors import SafetensorsCodec
from hookbus_throughput import ThroughputHook
from hookbus_time_limit import TimeLimitHook, seconds_in

import hookbus
from hookbus import (
    Config,
    Graph,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
    latest_checkpoint,
)
from tests.support import commands

QUIET = Config(autoload=False, header=False)
STEPS = 30


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("11h30m", 41400),
        ("90s", 90),
        ("2d", 172800),
        ("1d12h", 129600),
        ("1.5h", 5400),
        ("PT11H30M", 41400),
        ("P1DT0.5S", 86400.5),
        ("3600", 3600),
        (2.5, 2.5),
        (" 5M ", 300),
    ],
)
def test_a_time_is_read(text, seconds):
    """As people write it, as ISO 8601 does, or as a number of seconds."""
    assert seconds_in(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "h", "P", "PT", "P1M", "30m11h", "-5", "soon", "1:30:00", True]
)
def test_what_is_no_time_is_an_error(text):
    """A mistake would otherwise end a run at once, or never."""
    told = (
        f"invalid time {text!r}. TimeLimitHook expects a time above 0: seconds, or text "
        "like 11h30m, 90s or PT11H30M"
    )
    with pytest.raises(UsageError, match=re.escape(told)):
        TimeLimitHook(text)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"margin": "1h"},
            "invalid margin='1h'. TimeLimitHook expects less than limit.",
        ),
        ({"kind": "failed"}, "invalid kind='failed'. TimeLimitHook expects preempted or s"),
    ],
)
def test_settings_that_do_not_fit_are_errors(settings, told):
    """Before the training, and not at its end."""
    with pytest.raises(UsageError, match=re.escape(told)):
        TimeLimitHook("30m", **settings)


def graph_of(step_secs: float = 0.0) -> Graph:
    """Return a graph whose steps draw numbers, and read a shuffled input."""
    graph = Graph()
    graph.variable("w", np.ones(3))
    graph.input("x", lambda: iter(np.random.default_rng(5).permutation(STEPS) / 9))

    @graph.train_op(updates="w")
    def train(w, x):
        time.sleep(step_secs)
        return trained(w, x)

    return graph


def trained(w: Any, x: float) -> Any:
    """Return the new value of w after a step."""
    return w * 0.9 + x * np.random.normal(size=3)


def run(
    *hooks: Any, directory: Path | None = None, custom: bool = False, step_secs: float = 0.0
) -> Any:
    """Train, resumed if there are checkpoints; return the outcome and the weights."""
    np.random.seed(1)
    with MonitoredTrainingSession(
        None if custom else graph_of(step_secs),
        checkpoint_dir=directory,
        hooks=hooks,
        config=QUIET,
        save_checkpoint_steps=7,
        save_summaries_steps=None,
        log_step_count_steps=None,
        exit_on_signal=False,
    ) as session:
        if not custom:
            for _ in session.loop():
                pass
            w = None
        else:
            w = session.track(w=np.ones(3))
            order = np.random.default_rng(5).permutation(STEPS) / 9
            for x in session.iterate(order):
                with session.step() as step:
                    w[:] = trained(w, x)
                    step.report(loss=w.sum())
    if w is None and directory is not None:
        w = SafetensorsCodec().read(latest_checkpoint(directory).path)["variables"]["w"]
    return session.outcome, None if w is None else w.tolist()


def plainly() -> Any:
    """Return the weights of a loop without hookbus."""
    np.random.seed(1)
    w = np.ones(3)
    for x in np.random.default_rng(5).permutation(STEPS) / 9:
        w = trained(w, x)
    return w.tolist()


def test_it_ends_in_time_to_save(tmp_path):
    """It leaves what the saves so far took twice, and a step."""

    class SlowSave(SessionRunHook):
        @hookbus.hookimpl
        def before_save(self) -> None:
            time.sleep(0.15)

    outcome, _ = run(SlowSave(), TimeLimitHook(0.7), directory=tmp_path, step_secs=0.02)
    assert (outcome.kind, outcome.who) == ("preempted", "time-limit")
    assert outcome.why == "the time limit of 0.7 is near"
    assert latest_checkpoint(tmp_path).global_step == outcome.step < STEPS


def test_a_given_margin_replaces_the_learned_one(tmp_path):
    """A cluster may kill slowly, or storage may be slow at times."""
    began = time.monotonic()
    hook = TimeLimitHook("10s", kind="stopped", margin="9.8s")
    outcome, _ = run(hook, directory=tmp_path, step_secs=0.02)
    assert (outcome.kind, outcome.who) == ("stopped", "time-limit")
    assert time.monotonic() - began >= 0.2


def test_it_is_called_in_no_run_before_the_end():
    """Until then it costs nothing."""
    calls: list[str] = []

    class Watches(SessionRunHook):
        @hookbus.hookimpl
        def addhooks(self, bus: Any) -> None:
            bus.observe(lambda call: calls.append(f"{call.plugin} {call.event}"))

    outcome, _ = run(Watches(), TimeLimitHook("1h"))
    assert outcome.step == STEPS
    assert calls.count("time-limit after_run") <= 1


def hooks(limit: str = "0.03") -> list[Any]:
    return [TimeLimitHook(limit, margin=0.001), ThroughputHook(3, batch_size=8)]


@pytest.mark.parametrize("custom", [False, True])
def test_a_training_that_it_cuts_again_and_again_ends_the_same(tmp_path, custom):
    """Bit for bit like a loop without hookbus: each session goes on where it was cut."""
    kinds = []
    while not kinds or kinds[-1] == "preempted":
        outcome, w = run(*hooks(), directory=tmp_path, custom=custom, step_secs=0.01)
        kinds.append(outcome.kind)
    assert (kinds[-1], outcome.step) == (("end_of_input", "completed")[custom], STEPS)
    assert custom or len(kinds) > 3
    assert w == plainly()


SCRIPT = """
import time
from hookbus import Graph, MonitoredTrainingSession

graph = Graph()
graph.input("x", lambda: range(3000))
graph.train_op(lambda x: time.sleep(0.001), name="train")
with MonitoredTrainingSession(graph, checkpoint_dir="runs") as session:
    for _ in session.loop():
        pass
"""


def test_the_command_exits_with_75(tmp_path, monkeypatch):
    """A scheduler sees the same as after SIGTERM."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT, "utf-8")
    words = ["run", "--time-limit", "0.3s", "train.py"]
    done = commands.run([sys.executable, "-m", "hookbus", *words])
    assert done.returncode == 75, done.stderr
    assert (
        "kind=preempted who=time-limit why='the time limit of 0.3s is near'" in done.stderr
    )
