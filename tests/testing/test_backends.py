"""The suite for backends finds each fault, and good backends pass it."""

from __future__ import annotations

import contextlib
import re

import pytest

from hookbus import UsageError
from hookbus.testing._backend.candidate import Backend
from hookbus.testing._backend.rules import RULES, TESTS
from hookbus.testing.scenarios import built_in
from tests.support.commands import ROOT
from tests.support.profiles import FULL, cases
from tests.support.suites import results_of, run_suite

MUTANTS = {
    "HalfGraph": ("an_op_that_raises_changes_nothing", "after the last op"),
    "TwiceGraph": ("an_op_runs_once_in_a_run", "['called', 'called']"),
    "SharingGraph": ("a_written_value_is_not_shared", "that was written changed"),
    "TakingOverGraph": ("a_fed_value_is_not_shared", "that was fed changed"),
    "LendingGraph": ("a_fetched_value_is_not_shared", "fetched by a hook changed"),
    "ShiftedGraph": ("a_position_leads_back", "pulled() after seek(): 3 instead of 2"),
    "OnwardGraph": ("an_input_goes_back_to_a_position", "3 instead of 1"),
    "LateGraph": ("reads_see_the_values_from_before_the_run", "variables had before it"),
    "OneByOneGraph": ("updates_are_committed_together", "Commit all updates after"),
    "CountingGraph": ("the_global_step_counts_train_ops", "1 instead of 2"),
    "DeafGraph": ("a_feed_replaces_a_variable", "Use the feed"),
    "GreedyGraph": ("a_feed_replaces_an_input", "Do not pull a fed input"),
    "CallingGraph": ("a_feed_replaces_an_op", "['called']"),
    "AnonymousGraph": ("an_unfed_placeholder_names_who_asks", "no 'curious'"),
    "OverwritingGraph": (
        "a_hook_and_an_op_that_write_one_variable_conflict",
        "raise WriteConflictError",
    ),
    "RemoteGraph": ("hooks_get_values_on_the_host", "a hook gets a Boxed"),
    "MovingGraph": ("values_of_the_caller_stay_where_they_are", "Move no value"),
    "UncopiedGraph": ("initial_values_are_copied", "Copy initial values"),
    "StillGraph": ("version_changes_with_variables_and_only_then", "a train op changes"),
    "RestlessGraph": ("version_changes_with_variables_and_only_then", "reading changes"),
    "PermissiveGraph": ("a_value_that_does_not_fit_is_refused", "raise GraphError"),
    "PartialGraph": ("a_value_that_does_not_fit_is_refused", "all or none"),
    "UnreadGraph": ("a_written_value_is_read", "after write()"),
    "FlatGraph": ("describe_agrees_with_the_variables", "the shapes"),
    "SiameseGraph": ("a_fork_is_independent", "whose forks have trained"),
    "StaleGraph": ("a_snapshot_has_the_variables", "a snapshot that was written"),
    "TakingGraph": ("an_ended_input_takes_nothing_from_the_others", "Put back"),
    "AbruptGraph": ("the_end_of_an_input_ends_the_session", "SessionClosedError"),
    "HopefulGraph": ("what_is_left_is_right_or_unknown", "remaining(): 3 instead of 2"),
    "ForgetfulGraph": ("an_output_has_the_value_of_the_last_run", "NoValueYetError"),
    "InventiveGraph": ("an_output_without_a_value_is_an_error", "raise NoValueYetError"),
    "OpenGraph": ("a_closed_session_refuses_runs", "raise SessionClosedError"),
    "SecretiveGraph": ("a_traced_run_has_metadata", "records nothing"),
    "MortalGraph": ("a_preempted_session_recovers", "UnavailableError"),
    "RoundingGraph": ("killed_and_resumed_it_ends_like_an_uninterrupted_one", "bit for"),
    "OtherwiseGraph": ("it_has_every_member_of_a_session", "the parameters of seek()"),
}
"""Each faulty backend, the rule that it breaks, and what the message says."""

