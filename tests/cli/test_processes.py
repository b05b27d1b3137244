"""A command that is forked does what one in a new process does; the tests rely on it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from hookbus.cli import COMMANDS
from tests.support import commands
from tests.support.profiles import cases

FLAGS = {
    "no command": [],
    "--version": ["--version"],
    "run": ["run", "-p", "watcher", "train.py"],
    "run, failing": ["run", "train.py", "now"],
    "run, exiting": ["run", "leave.py"],
    "train": ["train", "--max-steps", "2"],
    "evaluate": ["evaluate"],
    "predict": ["predict", "--output", "-"],
    "plugins": ["plugins"],
    "why": ["why", "watcher"],
    "export": ["export", "no/runs", "model.safetensors"],
    "checkpoints": ["checkpoints", "no/runs"],
    "hooks": ["hooks", "-p", "watcher"],
    "new": ["new", "demo-hook"],
    "help": ["help", "run"],
}
LOOP = """
import atexit, sys

atexit.register(lambda: print("at exit", hasattr(sys.modules["__main__"], "__file__")))
with MonitoredTrainingSession(graph, checkpoint_dir="runs") as session:
    for _ in session.loop():
        if session.global_step == 3:
            break
        if sys.argv[1:]:
            raise ValueError("broken")
"""
ABOUT_AN_ESTIMATOR = ("train", "evaluate", "predict")
NAMED = ("model.py:estimator", "--input", "model.py:numbers")
LEAVE = """
import atexit, random, sys, threading, time

def main_file():
    return getattr(sys.modules["__main__"], "__file__", "no file")

def later():
    time.sleep(0.1)
    print("a thread", main_file())

atexit.register(lambda: print("at exit", __name__, main_file()))

threading.Thread(target=later).start()
print(random.random() == random.Random(5).random(), sys.stdin.read() == "", sys.argv)
sys.exit("left")
"""
CLOCK = re.compile(r"\d\d:\d\d:\d\d|[\d.]+ steps/s|[\d.]+ ?m?s\b")


PLAIN = {
    "script": ["train.py"],
    "script, failing": ["train.py", "now"],
    "script, exiting": ["leave.py"],
    "script with a slip": ["slip.py"],
    "code": ["-c", "import sys; print(__name__, sys.argv, sys.path[0])", "one"],
    "code, failing": ["-c", "import hookbus; hookbus.Graph().resolve('w')"],
}
"""Programs that run under Python without the command."""
SOME = ["run", "run, exiting", "train", "why", "script, failing", "script, exiting"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", cases([*SOME, "code"], [*FLAGS, *PLAIN]))
def test_a_fork_prints_and_returns_what_a_new_process_does(
    way, tmp_path, site, script, estimator, watcher, monkeypatch
):
    """Byte for byte, but for the time of day, and it leaves the same files."""
    words = PLAIN[way] if way in PLAIN else ["-m", "hookbus", *FLAGS[way]]
    if way in ABOUT_AN_ESTIMATOR:
        words = [*words, *NAMED]
    ended = {}
    for name, run in (("forked", commands.run), ("new", commands.run_new)):
        folder = tmp_path / "same"
        folder.mkdir()
        monkeypatch.chdir(folder)
        script(LOOP)
        script(LEAVE, "leave.py", before="")
        script("x = = 3\n", "slip.py", before="")
        estimator()
        if way in ("evaluate", "predict"):
            train = [sys.executable, "-m", "hookbus", *FLAGS["train"], *NAMED]
            commands.run(train, check=True)
        done = run(
            [sys.executable, *words],
            env=os.environ | {"PYTHONPATH": str(site)},
        )
        files = sorted(str(path).partition(".tfevents")[0] for path in Path().rglob("*"))
        texts = [CLOCK.sub("...", text) for text in (done.stdout, done.stderr)]
        ended[name] = [done.returncode, *texts, files]
        folder.rename(tmp_path / name)
    assert ended["forked"] == ended["new"]


def test_every_command_is_compared():
    """So a new one is also compared."""
    assert {*COMMANDS} <= FLAGS.keys()
