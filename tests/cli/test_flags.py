"""The flags before a script: what each says, and how mistakes are told."""

from __future__ import annotations

import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import UsageError, split_flags
from hookbus.config.parser import ParsedFlags as Said
from hookbus.config.parser import Precedence as Place
from hookbus.config.parser import read_flags
from hookbus.config.sources import looks_like_ours, setting_of_flag
from hookbus.discovery import Catalog, Installed

NAMES = ["nan-tensor", "stop", "stop-at-step"]
INSTALLED = Catalog(
    {
        name: Installed(name, EntryPoint(name, "none:Hook", "hookbus"), None, None)
        for name in NAMES
    }
)


def said(*arguments: str) -> Said:
    return read_flags(arguments, Place.COMMAND)


def settings(*arguments: str) -> list[tuple[str, str, str]]:
    flags = said(*arguments).flags
    found = [setting_of_flag(flag, Place.COMMAND, INSTALLED) for flag in flags]
    return [(s.plugin, s.field, s.value) for s in found]


def test_the_longest_plugin_name_that_fits_owns_a_flag():
    """The rest of the flag is the setting; without a rest it is the main setting."""
    assert settings("--stop-at-step", "5") == [("stop-at-step", "", "5")]
    assert settings("--stop-at", "5") == [("stop", "at", "5")]
    assert settings("--stop-at-step-last-step=5") == [("stop-at-step", "last_step", "5")]
    assert settings("--nan-tensor=a=b") == [("nan-tensor", "", "a=b")]
    assert settings("--nan-tensor", "-1") == [("nan-tensor", "", "-1")]


def test_words_and_settings_keep_where_they_were_given():
    """As the user would write it; in a place with a name, that follows."""
    both = ["-p", "no:stop", "--nan-tensor", "loss", "-pstop", "-o", "stop.at=3"]
    found = said(*both)
    assert [(word.plugin, word.on, word.source) for word in found.words] == [
        ("stop", False, "-p no:stop"),
        ("stop", True, "-p stop"),
    ]
    sources = [thing.source for thing in (*found.flags, *found.options)]
    assert sources == ["--nan-tensor loss", "-o stop.at=3"]
    added = read_flags(both[:2], Place.ENVIRONMENT, "HOOKBUS_ADDOPTS")
    assert added.words[0].source == "-p no:stop (from HOOKBUS_ADDOPTS)"


@given(st.lists(st.text()))
def test_everything_from_the_script_on_is_left_alone(arguments):
    """The script's own arguments are not looked at, whatever they are."""
    rest = ("train.py", *arguments)
    for flags in ((), ("-p", "stop"), ("--",), ("--log-format", "json")):
        assert said(*flags, *rest).rest == rest


def test_two_dashes_end_the_flags():
    """A script whose name starts with a dash can be named."""
    assert said("-p", "stop", "--", "-x.py", "-p", "y").rest == ("-x.py", "-p", "y")


