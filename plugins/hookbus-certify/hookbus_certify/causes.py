"""Finds out by experiments why a run that resumes becomes another one.

Each experiment repeats the interruption and changes one thing. The change that makes the
resumed run equal is the likely cause: a variable that the session is made to track, the
field of a hook that gets its value from the whole run, or what unseeded generators depend
on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from hookbus_certify.program import OF_HOOK
from hookbus_certify.running import Ran
from hookbus_certify.trials import RESTART, Examiner, Reference, Result

_MOST_SINGLE, _MOST_FEWER = 3, 16
"""How many variables are tried one by one, and how many experiments then leave some out."""
_EVIDENCE: Mapping[str, str] = {
    "the input gives other values than before the restart": "the input gives other values "
    "than before the interruption: it draws from a generator that is not tracked, or its "
    "data has changed",
    "the input has another size than in the checkpoint": "the input has another size than "
    "before the interruption",
    "the code between passes draws other numbers than before the restart": "code between "
    "the passes draws other numbers; count epochs with session.epochs",
    "no array of the tracked objects was replaced": "the loop computes new arrays and does "
    "not put them back into what is tracked or held",
}
"""Warnings of hookbus that are a cause, each with what it tells."""


@attrs.define(eq=False)
class Inquiry:
    """Makes the experiments about one interruption.

    Attributes:
        result: how it differs.
        examiner: starts the script.
        reference: the whole runs.
    """

    result: Result
    examiner: Examiner
    reference: Reference
    _cut: Ran | None = attrs.field(default=None, init=False)

    def cause(self) -> str:
        """Return the likely cause, in words."""
        result = self.result
        if result.unequal is not None and result.unequal.leaf == "the script fails":
            return f"the script itself fails there:\n{result.ran.tail()}"
        if result.trial.kind == RESTART:
            return (
                "the loop has no end that a restart finds, like that of session.iterate or "
                "of --stop-at-step N; see the table of docs/how-to/resume-after-a-kill.md"
            )
        if result.resumed_at is None:
            return "the run that should resume restored no checkpoint"
        return self._of_entropy() or self._of_variables() or self._of_evidence()

    def _equal_with(self, shared: Sequence[str] = (), **changed: Any) -> bool:
        """Return whether the resumed run is equal if something is changed."""
        resumed, examiner = self._resumed(shared, **changed), self.examiner
        judged = examiner.judged(self.reference, self.result.trial, resumed)
        examiner.clear(judged)
        return judged.unequal is None

    def _resumed(self, shared: Sequence[str] = (), **changed: Any) -> Ran:
        """Resume once more, from the same checkpoints unless the session tracks others."""
        examiner, trial = self.examiner, self.result.trial
        if shared:
            cut = examiner.interrupted(trial, (*shared,))
            changed["shared"] = (*shared,)
        else:
            if self._cut is None:
                self._cut = examiner.interrupted(trial)
            folder = examiner.runner.copied(self._cut.folder)
            cut = attrs.evolve(
                self._cut, plan=attrs.evolve(self._cut.plan, checkpoints=folder)
            )
        return examiner.resumed(self.reference, cut, **changed)

    def _of_entropy(self) -> str | None:
        if not self._equal_with(entropy=0):
            return None
        return (
            "before its loop the script draws from a generator that it does not seed, so "
            "each start has other data or another model; seed it"
        )

    def _of_variables(self) -> str | None:
        """Look for variables that the resumed run has otherwise, and try each."""
        whole, suspects = self._suspects()
        if not suspects:
            return None
        own = [name for name in suspects if not _is_of_hook(name)]
        if own:
            found = self._least(own, self._equal_with)
            if found:
                return _told(found, suspects, "is not tracked; with session.track() of")
        step, events = self.result.resumed_at, whole.plan.events
        found = self._least(
            [*suspects],
            lambda names: self._equal_with(
                given=(*names,), given_at=step, given_from=events
            ),
        )
        if found:
            told = "is not in the checkpoint, like a graph.variable() would be; with"
            return _told(found, suspects, told)
        return None

    def _least(self, names: Sequence[str], is_enough: Any) -> list[str]:
        """Return the variable that is enough, or as few as possible of them."""
        if not is_enough(names):
            return []
        for name in names[:_MOST_SINGLE] if len(names) > 1 else ():
            if is_enough([name]):
                return [name]
        kept, size, tried = [*names], len(names) // 2, 0
        while size and tried < _MOST_FEWER:
            for start in range(0, len(kept), size):
                fewer = kept[:start] + kept[start + size :]
                tried += 1
                if fewer and tried <= _MOST_FEWER and is_enough(fewer):
                    kept = fewer
                    break
            else:
                size //= 2
        return kept

    def _suspects(self) -> tuple[Ran, dict[str, str]]:
        """Return a whole run, and the variables that the resumed run has otherwise.

        Each has its kind. They are compared before the first step after the checkpoint,
        where all that is tracked is equal. Values that also differ between two whole runs,
        like a time, are left out.
        """
        step, runner = self.result.resumed_at, self.examiner.runner
        looks = (step,)
        last = self.reference.last if step is None else step + 1
        wholes = [
            runner.run("variables of a whole run", looks=looks, traced=looks, last=last)
            for _ in range(2)
        ]
        resumed = self._resumed(looks=looks, last=last)
        looked = [_looked(ran, "before", step) for ran in (*wholes, resumed)]
        if not all(looked):
            return wholes[0], {}
        found = {}
        for name, here in looked[0].items():
            again, there = (each.get(name, {}).get("digest") for each in looked[1:])
            if here["digest"] == again != there:
                found[name] = here["kind"]
        order = sorted(
            found, key=lambda name: (_is_of_hook(name), found[name] != "generator")
        )
        return wholes[0], {name: found[name] for name in order}

    def _of_evidence(self) -> str:
        for warning in self.result.ran.warnings:
            if warning in _EVIDENCE:
                return _EVIDENCE[warning]
        _, suspects = self._suspects()
        if suspects:
            named = ", ".join([*suspects][:5])
            return f"what the session does not track differs after the resume: {named}"
        return (
            "not found: no variable of the program that can be looked at differs when it "
            "resumes; look at code outside of the body of session.iterate"
        )


def cause_of(result: Result, examiner: Examiner, reference: Reference) -> str:
    """Return the likely cause of a difference, in words."""
    return Inquiry(result, examiner, reference).cause()


def _looked(ran: Ran, when: str, step: int | None) -> Mapping[str, Any]:
    for event in ran.noted("look"):
        if event["when"] == when and event["step"] == step:
            return dict(event["variables"])
    return {}


def _is_of_hook(name: str) -> bool:
    return name.endswith(OF_HOOK)


def _told(names: Sequence[str], kinds: Mapping[str, str], lacks: str) -> str:
    """Return the words for variables that experiments have shown to be the cause.

    Args:
        names: the variables.
        kinds: the kind of each.
        lacks: what they lack, up to the word that introduces what makes the run exact.
    """
    if len(names) > 1:
        named = ", ".join(names)
        return f"each of these {lacks} all of them the run is exact: {named}"
    (name,) = names
    if _is_of_hook(name):
        hook, _, field = name.removesuffix(OF_HOOK).partition(".")
        return (
            f"the hook {hook} keeps {field}, which its state_dict() lacks; with its value "
            "the run is exact"
        )
    what = "the random generator" if kinds[name] == "generator" else "the variable"
    return f"{what} {name} {lacks} it the run is exact"
