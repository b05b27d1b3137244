"""Compares what hooks add to a step in hookbus and in its peers.

Each file in benchmarks/peer_loops is a peer, with what it needs and with loops around a
step that does next to nothing. Each peer is installed into a virtual environment of its
own, which later runs use again, and its loops run in a process of that environment. The
overhead of a loop is its time for a step minus that of the peer's own bare loop.

The loops take turns of some milliseconds: in each round every loop runs with every number
of hooks, and its bare loop right before. A factor compares two overheads of one round: on a
shared machine only that means anything. Shown are medians over the rounds.

    python benchmarks/peers.py [--environments DIR] [--rounds 61] [--json FILE] [--check]
    python benchmarks/peers.py --page

It runs in any environment that has hookbus, and gets everything else with pip.

With --check it exits with 1 if hookbus adds more to a step than a loop that it has to beat,
or if such a loop is missing. --page measures nothing: it writes the table and draws the
plot of docs/explanation/peers.md from docs/explanation/peers.json. To draw, it needs
benchmarks/requirements.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TypeAlias

import attrs
from tables import Marked, number, table

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ROOT / "benchmarks" / "peer_loops"
PAGE = Marked(ROOT / "docs" / "explanation" / "peers.md", "benchmarks/peers.py")
RESULTS = PAGE.path.with_suffix(".json")
PICTURE = ROOT / "docs" / "images" / "peers.svg"

COUNTS = (1, 5, 20, 100)
KINDS = {
    "empty": "Hooks that do nothing",
    "fetch": "Hooks that each fetch one value",
}
OWN = ("hookbus, session.run()", "hookbus, session.step()")
TO_BEAT = ("Ignite", "Keras, Model.fit()", "Lightning", "TensorFlow, MonitoredSession")
TURN, MIN_STEPS = 4e-3, 20
"""The seconds that a turn of a loop is to last, more or less, and the fewest steps."""


Case: TypeAlias = tuple[str, str, int]
"""A loop, the kind of its hooks, and how many there are."""
Times: TypeAlias = dict[Case, list[float]]
"""The seconds of a step in each round."""


class PeerError(Exception):
    """A peer cannot be installed, or does not run."""


@attrs.frozen
class Cost:
    """The cost of a loop with so many hooks of a kind.

    Attributes:
        loop: the name of the loop.
        kind: a key of KINDS.
        hooks: the number of hooks.
        bare: the microseconds of a step of the peer's bare loop.
        overhead: the microseconds that the loop with the hooks adds to it.
        ratio: the time of the loop over that of the bare loop.
        factors: the overhead over that of each loop of hookbus, by its name; above 1,
            hookbus is ahead.
    """

    loop: str
    kind: str
    hooks: int
    bare: float
    overhead: float
    ratio: float
    factors: Mapping[str, float]


@attrs.frozen
class Results:
    """All that a run of the benchmark finds.

    Attributes:
        date: the day.
        python: the version of Python.
        rounds: the number of rounds.
        versions: distribution to version, of all peers.
        missing: peers that could not be measured, and why.
        costs: what the loops cost.
    """

    date: str
    python: str
    rounds: int
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    costs: Sequence[Cost]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return results that were written to a file."""
        values = json.loads(path.read_text("utf-8"))
        return cls(**values | {"costs": [Cost(**cost) for cost in values["costs"]]})

    def write(self, path: Path) -> None:
        """Write them to a file."""
        path.write_text(json.dumps(attrs.asdict(self), indent=1) + "\n", "utf-8")

    def by_loop(self, kind: str) -> dict[str, dict[int, Cost]]:
        """Return the costs with hooks of a kind by loop and count, the cheapest first."""
        found: dict[str, dict[int, Cost]] = {}
        for cost in self.costs:
            if cost.kind == kind:
                found.setdefault(cost.loop, {})[cost.hooks] = cost
        middle = COUNTS[1]
        return dict(sorted(found.items(), key=lambda loop: loop[1][middle].overhead))

    def lost(self) -> Iterator[str]:
        """Yield each comparison that hookbus has to win and does not."""
        found = self.by_loop("empty")
        for loop in TO_BEAT:
            if loop not in found:
                yield f"{loop} was not measured"
            for count, cost in found.get(loop, {}).items():
                for own, factor in cost.factors.items():
                    if factor <= 1:
                        yield f"{loop}, {_listed([count])}: {factor:.2f} times {own}"


def peers() -> list[str]:
    """Return the names of all peers."""
    return sorted(path.stem.removesuffix("_loop") for path in LOOPS.glob("*_loop.py"))


def script_of(peer: str) -> Path:
    """Return the file with the loops of a peer."""
    return LOOPS / f"{peer}_loop.py"


def requirements_of(peer: str) -> list[str]:
    """Return the requirements of a peer, which its file has in the form of PEP 723."""
    source = script_of(peer).read_text("utf-8")
    block = re.match(r"# /// script\n((?:# .*\n)*)# ///\n", source)
    if block is None:
        raise PeerError(f"{script_of(peer)} does not begin with its dependencies")
    return tomllib.loads(re.sub("^# ", "", block[1], flags=re.M))["dependencies"]