BOOLEAN = """
import hookbus

class LoudHook(hookbus.SessionRunHook):
    def __init__(self, loud: bool = None, text: str = "-") -> None:
        print("loud", loud, text)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ("--loud-loud", "True -"),
        ("--no-loud-loud", "False -"),
        ("--loud", "True -"),
        ("--no-loud", "False -"),
        ("--loud-loud false", "False -"),
        ("--loud-loud=no", "False -"),
        ("--loud-loud 1", "True -"),
        ("--loud-loud --loud-text x", "True x"),
        ("--no_Loud_loud -q", "False -"),
    ],
)
def test_a_boolean_setting_needs_no_value(flags, value, install, hookbus, script):
    """The flag alone means true, ``--no-`` false, and the script is not its value."""
    install("loud", BOOLEAN, "LoudHook")
    done = hookbus("run", *flags.split(), script())
    assert (done.returncode, done.stdout) == (0, f"loud {value}\nsteps 5\n"), done.stderr


@pytest.mark.parametrize("folder", [".", "sub"])
def test_a_boolean_setting_of_a_module_of_the_user(folder, hookbus, script):
    """In the current folder; one beside a script elsewhere needs an equals sign."""
    script(BOOLEAN, f"{folder}/mine.py", before="")
    path = script(name=f"{folder}/train.py")
    alone = "--loud-loud" if folder == "." else "--loud-loud=yes"
    done = hookbus("run", "-p", "mine:LoudHook", alone, path)
    assert (done.returncode, done.stdout) == (0, "loud True -\nsteps 5\n"), done.stderr


def test_a_boolean_setting_in_other_places(install, hookbus, script):
    """Variables and files take the same flags, and ``why`` shows the value."""
    install("loud", BOOLEAN, "LoudHook")
    done = hookbus("run", script(), HOOKBUS_ADDOPTS="--no-loud-loud")
    assert done.stdout == "loud False -\nsteps 5\n"
    Path("hookbus.toml").write_text("addopts = '--loud-loud'\n")
    assert hookbus("run", script()).stdout == "loud True -\nsteps 5\n"
    shown = hookbus("why", "--no-loud-loud", "loud").stdout
    assert "set           loud = false by --no-loud-loud" in shown
    assert "  --loud, --[no-]loud-loud" in hookbus("run", "-p", "loud", "--help").stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ("--no-loud-loud -p stop-at-step --stop-at-step 3", "False -"),
        ("--loud-loud -o stop-at-step.last_step=3", "True -"),
        ("--loud -q --stop-at-step 3", "True -"),
    ],
)
def test_a_flag_behind_a_boolean_one_is_not_its_value(
    flags, value, install, hookbus, script
):
    """In a variable and in a file, as on the command line."""
    install("loud", BOOLEAN, "LoudHook")
    told = f"loud {value}\nsteps 3\n"
    assert hookbus("run", *flags.split(), script()).stdout == told
    assert hookbus("run", script(), HOOKBUS_ADDOPTS=flags).stdout == told
    Path("hookbus.toml").write_text(f"addopts = '{flags}'\n")
    assert hookbus("run", script()).stdout == told


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--loud-text", "--loud-text needs a value after it"),
        ("--no-loud-text", "--no-loud-text: only settings that are true or false have a"),
        ("--no-loud-loud=x", "--no-loud-loud x: a flag with --no- takes no value"),
        ("--no-progress", "to switch the plugin off, write -p no:progress"),
        ("--loud-on-error", "--loud-on-error needs a value after it"),
    ],
)
def test_any_other_setting_needs_its_value(flag, message, install, hookbus):
    """Exit code 4, before anything is imported."""
    install("loud", BOOLEAN, "LoudHook")
    done = hookbus("run", flag)
    assert (done.returncode, done.stdout) == (4, "")
    assert message in done.stderr


def test_a_setting_without_a_value_is_checked_when_the_plugin_is_there(
    install, hookbus, script
):
    """The source of a module plugin does not show its settings."""
    options = """
        import hookbus

        @hookbus.hookimpl
        def addoption(group):
            group.add("loud", type=bool, default=False, help="loud")
            group.add("text", type=str, default="-", help="text")

        @hookbus.hookimpl
        def configure(options):
            print(options)
    """
    install("quiet", textwrap.dedent(options))
    done = hookbus("run", "--no-quiet-loud", script())
    assert "'loud': False" in done.stdout, done.stderr
    done = hookbus("run", "--quiet-text", "--quiet-loud", "yes", script())
    assert done.returncode == 4
    assert "--quiet-text needs a value after it, and --quiet-loud looks like" in done.stderr


def test_a_setting_that_a_plugin_lacks_is_told_though_it_is_off(install, hookbus, script):
    """In any place; the run goes on, and nothing is imported."""
    install("loud", "raise SystemExit('imported')\n" + BOOLEAN, "LoudHook")
    Path("hookbus.toml").write_text("[loud]\ntext = 'x'\non_error = 'warn'\nlod = true\n")
    for command in (("run", script()), ("why", "loud")):
        done = hookbus(*command)
        assert done.returncode == 0
        told = "hookbus.toml:4: plugin 'loud' has no setting 'lod'; did you mean 'loud'?"
        assert done.stderr.count("has no setting") == done.stderr.count(told) == 1


def test_a_setting_beside_a_plugin_that_is_switched_off_is_a_contradiction(hookbus):
    """Wherever the two stand; a -p word for the plugin after it takes it back."""
    setting, off = ["--stop-at-step", "5"], ["-p", "no:stop_at_step"]
    for both in (setting + off, off + setting):
        done = hookbus("plugins", *both)
        assert done.returncode == 4
        for part in ("--stop-at-step 5", "-p no:stop_at_step", "drop one"):
            assert part in done.stderr
    assert hookbus("plugins", *setting, *off, "-p", "stop-at-step").returncode == 0


@pytest.mark.parametrize(
    "argument",
    [
        *("--stop-at-step", "--stop-at-step=3", "--nan-tensor-fail-on-nan-loss"),
        *("--disable-plugin-autoload", "--log-format=json", "-p"),
    ],
)
def test_flags_of_ours_are_recognized_after_the_script(argument):
    """They are the script's, and look as if they were meant for hookbus."""
    assert (
        looks_like_ours(["x", "--epochs", "3", argument, "--stop"], INSTALLED) == argument
    )


