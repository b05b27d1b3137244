"""Kills training runs that save in the background: they end as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from hookbus import latest_checkpoint
from hookbus.checkpoint.store import Store
from tests.support.profiles import cases
from tests.support.saving import quiet, saving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks and kills")

STEPS, EVERY, ELEMENTS = 60, 5, 300_000


def train(directory: Path, done: int) -> np.ndarray:
    """Train a state that changes in place; write a byte for each step."""
    config = quiet().with_options("checkpoint-saver", background=True, max_to_keep=2)
    rng, w = np.random.default_rng(3), np.zeros(ELEMENTS)
    with saving(directory, EVERY, config) as session:
        session.track(w=w, rng=rng)
        for i in session.iterate(range(STEPS)):
            with session.step():
                w *= 0.99
                w += rng.random() + i
            time.sleep(0.001)
            os.write(done, b"x")
    return w


def child(directory: Path) -> tuple[int, int]:
    """Start the training in a process; return its number, and where it tells its steps."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        train(directory, writing)
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    finally:
        os._exit(code)


@pytest.mark.long
def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path):
    """It repeats at most the interval of the checkpoint under way, and leaves nothing."""
    null = os.open(os.devnull, os.O_WRONLY)
    began = time.perf_counter()
    whole = train(tmp_path / "whole", null)
    took, draw = time.perf_counter() - began, random.Random(5)
    for number in range(cases(2, 300)):
        directory = tmp_path / str(number)
        pid, reading = child(directory)
        time.sleep(draw.uniform(0, took))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        done = len(os.read(reading, 2 * STEPS))
        os.close(reading)
        newest = latest_checkpoint(directory)
        step = 0 if newest is None else newest.global_step
        assert step > done - 2 * EVERY - 1
        for found in Store(directory).found():
            found.manifest()
        assert train(directory, null).tobytes() == whole.tobytes()
        left = {path.name for path in directory.iterdir()}
        assert left <= {".writing", "outcome.json", "ckpt-55", "ckpt-60"}
        for path in sorted(directory.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    os.close(null)