GOOD = {"Graph": "hookbus:Graph", "NaiveGraph": "tests.support.naive_backend:NaiveGraph"}
EXCUSED = "tests.testing.mutants:ExcusedModel"
OWN = [f"({mutant} and {rule})" for mutant, (rule, _) in MUTANTS.items()]
OTHERS = [*GOOD.values(), f"({EXCUSED} and (leads_back or snapshot))"]
SOME = cases(" or ".join([*OWN, *OTHERS]), " or ".join(["not built_in", *OTHERS]))
"""Each mutant is put to the test of its rule only; in the full run to most tests."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the findings of the suite in all of them."""
    mutants = [f"tests.testing.mutants:{name}" for name in MUTANTS]
    options = [f"--backend={name}" for name in [*GOOD.values(), *mutants, EXCUSED]]
    with contextlib.chdir(tmp_path_factory.mktemp("suite")):
        return results_of("backend", *options, "-k", SOME, "-W", "error")


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.long
def test_every_mutant_is_found_out(results, name):
    """It fails the test of the rule that it breaks, and its author is told why."""
    rule, words = MUTANTS[name]
    failed = results[name]["failed"]
    assert words in failed[f"test_{rule}"]
    assert FULL or len(failed) == 1


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.long
def test_good_backends_pass(results, name):
    """The built-in backend and one of another package keep each rule."""
    found = results[name]
    assert found["failed"] == found["skipped"] == {}
    assert {f"test_{rule}" for rule in RULES} == found["passed"].keys()


@pytest.mark.long
def test_a_declared_exception_is_skipped_and_no_other_rule(results):
    """The reason is the author's; whatever is not declared is tested."""
    found = results["ExcusedModel"]
    reason = f"{EXCUSED} cannot keep this rule: its inputs are streams"
    assert found["skipped"] == {"test_a_position_leads_back": reason}
    assert "test_a_snapshot_has_the_variables" in found["passed"]


def test_the_reference_lists_each_rule():
    """The page has the name of each rule, and the sentence of its test."""
    page = ROOT / "docs" / "reference" / "backends.md"
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page.read_text("utf-8"), re.MULTILINE)
    rules = {name.removeprefix("test_"): test.__doc__ for name, test in TESTS.items()}
    assert {name: text for name, text in rows if name in rules} == rules


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("nowhere:Graph", "cannot import it (ModuleNotFoundError: No module named 'now"),
        ("builtins:print", "it makes a NoneType; expected a hookbus.Graph or a hookbus.t"),
        ("builtins:chr", "cannot make a graph (chr() takes exactly one argument (0 given"),
    ],
)
def test_what_makes_no_backend_is_told(backend, told):
    """The message names the option and what is wrong with it."""
    with pytest.raises(UsageError, match=re.escape(f"--backend {backend}: {told}")):
        Backend.named(backend)


def test_what_a_plugin_does_is_skipped_without_it():
    """The reason says what to install."""
    with pytest.raises(pytest.skip.Exception, match="pip install hookbus-telepathy"):
        built_in("telepathy")


@pytest.mark.long
def test_an_exception_that_is_no_rule_is_a_usage_error():
    """One line tells which backend, which name, and what it may be meant to be."""
    done = run_suite("backend", "--backend=tests.testing.mutants:MistakenModel")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = done.stderr.strip().splitlines()
    assert line == (
        "ERROR: --backend tests.testing.mutants:MistakenModel: its exceptions name "
        "'a_position_leads_bakc', which is no rule of the suite; did you mean "
        "'a_position_leads_back'?"
    )


@pytest.mark.long
def test_without_a_backend_it_is_a_usage_error():
    """The message shows the option."""
    done = run_suite("backend")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "hookbus.testing.backend needs a backend to test: --backend MOD" in done.stderr