@pytest.mark.parametrize(
    "argument", ["--epochs", "stop", "-stop", "--stopped", "--help", ""]
)
def test_other_arguments_of_the_script_are_not(argument):
    """A flag that just begins like a plugin's name is the script's."""
    assert looks_like_ours([argument], INSTALLED) is None


USAGE = [
    (["-p", "stop-at-stp"], "-p stop-at-stp: no plugin", "did you mean 'stop-at-step'?"),
    (["-p", "no:progres"], "-p no:progres: no plugin", "did you mean '-p no:progress'"),
    (["--stop-at-stp", "3"], "unrecognized flag --stop-at-stp", "'--stop-at-step'?"),
    (["--log-fromat", "json"], "unrecognized flag --log-fromat", "'--log-format'?"),
    (["-x"], "unrecognized flag -x (", "hookbus run --help"),
    (["--lr", "3"], "unrecognized flag --lr (", "hookbus run --help"),
    (["-p", "tensorboard"], "-p tensorboard: ", "did you mean 'summary-saver'"),
    (["-p", "StopAtStepHook"], "-p StopAtStepHook: no plugin", "'stop-at-step'?"),
    (["-p", "no:NanTensorHok"], "-p no:NanTensorHok: no", "'-p no:nan-tensor'?"),
    (["--log-format", "jsn"], "--log-format jsn", "did you mean 'json'?"),
    (["--log-level", "loud"], "--log-level loud", "debug, info, warning, error, critical"),
    (["--log-level", "warnin"], "--log-level warnin", "did you mean 'warning'?"),
    (["-p", ""], "-p", "empty"),
    (["-p", "no:"], "-p no:", "empty"),
    (["--stop-at-step", "soon"], "--stop-at-step soon", "a whole number"),
    (["--stop-at-step-last-stp", "3"], "--stop-at-step-last-stp 3", "'last_step'"),
    (["-p", "stop-at-step"], "--stop-at-step-num-steps", "--stop-at-step-last-step"),
    (
        ["--stop-at-step-last-step=3", "--stop-at-step-num-steps=3"],
        "Only one of",
        "num_steps",
    ),
    (
        ["--nan-tensor", "loss", "-p", "no:nan-tensor"],
        "--nan-tensor loss",
        "-p no:nan-tensor",
    ),
    (["--progress", "5", "--nan-tensor", "lss"], "'lss'", "did you mean 'loss'?"),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("flags", "what", "hint"), USAGE)
def test_a_mistake_is_told_with_what_to_do(flags, what, hint, hookbus, script):
    """Exit code 4 and one message, without a traceback, and no step is run."""
    done = hookbus("run", *flags, script())
    assert (done.returncode, done.stdout) == (4, "")
    assert "Traceback" not in done.stderr
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    assert what in message
    assert hint in message


@pytest.mark.parametrize("flag", ["-p", "--stop-at-step", "--log-format"])
def test_a_flag_at_the_end_needs_its_value(flag, hookbus):
    """The message names the flag."""
    done = hookbus("run", flag)
    assert (done.returncode, done.stderr) == (4, f"ERROR: {flag} needs a value after it\n")


