"""Tests trackers: a slow, dead or dying place, kills, and what is told of lost records."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from hookbus import CheckpointError, Config, MonitoredTrainingSession
from hookbus.tracking import Journal, Record, RunInfo, Tracker
from tests.support.profiles import FULL

QUIET = Config(autoload=False, header=False)
RUN = Path("run")

PLACE = """
import fcntl, json, os
from hookbus.tracking import Tracker

class PlaceHook(Tracker):
    '''Sends records into a file, which stands for a server that outlives the program.'''

    def connect(self, run):
        self.place = os.open("place.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def send(self, records):
        for record in records:
            os.write(self.place, (record.to_json() + "\\n").encode())

    def has(self, record):
        with open("place.jsonl") as file:
            there = [json.loads(line) for line in file]
        return any(
            (each["kind"], each["step"], each["values"]) ==
            (record.kind, record.step, json.loads(record.to_json())["values"])
            for each in there
        )

    def disconnect(self):
        os.close(self.place)
"""
SCRIPT = f"""
import sys, time
import numpy as np
from hookbus import Config, MonitoredTrainingSession
{PLACE}
with MonitoredTrainingSession(
    checkpoint_dir="run", save_checkpoint_steps=7, hooks=[PlaceHook(every_n_steps=2)],
    config=Config(autoload=False, header=False),
) as session:
    count = session.track(count=np.zeros(1))
    for _ in session.iterate(range(60)):
        with session.step() as step:
            count += 1
            step.report(loss=count[0])
        time.sleep(float(sys.argv[1]))
"""


def scalars_in(path: Path) -> list[tuple[str, int, dict[str, float]]]:
    """Return kind, step and numbers of the records of a place."""
    records = [Record.from_json(line) for line in path.read_text().splitlines()]
    return [(r.kind, r.step, r.scalars) for r in records if r.scalars]


@pytest.mark.parametrize("seed", range(10 if FULL else 2))
@pytest.mark.long
def test_killed_and_resumed_each_record_arrives_once(tmp_path: Path, seed: int) -> None:
    """Whatever the moments of the kills, the place has what it has without any."""
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py"]
    subprocess.run([*command, "0"], cwd=tmp_path / "whole", check=True)

    random = Random(seed)
    for _ in range(5):
        running = subprocess.Popen([*command, "0.02"], cwd=tmp_path / "cut")
        try:
            running.wait(random.uniform(0.4, 1.4))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
        running.wait()
    subprocess.run([*command, "0"], cwd=tmp_path / "cut", check=True)

    expected = scalars_in(tmp_path / "whole" / "place.jsonl")
    assert len(expected) == 30
    assert scalars_in(tmp_path / "cut" / "place.jsonl") == expected


@attrs.define(eq=False)
class Place(Tracker):
    """Keeps records in memory, and fails where told."""

    arrived: list[Record] = attrs.field(factory=list, init=False)
    fails: Any = attrs.field(default=None, init=False)
    calls: list[str] = attrs.field(factory=list, init=False)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.fails is not None:
            self.fails(name)

    def connect(self, run: RunInfo) -> None:
        self._call("connect")

    def send(self, records: Sequence[Record]) -> None:
        self._call("send")
        self.arrived += records

    def has(self, record: Record) -> bool:
        return record in self.arrived

    def disconnect(self) -> None:
        self._call("disconnect")


def train(*hooks: Any, steps: int = 20, directory: Path | None = None) -> Any:
    """Train a loop, and return the session."""
    opened = MonitoredTrainingSession(checkpoint_dir=directory, hooks=hooks, config=QUIET)
    with opened as session:
        for number in session.iterate(range(steps)):
            with session.step() as step:
                step.report(loss=float(number))
    return session


def test_records_arrive_in_their_order() -> None:
    """The thread has ended with the session."""
    hook = Place(every_n_steps=5)
    train(hook)
    kinds = [record.kind for record in hook.arrived]
    assert kinds == ["program", "metrics", "metrics", "metrics", "metrics", "outcome"]
    assert [hook.calls[0], hook.calls[-1]] == ["connect", "disconnect"]
    assert not any(each.name == "place sender" for each in threading.enumerate())


def test_a_place_that_fails_is_tried_again() -> None:
    """It gets every record once; a try follows as soon as the session ends."""
    hook = Place(every_n_steps=1)
    tries = iter([True])

    def fails(name: str) -> None:
        if name != "disconnect" and next(tries, False):
            raise ConnectionError("away")

    hook.fails = fails
    train(hook, steps=3)
    assert [r.step for r in hook.arrived if r.kind == "metrics"] == [1, 2, 3]
    assert hook.calls.count("connect") == 2


def test_what_arrived_before_an_error_is_not_sent_again() -> None:
    """The place is asked for the records whose answer was lost."""

    class Losing(Place):
        def send(self, records: Sequence[Record]) -> None:
            super().send(records)
            if self.calls.count("send") == 1:
                raise TimeoutError("no answer")

    hook = Losing(every_n_steps=1)
    train(hook, steps=3)
    assert [r.step for r in hook.arrived if r.kind == "metrics"] == [1, 2, 3]


@pytest.mark.parametrize("directory", [None, RUN])
def test_a_dead_place_is_told_at_the_end(directory: Path | None, capfd: Any) -> None:
    """The training ends well; the journal has what did not arrive."""

    def fails(name: str) -> None:
        raise ConnectionError(f"{name}: refused")

    hook = Place(every_n_steps=1, wait_secs=5)
    hook.fails = fails
    session = train(hook, directory=directory)
    assert session.outcome.kind == "completed"
    lines = capfd.readouterr().err.splitlines()
    assert sum("records cannot be sent for now" in line for line in lines) == 1
    (line,) = [line for line in lines if "records were not sent" in line]
    for told in ("by=place", "connect: refused"):
        assert told in line
    assert ("kept_in" in line) == (directory is not None)
    if directory is not None:
        left = Journal(RUN / "tracking" / "place.jsonl", "").unsent
        assert f"records={len(left)}" in line


def test_a_slow_place_holds_no_step(capfd: Any) -> None:
    """The end waits as long as it is told, and no longer."""
    go_on = threading.Event()
    hook = Place(every_n_steps=1, wait_secs=0.2)
    hook.fails = lambda _: go_on.wait(60)
    train(hook)
    assert not hook.arrived
    go_on.set()
    assert "records were not sent" in capfd.readouterr().err


def test_what_was_not_sent_is_sent_by_the_resumed_run() -> None:
    """First what waits, in its order, and then what is new."""

    def fails(name: str) -> None:
        raise ConnectionError(name)

    dead, alive = Place(every_n_steps=4, wait_secs=0), Place(every_n_steps=4)
    dead.fails = fails
    train(dead, steps=8, directory=RUN)
    train(alive, steps=16, directory=RUN)
    steps = [record.step for record in alive.arrived if record.kind == "metrics"]
    assert steps == [1, 5, 9, 13]


def test_too_many_records_are_left_out_and_counted(capfd: Any) -> None:
    """The oldest ones stay; the line at the end has the number."""
    go_on = threading.Event()
    hook = Place(every_n_steps=1, wait_secs=0)
    hook.fails = lambda _: go_on.wait(60)
    train(hook, steps=10_100)
    (line,) = [li for li in capfd.readouterr().err.splitlines() if "not sent" in li]
    assert "records=10102" in line
    go_on.set()


def test_a_file_that_is_no_journal_is_not_overwritten() -> None:
    """The error tells what to do, and switches the tracker off."""
    path = RUN / "tracking" / "place.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("something else\n")
    with pytest.raises(CheckpointError, match=r"is no journal of records .*: move it away"):
        Journal(path, "id")
    assert path.read_text() == "something else\n"


def test_the_journal_of_another_run_is_put_aside() -> None:
    """A checkpoint that was copied into the directory brings the id of its run."""
    train(Place(), steps=2, directory=RUN)
    path = RUN / "tracking" / "place.jsonl"
    head, *rest = path.read_text().splitlines()
    other = json.dumps({**json.loads(head), "run": "other"})
    path.write_text("\n".join([other, *rest]) + "\n")
    train(Place(), steps=4, directory=RUN)
    assert path.with_name("place.other.jsonl").exists()
    assert json.loads(path.read_text().splitlines()[0]) == json.loads(head)
