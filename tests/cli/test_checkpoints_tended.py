"""``hookbus checkpoints`` keeps and removes checkpoints, but never under a session."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookbus import latest_checkpoint, list_checkpoints
from hookbus.checkpoint.reader import read_checkpoint
from tests.support.profiles import cases
from tests.support.shelves import (
    RUNS,
    KeepsHook,
    SavesFailedHook,
    checkpoints,
    everything,
    names,
    train,
)

KEPT = {"hookbus checkpoints": "asked for on the command line"}


def kept() -> dict[int, dict[str, str]]:
    """Return the keepers of each step, with the reasons."""
    return {i.global_step: {**i.kept} for i in list_checkpoints(RUNS) if i.kept}


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def training() -> Iterator[int]:
    """Have a child process train on and on; kill it at the end of the block."""
    child = os.fork()
    if child == 0:
        try:
            train(
                until=10**9,
                most=0,
                each=lambda _: Path("running").touch() or time.sleep(0.01),
            )
        finally:
            os._exit(1)
    try:
        wait_for(Path("running").exists)
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_kept_checkpoint_is_never_pruned():
    """As if a hook had asked for it; other sessions prune the rest."""
    train(KeepsHook(4))
    assert checkpoints(RUNS, "keep", 2, "ckpt-4") == (
        0,
        "runs/ckpt-2 is kept\nruns/ckpt-4 is kept\n",
    )
    assert kept() == {2: KEPT, 4: {"keeps": "it is mine", **KEPT}}
    train(until=9, most=1)
    assert names() == ["ckpt-2", "ckpt-4", "ckpt-9"]
    assert checkpoints(RUNS, "--verify")[0] == 0


def test_keeping_twice_writes_once():
    train()
    checkpoints(RUNS, "keep", 2)
    before = everything()
    assert checkpoints(RUNS, "keep", 2) == (0, "runs/ckpt-2 is kept already\n")
    assert {p: e for p, e in everything().items() if p.name != ".writing"} == {
        p: e for p, e in before.items() if p.name != ".writing"
    }


def test_undo_lets_sessions_prune_again():
    """A checkpoint that a hook keeps stays kept."""
    train(KeepsHook(4))
    checkpoints(RUNS, "keep", 2, 4)
    assert checkpoints(RUNS, "keep", "--undo", 2, 4, 5) == (
        0,
        "runs/ckpt-2 is no longer kept by this command\n"
        "runs/ckpt-4 is no longer kept by this command; keeps keeps it\n"
        "runs/ckpt-5 was not kept by this command\n",
    )
    assert kept() == {4: {"keeps": "it is mine"}}


def test_a_kept_checkpoint_of_a_failed_session_is_not_pruned_either():
    """Other sessions that fail leave theirs beside it."""
    train(SavesFailedHook(), until=3, fails=True)
    assert checkpoints(RUNS, "keep", "failed/ckpt-3")[0] == 0
    for until in (5, 7):
        train(SavesFailedHook(), until=until, fails=True, most=1)
    assert sorted(path.name for path in (RUNS / "failed").glob("c*")) == [
        "ckpt-3",
        "ckpt-7",
    ]


@pytest.mark.parametrize(
    ("spoil", "word", "told"),
    [
        (
            lambda: (RUNS / "ckpt-2/state.json").write_text("{}"),
            "2",
            "cannot keep runs/ckpt-2: its file state.json has 2 bytes instead of",
        ),
        (
            lambda: (RUNS / "ckpt-2").rename(RUNS / "ckpt-2.bad"),
            "ckpt-2.bad",
            "runs/ckpt-2.bad was set aside as bad, and no session removes it",
        ),
        (
            lambda: (
                (RUNS / "ckpt-2").rename("elsewhere"),
                (RUNS / "ckpt-2").symlink_to(Path("elsewhere").absolute()),
            ),
            "2",
            "runs/ckpt-2 is a link, and the checkpoint where it leads may be that of",
        ),
    ],
)
def test_one_that_cannot_be_kept_is_exit_code_1(spoil, word, told):
    """None of those that are named with it is kept then."""
    train()
    spoil()
    code, shown = checkpoints(RUNS, "keep", 4, word)
    assert (code, shown.startswith(f"ERROR: {told}")) == (1, True), shown
    assert kept() == {}


def test_it_removes_and_says_what():
    """With the size; the session that goes on takes the newest of the others."""
    train(KeepsHook(4))
    code, shown = checkpoints(RUNS, "rm", 4, 5)
    assert code == 0
    lines = shown.splitlines()
    assert lines[0].startswith("removed ckpt-4 (")
    assert lines[0].endswith(" kB; kept by keeps)")
    assert lines[1].startswith("removed ckpt-5 (")
    assert names() == ["ckpt-0", "ckpt-2"]
    assert latest_checkpoint(RUNS).global_step == 2
    train(until=3)
    assert names() == ["ckpt-0", "ckpt-2", "ckpt-3"]


def test_one_that_was_being_replaced_goes_with_the_one_in_its_place():
    """A session would put it back."""
    train()
    shutil.copytree(RUNS / "ckpt-4", RUNS / "ckpt-4.old")
    assert checkpoints(RUNS, "rm", 4)[1].count("removed ") == 2
    train(until=6)
    assert names() == ["ckpt-0", "ckpt-2", "ckpt-5", "ckpt-6"]


def test_what_was_set_aside_and_what_failed_is_removed_by_name():
    train(SavesFailedHook(), until=3, fails=True)
    (RUNS / "ckpt-2").rename(RUNS / "ckpt-2.bad")
    code, shown = checkpoints(RUNS, "rm", "ckpt-2.bad", "failed/ckpt-3")
    assert (code, shown.count("removed ")) == (0, 2)
    assert names() == ["ckpt-0"]
    assert not [*(RUNS / "failed").glob("ckpt-*")]


@pytest.mark.parametrize("words", [(0, 2, 4, 5), (2, 4, 5)])
def test_the_last_good_one_stays_without_force(words):
    """One that is left counts only if its files have the right hashes."""
    train()
    if 0 not in words:
        path = RUNS / "ckpt-0/state.json"
        path.write_text(path.read_text().replace("rate", "etar"))
    assert checkpoints(RUNS, "rm", *words) == (
        1,
        "ERROR: runs would have no good checkpoint left from which a run goes on: "
        "nothing was removed; --force removes the last one anyway\n",
    )
    assert names() == ["ckpt-0", "ckpt-2", "ckpt-4", "ckpt-5"]
    assert checkpoints(RUNS, "rm", "--force", *words)[0] == 0
    assert len(names()) == 4 - len(words)


def test_bad_ones_are_no_loss():
    """They may go where no good one is left."""
    train(until=1)
    for step in (0, 1):
        (RUNS / f"ckpt-{step}/state.json").write_text("{}")
    assert checkpoints(RUNS, "rm", 1)[0] == 0


@pytest.mark.parametrize("words", [("rm", 2, 4), ("rm", 2, "--force"), ("keep", 2)])
def test_nothing_changes_while_a_session_saves(words):
    """The process that holds the lock is named; when it is killed, the lock is free."""
    train()
    with training() as child:
        code, shown = checkpoints(RUNS, *words)
        assert (code, shown.split(" is already ")[0]) == (
            1,
            f"ERROR: nothing was changed: process {child}",
        )
        assert {"ckpt-0", "ckpt-2", "ckpt-4"} <= {*names()}
        assert kept() == {}
    assert checkpoints(RUNS, *words)[0] == 0


def test_a_session_of_this_process_is_refused_too():
    code = []
    train(each=lambda _: code.append(checkpoints(RUNS, "rm", 0)[0]))
    assert code == [1] * 5


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no system tells readers")
@pytest.mark.parametrize("way", ["file", "mapped.closed"])
def test_a_checkpoint_that_another_process_reads_stays(way):
    """As long as the process has a file of it open, or mapped into its memory."""
    train()
    path = RUNS / "ckpt-2/arrays.safetensors"
    code = (
        "import mmap, sys; file = open(sys.argv[1], 'rb'); "
        "held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); "
        "'closed' in sys.argv[2] and file.close(); print(flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code, path, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with reader:
        reader.stdout.readline()
        assert checkpoints(RUNS, "rm", 4, 2) == (
            1,
            f"ERROR: process {reader.pid} reads runs/ckpt-2: nothing was removed; wait for "
            "it to end\n",
        )
        assert names() == ["ckpt-0", "ckpt-2", "ckpt-4", "ckpt-5"]
        reader.stdin.close()
    assert checkpoints(RUNS, "rm", 4, 2)[0] == 0


@pytest.mark.parametrize("wait", cases([0, 3, 10], [n / 2 for n in range(40)]))
def test_a_kill_leaves_each_checkpoint_whole_or_gone(wait):
    """The rest of a removal is no checkpoint, and the next session clears it away."""
    train()
    for step in (2, 4):
        for number in range(300):
            (RUNS / f"ckpt-{step}" / f"{number}.txt").touch()
    child = os.fork()
    if child == 0:
        try:
            checkpoints(RUNS, "rm", 2, 4)
        finally:
            os._exit(0)
    time.sleep(wait / 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for info in list_checkpoints(RUNS):
        read_checkpoint(info.path)
    assert {"ckpt-0", "ckpt-5"} <= {*names()}
    assert checkpoints(RUNS, "--verify")[0] == 0
    train(until=6)
    assert {*names()} <= {f"ckpt-{step}" for step in (0, 2, 4, 5, 6)}


def test_the_rest_of_one_that_was_set_aside_is_cleared_away():
    """As that of any other: here a removal was killed when it had renamed the directory."""
    train()
    (RUNS / "ckpt-2").rename(RUNS / "ckpt-2.bad")
    child = os.fork()
    if child == 0:
        sys.addaudithook(lambda event, _: event == "shutil.rmtree" and os._exit(9))
        checkpoints(RUNS, "rm", "ckpt-2.bad")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert names() == ["ckpt-0", f"ckpt-2.gone-{child}", "ckpt-4", "ckpt-5"]
    assert checkpoints(RUNS)[0] == 0
    train(until=6)
    assert names() == ["ckpt-0", "ckpt-4", "ckpt-5", "ckpt-6"]


def test_one_that_cannot_be_removed_is_as_it_was():
    """For example because something else has the name that it would get."""
    train()
    gone = RUNS / f"ckpt-2.gone-{os.getpid()}"
    gone.write_text("in the way")
    code, shown = checkpoints(RUNS, "rm", 2)
    assert (code, shown) == (
        1,
        "ERROR: cannot remove runs/ckpt-2: Not a directory; it is as it was\n",
    )
    assert checkpoints(RUNS, "--verify")[0] == 0
