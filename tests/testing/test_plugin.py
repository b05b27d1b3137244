"""Tests what hookbus adds to pytest, and its messages about slips."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hookbus import UsageError
from hookbus.testing import Recorder
from hookbus.testing import fake_dist as write
from hookbus.testing._suite.candidate import candidates

SUITE = ("--pyargs", "hookbus.testing.conformance")
SPELLED = "hookbus_stop_at_step:StopAtStepHook"


def test_the_plugin_stays_light():
    """It is imported in every pytest run, and brings no array library and no plugin."""
    code = "import sys, hookbus.testing.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    modules = done.stdout.split()
    assert "hookbus.testing.plugin" in modules
    assert "hookbus.testing._suite.candidate" not in modules
    assert not {"numpy", "structlog"} & {*modules}


def test_each_test_has_a_recorder_of_its_own(recorder):
    """It is there as a fixture."""
    assert (type(recorder), recorder.calls) == (Recorder, [])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "needs a hook class to test: --hook MODULE:CLASS"),
        (("--hook", "no_such:Hook"), "No module named 'no_such'"),
        (("--hook", SPELLED), "give it settings with --hook-setting NAME=VALUE"),
    ],
)
def test_a_slip_ends_as_a_usage_error(options, message):
    """One line tells what to do, before anything runs."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SUITE, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("ERROR: ")
    assert message in line


@pytest.mark.parametrize(
    ("spelled", "settings", "message"),
    [
        ("os", [], "expected MODULE:CLASS of an installed module"),
        ("os:sep", [], "'/' is not a class"),
        (SPELLED, ["last_step"], "expected NAME=VALUE, like every=10"),
        (SPELLED, ["last_stop=3"], "has no such setting; did you mean 'last_step'?"),
        (SPELLED, ["last_step=low"], "--hook-setting last_step=low: 'low' is not a whole"),
    ],
)
def test_what_cannot_be_tested_is_told(spelled, settings, message):
    """A class that is not there, and settings that do not fit it."""
    with pytest.raises(UsageError) as caught:
        candidates([spelled], settings, [])
    assert message in str(caught.value)


@pytest.mark.parametrize("given", ["label", "label=", "label=[0,"])
def test_a_value_that_is_no_json_is_told(given):
    """The message has an example."""
    with pytest.raises(UsageError) as caught:
        candidates([SPELLED], ["last_step=3"], [], [given])
    assert str(caught.value) == (
        f"--hook-input {given}: expected NAME=JSON, like predictions=[0,1]"
    )


def test_a_backend_that_no_plugin_has_is_told():
    """A library that is not installed, and one that no plugin knows."""
    with pytest.raises(UsageError) as caught:
        candidates([SPELLED], ["last_step=3"], [], [], ["graph", "jaks"])
    assert str(caught.value) == (
        "--hook-backend jaks: no plugin here has a model of 'jaks' to test hooks with; "
        "expected graph, or the name of a library whose plugin has one, like torch with "
        "hookbus-torch installed"
    )


def test_each_class_is_tested_with_each_backend():
    """By default with the graph alone, and each backend once."""
    (one,) = candidates([SPELLED], ["last_step=3"], [], [], ["graph", "graph"])
    assert (one.backend, one.label) == ("graph", SPELLED)
    assert {loop for loop, _ in one.sessions} == {"graph", "custom_loop"}


def test_a_class_is_made_as_on_the_command_line():
    """Texts become values, whatever way a setting is spelled."""
    (candidate,) = candidates([SPELLED], ["last-step=300"], [])
    assert candidate.make().last_step == 300
    assert candidate.make() is not candidate.make()
    assert (candidate.name, candidate.switch) == ("stop-at-step", "stop-at-step")


def test_settings_go_to_the_classes_that_have_them():
    """Several classes can be tested at once."""
    other = "hookbus_step_counter:StepCounterHook"
    found = candidates([SPELLED, other], ["last_step=3", "every_n_steps=2"], ["lr"])
    assert [dict(c.settings) for c in found] == [{"last_step": "3"}, {"every_n_steps": "2"}]
    assert [c.variables for c in found] == [{"lr": 1.0}] * 2


def test_a_class_that_is_no_plugin_has_a_name_of_its_own(tmp_path, monkeypatch):
    """It is switched on by where it is."""
    source = "class LocalHook:\n    def begin(self): ..."
    write(tmp_path, "x", modules={"fake_local": source})
    monkeypatch.syspath_prepend(tmp_path)
    (candidate,) = candidates(["fake_local:LocalHook"], [], [])
    assert (candidate.name, candidate.switch) == ("local", "fake_local:LocalHook")


EARLY = """
import hookbus
from hookbus import SessionRunHook
from hookbus.testing import run_steps

class EarlyHook(SessionRunHook):
    pass

def test_it(recorder, fake_dist):
    run_steps(EarlyHook(), recorder, steps=1)
    fake_dist("some", {"hookbus": {"some": "some:X"}}, modules={"some": "X = 1"})
"""


@pytest.mark.long
def test_the_fixtures_work_in_a_project_of_their_own(tmp_path):
    """Where every warning is an error, and with nothing to set up."""
    path = tmp_path / "test_early.py"
    path.write_text(EARLY, "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_a_project_may_have_options_of_the_same_names(tmp_path):
    """They are declared only where the conformance suite is asked for."""
    tmp_path.joinpath("conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--hook', default='mine')\n"
    )
    tmp_path.joinpath("test_own.py").write_text(
        "def test_own(request):\n"
        "    assert request.config.getoption('--hook') == 'theirs'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--hook", "theirs", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
