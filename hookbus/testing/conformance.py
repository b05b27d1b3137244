"""Tests that a hook does what every session expects of it.

``pytest --pyargs hookbus.testing.conformance --hook my_package:MyHook``
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest

from hookbus.checkpoint.codec import codecs
from hookbus.discovery import GROUP, Installed, installed_plugins
from hookbus.errors import PluginError, UsageError
from hookbus.hooks.hook_options import options_of
from hookbus.testing import bus_with
from hookbus.testing._suite.candidate import Candidate
from hookbus.testing._suite.compare import differences, unsavable
from hookbus.testing._suite.endings import StateReader, Witness, describe
from hookbus.testing._suite.leftovers import Held, on_its_own  # noqa: F401 (a fixture)
from hookbus.testing._suite.settings import PLACES, hook_from, options, spelled_settings
from hookbus.testing.plugin import CANDIDATES

HINTS = {
    "preempted": "After a preemption after_create_session() is called again, for a new "
    "backend session that may start at an earlier step. ",
}
SAVER = "checkpoint-saver"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test for each hook class under test, and each kind of session of it."""
    found = metafunc.config.stash[CANDIDATES]
    if "loop" in metafunc.fixturenames:
        cases = [(each, *session) for each in found for session in each.sessions]
        ids = ["-".join([each.label, *session]) for each, *session in cases]
        metafunc.parametrize(("candidate", "loop", "ending"), cases, ids=ids)
    elif "candidate" in metafunc.fixturenames:
        metafunc.parametrize("candidate", found, ids=[each.label for each in found])


def fail(message: str) -> NoReturn:
    """Fail with advice for the author, without a traceback of the suite."""
    pytest.fail(message, pytrace=False)


@pytest.fixture
def registered(candidate: Candidate) -> Candidate:
    """Return the hook class, if a hook of it can be registered."""
    try:
        bus_with(candidate.make())
    except PluginError:
        pytest.skip("it cannot take part in a session: see test_it_can_be_registered")
    return candidate


@pytest.fixture
def stateful(registered: Candidate) -> Candidate:
    """Return the hook class, if it has a state."""
    if not hasattr(registered.make(), "state_dict"):
        pytest.skip("it has no state_dict(), so it has no state")
    return registered


@pytest.fixture
def saved(stateful: Candidate) -> Candidate:
    """Return the hook class, if its state can be saved and a plugin here saves."""
    if stateful.kind != "train":
        pytest.skip(f"no session of the kind {stateful.kind} saves a checkpoint")
    if SAVER not in installed_plugins().plugins or not codecs():
        pytest.skip(f"no plugin here writes checkpoints: pip install hookbus-{SAVER}")
    hook = stateful.make()
    stateful.run(hook)
    if list(unsavable(hook.state_dict())) or not hasattr(hook, "load_state_dict"):
        pytest.skip("its state cannot be saved: see test_its_state_can_be_saved")
    return stateful


def test_it_can_be_registered(candidate: Candidate) -> None:
    """Its methods are events and take their arguments; it compares by identity."""
    try:
        bus_with(candidate.make())
    except (PluginError, UsageError) as error:
        fail(f"{error}")


def test_its_entry_point_names_it(candidate: Candidate) -> None:
    """An entry point leads to the class, under the plugin's name."""
    plugin, cls = candidate.plugin, candidate.cls
    if plugin is None:
        for other in installed_plugins().plugins.values():
            if other.is_class and other.module == cls.__module__:
                _check_leads_somewhere(other, cls)
        pytest.skip(
            f"no entry point in the group {GROUP!r} leads to it, so it can only be used in "
            f"code; to make it a plugin, declare {candidate.name} = {candidate.spelled}"
        )
    if plugin.entry.name != plugin.name:
        fail(
            f"its entry point is called {plugin.entry.name!r}, and the plugin's name is "
            f"{plugin.name!r}: declare {plugin.name} = {plugin.entry.value}"
        )


def _check_leads_somewhere(plugin: Installed, cls: type) -> None:
    try:
        plugin.entry.load()
    except AttributeError:
        fail(
            f"the entry point {plugin.entry.name} = {plugin.entry.value} leads nowhere; "
            f"did you mean {cls.__qualname__}? Install it again after a change"
        )