def test_a_flag_is_not_taken_for_the_value_of_another(hookbus, script):
    """A flag that lost its value is named, not the script that seems to be missing."""
    done = hookbus("run", "--nan-tensor", "--stop-at-step", "3", script())
    assert done.returncode == 4
    assert "--nan-tensor needs a value" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "hookbus run needs a script"),
        (["--stop-at-step", "3"], "hookbus run needs a script"),
        (["missing.py"], "the script missing.py does not exist"),
        (["."], ". has no __main__.py, which Python runs in a folder or a zip file"),
    ],
)
def test_a_script_must_exist(arguments, message, hookbus):
    """Exit code 4 before anything is imported."""
    done = hookbus("run", *arguments)
    assert done.returncode == 4
    assert done.stderr.startswith(f"ERROR: {message}")


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "maybe", "expected one of 1, true"),
        ("HOOKBUS_PLUGINS", "nan-tenser", "did you mean 'nan-tensor'?"),
        ("HOOKBUS_PLUGINS", "progress,no:", "empty"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plugins"])
def test_a_variable_that_makes_no_sense_is_named(
    variable, value, hint, command, hookbus, script
):
    """The environment is read as strictly as the command line: exit code 4."""
    done = hookbus(command, *([script()] * (command == "run")), **{variable: value})
    assert done.returncode == 4
    assert variable in done.stderr
    assert hint in done.stderr


def test_a_plugin_switched_off_in_the_environment_may_be_missing(hookbus, script):
    """It is warned about, for it may be a typing error, and the script runs."""
    done = hookbus("run", script(), HOOKBUS_PLUGINS="no:progres")
    assert (done.returncode, done.stdout) == (0, "steps 5\n")
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "HOOKBUS_PLUGINS=no:progres" in warnings[0]


def test_a_flag_is_stronger_than_the_environment(hookbus, script):
    """A setting on the command line switches on what the environment switched off."""
    done = hookbus(
        "run", "--stop-at-step", "2", script(), HOOKBUS_PLUGINS="no:stop-at-step"
    )
    assert (done.returncode, done.stdout) == (0, "steps 2\n")


def test_flags_after_the_script_are_the_scripts(hookbus, script):
    """They arrive verbatim, with one warning that names the first."""
    path = script("import sys; print(sys.argv[1:])", before="")
    arguments = ["--epochs", "3", "--stop-at-step", "4", "--progress-every-secs=1"]
    done = hookbus("run", path, *arguments)
    assert (done.returncode, done.stdout) == (0, f"{arguments}\n")
    (warning,) = done.stderr.splitlines()
    assert "warning" in warning
    assert "--stop-at-step" in warning
    assert hookbus("run", path, "--epochs", "3").stderr == ""


def test_flags_of_one_plugin_come_together(hookbus, script):
    """Main and other settings of one plugin make one hook."""
    done = hookbus(
        *("run", "--logging-tensor", "loss,w", "--logging-tensor-every-n-iter", "2"),
        *("--logging-tensor-at-end=true", "--stop-at-step=5", script()),
    )
    assert (done.returncode, done.stdout) == (0, "steps 5\n")
    assert sum(" logged " in line for line in done.stderr.splitlines()) == 4


LEVELS = """
import hookbus
for name in ("debug", "info", "warning", "error"):
    getattr(hookbus.log, name)(f"a line of {name}")
"""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("flags", "environment", "file", "lowest"),
    [
        ([], {}, "", "info"),
        (["-q"], {}, "", "warning"),
        (["-qq"], {}, "", "warning"),
        (["-v"], {}, "", "debug"),
        (["-vv"], {}, "", "debug"),
        (["-v", "-q"], {}, "", "warning"),
        (["-q", "-v"], {}, "", "debug"),
        (["-q", "--log-level", "error"], {}, "", "error"),
        (["--log-level=ERROR", "-v"], {}, "", "debug"),
        (["--log-level", "40"], {}, "", "error"),
        (["--log-level", "0"], {}, "", "debug"),
        (["--log-level", "25"], {}, "", "warning"),
        (["-o", "log_level=error"], {}, "", "error"),
        ([], {"HOOKBUS_ADDOPTS": "-q"}, "", "warning"),
        (["-v"], {"HOOKBUS_ADDOPTS": "-q"}, "", "debug"),
        ([], {}, "[hookbus]\nlog_level = error\n", "error"),
        ([], {}, "[hookbus]\naddopts = -q\n", "warning"),
        (["--log-level", "info"], {}, "[hookbus]\nlog_level = error\n", "info"),
    ],
)
def test_the_level_of_the_log(flags, environment, file, lowest, hookbus, script):
    """Lines below the level are dropped; the last flag wins, then environment and file."""
    if file:
        Path("tox.ini").write_text(file)
    done = hookbus("run", *flags, script(LEVELS, before=""), **environment)
    assert done.returncode == 0
    names = ["debug", "info", "warning", "error"]
    logged = [name for name in names if f"a line of {name}" in done.stderr]
    assert logged == names[names.index(lowest) :]


