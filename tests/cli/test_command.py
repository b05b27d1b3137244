"""A command of another distribution that runs objects of the user's code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hookbus_estimator.commands.evaluate import evaluate
from hookbus_estimator.commands.predict import predict
from hookbus_estimator.commands.train import train

from hookbus.cli.new import _OWN_FLAGS
from hookbus.testing import fake_dist
from tests.support.commands import Done

COUNT = """
from hookbus.commands import Command, table


def job(line):
    most = line.number("--most")

    def work(objects, answer):
        values = objects[0].value()
        if len(objects) > 1:
            values = map(objects[1].value, values)
        found = [*values][:most]
        if "--shown" in line.switches:
            answer.write(table(["value"], [[str(each)] for each in found]))
        answer.write(f"{objects[0].text} {len(found)}\\n")

    return work


count = Command(
    "count",
    "Count values.",
    "a source",
    {"--most N": "so many", "--through MODULE:FN": "change each", "--shown": "list them"},
    job,
)
"""
SOURCE = """
from hookbus import MonitoredSession


def source():
    print("the program says something")
    with MonitoredSession() as session:
        for value in session.iterate([1, 2, 3]):
            with session.step():
                yield value


def fails():
    raise OSError("disk")
"""


@pytest.fixture(autouse=True)
def installed(site: Path) -> None:
    """Install the command, and write a module."""
    groups = {"hookbus.command": {"count": "count_values:count"}}
    fake_dist(site, "count-values", groups, modules={"count_values": COUNT})
    Path("data.py").write_text(SOURCE, "utf-8")


def test_it_gets_the_objects_and_has_stdout_for_itself(hookbus: Callable[..., Done]):
    """The output of the program goes to stderr."""
    done = hookbus("count", "data.py:source", "--shown", "--through", "builtins:str")
    assert (done.returncode, done.stdout) == (0, "VALUE\n1\n2\n3\ndata.py:source 3\n")
    assert "the program says something" in done.stderr


def test_its_flags_and_those_of_plugins_go_together(hookbus: Callable[..., Done]):
    """A session of the program takes part in them."""
    done = hookbus("count", "--stop-at-step", "2", "data:source", "--most", "9")
    assert (done.returncode, done.stdout) == (0, "data:source 2\n")


def test_its_help_shows_its_flags(hookbus: Callable[..., Done]):
    """And those about plugins."""
    shown = hookbus("count", "--help").stdout
    assert shown.startswith("usage: hookbus count [flags] MODULE:SOURCE\n\nCount values.\n")
    assert "\n  --through MODULE:FN  change each\n" in shown
    assert "\n  -p NAME " in shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 4, "hookbus count needs a source: hookbus count [flags] MODULE:SOURCE"),
        (["a:b", "c:d"], 4, "hookbus count takes one source, but also got 'c:d'"),
        (["data.py"], 4, "the source is MODULE:NAME"),
        (["data:source", "--through", "x"], 4, "--through is MODULE:NAME"),
        (["data:sorce"], 4, "did you mean 'source'?"),
        (["data:source", "--most", "few"], 4, "--most few: 'few' is not a whole number"),
        (["data:fails"], 1, "OSError: disk"),
    ],
)
def test_a_mistake_is_told(words, code, message, hookbus: Callable[..., Done]):
    """As by the commands of hookbus."""
    done = hookbus("count", *words)
    assert done.returncode == code
    assert message in done.stderr
    assert "hookbus/cli" not in done.stderr


def test_no_new_plugin_gets_a_flag_of_the_commands_about_an_estimator():
    """`hookbus new` refuses such a name, whether they are installed or not."""
    flags = {flag.split()[0] for each in (train, evaluate, predict) for flag in each.flags}
    assert flags <= {*_OWN_FLAGS}
