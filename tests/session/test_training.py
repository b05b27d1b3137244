"""Tests which hooks a training session gets by its arguments, and how they are set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_stop_at_step import StopAtStepHook

import hookbus
from hookbus import Config, Graph, MonitoredTrainingSession, SessionRunHook
from hookbus.config.parser import Precedence as Place
from hookbus.config.parser import read_flags
from tests.support import commands

OFF = Config(autoload=False)
COUNTER, SUMMARY, SAVER = "step-counter", "summary-saver", "checkpoint-saver"
ALL = [COUNTER, SUMMARY, SAVER]


def graph_of() -> Graph:
    """Return a graph with one train op."""
    graph = Graph()
    graph.train_op(lambda: (), name="train")
    return graph


def hooks_of(config: Config = OFF, **arguments: Any) -> dict[str, Any]:
    """Open a session and return its hooks by name, in their order."""
    session = MonitoredTrainingSession(graph_of(), config=config, **arguments)
    session.close()
    return {name: member.plugin for name, member in session._state.bus.members.items()}


def flags(*pairs: str) -> Config:
    """Return a Config after flags, each like ``checkpoint-saver.save_steps=2``."""
    given = [word for pair in pairs for word in ("-o", pair)]
    said = read_flags(["--disable-plugin-autoload", *given], Place.COMMAND)
    return Config.gathered(said)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, []),
        ({"checkpoint_dir": "c"}, ALL),
        ({"checkpoint_dir": Path("c")}, ALL),
        ({"summary_dir": "s"}, [COUNTER, SUMMARY]),
        ({"checkpoint_dir": "c", "save_checkpoint_secs": None}, [COUNTER, SUMMARY]),
        ({"checkpoint_dir": "c", "save_checkpoint_secs": 0}, [COUNTER, SUMMARY]),
        ({"checkpoint_dir": "c", "save_checkpoint_secs": -1}, [COUNTER, SUMMARY]),
        ({"checkpoint_dir": "c", "save_checkpoint_steps": None}, [COUNTER, SUMMARY]),
        ({"checkpoint_dir": "c", "save_checkpoint_steps": 7}, ALL),
        ({"checkpoint_dir": "c", "save_summaries_steps": None}, [COUNTER, SAVER]),
        ({"checkpoint_dir": "c", "save_summaries_secs": None}, [COUNTER, SAVER]),
        ({"checkpoint_dir": "c", "save_summaries_steps": 0}, [COUNTER, SAVER]),
        ({"checkpoint_dir": "c", "save_summaries_secs": 5}, ALL),
        ({"checkpoint_dir": "c", "log_step_count_steps": None}, [SUMMARY, SAVER]),
        ({"checkpoint_dir": "c", "log_step_count_steps": 0}, [SUMMARY, SAVER]),
        ({"save_checkpoint_steps": 7, "save_summaries_steps": 7}, []),
        (
            {
                "checkpoint_dir": "c",
                "save_checkpoint_secs": None,
                "save_checkpoint_steps": 7,
            },
            ALL,
        ),
        (
            {"checkpoint_dir": "c", "save_checkpoint_secs": 0, "save_checkpoint_steps": 0},
            [COUNTER, SUMMARY],
        ),
    ],
)
def test_which_automatic_hooks_are_on(arguments, expected):
    """The directories and periods decide, as in TF."""
    assert list(hooks_of(**arguments)) == expected


def test_the_defaults_of_automatic_hooks():
    """100 steps for speed and summaries, 600 seconds for checkpoints."""
    counter, summary, saver = hooks_of(checkpoint_dir="c").values()
    assert (counter.every_n_steps, counter.every_n_secs) == (100, None)
    assert (summary.save_steps, summary.save_secs) == (100, None)
    assert (saver.save_secs, saver.save_steps) == (600, None)


def test_arguments_set_automatic_hooks():
    """One of a pair makes the other None."""
    counter, summary, saver = hooks_of(
        checkpoint_dir="c",
        save_checkpoint_steps=7,
        save_summaries_secs=5,
        log_step_count_steps=3,
        summary_dir="s",
    ).values()
    assert counter.every_n_steps == 3
    assert (summary.save_steps, summary.save_secs) == (None, 5)
    assert (saver.save_secs, saver.save_steps) == (None, 7)
    assert list(Path("s").glob("events*"))
    assert not list(Path("c").glob("events*"))


@pytest.mark.parametrize("secs", [0, 5])
@pytest.mark.parametrize("what", ["checkpoint", "summaries"])
def test_both_of_a_pair_are_an_error(what, secs):
    """Seconds and steps exclude each other, even if the seconds are 0."""
    both = {f"save_{what}_secs": secs, f"save_{what}_steps": 5}
    with pytest.raises(ValueError, match=r"Can not provide both|invalid save_"):
        hooks_of(checkpoint_dir="c", **both)


def test_the_order_of_all_hooks():
    """The chief's own, the automatic three, plugins by name, then the caller's."""

    class FirstHook(SessionRunHook): ...

    class AfterwardsHook(SessionRunHook): ...

    said = flags("stop-at-step.last_step=3", "logging-tensor.tensors=global_step")
    found = hooks_of(
        said.with_plugins("progress"),
        checkpoint_dir="c",
        hooks=[AfterwardsHook()],
        chief_only_hooks=[FirstHook()],
    )
    rest = ["progress", "logging-tensor", "stop-at-step", "afterwards"]
    assert list(found) == ["first", *ALL, *rest]


def test_flags_are_stronger_than_arguments():
    """A flag replaces a default and an argument, and clears its rival."""
    said = flags(
        "checkpoint-saver.save_steps=2",
        "summary-saver.save_secs=9",
        "step-counter.every_n_steps=4",
    )
    counter, summary, saver = hooks_of(
        said, checkpoint_dir="c", save_checkpoint_secs=30, save_summaries_steps=8
    ).values()
    assert counter.every_n_steps == 4
    assert (summary.save_steps, summary.save_secs) == (None, 9.0)
    assert (saver.save_secs, saver.save_steps) == (None, 2)


def test_a_flag_switches_on_what_the_arguments_left_out():
    """Saving by flag needs no more than the session's directory."""
    said = flags("checkpoint-saver.save_steps=2")
    found = hooks_of(said, checkpoint_dir="c", save_checkpoint_secs=None)
    assert found[SAVER].save_steps == 2


