"""Tests what the command does when a plugin, the reader or the folder goes away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = "import hookbus\n@hookbus.hookimpl\ndef {event}(): raise {error}\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("event", "code"),
    [("begin", 3), ("after_create_session", 3), ("after_run", 1)],
)
@pytest.mark.parametrize("error", ["SystemExit", "SystemExit(0)", "SystemExit(7)"])
def test_a_plugin_that_leaves_python_has_failed(
    event, code, error, hookbus, install, script
):
    """The exit code is that of a failed run; a plugin does not end the program its way."""
    install("leaver", MODULE.format(event=event, error=error))
    done = hookbus("run", script())
    assert done.returncode == code
    assert "plugin 'leaver' (fake-leaver 1.0) in " in done.stderr


def test_the_scripts_own_exit_keeps_its_code(hookbus, script):
    """As under plain python, from wherever the script raises it."""
    assert hookbus("run", script("raise SystemExit(7)")).returncode == 7
    inside = "@graph.op\ndef leave(): raise SystemExit(6)\n"
    loop = "with MonitoredTrainingSession(graph) as session: session.run('leave')\n"
    assert hookbus("run", script(inside + loop)).returncode == 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("flags", "variables", "way"),
    [
        (["-p", "weak"], {}, "-p no:weak"),
        (["-p", "weak", "--weak-size", "3"], {}, "drop --weak-size 3"),
        ([], {"HOOKBUS_PLUGINS": "weak"}, "-p no:weak"),
        ([], {"HOOKBUS_ADDOPTS": "--weak-size 3"}, "-p no:weak"),
        (["-c", "weak.toml"], {}, "-p no:weak (or HOOKBUS_PLUGINS=no:weak)"),
    ],
)
def test_the_way_out_that_is_told_is_one(flags, variables, way, hookbus, install, script):
    """The way in the third line lets the script run."""
    install("weak", "raise OSError('gone')", "WeakHook")
    Path("weak.toml").write_text("plugins = ['weak']")
    done = hookbus("run", *flags, script(), **variables)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if "Run without it: " in line]
    told = line.partition("Run without it: ")[2].partition("    ")[0]
    assert told == way
    kept = [] if way.startswith("drop") else [*flags, "-p", "no:weak"]
    assert hookbus("run", *kept, script(), **variables).returncode == 0


@pytest.mark.parametrize("command", [["plugins", "--load", "--json"], ["hooks", "--json"]])
def test_what_plugins_print_is_no_part_of_an_answer(command, hookbus, install):
    """A program reads the answer; a person sees the rest on stderr."""
    install("noisy", "print('hello')")
    done = hookbus(*command)
    assert json.loads(done.stdout)
    assert "hello" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error():
    """As in ``hookbus plugins | head -1``."""
    command = f"{sys.executable} -m hookbus plugins | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_without_a_current_folder_there_is_no_config_file(hookbus, tmp_path):
    """A folder that was removed does not stop the commands."""
    command = f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; "
    command += f"{sys.executable} -m hookbus plugins"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plugin_for_other_sessions_is_neither_made_nor_forgotten(
    hookbus, install, script
):
    """It is imported, as only it knows; the first line tells why it takes no part."""
    code = """
    import hookbus
    class EvalHook(hookbus.SessionRunHook):
        options = hookbus.HookOptions(kinds=("eval",))
        def __init__(self, needed: int) -> None: raise OSError
    """
    install("judge", code, "EvalHook")
    done = hookbus("run", "-p", "judge", script())
    assert (done.returncode, done.stdout) == (0, "steps 5\n")
    assert "off='judge (serves eval)'" in done.stderr


def test_the_first_line_has_all_flags_of_a_plugin(hookbus, script):
    """Those of the place that decides, once each and in their order."""
    flags = ["--logging-tensor", "loss", "--logging-tensor-every-n-iter=3"]
    done = hookbus("run", "-p", "no:progress", *flags, script())
    assert "(--logging-tensor loss --logging-tensor-every-n-iter 3)" in done.stderr


def test_the_first_line_tells_of_settings_without_a_plugin_that_is_on(hookbus, script):
    """A section of a config file does not switch its plugin on."""
    Path("hookbus.toml").write_text("[stop-at-step]\nlast_step = 2\n")
    done = hookbus("run", script())
    told = "off='stop-at-step (not switched on, so its settings have no effect)'"
    assert done.stderr.count(told) == 1
    assert done.stdout == "steps 5\n"


def test_a_checkpoint_directory_may_begin_at_home(hookbus, script, tmp_path):
    """In a flag, as in the argument of the session."""
    home = tmp_path / "home"
    home.mkdir()
    by_flag = ["--checkpoint-dir=~/flag", script()]
    done = hookbus("run", *by_flag, HOME=str(home))
    assert done.returncode == 0, done.stderr
    given = script(
        "MonitoredTrainingSession(graph, checkpoint_dir='~/code').close()", "c.py"
    )
    hookbus("run", given, HOME=str(home))
    assert (home / "flag/ckpt-5").is_dir()
    assert (home / "code/ckpt-0").is_dir()
    assert not Path("~").exists()


def test_a_class_that_is_passed_on_by_another_module_is_its_plugins(
    hookbus, install, site, script
):
    """The entry point leads to it, wherever it was written."""
    site.joinpath("inner.py").write_text(
        "import hookbus\nclass Watch(hookbus.SessionRunHook): ...\n"
    )
    install("guard", "from inner import Watch\n", "Watch")
    path = script(
        "from fake_guard import Watch\n"
        "with MonitoredTrainingSession(graph, hooks=[Watch()]) as session:\n"
        "    session.run('train')\n"
    )
    assert "guard 1.0 (hooks=)" in hookbus("run", path).stderr
    assert "guard 1.0" not in hookbus("run", "-p", "no:guard", path).stderr


def test_a_module_with_hook_classes_only_is_told_how_to_name_one(hookbus, script):
    """``-p module`` is for functions, ``-p module:Class`` for classes."""
    Path("mine.py").write_text(
        "import hookbus\nclass LossHook(hookbus.SessionRunHook): ...\n"
    )
    done = hookbus("run", "-p", "mine", script())
    assert done.returncode == 4
    assert "for its hook class name mine:LossHook" in done.stderr
    assert hookbus("run", "-p", "mine:LossHook", script()).returncode == 0
