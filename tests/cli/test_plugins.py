"""The command lists and explains plugins, and imports none for it."""

from __future__ import annotations

import json
import re
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

from hookbus.cli import COMMANDS
from hookbus.cli.help import sentence
from hookbus.config.settings import schema_of
from hookbus.discovery import installed_plugins
from hookbus.testing import fake_dist
from tests.support.distributions import HOOKS

BOMB = "import sys; print('IMPORTED', __name__); raise RuntimeError('boom')"
SHIPPED = [folder.name.removeprefix("hookbus-") for folder in HOOKS]
HOOK = """
import hookbus

class GoodHook(hookbus.SessionRunHook):
    '''Does good.'''

    def __init__(self, below: float, size: int = 3, name: str | None = None) -> None:
        '''Make it.

        Args:
            below (float): the ``limit``, in *whole* units. It is a
                number.
            size: the size.
        '''
"""
ATTRS = """
import attrs
import hookbus

@attrs.define(eq=False)
class Base(hookbus.SessionRunHook):
    '''A base.

    Attributes:
        every: steps between two samples.
        noise: how much noise
            to add.
    '''

    every: int = 5
    noise: float = 0.0

@attrs.define(eq=False)
class SampleHook(Base):
    '''Samples.

    Args:
        noise: the amount of noise.
        to: the place of the samples.
    '''

    to: str = attrs.field(default="", metadata={"help": "the file of the samples."})
"""
OPTIONS = """
import hookbus

@hookbus.hookimpl
def addoption(group):
    group.add("rate", float, default=0.5, help="the rate of samples")
"""


@pytest.fixture
def broken(install) -> None:
    """Install plugins that raise when they are imported: a module and a class."""
    install("bad-module", BOMB)
    install("bad-class", BOMB, "Hook")


def ship(site: Path, name: str, entries, modules, summary: str) -> None:
    """Install a distribution with a summary."""
    info = fake_dist(site, name, entries, modules=modules)
    with (info / "METADATA").open("a", encoding="utf-8") as file:
        file.write(f"Summary: {summary}\n")


def rows(done) -> dict[str, dict[str, str]]:
    """Read the output of ``plugins --json``."""
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["schema"] == 2
    return {row.pop("name"): row for row in told["plugins"]}


