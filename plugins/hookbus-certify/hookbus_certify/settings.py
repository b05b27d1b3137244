"""Reads the flags of ``hookbus certify``."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hookbus import UsageError, split_flags
from hookbus.errors import did_you_mean
from hookbus_certify.plan import KINDS

SWITCHES = ("--observers", "--json")
VALUED = ("--at", "--runs", "--kinds", "--seed", "--steps", "--timeout")
HELP = f"""\
usage: hookbus certify [flags] SCRIPT [ARGS ...]
       hookbus certify [flags] -m MODULE [ARGS ...]

Certify that a training script resumes exactly. The script runs once through, is
interrupted at several steps, and is started again until it is done; all states
are compared, bit for bit. Its own checkpoint_dir is not touched.

flags:
  --at STEP,...     interrupt after these steps, in each way
  --runs N          without --at: so many interruptions, at random steps, each
                    way in turn (default 8)
  --kinds KIND,...  the ways: {", ".join(KINDS[:-1])}, and {KINDS[-1]}
                    of the finished run (default: all)
  --seed N          the seed of the random steps (default 0)
  --steps N         end all runs at this step
  --timeout SECS    the time for one run (default 600)
  --observers       instead: compare runs with and without the plugins that only
                    watch
  --json            print the result as JSON
  -h, --help        show this help

All other flags are those of hookbus run.
"""


@attrs.frozen
class Settings:
    """The settings of one certification.

    Attributes:
        program: the script or module, and its arguments.
        flags: the flags of ``hookbus run``.
        at: the steps to interrupt at; empty for random ones.
        runs: the number of interruptions at random steps.
        kinds: the ways to interrupt.
        seed: the seed of all that is drawn.
        steps: the step at which all runs end, or None.
        timeout: the seconds for one run.
        observers: whether to compare runs with and without plugins that only watch.
        json: whether to print the result for programs.
        wants_help: whether to show the help only.
    """

    program: tuple[str, ...]
    flags: tuple[str, ...]
    at: tuple[int, ...] = ()
    runs: int = 8
    kinds: tuple[str, ...] = KINDS
    seed: int = 0
    steps: int | None = None
    timeout: float = 600.0
    observers: bool = False
    json: bool = False
    wants_help: bool = False

    @property
    def name(self) -> str:
        """The script or module, for messages."""
        return self.program[1] if self.program[0] == "-m" else self.program[0]

    @property
    def expected_runs(self) -> int:
        """How many runs there are if nothing differs."""
        if self.observers:
            return 3
        cuts = sum(kind != "restart" for kind in self.kinds)
        runs = len(self.at) * cuts if self.at else self.runs if cuts else 0
        return 2 + 2 * runs + ("restart" in self.kinds)

    @classmethod
    def read(cls, words: Sequence[str]) -> Settings:
        """Read the words after the command.

        Raises:
            UsageError: one of them is wrong.
        """
        split = split_flags("hookbus certify", words, SWITCHES, VALUED)
        given = split.values
        wants_help = bool(split.switches & {"-h", "--help"})
        if not split.program and not wants_help:
            raise UsageError(
                "hookbus certify needs a script: hookbus certify [flags] SCRIPT [ARGS]"
            )
        _check_kept(split.flags)
        if "--at" in given and "--runs" in given:
            raise UsageError("--runs is for random steps; give --at or --runs, not both")
        parts: dict[str, object] = {}
        if "--at" in given:
            texts = [text for text in given["--at"].split(",") if text.strip()]
            steps = [_number("--at", text, 1) for text in texts or [""]]
            parts["at"] = tuple(sorted({*steps}))
        if "--kinds" in given:
            parts["kinds"] = _kinds(given["--kinds"])
        for name, least in (("runs", 1), ("seed", 0), ("steps", 2)):
            if f"--{name}" in given:
                parts[name] = _number(f"--{name}", given[f"--{name}"], least)
        if "--timeout" in given:
            parts["timeout"] = _seconds(given["--timeout"])
        return cls(
            split.program,
            split.flags,
            observers="--observers" in split.switches,
            json="--json" in split.switches,
            wants_help=wants_help,
            **parts,  # type: ignore[arg-type]
        )


def _check_kept(flags: Sequence[str]) -> None:
    """Refuse flags of ``hookbus run`` that certify sets itself."""
    for flag in flags:
        name = flag.partition("=")[0]
        if name in ("--checkpoint-dir", "--again"):
            raise UsageError(
                f"{name} has no place in hookbus certify, which trains in new directories"
            )


def _number(flag: str, text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise UsageError(f"{flag} {text}: expected a whole number from {least} on")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--timeout {text}: expected a number of seconds above 0")
    return seconds


def _kinds(text: str) -> tuple[str, ...]:
    named = [word.strip() for word in text.split(",") if word.strip()]
    for word in named or [text]:
        if word not in KINDS:
            hint = did_you_mean(word, KINDS)
            raise UsageError(
                f"--kinds {text}: there is no kind {word!r}{hint}; the kinds are "
                f"{', '.join(KINDS)}"
            )
    return tuple(kind for kind in KINDS if kind in named)