def environment_of(peer: str, place: Path) -> Path:
    """Return the Python of a peer's environment; make the environment if need be."""
    # Another checkout makes the environment again.
    own = {"hookbus": f"--editable={ROOT}"}
    folder, needs = place / peer, [own.get(need, need) for need in requirements_of(peer)]
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    # Written last, so that an environment that was not finished is made again.
    finished = folder / "installed.txt"
    wanted = "\n".join([platform.python_version(), *needs])
    if finished.is_file() and finished.read_text("utf-8") == wanted:
        return python
    print(f"installing {peer} into {folder}", file=sys.stderr)
    _call(sys.executable, "-m", "venv", "--clear", folder)
    if needs:
        quietly = ["--quiet", "--disable-pip-version-check"]
        _call(python, "-m", "pip", "install", *quietly, *needs)
    finished.write_text(wanted, "utf-8")
    return python


def _call(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
        why = (errors or done.stderr.splitlines() or ["no message"])[0]
        raise PeerError(f"cannot be installed: {why}")


@attrs.define(eq=False)
class Worker:
    """The process of a peer.

    Attributes:
        process: the process; it answers a line with a line.
        errors: what it writes besides.
        versions: the versions of what it needs.
        kinds: the kinds of hooks that each of its loops can run.
    """

    process: subprocess.Popen[str]
    errors: IO[str]
    versions: Mapping[str, str] = attrs.field(init=False)
    kinds: Mapping[str, Sequence[str]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        hello = json.loads(self._answer())
        self.versions, self.kinds = hello["versions"], hello["loops"]

    @classmethod
    @contextlib.contextmanager
    def of(cls, peer: str, place: Path) -> Iterator[Worker]:
        """Start the process of a peer, and end it in the end."""
        python, needs = environment_of(peer, place), requirements_of(peer)
        names = [re.split(r"[<=>]", need)[0] for need in needs]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [python, script_of(peer), *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            try:
                yield cls(process, errors)
            finally:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=10)  # it ends with its standard input
                process.kill()
                process.wait()

    def turns(self) -> list[Turn]:
        """Return the turns of its loops, which all run for the first time."""
        turns = []
        for loop, kinds in self.kinds.items():
            for case in itertools.product([loop], kinds, COUNTS):
                self.run(case, MIN_STEPS)  # the first time is slow
                _, seconds = self.run(case, 5 * MIN_STEPS)
                steps = min(max(MIN_STEPS, int(TURN / seconds)), 100 * MIN_STEPS)
                turns.append(Turn(self, case, steps))
        return turns

    def run(self, case: Case, steps: int) -> tuple[float, float]:
        """Return the seconds of a step of the bare loop, and of the one with hooks."""
        loop, kind, hooks = case
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            place = [*self.kinds].index(loop)
            self.process.stdin.write(f"{kind} {place} {hooks} {steps}\n")
            self.process.stdin.flush()
        bare, hooked = map(float, self._answer().split())
        return bare / steps, hooked / steps

    def _answer(self) -> str:
        assert self.process.stdout is not None
        if answer := self.process.stdout.readline():
            return answer
        self.process.wait()
        self.errors.seek(0)
        last = self.errors.read().splitlines()[-1:] or ["it wrote nothing"]
        raise PeerError(f"does not run: {last[0]}")


@attrs.frozen(eq=False)
class Turn:
    """The work of a worker in each round.

    Attributes:
        worker: the process of the peer.
        case: what it runs.
        steps: the steps of a turn.
    """

    worker: Worker
    case: Case
    steps: int


def measure(names: Iterable[str], place: Path, rounds: int) -> Results:
    """Measure the loops of these peers."""
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    turns: list[Turn] = []
    with contextlib.ExitStack() as started:
        for name in names:
            try:
                worker = started.enter_context(Worker.of(name, place))
                turns += worker.turns()
                versions |= worker.versions
            except PeerError as error:
                missing[name] = str(error)
        costs = _costs_of(*_taken(turns, rounds))
    return Results(
        datetime.now(UTC).date().isoformat(),
        platform.python_version(),
        rounds,
        dict(sorted(versions.items())),
        missing,
        costs,
    )


def _taken(turns: Iterable[Turn], rounds: int) -> tuple[Times, Times]:
    """Return the times of the bare loops, and of those with hooks, in so many rounds."""
    # Overheads that are compared are taken as soon after one another as can be.
    ordered = sorted(turns, key=lambda turn: ([*KINDS].index(turn.case[1]), turn.case[2]))
    bare: Times = {turn.case: [] for turn in ordered}
    hooked: Times = {turn.case: [] for turn in ordered}
    for _ in range(rounds):
        for turn in ordered:
            without, with_hooks = turn.worker.run(turn.case, turn.steps)
            bare[turn.case].append(without)
            hooked[turn.case].append(with_hooks)
    return bare, hooked


def _costs_of(bare: Times, hooked: Times) -> list[Cost]:
    overheads = {
        case: [b - a for a, b in zip(bare[case], hooked[case], strict=True)]
        for case in bare
    }

    def factor(one: Case, other: Case) -> float:
        pairs = zip(overheads[one], overheads[other], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 3)

    costs = []
    for case, over in overheads.items():
        loop, kind, count = case
        ratios = [b / a for a, b in zip(bare[case], hooked[case], strict=True)]
        factors = {
            own: factor(case, (own, kind, count))
            for own in OWN
            if loop not in OWN and (own, kind, count) in overheads
        }
        micros = (round(statistics.median(times) * 1e6, 3) for times in (bare[case], over))
        costs.append(Cost(*case, *micros, round(statistics.median(ratios), 2), factors))
    return costs


def told(results: Results) -> str:
    """Return the results as the page tells them."""
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    parts = [
        f"Measured on {results.date} with Python {results.python}, medians over "
        f"{results.rounds} rounds. Versions: {versions}.\n"
    ]
    for kind, heading in KINDS.items():
        found = results.by_loop(kind)
        if found:
            parts += [
                f"### {heading}\n",
                "What they add to a step, in microseconds, and in brackets the time of the "
                "whole step over that of the peer's own bare loop:\n",
                table(
                    ["bare loop", *_headings()],
                    {loop: [*_overheads(costs)] for loop, costs in found.items()},
                ),
                "The same over what they add in hookbus, with `session.run()` and with "
                "`session.step()`. Above 1 hookbus is ahead; bold is where the peer is "
                "ahead:\n",
                table(
                    _headings(),
                    {
                        loop: [" / ".join(map(_factor, c.factors.values())) for c in costs]
                        for loop, by_count in found.items()
                        if loop not in OWN
                        for costs in [by_count.values()]
                    },
                ),
                _ahead(found),
            ]
    for peer, why in results.missing.items():
        parts.append(f"{peer} was not measured: it {why}.\n")
    return "\n" + "\n".join(parts) + "\n"


def _headings() -> list[str]:
    return [_listed([count]) for count in COUNTS]


def _overheads(costs: Mapping[int, Cost]) -> Iterator[str]:
    yield number(statistics.median(cost.bare for cost in costs.values()))
    for cost in costs.values():
        yield f"{number(cost.overhead)} ({number(cost.ratio)})"


def _factor(factor: float) -> str:
    return number(factor) if factor > 1 else f"**{factor:.2f}**"


def _ahead(found: Mapping[str, Mapping[int, Cost]]) -> str:
    """Return sentences on the peers that cost less than hookbus."""
    sentences = []
    for own in OWN:
        ahead = []
        for loop, costs in found.items():
            counts = [n for n, cost in costs.items() if cost.factors.get(own, 2) <= 1]
            if counts:
                ahead.append(f"{loop} (with {_listed(counts)})")
        name = own.removeprefix("hookbus, ")
        sentences.append(f"Ahead of `{name}`: {'; '.join(ahead) or 'nobody'}.")
    return " ".join(sentences) + "\n"


def _listed(counts: Sequence[int]) -> str:
    *most, last = map(str, counts)
    both = f"{', '.join(most)} and {last}" if most else last
    return f"{both} hook{'s' * (both != '1')}"


def show(results: Results) -> None:
    """Print all that was found."""
    for cost in results.costs:
        factors = ", ".join(f"{f:.2f} x {own}" for own, f in cost.factors.items())
        print(
            f"{cost.loop:30}{cost.hooks:4} {cost.kind:6}{cost.overhead:9.2f} us over "
            f"{cost.bare:.2f} us   {factors}"
        )
    for peer, why in results.missing.items():
        print(f"{peer} was not measured: it {why}")


def draw(results: Results) -> None:
    """Write the page and its picture."""
    from plots import Line, Panel, save  # needs a library that only this needs

    PAGE.write(told(results))
    panels = [
        Panel(
            heading,
            [
                Line(
                    loop, [*costs], [cost.overhead for cost in costs.values()], loop in OWN
                )
                for loop, costs in results.by_loop(kind).items()
            ],
        )
        for kind, heading in KINDS.items()
    ]
    save(PICTURE, panels, "hooks", "added to a step, µs")
    print(f"wrote {PAGE.path.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


def main() -> int:
    """Measure and show, or write the page."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environments", type=Path, default=cache / "hookbus-peers")
    parser.add_argument("--peers", nargs="*", choices=peers(), default=peers())
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if hookbus loses")
    parser.add_argument(
        "--page", action="store_true", help="write the page, do not measure"
    )
    options = parser.parse_args()
    if options.page:
        draw(Results.read(RESULTS))
        return 0
    results = measure(options.peers, options.environments.absolute(), options.rounds)
    show(results)
    if options.json is not None:
        results.write(options.json)
    lost = [*results.lost()] if options.check else []
    print(*lost, sep="\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
