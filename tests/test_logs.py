"""Tests where log lines go, and that a program's own structlog setup is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from hookbus.logs import configure, log
from tests.support import commands

RUN = """
import sys
import hookbus

graph = hookbus.Graph()
graph.train_op(lambda: (), name="train")

def train():
    with hookbus.MonitoredSession(graph, config=hookbus.Config(autoload=False)) as session:
        session.run("train")
"""


def python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has a session to train, in a process of its own."""
    return subprocess.run(
        [sys.executable, *flags, "-c", RUN + code],
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )


def test_importing_hookbus_does_not_import_structlog():
    """Nothing happens at import; structlog comes with the first line."""
    done = python(
        "print('structlog' in sys.modules); train(); print('structlog' in sys.modules)"
    )
    assert done.stdout == "False\nTrue\n"


def test_core_never_configures_structlog():
    """A program that did not configure structlog has it as it was, after any line."""
    done = python("train(); import structlog; print(structlog.is_configured())")
    assert done.stdout == "False\n"


def test_lines_go_to_stderr():
    """One line tells how the session ended; stdout belongs to the program."""
    done = python("train(); hookbus.log.warning('careful', part=3)")
    assert done.stdout == ""
    ended, own = done.stderr.splitlines()
    for word in ("[info", "session ended", "kind=completed", "step=1"):
        assert word in ended
    assert "[warning" in own
    assert own.endswith("careful part=3")


@pytest.mark.long
def test_lines_bear_no_colours():
    """Lines are plain text unless the program or the command sets them up."""
    assert "\x1b" not in python("train()").stderr


@pytest.mark.long
def test_lines_go_to_what_stderr_is_at_the_moment():
    """A program that swaps ``sys.stderr``, as a progress bar does, gets them there."""
    done = python(
        "import io\n"
        "train()\n"
        "old, sys.stderr = sys.stderr, io.StringIO()\n"
        "train()\n"
        "print(sys.stderr.getvalue().count('session ended'))\n"
    )
    assert done.stdout == "1\n"
    assert done.stderr.count("session ended") == 1


CONFIGURE = """
import structlog
structlog.configure(
    processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
    logger_factory=structlog.PrintLoggerFactory(sys.stdout),
)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("when", ["before the first line", "after it"])
def test_the_programs_own_configuration_is_respected(when):
    """Whenever the program configures structlog, the lines after that follow it."""
    first = "" if when.startswith("before") else "train()"
    done = python(f"{first}\n{CONFIGURE}\ntrain()\nprint(structlog.is_configured())")
    line, configured = done.stdout.splitlines()
    told = json.loads(line)
    assert (told["event"], told["kind"], told["level"]) == (
        "session ended",
        "completed",
        "info",
    )
    assert configured == "True"
    assert done.stderr.count("session ended") == (1 if first else 0)


def test_the_programs_configuration_beats_the_commands():
    """Under ``hookbus run`` too, a script that configures structlog has its way."""
    Path("script.py").write_text(RUN + CONFIGURE + "train()")
    done = commands.run(
        [sys.executable, "-m", "hookbus", "run", "script.py"],
        check=True,
    )
    assert json.loads(done.stdout)["event"] == "session ended"
    assert "session ended" not in done.stderr


@pytest.mark.long
def test_debug_lines_are_dropped():
    """Lines below info are for those who configure structlog themselves."""
    assert "detail" not in python("hookbus.log.debug('detail')").stderr
    shown = python(f"{CONFIGURE}\nhookbus.log.debug('detail')").stdout
    assert json.loads(shown)["event"] == "detail"


class Broken:
    """Has no text."""

    def __repr__(self) -> str:
        raise ValueError("I will not be told")


class Strange(dict):
    """Is a dict that cannot be gone through."""

    def items(self):
        raise ValueError("nothing in here")

    __iter__ = keys = items


def circle():
    found = [1]
    found.append({"again": found})
    return found


def deep(levels=100_000):
    found = "end"
    for _ in range(levels):
        found = [found]
    return found


NAN, INFINITY = float("nan"), float("inf")
VALUES = {
    "keys": ({("a", 1): 2, None: 3}, {"('a', 1)": 2, "None": 3}),
    "numbers": ((NAN, [-INFINITY], {NAN: {"x": 1}}), ["nan", ["-inf"], {"nan": {"x": 1}}]),
    "circle": (circle(), [1, {"again": "..."}]),
    "twice": ([shared := [NAN], shared], [["nan"], ["nan"]]),
    "broken": (Broken(), "<Broken without text: ValueError>"),
    "broken inside": ([Broken(), NAN], ["<Broken without text: ValueError>", "nan"]),
    "broken key": ({Broken(): 1}, {"<Broken without text: ValueError>": 1}),
    "deep": (deep(), "<list without text: RecursionError>"),
    "strange": (Strange(a=NAN), "{'a': nan}"),
    "long": (10**10_000, "<int without text: ValueError>"),
    "object": (Path("a"), "a"),
}
"""Values that somebody may log, and their parts in the line."""


@pytest.fixture
def as_command():
    """Return a function that sets the log up like the command, until the test is over."""
    yield configure
    structlog.reset_defaults()


@pytest.mark.parametrize("case", VALUES)
def test_any_value_can_be_logged_as_json(case, as_command, capsys):
    """Each line is one object that any reader of JSON takes, and nothing raises."""
    value, told = VALUES[case]
    as_command("json")
    log.info("there", value=value, step=3)
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert (found["event"], found["value"]) == ("there", told)
    assert str(found["step"]) == "3"


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.parametrize("command", [True, False])
def test_any_value_can_be_logged_for_people(case, command, as_command, capsys):
    """With and without the command; a value without text is named."""
    if command:
        as_command("console")
    log.info("there", value=VALUES[case][0], step=3)
    text = capsys.readouterr().err
    assert "there" in text
    assert "step=3" in text


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_line_without_an_event_is_written(log_format, as_command, capsys):
    """Like that of a formatter of a hook that returns nothing."""
    as_command(log_format)
    log.info(None, step=3)
    assert "step" in capsys.readouterr().err