def test_plugins_lists_what_is_installed(hookbus):
    """A line for each plugin: its name, its state, and what it does, in 80 columns."""
    done = hookbus("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["NAME", "STATUS", "SUMMARY"]
    rows = [line.split(maxsplit=2) for line in lines]
    assert rows == [
        [
            name,
            "on" if name == "progress" else "off",
            metadata(f"hookbus-{name}")["Summary"],
        ]
        for name in SHIPPED
    ]
    assert max(map(len, lines)) <= 80


def test_plugins_tells_more_when_it_is_verbose(hookbus):
    """-v adds the reason, the distribution and its version, and the events of each."""
    done = hookbus("plugins", "-v", "-p", "no:progress")
    assert (done.returncode, done.stderr) == (0, "")
    start = done.stdout.index("nan-tensor is off: not switched on\n")
    assert done.stdout[start:].splitlines()[1:4] == [
        "  summary    Fails or stops training when a value is NaN.",
        f"  installed  hookbus-nan-tensor {version('hookbus-nan-tensor')}",
        "  events     begin, before_run, after_run, veto_save",
    ]
    assert "\nprogress is off: -p no:progress\n" in done.stdout


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_plugins_cuts_what_does_not_fit_the_terminal(columns, hookbus, site):
    """Long names and summaries end in an ellipsis; no line is wider than the terminal."""
    name = "a-plugin-with-a-name-that-is-far-too-long"
    entry = {"hookbus": {name: "fake_long"}}
    words = "word " * 30
    ship(site, "fake-long", entry, {"fake_long": ""}, words)
    lines = hookbus("plugins", COLUMNS=str(columns)).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    (line,) = [line for line in lines if line.startswith("a-plugin")]
    shown, status, summary = line.split(maxsplit=2)
    assert shown == (name if columns == 200 else f"{name[: columns // 2 - 3]}...")
    assert (status, summary.endswith("...")) == ("on", columns != 200)


def test_plugins_of_one_distribution_have_summaries_of_their_own(hookbus, site):
    """If a distribution ships several plugins, the first line of a docstring counts."""
    entries = {"one": "fake_one", "two": "fake_two:Two", "three": "fake_three"}
    modules = {
        "fake_one": '"""Does one thing.\n\nMore."""',
        "fake_two": 'class Two:\n    """Does two\tthings."""',
        "fake_three": "",
    }
    ship(site, "fake-many", {"hookbus": entries}, modules, "Many.")
    found = rows(hookbus("plugins", "--json"))
    summaries = [found[name]["summary"] for name in entries]
    assert summaries == ["Does one thing.", "Does two things.", "Many."]


@pytest.mark.parametrize("flags", [[], ["-v"]])
def test_plugins_writes_no_escape_sequence_of_metadata(flags, hookbus, site):
    """Text that a terminal would act on is shown as it is spelled in Python."""
    entry = {"hookbus": {"rude": "fake_rude"}}
    summary = "Rings \x07 the bell \x1b]0;title\x1b\\."
    ship(site, "fake-rude", entry, {"fake_rude": ""}, summary)
    done = hookbus("plugins", *flags)
    assert done.returncode == 0
    assert all(c.isprintable() or c == "\n" for c in done.stdout)
    assert "Rings \\x07 the bell \\x1b]0;title" in done.stdout


def test_plugins_is_written_in_any_encoding(hookbus, site):
    """Characters that stdout cannot encode are escaped."""
    entry = {"hookbus": {"foreign": "fake_foreign"}}
    modules = {"fake_foreign": ""}
    ship(site, "fake-foreign", entry, modules, "Zählt.")
    done = hookbus("plugins", PYTHONIOENCODING="ascii")
    assert (done.returncode, "Z\\xe4hlt." in done.stdout) == (0, True)


def test_plugins_as_json(hookbus):
    """Programs get these rows with a schema number."""
    found = rows(hookbus("plugins", "--json"))
    assert list(found) == SHIPPED
    assert found["progress"] == {
        "status": "on",
        "on": True,
        "distribution": "hookbus-progress",
        "version": version("hookbus-progress"),
        "summary": metadata("hookbus-progress")["Summary"],
        "why": "autouse",
        "events": [
            "begin",
            "after_create_session",
            "before_run",
            "after_run",
            "next_due",
            "logged",
            "end",
            "on_exception",
        ],
        "all_events": True,
    }


def test_plugins_shows_what_the_environment_does(hookbus):
    """Each state has its reason, as it was written."""
    found = rows(hookbus("plugins", "--json", HOOKBUS_PLUGINS="nan_tensor,no:progress"))
    assert (found["nan-tensor"]["status"], found["nan-tensor"]["why"]) == (
        "on",
        "HOOKBUS_PLUGINS=nan_tensor",
    )
    assert (found["progress"]["status"], found["progress"]["why"]) == (
        "off",
        "HOOKBUS_PLUGINS=no:progress",
    )
    found = rows(hookbus("plugins", "--json", HOOKBUS_DISABLE_PLUGIN_AUTOLOAD="yes"))
    assert found["progress"]["why"] == "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD=yes"


def test_plugins_shows_a_blocked_plugin_that_is_missing(hookbus):
    """It may be a typing error, so it is listed, and warned about on stderr."""
    done = hookbus("plugins", "--json", HOOKBUS_PLUGINS="no:progres")
    assert done.returncode == 0
    told = {row["name"]: row["status"] for row in json.loads(done.stdout)["plugins"]}
    assert (told["progres"], told["progress"]) == ("missing", "on")
    assert "did you mean 'progress'" in done.stderr


def test_plugins_refuses_other_arguments(hookbus):
    """An unknown argument is exit code 4; --help is told."""
    done = hookbus("plugins", "--jsn")
    assert done.returncode == 4
    assert "--jsn" in done.stderr
    assert hookbus("plugins", "--help").stdout.startswith("usage: hookbus plugins")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    "arguments",
    [["plugins"], ["plugins", "--json"], ["--help"], ["--version"], ["-h"], ["-V"]],
)
def test_what_needs_no_plugin_imports_none(arguments, hookbus):
    """With a plugin that cannot be imported they work, for they import nothing."""
    done = hookbus(*arguments, HOOKBUS_PLUGINS="bad-class")
    assert (done.returncode, done.stderr) == (0, "")
    assert "IMPORTED" not in done.stdout
    if arguments[0] == "plugins":
        assert "bad-module" in done.stdout
        assert "bad-class" in done.stdout


