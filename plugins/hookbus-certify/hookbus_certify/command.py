"""Interrupts a script in each way, and shows whether it resumes exactly."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hookbus import ExitCode, UsageError
from hookbus_certify.certificate import Certificate
from hookbus_certify.observers import observed
from hookbus_certify.progress import Progress
from hookbus_certify.running import Runner
from hookbus_certify.settings import HELP, Settings
from hookbus_certify.trials import Examiner, Reference, planned
from hookbus_certify.variation import WorkingFolder


def certify(words: Sequence[str]) -> int:
    """Certify a script; return the exit code.

    Args:
        words: the words after ``hookbus certify``.

    Raises:
        UsageError: the words are wrong, or the script cannot be examined.
        TrainingError: the script fails on its own, or takes too long.
    """
    settings = Settings.read(words)
    if settings.wants_help:
        print(HELP, end="")
        return ExitCode.OK
    _check_script(settings.program)
    with (
        tempfile.TemporaryDirectory(prefix="hookbus-certify-") as scratch,
        Progress(settings.expected_runs) as progress,
    ):
        runner = Runner(
            settings.flags,
            settings.program,
            Path(scratch).resolve(),
            settings.seed,
            settings.timeout,
            settings.steps,
            progress.begins,
        )
        examiner = Examiner(runner)
        found = observed(examiner) if settings.observers else _examined(examiner, settings)
    if settings.json:
        print(json.dumps(found.document(), indent=2))
    else:
        print(found.text(), end="")
    return ExitCode.OK if found.is_exact else ExitCode.FAILED


def _examined(examiner: Examiner, settings: Settings) -> Certificate:
    """Compare whole runs, and then interrupted ones with a whole one."""
    folder = WorkingFolder.kept(Path.cwd(), examiner.runner.scratch / "folder")
    plain = examiner.plain()
    reference = Reference(plain)
    trials = planned(
        reference.last, settings.at, settings.runs, settings.kinds, settings.seed
    )
    reference.choose_steps(trials)
    reference.traced = examiner.traced(reference)
    certificate = Certificate(settings.name, reference.last)
    unequal = examiner.between(plain, reference.whole)
    if unequal is not None:
        certificate.differs(unequal, examiner, reference, folder)
        return certificate
    for trial in trials:
        result = examiner.result(reference, trial)
        if result.unequal is not None and reference.again is None:
            # Whole runs may differ now and then only, or in the time that a hook measures.
            reference.again = examiner.traced(reference)
            unequal = examiner.between(reference.whole, reference.again)
            if unequal is not None:
                certificate.differs(unequal, examiner, reference, folder)
                return certificate
            result = examiner.judged_again(reference, result)
        certificate.add(result, examiner, reference)
        examiner.clear(result)
    certificate.states = examiner.comparison.compared
    return certificate


def _check_script(program: Sequence[str]) -> None:
    """Check early that the script exists; ``hookbus run`` would tell it as well."""
    if program[0] != "-m" and not os.path.isfile(program[0]):  # noqa: PTH113
        raise UsageError(f"the script {program[0]} does not exist (looked in {Path.cwd()})")
