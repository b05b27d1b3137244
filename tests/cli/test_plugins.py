"""What the command tells about plugins, and what it imports for that."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

BOMB = "import sys; print('IMPORTED', __name__); raise RuntimeError('boom')"
FOLDERS = Path(__file__).parents[2].glob("plugins/hookbus-*/setup.cfg")
SHIPPED = sorted(path.parent.name.removeprefix("hookbus-") for path in FOLDERS)
HOOK = """
import hookbus

class GoodHook(hookbus.SessionRunHook):
    def __init__(self, below: float, size: int = 3, name: str | None = None) -> None:
        pass
"""


@pytest.fixture
def broken(install) -> None:
    """Install plugins that raise when they are imported: a module and a class."""
    install("bad-module", BOMB)
    install("bad-class", BOMB, "Hook")


def rows(done) -> dict[str, dict[str, str]]:
    """Read what ``plugins --json`` prints."""
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["schema"] == 2
    return {row.pop("name"): row for row in told["plugins"]}


def test_plugins_lists_what_is_installed(hookbus):
    """A table with name, state, distribution, version, reason and events, by name."""
    done = hookbus("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["NAME", "STATUS", "DISTRIBUTION", "VERSION", "WHY", "EVENTS"]
    assert [line.split()[0] for line in lines] == SHIPPED
    table = {line.split()[0]: line.split(maxsplit=4) for line in lines}
    assert table["progress"][1:3] == ["on", "hookbus-progress"]
    assert table["progress"][4].startswith("autouse ")
    assert table["nan-tensor"][1] == "off"
    assert table["nan-tensor"][4].startswith("not switched on ")
    assert table["nan-tensor"][4].endswith(" begin before_run after_run before_save")


def test_plugins_as_json(hookbus):
    """The same for programs, with a schema number."""
    found = rows(hookbus("plugins", "--json"))
    assert list(found) == SHIPPED
    assert found["progress"] == {
        "status": "on",
        "on": True,
        "distribution": "hookbus-progress",
        "version": version("hookbus-progress"),
        "why": "autouse",
        "events": ["after_create_session", "after_run", "logged", "end", "on_exception"],
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
    """The version is the distribution's; without a command there is the usage."""
    assert hookbus("--version").stdout == f"hookbus {version('hookbus')}\n"
    assert hookbus("--help").stdout.startswith("usage: hookbus run")
    nothing = hookbus()
    assert nothing.returncode == 4
    assert "usage: hookbus run" in nothing.stdout + nothing.stderr
    unknown = hookbus("trian.py")
    assert unknown.returncode == 4
    assert "no command 'trian.py'" in unknown.stderr


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
    assert "bad-class" in done.stdout.splitlines()[-1]


def test_run_help_tells_flags_variables_and_settings(hookbus, install):
    """Settings of plugins that are on stand there with their defaults."""
    install("good", HOOK, "GoodHook")
    shown = hookbus("run", "-p", "good", "--help").stdout
    lines = {
        line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.split()
    }
    assert lines["--good-size"] == ["(default", "3)"]
    assert lines["--good-below"] == ["(required)"]
    assert lines["--good-name"] == []
    assert lines["--progress-every-secs"] == ["(default", "10.0)"]
    assert "--stop-at-step-last-step" not in lines
    for word in ("-p", "--log-format", "--disable-plugin-autoload", "-h,"):
        assert word in lines
    for variable in ("HOOKBUS_PLUGINS", "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"):
        assert variable in lines
    off = next(line for line in shown.splitlines() if line.startswith("installed and off"))
    assert "stop-at-step" in off


SIDE_EFFECT = "print('IMPORTED', __name__)\n"


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