def test_the_command_itself(hookbus):
    """The version is the distribution's; without a command there is the help."""
    assert hookbus("--version").stdout == f"hookbus {version('hookbus')}\n"
    shown = hookbus("--help").stdout
    assert shown.startswith("usage: hookbus COMMAND")
    assert max(map(len, shown.splitlines())) <= 80
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", shown, re.MULTILINE)
    nothing = hookbus()
    assert (nothing.returncode, nothing.stdout) == (4, shown)
    unknown = hookbus("trian.py")
    assert unknown.returncode == 4
    assert "no command 'trian.py'" in unknown.stderr


@pytest.mark.parametrize("command", [*COMMANDS])
def test_help_of_a_command_is_that_of_its_flag(command, hookbus):
    """``hookbus help NAME`` and ``hookbus NAME --help`` show the same; exit code 0."""
    by_word, by_flag = hookbus("help", command), hookbus(command, "--help")
    assert (by_word.returncode, by_word.stderr) == (0, "")
    assert (by_word.stdout, by_flag.returncode) == (by_flag.stdout, 0)
    assert by_word.stdout.startswith("usage: hookbus ")
    assert max(map(len, by_word.stdout.splitlines())) <= 80


def test_help_of_an_unknown_command_suggests_one(hookbus):
    """It is exit code 4; help alone is the help of the command itself."""
    done = hookbus("help", "trian")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no command 'trian'" in done.stderr
    assert "did you mean 'train'?" in done.stderr
    assert hookbus("help").stdout == hookbus("--help").stdout


@pytest.mark.usefixtures("broken")
def test_run_help_shows_a_broken_plugin_and_goes_on(hookbus, install):
    """Those that are on are imported, each guarded; exit code 0."""
    install("quitter", "raise SystemExit(7)")
    done = hookbus("run", "-p", "bad-class", "--help")
    assert done.returncode == 0
    assert "IMPORTED" not in done.stdout  # what they print is no help
    lines = done.stdout.splitlines()
    for name, why in (("bad-module", "boom"), ("bad-class", "boom"), ("quitter", "7")):
        (line,) = [line for line in lines if name in line and "broken: " in line]
        assert why in line


