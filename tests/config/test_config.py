"""Tests what the environment says about plugins, and which Config a session takes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookbus
from hookbus import Config, Graph, MonitoredSession, SessionRunHook, UsageError
from hookbus.config.config import set_process_config
from hookbus.config.parser import Precedence as Place
from hookbus.config.parser import read_flags
from hookbus.plugin.selection import select
from tests.support import commands

AUTOLOAD = "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"
KNOWN = ("", "1", "true", "yes", "on", "0", "false", "no", "off")


@pytest.fixture
def process_config() -> Iterator[Any]:
    """Return the function that sets the process's Config; forget it afterwards."""
    yield set_process_config
    set_process_config(None)


def test_an_environment_that_says_nothing_gives_an_empty_config():
    """Without variables nothing is switched on or off, and plugins are autoloaded."""
    config = Config.from_environment({"HOME": "/"})
    assert (config.words, config.settings, config.autoload) == ((), (), True)


def test_plugins_are_listed_with_commas():
    """Each word keeps its order, and where it was said; empty ones are skipped."""
    config = Config.from_environment({"HOOKBUS_PLUGINS": " nan-tensor,,no:progress, "})
    assert [(word.plugin, word.on) for word in config.words] == [
        ("nan-tensor", True),
        ("progress", False),
    ]
    assert config.words[1].source == "HOOKBUS_PLUGINS=no:progress"
    assert {word.place for word in config.words} == {Place.ENVIRONMENT}


def test_a_word_without_a_name_is_an_error():
    """``no:`` alone switches nothing off."""
    with pytest.raises(UsageError, match=r"HOOKBUS_PLUGINS=no:.*empty"):
        Config.from_environment({"HOOKBUS_PLUGINS": "no:"})


@pytest.mark.parametrize(
    ("text", "autoload"),
    [("1", False), ("true", False), ("Yes", False), ("0", True), ("no", True), ("", True)],
)
def test_disable_autoload_is_a_real_boolean(text, autoload):
    """``0`` does not disable; what does is kept as the reason."""
    config = Config.from_environment({AUTOLOAD: text})
    assert config.autoload is autoload
    assert autoload or config.autoload_source == f"{AUTOLOAD}={text}"


@given(st.text().filter(lambda text: text.strip().lower() not in KNOWN))
def test_any_other_text_is_an_error_that_names_the_variable(text):
    """A text that is neither true nor false is not guessed at."""
    with pytest.raises(UsageError, match=AUTOLOAD):
        Config.from_environment({AUTOLOAD: text})


def test_words_and_settings_are_added_to_a_copy():
    """A Config is not changed; a copy has what code says, weaker than the environment."""
    config = Config.from_environment({"HOOKBUS_PLUGINS": "a"})
    grown = config.with_plugins("no:b").with_options("stop-at-step", last_step=3)
    assert [(word.plugin, word.on, word.place) for word in grown.words] == [
        ("a", True, Place.ENVIRONMENT),
        ("b", False, Place.CODE),
        ("stop-at-step", True, Place.CODE),
    ]
    (setting,) = grown.settings_of("stop-at-step")
    assert (setting.field, setting.value) == ("last_step", 3)
    assert (len(config.words), config.settings) == (1, ())


def test_copies_share_the_records_of_sessions():
    """How sessions went can be read from the Config that copies were made of."""
    config = Config(autoload=False)
    graph = Graph()
    graph.train_op(lambda: (), name="train")
    with MonitoredSession(graph, config=config.with_plugins()) as session:
        session.run("train")
    (record,) = config.records
    assert (record.first_step, record.outcome) == (0, session.outcome)


def test_the_process_config_beats_the_environment(process_config, monkeypatch):
    """A Config that was set is taken as it is; without one the environment counts."""
    monkeypatch.setenv("HOOKBUS_PLUGINS", "no:progress")
    own = Config(autoload=False)
    process_config(own)
    assert Config.current() is own
    process_config(None)
    assert [word.plugin for word in Config.current().words] == ["progress"]


