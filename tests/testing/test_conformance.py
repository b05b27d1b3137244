"""The conformance suite finds each fault, tells what to do, and accuses nobody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.profiles import cases

FAULTS = {
    "MisspeltHook": ("test_it_can_be_registered", "did you mean 'after_run'"),
    "ByValueHook": ("test_it_can_be_registered", "@attrs.define(eq=False)"),
    "ShoutedHook": ("test_its_entry_point_names_it", "declare shouted-hook = faulty:"),
    "NowhereHook": ("test_its_entry_point_names_it", "did you mean NowhereHook?"),
    "RaisingHook": ("test_it_survives", "end() raised RuntimeError: the end is bad"),
    "OnceHook": ("test_it_survives", "after_create_session() is called again"),
    "GraphOnlyHook": ("test_it_survives", "-k 'not custom_loop'"),
    "PairingHook": ("test_it_survives_a_cancelled_step", "and no after_run()"),
    "ThreadHook": ("test_it_cleans_up", "leaves the thread 'watcher'"),
    "FileHook": ("test_it_cleans_up", "values.txt: release that in on_ex"),
    "SignalHook": ("test_it_cleans_up", "leaves a handler of SIGUSR1"),
    "HastyHook": ("test_on_exception_raises_nothing", "raised AttributeError: 'HastyHook'"),
    "DrainingHook": ("test_reading_its_state_changes_nothing", "It may only read"),
    "SetHook": ("test_its_state_can_be_saved", "state['runs'] is a set"),
    "OneWayHook": ("test_its_state_can_be_saved", "no load_state_dict(state)"),
    "ForgetfulHook": ("test_it_goes_on_where_it_stopped", "state['runs'] is 6 and 3"),
    "RestartingHook": ("test_it_goes_on_where_it_stopped", "after_create_session()"),
    "FeedingHook": ("test_it_only_observes", "before_run() returns feeds"),
    "AssigningHook": ("test_it_only_observes", "variables['lr'] is 1.0 and 0.5"),
    "PullingHook": ("test_it_only_observes", "read an input outside the run"),
    "DrawingHook": ("test_it_only_observes", "random.Random()"),
    "ChancyHook": ("test_switching_it_on_draws_no_number", "making it does"),
    "EarlyHook": ("test_it_is_not_imported_when_it_is_off", "a module that nothing else"),
    "BatchHook": ("test_it_survives", "after_run() raised ValueError: no batch like 1.0"),
    "LabelHook": ("test_it_survives", ", predict) after_run() raised ValueError: no label"),
    "UntypedHook": ("test_its_settings_can_be_given", "annotate the field of the class"),
}
"""Each faulty hook, the one test that must fail, and what its message must say."""

OWN = [f"({test} and {hook})" for hook, (test, _) in FAULTS.items()]
ORDINARY = cases(["-k", " or ".join(["FineHook", "PredictHook", *OWN])], [])
"""Each faulty hook is put to the test of its rule only; in the full run to all tests."""

ELSEWHERE = {"NowhereHook": "faulty_nowhere", "EarlyHook": "faulty_early"}
ALONE = "from hookbus import SessionRunHook\nclass {}(SessionRunHook): ...\n"


@pytest.fixture
def installed(fake_dist: Callable[..., Path]) -> list[str]:
    """Install the hooks; return what names them all on the command line."""
    names = ["FineHook", "PredictHook", *FAULTS]
    spelled = {name: f"{ELSEWHERE.get(name, 'faulty')}:{name}" for name in names}
    entries = {name.removesuffix("Hook").lower(): value for name, value in spelled.items()}
    entries["Shouted_Hook"] = entries.pop("shouted")
    entries["nowhere"] += "k"
    entries["malformed"] = "my-module:Hook"
    modules = {module: ALONE.format(name) for name, module in ELSEWHERE.items()}
    modules["faulty"] = Path(__file__).with_name("faulty.py").read_text("utf-8")
    modules["hasty_helper"] = "import faulty_early"
    entries["helper"] = "hasty_helper"
    fake_dist("faulty", {"hookbus": entries}, modules=modules)
    return [f"--hook={value}" for value in spelled.values()]


@pytest.mark.long
def test_every_faulty_hook_is_found_out(conformance, installed):
    """Each fails the test of the rule that it breaks and no other, and is told why."""
    model = "--hook-node", "lr", "--hook-input", "label=[0, 1]"
    results = conformance(*installed, *model, *ORDINARY)
    failed = {hook: list(found["failed"]) for hook, found in results.items()}
    told = {hook: "".join(results[hook]["failed"].values()) for hook in FAULTS}
    fine = {"FineHook": [], "PredictHook": []}
    assert failed == fine | {hook: [test] for hook, (test, _) in FAULTS.items()}
    assert [hook for hook, (_, words) in FAULTS.items() if words not in told[hook]] == []
    assert results["FineHook"]["skipped"] == {}
    assert results["PredictHook"]["skipped"].keys() == {"test_it_goes_on_where_it_stopped"}
