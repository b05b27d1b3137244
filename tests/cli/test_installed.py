"""A distribution adds a command to ``hookbus`` with an entry point."""

from __future__ import annotations

import pytest

from hookbus.testing import fake_dist

COUNT = """
def main(words):
    print("counted", words)
    return len(words)
"""


@pytest.fixture
def ship(site):
    """Install a distribution with a command, and a summary."""

    def shipped(name: str, command: str = "count", source: str = COUNT) -> None:
        module = f"{name.replace('-', '_')}_commands"
        entry = {"hookbus.command": {command: f"{module}:main"}}
        info = fake_dist(site, name, entry, modules={module: source})
        with (info / "METADATA").open("a", encoding="utf-8") as file:
            file.write("Summary: Counts words.\n")

    return shipped


def test_a_command_gets_the_words_after_it_and_its_result_is_the_exit_code(ship, hookbus):
    """It reads its flags itself."""
    ship("counter")
    done = hookbus("count", "one", "--two")
    assert (done.returncode, done.stdout) == (2, "counted ['one', '--two']\n")
    assert hookbus("help", "count").stdout == "counted ['--help']\n"


def test_a_command_without_a_result_ends_with_0(ship, hookbus):
    """As a function does that does not fail."""
    ship("counter", source="def main(words): print('done')")
    assert hookbus("count").returncode == 0


def test_the_help_lists_it_without_an_import(ship, hookbus):
    """With the summary of its distribution."""
    ship("counter", source="raise RuntimeError('imported')")
    done = hookbus("--help")
    assert (done.returncode, done.stderr) == (0, "")
    head, _, tail = done.stdout.partition("commands of other distributions:\n")
    assert ["count", "Counts", "words", "(counter", "1.0)"] in map(
        str.split, tail.splitlines()
    )
    assert "  run " in head


def test_the_help_shows_the_first_line_of_its_module(ship, hookbus):
    """A distribution may have several commands, with one summary for all."""
    ship("counter", source='"""Counts ``letters``."""\n\nraise RuntimeError')
    assert "  count     Counts letters (counter 1.0)\n" in hookbus("--help").stdout


def test_a_mistyped_name_may_mean_it(ship, hookbus):
    """As one of the core's commands."""
    ship("counter")
    done = hookbus("coumt")
    assert done.returncode == 4
    assert "there is no command 'coumt'; did you mean 'count'?" in done.stderr


def test_the_core_keeps_its_commands(ship, hookbus):
    """Another distribution cannot replace one."""
    ship("counter", command="plugins")
    assert hookbus("plugins").stdout.startswith("NAME")
    assert "counter" not in hookbus("--help").stdout


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('boom')", "cannot be imported: RuntimeError('boom')"),
        ("main = 3", "is not a function: 3"),
        ("def main(words): return 'yes'", "returned 'yes'; return an int from 0 to 255"),
        ("def main(words): return 256", "returned 256; return an int from 0 to 255"),
        ("def main(words): return True", "returned True; return an int from 0 to 255"),
    ],
)
def test_a_command_that_is_wrong_is_an_error_of_its_plugin(source, message, ship, hookbus):
    """The message names the command and its distribution."""
    ship("counter", source=source)
    done = hookbus("count")
    assert done.returncode == 3
    assert f"PLUGIN ERROR: the command 'count' of counter 1.0 {message}" in done.stderr


def test_an_error_of_the_user_in_it_is_told_as_such(ship, hookbus):
    """Commands raise the errors that hookbus exports."""
    raises = "import hookbus\ndef main(words): raise hookbus.UsageError('count what?')"
    ship("counter", source=raises)
    done = hookbus("count")
    assert (done.returncode, done.stderr) == (4, "ERROR: count what?\n")


def test_two_distributions_with_one_command_are_named(ship, hookbus):
    """Neither of them runs."""
    ship("counter")
    ship("other")
    done = hookbus("count")
    assert done.returncode == 3
    assert (
        "several distributions have a command 'count': counter 1.0, other 1.0; uninstall "
        "all but one" in done.stderr
    )
