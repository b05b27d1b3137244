"""Runs the script once, in its own process, and reads what happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus import ExitCode, TrainingError, UsageError
from hookbus_certify.plan import Plan

_TAIL = 12
"""The lines of a failed run that are shown."""


@attrs.frozen
class Ran:
    """One run of the script.

    Attributes:
        plan: its orders.
        code: its exit code; negative for a signal.
        events: the notes of the probe.
        log: the log lines of hookbus.
        errors: the other lines that it has written to stderr.
    """

    plan: Plan
    code: int
    events: Sequence[Mapping[str, Any]]
    log: Sequence[Mapping[str, Any]]
    errors: Sequence[str]

    @property
    def folder(self) -> Path:
        """The directory of its checkpoints."""
        return Path(self.plan.checkpoints)

    @property
    def outcome(self) -> Mapping[str, Any] | None:
        """How its session ended; None if it was killed."""
        ends = [e for e in self.events if e["event"] == "end"]
        return {k: v for k, v in ends[-1].items() if k != "event"} if ends else None

    @property
    def resumed_at(self) -> int | None:
        """The step of the checkpoint that it has restored."""
        found = [line["step"] for line in self.log if line.get("event") == "restored"]
        return int(found[0]) if found else None

    @property
    def warnings(self) -> list[str]:
        """The warnings of hookbus, each once."""
        found = [str(e["event"]) for e in self.log if e.get("level") == "warning"]
        return [*dict.fromkeys(found)]

    def noted(self, event: str) -> list[Mapping[str, Any]]:
        """Return the events of one kind."""
        return [each for each in self.events if each["event"] == event]

    def tail(self) -> str:
        """Return the last lines that it has written to stderr, indented."""
        return "\n".join(f"    {line}" for line in self.errors[-_TAIL:])


@attrs.define(eq=False)
class Runner:
    """Runs the script as often as needed.

    Attributes:
        flags: the flags of ``hookbus run``.
        program: the script or module, and its arguments.
        scratch: the folder for all checkpoints and events.
        seed: the seed of what differs from run to run, like the hash seed.
        timeout: the seconds after which a run is killed.
        last: the step at which each run ends; None for the script's own end.
        begins: called with a description when a run begins.
        replaced: the script's own directory of checkpoints; None before it is known.
    """

    flags: Sequence[str]
    program: Sequence[str]
    scratch: Path
    seed: int
    timeout: float
    last: int | None
    begins: Any
    replaced: str | None = None
    _count: int = attrs.field(default=0, init=False)

    @property
    def count(self) -> int:
        """How many runs there were."""
        return self._count

    def folder(self) -> str:
        """Return the path of a new directory of checkpoints, which does not exist yet."""
        self._count += 1
        return str(self.scratch / f"run-{self._count}")

    def copied(self, folder: Path) -> str:
        """Copy a folder into a new one; return the path of that."""
        return str(shutil.copytree(folder, self.folder(), symlinks=True))

    def run(
        self,
        what: str,
        checkpoints: str | None = None,
        conditions: Sequence[str] = (),
        entropy: int = 0,
        flags: Sequence[str] = (),
        cwd: str | None = None,
        **orders: Any,
    ) -> Ran:
        """Run the script.

        Args:
            what: the purpose of the run, for the progress.
            checkpoints: the directory of checkpoints; a new one by default.
            conditions: the fixed surroundings besides the entropy, see :mod:`.conditions`.
            entropy: the source of unseeded generators; a run that resumes has another one.
            flags: further flags of ``hookbus run``.
            cwd: the folder to run it in; the current one by default.
            orders: fields of the :class:`Plan`.

        Raises:
            TrainingError: it took too long.
        """
        self.begins(what)
        self._count += 1
        here = self.scratch / f"orders-{self._count}"
        here.mkdir()
        plan = Plan(
            checkpoints or self.folder(),
            str(here / "events"),
            **{"last": self.last, "replaced": self.replaced, **orders},
        )
        plan.write(here / "plan")
        Path(plan.events).touch()
        fixed = (f"entropy={self.seed}:{entropy}", *conditions)
        code = self._start(plan, here, fixed, flags, cwd)
        lines = (here / "stderr").read_text("utf-8", "replace").splitlines()
        log = [(line, _logged(line)) for line in lines]
        return Ran(
            plan,
            code,
            [*map(json.loads, Path(plan.events).read_text("utf-8").splitlines())],
            [found for _, found in log if found is not None],
            [line for line, found in log if found is None],
        )

    def _start(
        self,
        plan: Plan,
        here: Path,
        conditions: Sequence[str],
        flags: Sequence[str],
        cwd: str | None,
    ) -> int:
        command = [
            *(sys.executable, "-m", "hookbus_certify.conditions", ",".join(conditions)),
            *("run", *self.flags, *flags),
            *("-p", "hookbus_certify.probe:CertifyProbe"),
            *("--certify-probe-plan", str(here / "plan")),
            *("--checkpoint-dir", plan.checkpoints),
            *("--log-format", "json", "--log-level", "info", "--", *self.program),
        ]
        if self.program[0] == "-m":
            command.remove("--")
        with (here / "stderr").open("wb") as errors, _terminated() as children:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=self._environment("hash" in conditions),
                cwd=cwd,
                start_new_session=True,
            )
            children.append(child)
            try:
                return child.wait(self.timeout)
            except subprocess.TimeoutExpired:
                done = map(json.loads, Path(plan.events).read_text("utf-8").splitlines())
                steps = [each["step"] for each in done if each["event"] == "saved"]
                at = f"; its last checkpoint has step {steps[-1]}" if steps else ""
                raise TrainingError(
                    f"a run of {self.program[0]} took more than {self.timeout:g} seconds"
                    f"{at}; give it more with --timeout SECS, or end all runs earlier "
                    "with --steps N"
                ) from None

    def _environment(self, is_fixed: bool) -> Mapping[str, str]:
        """Return the variables of a run; each has another hash seed, unless one is set."""
        if "PYTHONHASHSEED" in os.environ and not is_fixed:
            return os.environ
        drawn = random.Random(f"{self.seed}:{self._count}").randrange(1, 2**32)
        return {**os.environ, "PYTHONHASHSEED": "0" if is_fixed else str(drawn)}

    def check(self, ran: Ran) -> None:
        """Check that an uninterrupted run was one that can be compared.

        Raises:
            UsageError: it cannot.
            TrainingError: the script fails on its own.
        """
        name = self.program[1] if self.program[0] == "-m" else self.program[0]
        begins, created = ran.noted("begin"), ran.noted("created")
        failed = ran.code not in (ExitCode.OK, ExitCode.NO_STEP)
        if len(begins) > 1 or "cannot replace several directories" in "".join(ran.errors):
            raise UsageError(
                f"{name} has several training sessions, and certify compares one: "
                "certify a script for each of them"
            )
        if failed and ran.code == ExitCode.USAGE:
            raise UsageError(f"hookbus run refuses {name}:\n{ran.tail()}")
        if failed:
            how = _how(ran.code)
            raise TrainingError(f"{name} {how} without an interruption:\n{ran.tail()}")
        if not begins:
            raise UsageError(
                f"{name} opens no session that trains; certify needs a script with a "
                "MonitoredTrainingSession"
            )
        if created and created[0]["given"] is None:
            raise UsageError(
                f"{name} gives its session no checkpoint_dir, so a restarted job would "
                "begin anew; add checkpoint_dir= to the session"
            )
        if not created or created[0]["saves"] is None:
            raise UsageError(
                f"no hook saves checkpoints in {name}: switch checkpoint-saver on, with "
                "-p checkpoint-saver or save_checkpoint_steps="
            )
        if (ran.outcome or {}).get("step", 0) < 2:
            raise UsageError(
                f"{name} ends after {(ran.outcome or {}).get('step', 0)} steps; there must "
                "be 2 to be interrupted between"
            )


def _logged(line: str) -> Mapping[str, Any] | None:
    """Return a log line of hookbus; None for another line."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _how(code: int) -> str:
    """Tell how a process ended."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ends with the exit code {code}"


@contextlib.contextmanager
def _terminated() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Kill a child with all that it has started, however the block ends."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        yield children
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
