"""Keeps the directory in which a replay trains, and copies checkpoints into it."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from hookbus import (
    CheckpointError,
    CheckpointInfo,
    UsageError,
    list_checkpoints,
    log,
    verify_checkpoint,
)
from hookbus.errors import NoGoodCheckpointError
from hookbus.files import replacing
from hookbus_replay.plan import Report

_AGENT = "TORCHELASTIC_USE_AGENT_STORE"
_OWN = ".replay"
"""The folder in it for the files of the replay itself."""
_CHECK_EVERY_SECS = 0.05
_MOST_SECS, _SECS_TO_LEAVE = 1800.0, 60.0
_INTO = (
    "several processes replay one run together in one directory: name an empty one, "
    "which all of them see, with --into DIR"
)


@attrs.frozen
class Ranks:
    """The place of this process among those of the training.

    Attributes:
        rank: its number; 0 is the chief.
        size: the number of all.
        run: distinguishes this start of the processes from another one.
    """

    rank: int = 0
    size: int = 1
    run: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Ranks:
        """Read the variables of a launcher like torchrun."""
        rank, size = environ.get("RANK", "0"), environ.get("WORLD_SIZE", "1")
        if not (rank.isdigit() and size.isdigit()):
            return cls()
        names = "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"
        run = " ".join(environ.get(name, "") for name in names)
        return cls(int(rank), int(size), run)

    def port_of(self, part: int, environ: Mapping[str, str]) -> str:
        """Choose the port at which the processes of a part meet; empty for their own.

        Those that torchrun starts meet in a store of torchrun, which still has the
        addresses of the part before.
        """
        if self.size < 2 or not part or environ.get(_AGENT) != "True":
            return ""
        with socket.socket() as free:
            free.bind(("", 0))
            return str(free.getsockname()[1])


def meeting_at(port: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a process that meets the others at a port."""
    return {**environ, "MASTER_PORT": port, _AGENT: "False"} if port else {**environ}


@attrs.frozen
class Scratch:
    """The directory of a replay.

    Attributes:
        directory: the directory of its checkpoints.
        is_kept: whether the user has named it.
        ranks: which process of the replay this one is.
    """

    directory: Path
    is_kept: bool
    ranks: Ranks

    @classmethod
    def made(cls, into: Path | None, ranks: Ranks) -> Scratch:
        """Make the directory; of several processes the chief does.

        Raises:
            UsageError: several processes have none in common, or it holds something.
        """
        if into is None:
            if ranks.size > 1:
                raise UsageError(_INTO)
            return cls(Path(tempfile.mkdtemp(prefix="hookbus-replay-")), False, ranks)
        into = into.absolute()
        scratch = cls(into, True, ranks)
        if ranks.rank == 0:
            if into.exists() and (not into.is_dir() or any(into.iterdir())):
                raise UsageError(
                    f"--into {str(into)!r} is not an empty directory: name a new one"
                )
            try:
                scratch.own.mkdir(parents=True)
            except OSError as error:
                raise UsageError(f"--into {str(into)!r}: {error}") from error
        return scratch

    @property
    def own(self) -> Path:
        """The folder for the files of the replay itself."""
        return self.directory / _OWN

    @property
    def report(self) -> Report:
        """The records of the processes that replay."""
        return Report(self.own / "report.jsonl")

    def start_from(self, starts: Sequence[CheckpointInfo]) -> CheckpointInfo:
        """Copy the first good checkpoint of some, and return it.

        Copies of later steps are removed, so that a session begins with this one.

        Raises:
            CheckpointError: none of them is good.
        """
        self.own.mkdir(parents=True, exist_ok=True)
        for number, info in enumerate(starts):
            try:
                self._copy(info)
            except (NoGoodCheckpointError, FileNotFoundError, shutil.Error) as error:
                left = len(starts) - number - 1
                action = "taking the one before it" if left else "none before it is left"
                log.warning(f"a checkpoint is not good, {action}", why=str(error))
                continue
            return info
        names = ", ".join(info.path.name for info in starts)
        raise CheckpointError(
            f"there is no good checkpoint to start from: {names} (hookbus checkpoints "
            f"{starts[0].path.parent} --verify)"
        )

    def _copy(self, info: CheckpointInfo) -> None:
        for other in list_checkpoints(self.directory):
            if other.global_step >= info.global_step:
                shutil.rmtree(other.path)
        target = self.directory / f"ckpt-{info.global_step}"
        try:
            shutil.copytree(info.path, target, symlinks=True)
            verify_checkpoint(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise

    def announce(self, part: int, text: str) -> None:
        """Tell the other processes to begin a part, or with which words it is over."""
        if self.ranks.size > 1:
            with replacing(self._announced(part)) as unfinished:
                unfinished.write_text(f"{self.ranks.run}\n{text}", "utf-8")

    def await_part(self, part: int) -> str:
        """Wait until the chief reports a part; return its message.

        Raises:
            CheckpointError: it does not.
        """
        path, end = self._announced(part), time.monotonic() + _MOST_SECS
        while time.monotonic() < end:
            if path.exists():
                run, _, text = path.read_text("utf-8").partition("\n")
                if run == self.ranks.run:
                    return text
            time.sleep(_CHECK_EVERY_SECS)
        raise CheckpointError(
            f"rank 0 has not begun the replay in {self.directory}: is it on a disk that "
            "all processes see?"
        )

    def leave(self) -> None:
        """Tell the chief that this process has heard of the end."""
        if self.ranks.rank and self.own.is_dir():
            self._left(self.ranks.rank).touch()

    def await_others(self) -> None:
        """Wait until all others have heard of the end, or are gone."""
        end = time.monotonic() + _SECS_TO_LEAVE
        waiting = {*range(1, self.ranks.size)}
        while waiting and time.monotonic() < end:
            waiting = {rank for rank in waiting if not self._left(rank).exists()}
            time.sleep(_CHECK_EVERY_SECS)

    def _left(self, rank: int) -> Path:
        return self.own / f"left-{rank}"

    def _announced(self, part: int) -> Path:
        return self.own / f"part-{part}"

    def clear(self) -> None:
        """Remove it, or of a directory to keep the files of the replay itself."""
        if self.ranks.rank == 0:
            gone = self.own if self.is_kept else self.directory
            shutil.rmtree(gone, ignore_errors=True)


def ranks() -> Ranks:
    """Return the place of this process among those of the training."""
    return Ranks.of(os.environ)