def test_it_survives(registered: Candidate, loop: str, ending: str) -> None:
    """No event raises, however the session ends, on a graph and in a custom loop.

    The sessions are of each kind that the hook declares. If it also sees evaluations, the
    sessions that train evaluate.
    """
    in_loop = loop == "custom_loop"
    for kind in registered.kinds:
        steps = registered.end(registered.make(), ending, custom_loop=in_loop, kind=kind)
        raised = registered.faults(steps)
        if raised:
            fail(
                f"in a session ({loop}, {ending}{'' if kind == 'train' else f', {kind}'}) "
                f"{raised[0]}. {HINTS.get(ending, '')}The suite's model has the nodes loss "
                "and accuracy; --hook-node NAME and --hook-input NAME=JSON add more, "
                "and --hook-backend those of a model. If "
                f"the hook is not made for such sessions: -k 'not {loop}'"
            )


def test_it_survives_a_cancelled_step(registered: Candidate) -> None:
    """A before_run without after_run does no harm: the step may be cancelled, or fail."""
    usual = registered.faults(registered.run(registered.make(), custom_loop=True))
    steps = registered.run(registered.make(), custom_loop=True, cancelled=[1, 3])
    raised = [fault for fault in registered.faults(steps) if fault not in usual]
    if raised:
        fail(
            f"in a custom loop with cancelled steps {raised[0]}. A cancelled step has "
            "before_run() and cancelled(), and no after_run(); the next event of a step is "
            "before_run() again"
        )


@pytest.mark.parametrize("ending", ["failed", "failed_early"])
def test_on_exception_raises_nothing(registered: Candidate, ending: str) -> None:
    """It accepts any error, even one from before the session was created."""
    steps = registered.end(registered.make(), ending)
    for call in steps.calls_of("on_exception", registered.name):
        if call.error is not None:
            fail(
                f"on_exception() raised {describe(call.error)}. Another hook's begin() may "
                "have failed before any other event: check first what exists"
            )


@pytest.mark.parametrize("ending", ["completed", "failed", "failed_early"])
def test_it_cleans_up(registered: Candidate, ending: str) -> None:
    """No thread, open file or signal handler is left after the session."""
    handlers = Held.now().handlers
    # After a first session, files that a process opens once are open already.
    registered.end(registered.make(), ending)
    gc.collect()
    before = attrs.evolve(Held.now(), handlers=handlers)
    hook = registered.make()  # kept, so that only what it closes itself is closed
    registered.end(hook, ending)
    where = "end()" if ending == "completed" else "on_exception()"
    left = " and ".join(before.left())
    if left:
        fail(f"in a session that {ending} it leaves {left}: release that in {where}")


def test_reading_its_state_changes_nothing(stateful: Candidate) -> None:
    """Two calls of state_dict() return equal states: saving must not change training."""
    hook = stateful.make()
    reader = StateReader(hook)
    stateful.run(hook, reader)
    for number, pair in enumerate(reader.pairs, start=1):
        for place, how in differences(*pair):
            fail(
                f"after step {number}, two calls of state_dict() differ: {place} was "
                f"{how}. It may only read, and must not return an object that the hook "
                "changes later"
            )


def test_its_state_can_be_saved(stateful: Candidate) -> None:
    """Checkpoints can hold its state, and it can load it."""
    hook = stateful.make()
    if not hasattr(hook, "load_state_dict"):
        fail("it has state_dict() and no load_state_dict(state): its state is lost")
    reader = StateReader(hook)
    stateful.run(hook, reader)
    faults = {fault for first, _ in reader.pairs for fault in unsavable(first)}
    if faults:
        fail(
            f"{'; '.join(sorted(faults))}; a state consists of dicts with str keys, lists, "
            "tuples, numbers, strings, None and arrays"
        )


def test_it_goes_on_where_it_stopped(saved: Candidate) -> None:
    """Cut short and resumed from a real checkpoint, it ends as in an uncut session."""
    whole, again, resumed = saved.make(), saved.make(), saved.make()
    kept = {"save_checkpoint_steps": 1}
    last = saved.run(whole, directory="whole", **kept)
    saved.run(again, directory="again", **kept)
    middle = last.global_step // 2
    if not middle:
        pytest.skip("it stops in the first step; give it settings with --hook-setting")
    saved.run(saved.make(), directory="cut", errors={middle + 1: OSError()}, **kept)
    rest = last.global_step - middle
    steps = saved.run(resumed, directory="cut", steps=rest, after=middle, **kept)
    # Values that differ between two uncut sessions, usually times, may also differ here.
    own = dict(differences(whole.state_dict(), again.state_dict()))
    found = dict(differences(whole.state_dict(), resumed.state_dict()))
    faults = [f"{place} is {how}" for place, how in found.items() if place not in own]
    # Each session counts its own requests, so a resumed one has fewer.
    ends = [attrs.evolve(s.outcome, skipped=0, rolled_back=0) for s in (last, steps)]
    if ends[0] != ends[1]:
        faults.append(f"the outcome is {last.outcome} and {steps.outcome}")
    if faults:
        fail(
            f"after {last.global_step} steps without a break, and after {middle} and "
            f"{rest} resumed: {'; '.join(faults)}. Return all progress from state_dict() "
            "and restore it in load_state_dict(), which is called after begin() and before "
            "after_create_session(). Test a hook that acts only every few steps with a "
            "period of one: --hook-setting NAME=1"
        )


