"""Replays a part of a run from its checkpoints, with other plugins on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from hookbus import CheckpointInfo, ExitCode, UsageError, latest_checkpoint
from hookbus_replay.arguments import USAGE, Arguments, read
from hookbus_replay.comparison import WRITER
from hookbus_replay.course import Course, Part, chosen
from hookbus_replay.plan import Plan
from hookbus_replay.process import Relay, relay
from hookbus_replay.scratch import Scratch, meeting_at, ranks
from hookbus_replay.verdict import LOCATOR, Verdict, judged

_HOOKS = {
    "replay-guide": "hookbus_replay.guide:ReplayGuideHook",
    "even-saves": "hookbus_replay.asking:EvenSavesHook",
    "odd-saves": "hookbus_replay.asking:OddSavesHook",
}
"""The hooks that replay, by name."""
_OVER = "over"
_MOST_STARTS = 1000
_NO_SESSION = (
    "the script has opened no session that trains and takes plugins, so there is "
    "nothing to replay: it may have ended before, or give its sessions its own Config"
)


def main(words: Sequence[str]) -> int:
    """Replay a part of the training and return the exit code.

    Raises:
        UsageError: an argument is wrong, or the script has no session to replay.
        CheckpointError: there is no good checkpoint to start from.
    """
    asked = read(words)
    if asked is None:
        print(USAGE, end="")
        return ExitCode.OK
    course, here = chosen(asked), ranks()
    with relay() as commands:
        scratch = Scratch.made(asked.into, here)
        try:
            if here.rank:
                return _follow(asked, scratch, commands)
            return _lead(asked, course, scratch, commands)
        finally:
            commands.is_closing = True
            scratch.clear()


def _lead(asked: Arguments, course: Course, scratch: Scratch, commands: Relay) -> int:
    """Replay all parts, and print the result."""
    try:
        start = scratch.start_from(course.starts)
        code = _replay_from(start, asked, course, scratch, commands)
    finally:
        scratch.announce(_parts_begun(scratch), _OVER)
        scratch.await_others()
    if not (code or scratch.report.records("start")):
        raise UsageError(_NO_SESSION)
    if code == ExitCode.USAGE or not scratch.report.records("start"):
        return code  # the process has told why
    verdict = judged(scratch.report, start.global_step, code, course.last, course.failure)
    _print(verdict, asked)
    return _exit_code(verdict, code)


def _replay_from(
    start: CheckpointInfo,
    asked: Arguments,
    course: Course,
    scratch: Scratch,
    commands: Relay,
) -> int:
    """Replay all parts; return the exit code of the last process."""
    number, code = 0, 0
    for part in course.parts(start):
        if part.start is not start:
            scratch.start_from([part.start])
        for _ in range(_MOST_STARTS):
            plan = _write_plan(asked, part, number, scratch)
            port = scratch.ranks.port_of(number, os.environ)
            scratch.announce(number, port)
            code = _run(commands, asked, scratch, number, port)
            number += 1
            if not _goes_on(scratch, plan, part, code):
                break
        if not _is_passed(scratch, number - 1, part, code):
            break
    return code


def _parts_begun(scratch: Scratch) -> int:
    """Return the number of the processes that have got a plan."""
    return len([*scratch.own.glob("plan-*.json")])


def _follow(asked: Arguments, scratch: Scratch, commands: Relay) -> int:
    """Replay the parts that the chief begins."""
    number, code = 0, 0
    try:
        while not code and (told := scratch.await_part(number)) != _OVER:
            code = _run(commands, asked, scratch, number, told)
            number += 1
    finally:
        scratch.leave()
    return code


def _run(
    commands: Relay, asked: Arguments, scratch: Scratch, number: int, port: str
) -> int:
    """Run the script, guided by a plan; return its exit code."""
    env = meeting_at(port, os.environ)
    command = _command(asked, scratch, number)
    return commands.run(command, env=env, to_stderr=asked.as_json)


def _write_plan(asked: Arguments, part: Part, number: int, scratch: Scratch) -> Plan:
    """Write the plan of one process of a part; return it."""
    plan = Plan(
        number,
        {info.global_step: str(info.path.absolute()) for info in part.passed},
        part.last,
        part.start.saved_at,
        asked.break_at,
        str(scratch.report.path),
    )
    plan.write(scratch.own / f"plan-{number}.json")
    return plan


def _command(asked: Arguments, scratch: Scratch, number: int) -> list[str]:
    """Return the words that run the script, guided by a plan."""
    plan = scratch.own / f"plan-{number}.json"
    words = ["--checkpoint-dir", str(scratch.directory)]
    for name, place in _HOOKS.items():
        words += ["-p", place, "-o", f"{name}.plan={plan}"]
    if entry_points(group="hookbus", name=WRITER):
        words += ["-p", f"no:{WRITER}"]
    if asked.locates_nan:
        words += ["-p", LOCATOR]
    return [sys.executable, "-m", "hookbus", "run", *words, *asked.run]


def _goes_on(scratch: Scratch, plan: Plan, part: Part, code: int) -> bool:
    """Return whether the script ended before the end of the part, and can go on.

    A script may do so many steps in each run; the training was started again then.
    """
    report = scratch.report
    starts, ends = report.records("start", plan.part), report.records("end", plan.part)
    if code or not starts or not ends:
        return False
    differs = any(r["state"] == "differs" for r in report.records("checkpoint", plan.part))
    is_stopped = ends[0]["kind"] in ("stopped", "completed", "end_of_input")
    newest = latest_checkpoint(scratch.directory)
    saved = -1 if newest is None else newest.global_step
    moved = starts[0]["step"] < saved < part.last
    return is_stopped and moved and not differs


def _is_passed(scratch: Scratch, number: int, part: Part, code: int) -> bool:
    """Return whether a part is done and equal, so that the next one can begin."""
    ends = scratch.report.records("end", number)
    records = scratch.report.records("checkpoint", number)
    good = all(record["state"] == "exact" for record in records)
    return not code and bool(ends) and ends[0]["step"] >= part.last and good


def _print(verdict: Verdict, asked: Arguments) -> None:
    if asked.as_json:
        print(json.dumps(verdict.document(str(asked.directory)), indent=2))
    else:
        print("\n".join(verdict.lines()), flush=True)


def _exit_code(verdict: Verdict, code: int) -> int:
    """Return the exit code: that of the run if it was cut short, as of hookbus run."""
    if verdict.is_good:
        return ExitCode.OK
    return code if verdict.state == "cut short" and code else ExitCode.FAILED