@pytest.mark.parametrize("command", ["plugins", "hooks", "why"])
@pytest.mark.parametrize(("flags", "warned"), [([], True), (["--log-level=error"], False)])
def test_commands_that_list_take_the_level_too(command, flags, warned, hookbus):
    """Their warnings are dropped as those of a run are."""
    name = ["progress"] if command == "why" else []
    done = hookbus(command, *flags, *name, HOOKBUS_PLUGINS="no:progres")
    assert (done.returncode, "no:progres" in done.stderr) == (0, warned)


@pytest.mark.parametrize(
    "argument", [["train", "-q"], ["evaluate", "--log-level=error"], ["predict", "-q"]]
)
def test_commands_about_an_estimator_take_the_level_too(argument, hookbus):
    """The flag is read; what is missing is the Estimator."""
    done = hookbus(*argument)
    assert (done.returncode, "needs an Estimator" in done.stderr) == (4, True)


def test_debug_lines_tell_how_long_an_import_took(hookbus, script):
    """-v shows what hookbus itself does, like importing a plugin."""
    loud = hookbus("run", "-v", "--stop-at-step", "1", script())
    assert "plugin imported" in loud.stderr
    quiet = hookbus("run", "--stop-at-step", "1", script())
    assert "plugin imported" not in quiet.stderr


def test_a_terminal_without_colors_gets_none(hookbus, script):
    """NO_COLOR counts, also where the log goes to a terminal."""
    code = """
        import io, os, sys
        from hookbus.logs import configure, log

        class Terminal(io.StringIO):
            def isatty(self):
                return True

        real, sys.stderr = sys.stderr, Terminal()
        configure("console")
        log.info("a line")
        print("\\x1b" in sys.stderr.getvalue())
        sys.stderr = real
    """
    path = script(code, before="")
    assert hookbus("run", path, NO_COLOR="").stdout == "True\n"
    assert hookbus("run", path, NO_COLOR="1").stdout == "False\n"


@pytest.mark.parametrize(
    ("words", "flags", "program"),
    [
        ("-q --at 5 -p no:x train.py --at 7", "-q -p no:x", "train.py --at 7"),
        ("--json --at=5 -q -- -odd.py", "-q", "-odd.py"),
        ("--at 5 -q -m package.module --at 7", "-q", "-m package.module --at 7"),
        ("-q --at 5 -mmodule", "-q", "-m module"),
        ("--stop-at-step 5 --at 5 train.py", "--stop-at-step 5", "train.py"),
        ("--at 5 -q", "-q", ""),
    ],
)
def test_flags_of_a_command_are_told_from_those_of_hookbus_run(words, flags, program):
    """Its own flags are taken out; the program and its arguments stay as they are."""
    split = split_flags("certify", words.split(), ["--json"], ["--at"])
    assert dict(split.values) == {"--at": "5"}
    assert split.switches == ({"--json"} if "--json" in words else set())
    assert " ".join(split.flags) == flags
    assert " ".join(split.program) == program


def test_a_flag_of_a_command_without_its_value_is_refused():
    """As one of hookbus run."""
    with pytest.raises(UsageError, match="--at needs a value after it"):
        split_flags("certify", ["--at"], valued=["--at"])