def test_sessions_in_any_thread_take_the_process_config(process_config):
    """Each session's outcome lands in the one Config of the process."""
    config = Config(autoload=False)
    process_config(config)

    def train() -> None:
        with MonitoredSession(Graph()):
            pass

    train()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert len(config.records) == 2


def test_a_session_inside_an_event_of_another_takes_no_process_config(process_config):
    """A session that a hook opens gets the process's plugins only if it is given them."""
    config = Config(autoload=False)
    process_config(config)

    class Evaluates(SessionRunHook):
        def after_create_session(self):
            with MonitoredSession(Graph()):
                pass
            with MonitoredSession(Graph(), config=other):
                pass

    other = Config(autoload=False)
    with MonitoredSession(Graph(), hooks=[Evaluates()]):
        pass
    assert (len(other.records), len(config.records)) == (1, 1)


def test_an_argument_beats_the_process_config(process_config):
    """``config=`` of a session is the one it takes."""
    process_config(Config(autoload=False))
    own = Config(autoload=False)
    with MonitoredSession(Graph(), config=own):
        pass
    assert len(own.records) == 1


SCRIPT = """
import sys
from hookbus import Graph, MonitoredSession
graph = Graph()
graph.train_op(lambda: (), name="train")
try:
    with MonitoredSession(graph) as session:
        session.run("train")
except ValueError as error:
    print(error)
print("hookbus_progress" in sys.modules)
"""


def python(**environment: str) -> str:
    """Run SCRIPT under plain Python and return what it prints."""
    command = [sys.executable, "-c", SCRIPT]
    done = commands.run(command, env=os.environ | environment, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("environment", "printed"),
    [
        ({}, "True"),
        ({"HOOKBUS_PLUGINS": "no:progress"}, "False"),
        ({AUTOLOAD: "1"}, "False"),
        ({AUTOLOAD: "0"}, "True"),
        ({AUTOLOAD: "1", "HOOKBUS_PLUGINS": "progress"}, "True"),
    ],
)
def test_the_environment_counts_under_plain_python(environment, printed):
    """A script needs no ``hookbus run`` to have plugins, or to have them off."""
    assert python(**environment) == printed


def test_a_plugin_that_is_not_installed_is_an_error_under_plain_python():
    """Switched on in the environment and missing: a ValueError with a suggestion."""
    printed = python(HOOKBUS_PLUGINS="nan-tenser")
    assert "HOOKBUS_PLUGINS=nan-tenser" in printed
    assert "did you mean 'nan-tensor'?" in printed


def test_a_session_checks_the_environment(monkeypatch):
    """A variable that makes no sense is told when the session is made."""
    monkeypatch.setenv(AUTOLOAD, "maybe")
    with pytest.raises(hookbus.UsageError, match="maybe"):
        MonitoredSession(Graph())


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 400, "\N{SUPERSCRIPT TWO}"])
def test_a_level_that_is_no_level_is_an_error_that_fits_the_screen(text):
    """The message names the levels, and shows the ends of a long text."""
    with pytest.raises(UsageError, match="expected one of debug, info, warning") as caught:
        Config.gathered(read_flags(["--log-level", text], Place.COMMAND), {}, None)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        (["-p", "9" * 5000], {}),
        (["--stop-at-step" + "9" * 5000, "3"], {}),
        (["-o", f"{'9' * 5000}=3"], {}),
        (["-o", f"{'9' * 5000}.x=3"], {}),
        (["-o", "9" * 5000], {}),
        ([], {"HOOKBUS_PLUGINS": "9" * 5000}),
        ([], {"HOOKBUS_ADDOPTS": "9" * 5000}),
        ([], {"HOOKBUS_ADDOPTS": "'" * 5001}),
        ([], {"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "9" * 5000}),
    ],
)
def test_a_mistake_of_thousands_of_characters_fits_the_screen(flags, environ):
    """A message shows both ends of the text that it is about."""
    with pytest.raises(UsageError) as caught:
        select(Config.gathered(read_flags(flags, Place.COMMAND), environ))
    assert len(str(caught.value)) < 1500