@pytest.mark.usefixtures("broken")
def test_run_help_imports_only_what_is_on(hookbus, install):
    """A blocked plugin, and a class that nobody asked for, stay out."""
    install("good", HOOK, "GoodHook")
    done = hookbus("run", "-p", "no:bad-module", "-p", "good", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "IMPORTED" not in done.stdout
    assert "broken" not in done.stdout
    assert "bad-class" in done.stdout[done.stdout.index("installed, but off:") :]


def test_run_help_tells_flags_variables_and_settings(hookbus, install):
    """Settings of plugins that are on: the form of each, what it means, its default."""
    install("good", HOOK, "GoodHook")
    install("sample", ATTRS, "SampleHook")
    install("rated", OPTIONS)
    shown = hookbus("run", "-p", "good", "-p", "sample", "--help").stdout
    assert max(map(len, shown.splitlines())) <= 80
    settings = described(shown)
    assert settings["--good, --good-below FLOAT"] == "the limit, in whole units (required)"
    assert settings["--good-size INT"] == "the size (default 3)"
    assert settings["--good-name TEXT"] == ""
    assert settings["--sample, --sample-every INT"] == (
        "steps between two samples (default 5)"
    )
    assert settings["--sample-noise FLOAT"] == "the amount of noise (default 0.0)"
    assert settings["--sample-to TEXT"] == "the file of the samples"
    assert settings["--rated, --rated-rate FLOAT"] == "the rate of samples (default 0.5)"
    assert "default 10.0" in settings["--progress, --progress-every-secs FLOAT"]
    assert not any("stop-at-step" in setting for setting in settings)
    for word in ("-p NAME", "--log-format FORMAT", "-q", "-v", "-h, --help"):
        assert settings[word]
    for variable in ("HOOKBUS_PLUGINS", "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"):
        assert settings[variable]
    assert "stop-at-step" in shown[shown.index("installed, but off") :]


@pytest.mark.parametrize("plugin", SHIPPED)
def test_every_setting_of_a_shipped_plugin_is_described(plugin):
    """One sentence each, which is a phrase without a period, like that of every flag."""
    schema = schema_of(installed_plugins().plugins[plugin].entry.load(), plugin)
    for field in schema.fields:
        text = sentence(schema.helps.get(field, ""))
        assert len(text.split()) >= 3, field
        assert text[0].islower(), field
        assert not re.search(r"\.( |$)|[`*]", text), field


def described(shown: str) -> dict[str, str]:
    """Read the two columns of a help: the indented names, and their texts in one line."""
    found: dict[str, str] = {}
    for line in shown.splitlines():
        new = re.match(r"  (\S(?:\S| (?! ))*)(?:  +(.*))?$", line)
        if new:
            name, found[new[1]] = new[1], new[2] or ""
        elif found and line.startswith("    "):
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


SIDE_EFFECT = "print('IMPORTED', __name__)\n"


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("flags", "environment", "imported"),
    [
        ([], {}, True),
        (["-p", "no:noisy"], {}, False),
        (["-pno:noisy"], {}, False),
        (["-p", "no:Noisy"], {}, False),
        (["-p", "no:fake_noisy"], {}, False),
        (["-p", "no:noisy", "-p", "noisy"], {}, True),
        (["-p", "noisy", "-p", "no:noisy"], {}, False),
        (["--disable-plugin-autoload"], {}, False),
        (["--disable-plugin-autoload", "-p", "noisy"], {}, True),
        ([], {"HOOKBUS_PLUGINS": "no:noisy"}, False),
        (["-p", "noisy"], {"HOOKBUS_PLUGINS": "no:noisy"}, True),
        (["-p", "no:noisy"], {"HOOKBUS_PLUGINS": "noisy"}, False),
        ([], {"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "1"}, False),
        ([], {"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "0"}, True),
        ([], {"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "on", "HOOKBUS_PLUGINS": "noisy"}, True),
        (["-p", "noisy"], {"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "true"}, True),
    ],
)
def test_a_plugin_is_imported_only_if_it_is_on(
    flags, environment, imported, hookbus, install, script
):
    """The last word decides; the command line beats the environment."""
    install("noisy", SIDE_EFFECT)
    done = hookbus("run", *flags, script(), **environment)
    assert done.returncode == 0
    assert done.stdout.count("IMPORTED fake_noisy") == imported


@pytest.mark.sampled(1)
@pytest.mark.parametrize("under", ["python", "hookbus"])
def test_the_environment_counts_with_and_without_the_command(
    under, hookbus, process, install, script
):
    """Under plain ``python script.py`` plugins are on and off as the environment says."""
    install("noisy", SIDE_EFFECT)
    path = script()

    def start(**environment: str) -> str:
        run = process if under == "python" else hookbus
        return run(*(["run"] * (under == "hookbus")), path, **environment).stdout

    assert start() == "IMPORTED fake_noisy\nsteps 5\n"
    assert start(HOOKBUS_PLUGINS="no:noisy") == "steps 5\n"
    assert start(HOOKBUS_DISABLE_PLUGIN_AUTOLOAD="1") == "steps 5\n"


def test_two_sessions_of_a_script_have_hooks_of_their_own(hookbus, script):
    """Each session that the script opens is stopped by an instance of its own."""
    code = """
        for _ in range(2):
            with MonitoredTrainingSession(graph) as session:
                for _ in session.loop():
                    pass
            print(session.global_step)
    """
    done = hookbus("run", "--stop-at-step-num-steps", "3", script(code))
    assert (done.returncode, done.stdout) == (0, "3\n3\n")


def test_a_name_describes_one_plugin(hookbus):
    """``plugins NAME`` is as detailed as -v; ``help NAME`` has the settings."""
    listed = hookbus("plugins", "nan-tensor").stdout
    assert listed.startswith("nan-tensor is off: not switched on\n  summary ")
    assert "stop-at-step" not in listed
    described = hookbus("help", "nan-tensor").stdout
    assert "  off: not switched on\n\nsettings:\n" in described
    assert "--[no-]nan-tensor-fail-on-nan-loss" in described
    assert "stop-at-step" not in described


@pytest.mark.parametrize("command", ["plugins", "why"])
def test_a_name_that_is_not_installed_is_told(command, hookbus):
    """With a close name, or the names of all plugins."""
    close = hookbus(command, "nan-tensr")
    assert close.returncode == 4
    told = "ERROR: no plugin called 'nan-tensr' is installed; did you mean 'nan-tensor'?\n"
    assert close.stderr == told
    far = hookbus(command, "zzz").stderr
    assert "'zzz' is installed; installed plugins: batch-size-finder, " in far
