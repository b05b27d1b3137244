"""A session that has no time to save after a signal relies on its newest checkpoint."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from hookbus_safetensors import SafetensorsCodec

from hookbus import list_checkpoints
from hookbus.process.grace import seconds_left
from tests.support.saving import RUN, quiet, saving
from tests.support.watching import lines as lines

NO_TIME = "no time to save: the next run resumes from the last checkpoint"
STEPS = 9


@pytest.fixture
def slow(monkeypatch) -> None:
    """Have each write take a while."""
    write = SafetensorsCodec.write

    def written(codec: SafetensorsCodec, state: Any, files: Any) -> None:
        if files.directory is not None:
            time.sleep(0.3)
        write(codec, state, files)

    monkeypatch.setattr(SafetensorsCodec, "write", written)


def train(
    grace: float | None, at: int | None, background: bool = False, number: int = 15
) -> Any:
    """Train to the end, or until a signal comes in a step; return the session and state."""
    config = quiet(grace_seconds=grace).with_options(
        "checkpoint-saver", background=background
    )
    w, rng = np.zeros(3), np.random.default_rng(3)
    with saving(RUN, 4, config, exit_on_signal=False) as session:
        session.track(w=w, rng=rng)
        for i in session.iterate(range(STEPS)):
            with session.step():
                w += i * rng.random()
            if session.global_step == at:
                os.kill(os.getpid(), number)
    return session, w


def steps() -> list[int]:
    return [info.global_step for info in list_checkpoints(RUN)]


@pytest.mark.usefixtures("slow", "ctrl_c")
def test_a_save_that_takes_too_long_is_left_out(lines):
    """As long as the slowest one before; a line names the newest checkpoint."""
    train(0.2, at=6)
    (line,) = [line for line in lines if line["event"] == NO_TIME]
    assert line["path"].endswith("ckpt-4")
    assert steps() == [0, 4]


@pytest.mark.parametrize("background", [False, True], ids=["at once", "in the background"])
@pytest.mark.usefixtures("slow", "ctrl_c")
@pytest.mark.long
def test_a_run_without_its_last_save_can_be_resumed(background, lines):
    """It ends as if it had not been stopped."""
    session, _ = train(0.2, at=7, background=background)
    assert session.outcome.kind == "preempted"
    (line,) = [line for line in lines if line["event"] == NO_TIME]
    assert line["path"].endswith(f"ckpt-{steps()[-1]}")
    assert steps() in ([0], [0, 4])
    assert session._state.options.config.records[-1].saved
    _, resumed = train(None, at=None)
    for path in sorted(RUN.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert resumed.tolist() == train(None, at=None)[1].tolist()


@pytest.mark.usefixtures("slow", "ctrl_c")
def test_one_under_way_is_awaited_if_only_that_fits(lines):
    """It is better than the one before."""
    threads_wait = 0.6  # for the rest of that one, but not for one more
    session, _ = train(threads_wait, at=4, background=True)
    assert session.outcome.step == 4
    assert steps() == [0, 4]
    assert [line["event"] for line in lines].count(NO_TIME) <= 1


@pytest.mark.parametrize(
    ("grace", "number"),
    [(60.0, signal.SIGTERM), (None, signal.SIGTERM), (0.1, signal.SIGINT)],
    ids=["enough", "unknown", "Ctrl-C"],
)
@pytest.mark.usefixtures("slow", "ctrl_c")
def test_with_enough_time_it_saves(grace, number, lines):
    """Nobody kills a program after a Ctrl-C, so that has all the time it needs."""
    train(grace, at=7, number=number)
    assert steps() == [0, 4, 7]
    assert NO_TIME not in [line["event"] for line in lines]


@pytest.mark.usefixtures("ctrl_c")
def test_before_the_first_save_nobody_knows_and_it_saves():
    """A resumed session may not have saved yet."""
    train(None, at=3)
    session, _ = train(0.2, at=5)
    assert steps()[-1] == session.outcome.step == 5


def test_the_end_of_a_job_of_slurm_is_known(monkeypatch):
    """The sooner end counts; one that is here already tells nothing."""
    now = time.monotonic()
    assert seconds_left(now, None) is None
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 100))
    assert 98 < seconds_left(now, None) <= 100
    assert seconds_left(now, 30.0) <= 30
    assert 98 < seconds_left(now, 500.0) <= 100
    for other in (str(int(time.time()) - 1), str(int(time.time()) + 3), "tomorrow", ""):
        monkeypatch.setenv("SLURM_JOB_END_TIME", other)
        assert seconds_left(now, None) is None
