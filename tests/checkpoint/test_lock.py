"""The lock of a directory: what keeps it, what releases it, and who is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus.checkpoint.lock import LOCK_NAME, DirectoryLock
from hookbus.errors import CheckpointDirectoryError
from tests.support.profiles import cases

fcntl = pytest.importorskip("fcntl")

OPEN = Path("/proc/self/fd")
TAKEN = "is already saving checkpoints into"


@contextlib.contextmanager
def forked(do: Callable[[], object]) -> Iterator[int]:
    """Have a forked child do something; kill it at the end of the block."""
    child = os.fork()
    if child == 0:
        try:
            do()
        finally:
            os._exit(0)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.002)


class BacksUp:
    """Reads, copies and lists everything in the directory, like a backup."""

    def after_run(self):
        gone = FileNotFoundError, shutil.Error  # what another session removed meanwhile
        with contextlib.suppress(*gone):
            for path in Path("runs").rglob("*"):
                if path.is_file():
                    with contextlib.suppress(FileNotFoundError), path.open("a+b"):
                        path.read_bytes()
        with contextlib.suppress(*gone):
            shutil.copytree("runs", "backup", dirs_exist_ok=True)


def test_no_session_gets_in_while_a_hook_copies_the_directory(opened):
    """Opening and closing the lock file in the trainer does not release the lock."""
    endless = hookbus.Graph()
    endless.train_op(lambda: None, name="train")

    def train() -> None:
        with opened("runs", BacksUp(), graph=endless) as session:
            while not session.should_stop():
                session.run("train")
                Path("running").touch()

    with forked(train) as trainer:
        wait_for(Path("running"))
        for _ in range(cases(10, 200)):
            with pytest.raises(hookbus.UsageError, match=f"process {trainer} {TAKEN}"):
                opened("runs").close()
        assert os.waitpid(trainer, os.WNOHANG) == (0, 0), "the trainer has ended"


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_lock(opened, tmp_path):
    """A data loader's worker must not keep the restarted run out."""

    def train() -> None:
        with opened("runs") as session:
            session.run("train")
            if os.fork() == 0:
                Path("worker").write_text(str(os.getpid()))
                Path("worker").rename("works")
                time.sleep(60)
                os._exit(0)
            wait_for(Path("works"))
            os.kill(os.getpid(), signal.SIGKILL)

    with forked(train) as trainer:
        os.waitpid(trainer, 0)
        worker = int(Path("works").read_text())
        try:
            with opened("runs") as session:
                assert session.global_step == 1
            os.kill(worker, 0)  # it still lives
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_program_that_the_trainer_starts_does_not_keep_the_lock(opened):
    """A new program does not inherit the open file, not even with close_fds=False."""
    with opened("runs"):
        sleeps = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
        program = subprocess.Popen(sleeps, close_fds=False)
    try:
        opened("runs").close()
        assert program.poll() is None
    finally:
        program.kill()
        program.wait()


