"""SIGINT and SIGTERM sent to a training script, at any moment, from outside."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MOMENTS = 60
SAMPLE = (4, 9)
"""Those moments that are tried by default, at each event one, by either signal."""

# Its events go to a pipe as they come, one letter each, so that a signal can be sent then.
SCRIPT = """
import itertools, os, random, signal, sys
import hookbus
from hookbus import Graph, MonitoredTrainingSession

signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process ignores it

PIPE, WAITS_IN = int(sys.argv[1]), sys.argv[2].encode()

class Tells:
    def tell(self, letter):
        os.write(PIPE, letter)
        while letter == WAITS_IN:
            sys.stdin.readline()
            os.write(PIPE, b"!")
            if letter == b"e":
                break
            if letter == b"e":
                break

    def begin(self): self.tell(b"b")
    def after_create_session(self): self.tell(b"c")
    def before_run(self): self.tell(b"r")
    def after_run(self): self.tell(b"a")
    @hookbus.hookimpl
    def before_save(self): self.tell(b"s")
    @hookbus.hookimpl
    def after_save(self): self.tell(b"S")
    def end(self): self.tell(b"e")
    def on_exception(self): self.tell(b"x")

graph = Graph()
graph.variable("w", 1)
graph.input("batch", lambda: itertools.count(1))

@graph.train_op(updates="w")
def train(w, batch):
    return (w * 31 + batch * random.randrange(1000)) % 1000003

random.seed(5)
with MonitoredTrainingSession(graph, checkpoint_dir="runs", save_checkpoint_steps=7,
                              save_summaries_steps=None, hooks=[Tells()]) as session:
    print(session.global_step, flush=True)
    for _ in session.loop():
        pass
    print(session.global_step, session.run("w", kind="aux"))
"""
QUIET = ("-p", "no:progress")


def expected(steps: int) -> int:
    """Train that long without any session."""
    generator, w = random.Random(5), 1
    for batch in range(1, steps + 1):
        w = (w * 31 + batch * generator.randrange(1000)) % 1000003
    return w


class Child:
    """The script under ``hookbus run``, and its output about its events."""

    def __init__(self, *flags: str, waits_in: str = "-") -> None:
        Path("train.py").write_text(SCRIPT)
        self.events, writes = os.pipe()
        script = ["train.py", str(writes), waits_in]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hookbus", "run", *flags, *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[writes],
        )
        os.close(writes)

    def wait_for(self, letter: str, times: int = 1) -> None:
        """Wait until an event has come so often."""
        seen = 0
        while seen < times:
            told = os.read(self.events, 1)
            assert told, f"it ended before: {self.process.communicate()}"
            seen += told == letter.encode()

    def send(self, number: int) -> None:
        """Send a signal, and have an event that waits go on with it."""
        self.process.send_signal(number)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("go on\n")
            self.process.stdin.flush()

    def finished(self) -> tuple[int, list[str], str, str]:
        """Wait for its end; return code, standard output, error, and its last events."""
        with os.fdopen(self.events, "rb") as pipe:
            told = pipe.read().decode()  # before the wait: a full pipe would block it
        output, error = self.process.communicate(timeout=60)
        return self.process.returncode, output.split(), error, told


@pytest.fixture
def child():
    """Return a function that starts the script; it is killed if a test leaves it behind."""
    children: list[Child] = []

    def start(*flags: str, waits_in: str = "-") -> Child:
        children.append(Child(*QUIET, *flags, waits_in=waits_in))
        return children[-1]

    yield start
    for one in children:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def outcome() -> dict[str, object]:
    """Return how the last session ended."""
    return json.loads(Path("runs/outcome.json").read_text())


def is_saved(step: int) -> bool:
    """Return whether there is a checkpoint of a step, and none behind it."""
    found = [
        int(path.parent.name[5:]) for path in Path("runs").glob("ckpt-*/manifest.json")
    ]
    return max(found) == step


def moments() -> list[object]:
    """Return the moments, those behind the sample marked as slow."""
    chance = random.Random(20)
    drawn: list[object] = []
    for index in range(MOMENTS):
        number = signal.SIGTERM if index % 2 else signal.SIGINT
        letter = "bcsSra"[index // 2 % 6]
        times = chance.randrange(1, {"s": 6, "S": 6, "r": 40, "a": 40}.get(letter, 2))
        delay = chance.choice([0.0, chance.uniform(0.0, 0.003), chance.uniform(0.0, 0.03)])
        marks = [] if index in SAMPLE else [pytest.mark.slow]
        name = f"{number.name}-{letter}{times}-{delay * 1000:.2f}ms"
        drawn.append(pytest.param(number, letter, times, delay, marks=marks, id=name))
    return drawn


@pytest.mark.parametrize(("number", "letter", "times", "delay"), moments())
@pytest.mark.long
def test_a_signal_at_any_moment_loses_nothing(number, letter, times, delay, child):
    """One checkpoint more, ``end`` for every hook, the exit code, and the next resumes."""
    process = child()
    process.wait_for(letter, times)
    time.sleep(delay)  # so that it comes anywhere, and not only at events
    process.send(number)
    code, output, error, told = process.finished()
    preempted = number == signal.SIGTERM
    assert code == (75 if preempted else 2), error
    # Between two runs, no run is left that could save before the end.
    assert told.endswith(("e", "esS"))
    assert "x" not in told
    assert outcome()["kind"] == ("preempted" if preempted else "interrupted")
    assert outcome()["who"] == number.name
    step, w = map(int, output[1:])
    assert outcome()["step"] == step
    assert is_saved(step)
    assert w == expected(step)

    again = child("--stop-at-step", str(step + 9))
    code, output, error, _ = again.finished()
    assert (code, output) == (0, [str(step), str(step + 9), str(expected(step + 9))]), error


def test_a_second_sigint_ends_at_once(child):
    """A hook that hangs is left: ``on_exception`` for every hook, and exit code 2."""
    process = child(waits_in="r")
    process.wait_for("r")
    process.send(signal.SIGINT)
    process.wait_for("!")
    process.send(signal.SIGINT)
    code, output, error, told = process.finished()
    assert (code, output, told) == (2, ["0"], "x"), error
    assert (outcome()["kind"], outcome()["step"]) == ("interrupted", 0)


def test_a_signal_that_comes_too_late_ends_the_program_after_the_session(child):
    """SIGTERM in ``end`` exits with 75, when all that is to be is saved."""
    process = child("--stop-at-step", "20", waits_in="e")
    process.wait_for("e")
    process.send(signal.SIGTERM)
    code, output, error, told = process.finished()
    assert (code, output) == (75, ["0", "20", str(expected(20))]), error
    assert told[-1:] == "S"
    assert (outcome()["kind"], outcome()["step"]) == ("stopped", 20)
    assert is_saved(20)


def test_without_checkpoints_a_preempted_run_has_failed(child):
    """Exit code 75 promises that the next start resumes; here it would not."""
    process = child("-p", "no:checkpoint-saver")
    process.wait_for("a", 3)
    process.send(signal.SIGTERM)
    code, _, error, told = process.finished()
    assert (code, told[-1:]) == (1, "e")
    assert "nothing was saved" in error