@pytest.mark.parametrize("name", ALL)
def test_a_word_switches_an_automatic_hook_off(name):
    """``no:NAME`` beats the arguments of the session."""
    said = OFF.with_plugins(f"no:{name}")
    expected = [other for other in ALL if other != name]
    assert list(hooks_of(said, checkpoint_dir="c")) == expected


def test_without_the_saver_nothing_is_saved():
    """Blocked, saving is off, though another hook asks for it; outcome.json stays."""

    class Asks(SessionRunHook):
        def after_run(self, run_context):
            run_context.request_save()

    said = OFF.with_plugins(f"no:{SAVER}")
    with MonitoredTrainingSession(
        graph_of(), checkpoint_dir="c", hooks=[Asks()], config=said
    ) as session:
        session.run("train")
    assert list(Path("c").glob("ckpt*")) == []
    assert Path("c/outcome.json").exists()


def test_without_the_saver_checkpoints_are_still_read():
    """``no:checkpoint-saver`` stops saving, never restoring."""
    with MonitoredTrainingSession(graph_of(), checkpoint_dir="c", config=OFF) as session:
        session.run("train")
    said = OFF.with_plugins(f"no:{SAVER}")
    with MonitoredTrainingSession(graph_of(), checkpoint_dir="c", config=said) as session:
        assert session.global_step == 1


def test_a_word_blocks_hooks_in_code_and_automatic_ones_alike():
    """All instances of a plugin are off."""
    said = OFF.with_plugins("no:stop-at-step", f"no:{SAVER}")
    hooks = [StopAtStepHook(last_step=1), CheckpointSaverHook(save_steps=1)]
    assert list(hooks_of(said, checkpoint_dir="c", hooks=hooks)) == [COUNTER, SUMMARY]


def test_hooks_on_both_ends_of_the_list():
    """The chief's hooks are called before the caller's, in every event."""
    calls: list[str] = []

    class Calls(SessionRunHook):
        def __init__(self, name: str) -> None:
            self.name = name

        def after_run(self):
            calls.append(self.name)

    with MonitoredTrainingSession(
        graph_of(),
        hooks=[Calls("b"), Calls("c")],
        chief_only_hooks=[Calls("a")],
        config=OFF,
    ) as session:
        session.run("train")
    assert calls == ["a", "b", "c"]


MISSING = """
import sys, sysconfig
import structlog, hookbus
from hookbus import MonitoredTrainingSession  # before its libraries cannot be found

# Leave only the core's own metadata to be found, and Python's own modules.
library = sysconfig.get_path("stdlib")
sys.path[:] = [*sys.argv[1:], library, library + "/lib-dynload"]
{call}
"""


def run_without_plugins(folder: Path, call: str) -> subprocess.CompletedProcess[str]:
    """Run a session in a process that finds no plugin installed."""
    info = folder / "hookbus-0.1.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: hookbus\nVersion: 0.1.0\n"
    )
    return commands.run([sys.executable, "-c", MISSING.format(call=call), folder])


def test_a_saver_that_is_not_installed_is_an_error(tmp_path):
    """``checkpoint_dir=`` without the plugin names what to install."""
    done = run_without_plugins(
        tmp_path, "hookbus.MonitoredTrainingSession(checkpoint_dir='c')"
    )
    message = done.stderr.splitlines()[-1]
    assert "UsageError: checkpoint_dir='c'" in message
    assert "pip install hookbus-checkpoint-saver" in message
    assert not Path("c").exists()


def test_summaries_are_left_out_where_their_plugin_is_not_installed(tmp_path):
    """The other two automatic hooks are a convenience, not a promise."""
    call = "hookbus.MonitoredTrainingSession(summary_dir='s').close(); print('fine')"
    done = run_without_plugins(tmp_path, call)
    assert (done.stdout, done.returncode) == ("fine\n", 0)


def test_a_missing_saver_that_is_switched_off_is_no_error(tmp_path):
    """A session with no:checkpoint-saver needs none."""
    call = (
        "import os; os.environ['HOOKBUS_PLUGINS'] = 'no:checkpoint-saver'; "
        "hookbus.MonitoredTrainingSession(checkpoint_dir='c').close(); print('fine')"
    )
    assert run_without_plugins(tmp_path, call).stdout == "fine\n"


def test_without_directories_and_hooks_there_is_just_the_loop():
    """A session that nobody hooks into runs anyway."""
    with MonitoredTrainingSession(graph_of(), config=OFF) as session:
        for _ in session.loop():
            break
    assert isinstance(session, hookbus.MonitoredSession)
    assert session.global_step == 1