def test_a_fork_waits_for_a_thread_that_takes_a_lock(tmp_path, monkeypatch, opened):
    """Otherwise the child would have the open file, and not know that it must close it."""
    taking, flock = threading.Event(), fcntl.flock

    def slow(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        taking.set()
        time.sleep(0.1)

    opened("elsewhere").close()  # a session was opened, so forks are watched
    sessions: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", slow)
        thread = threading.Thread(target=lambda: sessions.append(opened("runs")))
        thread.start()
        assert taking.wait(10)
        with forked(lambda: time.sleep(60)):
            thread.join()
            patched.undo()
            sessions[0].close()
            again = DirectoryLock(Path("runs"))
            again.take()
            again.release()


@pytest.mark.skipif(not OPEN.exists(), reason="nothing lists the open files")
def test_a_release_does_not_wait_for_copies_of_the_open_file():
    """A child that was forked just before may not have closed its copy yet."""
    lock = DirectoryLock(Path())
    lock.take()
    (opened,) = [int(file.name) for file in OPEN.iterdir() if is_lock(file)]
    copy = os.dup(opened)
    lock.release()
    again = DirectoryLock(Path())
    again.take()
    again.release()
    os.close(copy)


def is_lock(file: Path) -> bool:
    """Return whether an open file of this process is the lock of the current folder."""
    with contextlib.suppress(OSError):
        return file.readlink() == Path(LOCK_NAME).absolute()
    return False


def test_a_child_may_save_elsewhere_and_the_parent_keeps_its_lock(opened):
    """The child's copy is closed, and not unlocked."""
    with opened("runs"):
        with forked(lambda: Path("forked").touch()) as child:
            os.waitpid(child, 0)
        assert Path("forked").exists()

        def starts() -> None:
            try:
                opened("runs")
            except hookbus.UsageError as error:
                Path("refused").write_text(str(error))

        with forked(starts) as child:
            os.waitpid(child, 0)
        assert f"process {os.getpid()} {TAKEN}" in Path("refused").read_text()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_with_a_warning(
    code, opened, monkeypatch, capsys
):
    """Some network file systems have none; without saving, none could be trained on."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with opened("runs") as session:
        session.run("train")
        with pytest.raises(hookbus.UsageError, match=f"another session of this .* {TAKEN}"):
            opened("runs")
    assert Path("runs/ckpt-1").is_dir()
    lines = [line for line in capsys.readouterr().err.splitlines() if "cannot lock" in line]
    (line,) = lines
    assert "[warning  ] cannot lock the checkpoint directory" in line
    assert "directory=runs" in line
    assert os.strerror(code) in line


def test_another_error_of_the_lock_is_an_error_of_the_directory(opened, monkeypatch):
    """A mark that is not known to be harmless stops the run before its first step."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(CheckpointDirectoryError, match="Input/output error"):
        opened("runs")


def test_a_lock_file_that_is_removed_while_it_is_taken_is_made_again(monkeypatch):
    """A lock on a file without a name would keep nobody out."""
    flock, removed = fcntl.flock, []

    def removing(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(Path(LOCK_NAME).unlink())
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    lock = DirectoryLock(Path())
    lock.take()
    assert Path(LOCK_NAME).read_text() == f"{os.getpid()}\n"
    lock.release()


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_directory_that_goes_away_is_made_again_and_locked(how, opened, names, capsys):
    """A warning says so, once; the session saves on, and nobody else can."""
    with opened("runs") as session:
        session.run("train")
        if how == "removed":
            shutil.rmtree("runs")
        else:
            Path("runs").rename("old")
        for _ in range(2):
            session.run("train")
        with pytest.raises(hookbus.UsageError, match=TAKEN):
            opened("runs")
        if how == "renamed":  # it is free: nobody saves there any more
            opened("old").close()
    assert names("runs") == ["ckpt-2", "ckpt-3"]
    said = capsys.readouterr().err
    assert said.count("[warning  ] the checkpoint directory was removed or renamed") == 1
    assert "saving into a new one directory=runs" in said


def test_a_new_trainer_in_the_place_of_a_renamed_directory_stays_alone(opened, names):
    """The session whose directory was renamed fails, and leaves the new one alone."""

    def train() -> None:
        with opened("runs"):
            Path("running").touch()
            time.sleep(60)

    session, tries = opened("runs"), []
    session.run("train")
    Path("runs").rename("old")
    with forked(train) as other:
        wait_for(Path("running"))
        for _ in range(2):  # a program may catch the error and go on
            with pytest.raises(hookbus.UsageError, match=f"process {other} {TAKEN}"):
                session.run("train")
            tries.append(names("runs"))
        with pytest.raises(hookbus.UsageError, match=TAKEN):
            session.close()
    assert tries == [["ckpt-0"], ["ckpt-0"]]
    assert names("runs") == ["ckpt-0"]
    assert not Path("runs/outcome.json").exists()


@pytest.mark.parametrize("error", [None, ValueError()])
def test_the_end_of_a_session_leaves_the_new_directory_alone(error, opened, trained, names):
    """Also if it has a checkpoint of the same step, and nothing is to be saved."""
    session = opened("runs")
    session.run("train")
    Path("runs").rename("old")
    with forked(lambda: trained("runs", 1)) as other:
        os.waitpid(other, 0)
    files = {p: p.read_bytes() for p in Path("runs").rglob("*") if p.is_file()}
    ends = (None, None, None) if error is None else (ValueError, error, None)
    with contextlib.suppress(hookbus.UsageError):
        session.__exit__(*ends)
    assert session.outcome.kind == ("failed" if error else "completed")
    after = {p: p.read_bytes() for p in Path("runs").rglob("*") if p.is_file()}
    changed = [path.name for path in after if after[path] != files.get(path)]
    assert changed in ([], [LOCK_NAME])


def test_checkpoints_of_another_training_are_not_mixed_with_those_of_a_renamed_one(
    opened, trained, names
):
    """The other training may have ended meanwhile; its checkpoints are not pruned."""
    session = opened("runs")
    session.run("train")
    Path("runs").rename("old")
    with forked(lambda: trained("runs", 9)) as other:
        os.waitpid(other, 0)
    others, ended = names("runs"), Path("runs/outcome.json").read_bytes()
    for call in (lambda: session.run("train"), session.close):
        with pytest.raises(hookbus.UsageError, match="another training run has saved"):
            call()
    assert names("runs") == others
    assert others[-1] == "ckpt-9"
    assert Path("runs/outcome.json").read_bytes() == ended


def test_a_directory_that_was_moved_and_copied_back_is_saved_into(opened, names):
    """It has the last checkpoint of this session."""
    with opened("runs") as session:
        session.run("train")
        Path("runs").rename("old")
        shutil.copytree("old", "runs")
        session.run("train")
    assert names("runs") == ["ckpt-0", "ckpt-1", "ckpt-2"]