def test_it_only_observes(registered: Candidate) -> None:
    """A hook with only_observes leaves variables, inputs and random generators alone."""
    hook, alone, beside = registered.make(), Witness(), Witness()
    if not options_of(hook).only_observes:
        pytest.skip("it does not declare HookOptions(only_observes=True)")
    _seed()
    registered.run(alone)
    _seed()
    steps = registered.run(hook, beside)
    for call in steps.calls_of("before_run", registered.name):
        if getattr(call.result, "feed_dict", None):
            fail("it declares only_observes, and before_run() returns feeds")
    for key, seen in beside.seen.items():
        for what, value in seen.items():
            for place, how in differences(alone.seen[key][what], value, what):
                fail(
                    f"it declares only_observes, and in {key[1]}() of step {key[0] + 1} "
                    f"{place} is {how}, without it and with it: it may not assign, read an "
                    "input outside the run, or draw from the global generators (use "
                    "random.Random() instead)"
                )


def test_it_is_not_imported_when_it_is_off(candidate: Candidate) -> None:
    """-p no:NAME keeps its module out of the process."""
    if candidate.plugin is None:
        pytest.skip(f"no entry point in the group {GROUP!r} leads to it")
    flag = f"-p no:{candidate.name}"
    if candidate.cls.__module__ in process(candidate, flag)["modules"]:
        fail(
            f"a session with {flag} imports {candidate.cls.__module__}, through another "
            "plugin that is on when found or through the package around it; move the class "
            "into a module that nothing else imports"
        )


def test_switching_it_on_draws_no_number(candidate: Candidate) -> None:
    """A hook with only_observes leaves the generators alone even when it is imported."""
    if not options_of(candidate.make()).only_observes:
        pytest.skip("it does not declare HookOptions(only_observes=True)")
    off = "--disable-plugin-autoload"
    on = f"{off} {options(candidate, candidate.settings)}"
    if process(candidate, on)["number"] != process(candidate, off)["number"]:
        fail(
            "it declares only_observes, and Python's global generator gives other numbers "
            "when it is on: its imports draw from it, or making it does; restore the "
            "generator with random.getstate() and random.setstate()"
        )


@pytest.mark.parametrize("place", PLACES)
def test_its_settings_can_be_given(candidate: Candidate, place: str) -> None:
    """A setting given as text arrives as the value that the text spells."""
    made = candidate.make()
    texts = spelled_settings(candidate, made)
    if not texts:
        pytest.skip("it has no setting with a value that can be given as text")
    arrived = hook_from(place, candidate, texts)
    for field, text in texts.items():
        wanted, got = getattr(made, field), getattr(arrived, field)
        # A list of one word may arrive as the word.
        if (wanted,) != got and list(differences(wanted, got)):
            fail(
                f"{field}={text}, given by {place}, arrives as {got!r} instead of "
                f"{wanted!r}: annotate the field of the class, like {field}: "
                f"{type(wanted).__name__}"
            )


SCRIPT = """
import json, random, sys
from hookbus import Config
from hookbus.testing import run_steps

random.seed(1)
run_steps(
    steps=0, variables=json.loads(sys.argv[1]), kind=sys.argv[2], config=Config.current()
)
print(json.dumps({"modules": sorted(sys.modules), "number": random.random()}))
"""


def process(candidate: Candidate, flags: str) -> dict[str, Any]:
    """Train in a new process; return its modules, and its next random number."""
    Path("train.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "train.py", json.dumps(candidate.variables)]
    command.append(candidate.kind)
    paths = os.pathsep.join(filter(None, sys.path))  # the hook may not be installed
    environ = {**os.environ, "HOOKBUS_ADDOPTS": flags, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"a script with HOOKBUS_ADDOPTS={flags!r} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _seed() -> None:
    """Seed the global generators."""
    random.seed(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1)
