"""Interrupts the script in each way, and compares what resumes with a whole run."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus import ExitCode, UsageError
from hookbus_certify.plan import KINDS
from hookbus_certify.running import Ran, Runner
from hookbus_certify.states import Comparison, Unequal, contents_of, steps_of

_MOST_STATES = 200
_MOST_BYTES = 2 * 2**30
"""How many states, and bytes of them, are kept of one run to compare others with."""
_AROUND = range(-2, 11)
"""The steps around an interruption whose states are always compared."""
RESTART = KINDS[-1]


@attrs.frozen
class Trial:
    """One interruption.

    Attributes:
        kind: how the training is interrupted.
        at: after which step; for a restart the last one.
        saved: the step at which the probe asks for a checkpoint before; None for none.
    """

    kind: str
    at: int
    saved: int | None = None


@attrs.frozen
class Result:
    """The result of one interruption.

    Attributes:
        trial: the interruption.
        resumed_at: the step of the checkpoint from which the training went on.
        unequal: the first difference from the whole run; None without one.
        ran: the run that resumed.
    """

    trial: Trial
    resumed_at: int | None
    unequal: Unequal | None
    ran: Ran


@attrs.define(eq=False)
class Reference:
    """Whole runs of the script, with which others are compared.

    Attributes:
        plain: a run that saves as the script does.
        traced: a run that also saves each step that is compared; None before it is made.
        steps: the steps that are compared; None for all.
        again: another such run, made where something differs.
    """

    plain: Ran
    traced: Ran | None = None
    steps: tuple[int, ...] | None = None
    again: Ran | None = None

    @property
    def last(self) -> int:
        """The step at which it ends."""
        return int((self.plain.outcome or {})["step"])

    @property
    def whole(self) -> Ran:
        """The traced run."""
        assert self.traced is not None
        return self.traced

    def choose_steps(self, trials: Sequence[Trial]) -> None:
        """Choose the steps that are compared: all, unless there are too many."""
        newest = max(steps_of(self.plain.folder).items())[1]
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
        most = max(5, min(_MOST_STATES, _MOST_BYTES // max(size, 1)))
        if self.last <= most:
            return
        wide = range(1, self.last + 1, -(-self.last // most))
        near = [trial.at + n for trial in trials for n in _AROUND]
        kept = {*wide, *(near if most == _MOST_STATES else ()), self.last}
        self.steps = tuple(sorted(step for step in kept if 0 < step <= self.last))


def planned(
    last: int, at: Sequence[int], runs: int, kinds: Sequence[str], seed: int
) -> list[Trial]:
    """Return the interruptions: at given steps in each way, or at random ones in turn.

    Raises:
        UsageError: a step is not before the last one.
    """
    draw = random.Random(seed)
    late = [step for step in at if step >= last]
    if late:
        raise UsageError(
            f"--at {late[0]}: the training ends at step {last}, so give a step from 1 to "
            f"{last - 1}"
        )
    cuts = [kind for kind in kinds if kind != RESTART]
    places = [(kind, step) for step in at for kind in cuts]
    if not at and cuts:
        places = [(cuts[n % len(cuts)], draw.randint(1, last - 1)) for n in range(runs)]
    trials = []
    for kind, step in places:
        saved = step - draw.randint(0, 2)
        trials.append(Trial(kind, step, saved if saved > 0 else None))
    return [*trials, *([Trial(RESTART, last)] if RESTART in kinds else ())]


@attrs.define(eq=False)
class Examiner:
    """Makes the whole runs and the interrupted ones.

    Attributes:
        runner: starts the script.
        comparison: compares the states.
    """

    runner: Runner
    comparison: Comparison = attrs.field(factory=Comparison)

    def plain(self) -> Ran:
        """Run the script once through, and check that it can be examined."""
        ran = self.runner.run("uninterrupted")
        self.runner.check(ran)
        self.runner.replaced = ran.noted("created")[0]["given"]
        return ran

    def traced(self, reference: Reference) -> Ran:
        """Run it once through, with a checkpoint of each step that is compared.

        Raises:
            UsageError: its directory is another one than in the first run.
        """
        ran = self.runner.run("uninterrupted, states kept", traced=reference.steps)
        self.runner.check(ran)
        given = [each.noted("created")[0]["given"] for each in (reference.plain, ran)]
        if given[0] != given[1]:
            raise UsageError(
                f"the script gives its session another checkpoint_dir at each start: "
                f"{given[0]}, then {given[1]}; a restarted job would not find its "
                "checkpoints, so give it a fixed one"
            )
        return ran

    def between(self, one: Ran, other: Ran) -> Unequal | None:
        """Return the first difference of two whole runs, except the time in hooks."""
        self.comparison.ignore(one.folder, other.folder)
        found = self.comparison.states(one.folder, other.folder)
        return found or self._of_ends(one, other)

    def result(self, reference: Reference, trial: Trial) -> Result:
        """Interrupt the training once, start it until it is done, and compare it."""
        if trial.kind == RESTART:
            return self._restart(reference, trial)
        cut = self.interrupted(trial)
        if not cut.noted("cut"):
            found = Unequal(None, "the script fails", f"before step {trial.at}")
            return Result(trial, None, found, cut)
        if trial.kind == "stop" and cut.code not in (ExitCode.OK, ExitCode.PREEMPTED):
            found = Unequal(None, "the script fails", "where a hook has stopped it")
            return Result(trial, None, found, cut)
        return self.judged(reference, trial, self.resumed(reference, cut))

    def interrupted(self, trial: Trial, shared: Sequence[str] = ()) -> Ran:
        """Return an interrupted run.

        Args:
            trial: the interruption.
            shared: variables of the program that the session tracks besides its own.
        """
        saves = () if trial.saved is None else (trial.saved,)
        cut = (trial.kind, trial.at)
        what = f"{trial.kind} at step {trial.at}"
        return self.runner.run(what, cut=cut, saves=saves, shared=shared)

    def resumed(self, reference: Reference, cut: Ran, **changed: Any) -> Ran:
        """Return the run that resumes an interrupted one.

        Args:
            reference: the whole runs.
            cut: the interrupted run, whose checkpoints it uses up.
            changed: its differences from the usual run, for experiments.
        """
        orders = {"entropy": 1, "traced": reference.steps, **changed}
        what = " at step ".join(map(str, cut.plan.cut or ()))
        return self.runner.run(f"resumed after {what}", cut.plan.checkpoints, **orders)

    def judged(self, reference: Reference, trial: Trial, resumed: Ran) -> Result:
        """Compare a run that has resumed with the whole run."""
        if resumed.code != 0:
            found: Unequal | None = Unequal(None, "the script fails", "where it resumes")
        else:
            whole = reference.whole
            # Hooks begin their periods anew after a stop, as after a run that is done.
            hooks = trial.kind != "stop"
            found = self.comparison.states(whole.folder, resumed.folder, hooks)
            found = found or self._of_ends(whole, resumed)
        return Result(trial, resumed.resumed_at, found, resumed)

    def judged_again(self, reference: Reference, result: Result) -> Result:
        """Compare once more, after more was found to differ between whole runs."""
        found = result.unequal
        if found is None or found.step is None or result.trial.kind == RESTART:
            return result
        return self.judged(reference, result.trial, result.ran)

    def clear(self, result: Result) -> None:
        """Remove the checkpoints of an interrupted run."""
        shutil.rmtree(result.ran.folder, ignore_errors=True)

    def _restart(self, reference: Reference, trial: Trial) -> Result:
        """Start the script again that has finished: nothing may change."""
        folder = self.runner.copied(reference.plain.folder)
        before = contents_of(Path(folder))
        ran = self.runner.run("restart of the finished run", folder, entropy=1)
        # A call that has nothing to do may open no session at all.
        step = (ran.outcome or {}).get("step", trial.at)
        found = None
        if ran.code != 0:
            found = Unequal(None, "the script fails", "where it is started again")
        elif step != trial.at:
            found = Unequal(None, "global step", f"it trains on, from {trial.at} to {step}")
        elif contents_of(Path(folder)) != before:
            found = Unequal(step, "checkpoints", "their files were written again")
        else:
            found = self._of_ends(reference.plain, ran)
        return Result(trial, ran.resumed_at, found, ran)

    def _of_ends(self, one: Ran, other: Ran) -> Unequal | None:
        """Return how the outcomes of two runs differ."""
        ends = list(self._ends(one, other))
        for (name, here), (_, there) in zip(*ends, strict=True):
            if here != there:
                return Unequal(None, f"outcome/{name}", f"{here!r} and {there!r}")
        return None

    def _ends(self, *runs: Ran) -> Iterator[list[tuple[str, object]]]:
        for ran in runs:
            written = ran.folder / "outcome.json"
            found = json.loads(written.read_text("utf-8")) if written.exists() else {}
            named = ("kind", "who", "why", "step", "params")
            yield [(name, found.get(name)) for name in named]
