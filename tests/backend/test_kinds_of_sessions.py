"""Every built-in hook does the same in a custom loop as on a graph.

The suite for backends tests it on graphs, see tests/testing/test_backends.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hookbus
from hookbus.testing import BackendModel
from hookbus.testing._backend.kinds import of_graphs, train
from hookbus.testing.scenarios import SCENARIOS, all_at_once
from tests.support import naive_backend
from tests.support.distributions import COMMANDS, EVERY, HOOKS, TRACKERS
from tests.support.kinds import custom_loop
from tests.support.pages import ROOT, blocks_of

_BRANCH = re.compile(
    r"isinstance\([^,()]*(?:session|graph|backend)\b"
    r"|type\((?:\w+\.)*(?:session|graph)\)"
    r"|\b(?:Embedded|Report|Torch)(?:Session|Graph)\b"
)


@pytest.mark.parametrize("plugin", SCENARIOS)
def test_a_hook_does_the_same_in_a_custom_loop(plugin, tmp_path):
    SCENARIOS[plugin](custom_loop, tmp_path)


def test_all_hooks_together_leave_the_same_behind(tmp_path):
    """Steps, values, files: what a user sees of a run that was cut and resumed."""
    expected = all_at_once(of_graphs(BackendModel()), tmp_path / "embedded")
    assert all_at_once(custom_loop, tmp_path / "other") == expected


def test_every_built_in_hook_has_a_scenario():
    assert sorted(f"hookbus-{name}" for name in SCENARIOS) == [f.name for f in HOOKS]


@pytest.mark.parametrize("folder", HOOKS, ids=lambda folder: folder.name)
def test_no_hook_asks_what_kind_of_session_or_graph_it_has(folder):
    for path in folder.glob("*.py"):
        assert not _BRANCH.search(path.read_text("utf-8")), path.name


def test_the_third_party_backend_is_small_and_imports_public_names_only():
    """So any package can be a backend."""
    text = Path(naive_backend.__file__).read_text("utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) < 150
    assert re.findall(r"^(?:from|import) hookbus.*", text, re.MULTILINE) == [
        "import hookbus",
        "from hookbus import backend",
    ]
    assert {*re.findall(r"\bhookbus\.(\w+)", text)} <= {*hookbus.__all__}
    assert {*re.findall(r"\bbackend\.(\w+)", text)} <= {*hookbus.backend.__all__}


def test_the_guide_shows_that_backend():
    """Readers copy the one that does everything that hooks need."""
    page = ROOT / "docs" / "how-to" / "write-a-backend.md"
    first = blocks_of(page)[0]
    assert first.text == Path(naive_backend.__file__).read_text("utf-8")


def test_what_only_the_caller_asks_for_stays_on_the_device():
    """The fetches of hooks arrive on the host, in one transfer of a run."""

    class Two(hookbus.SessionRunHook):
        def before_run(self):
            return hookbus.SessionRunArgs(["loss", "w"])

        def after_run(self, run_context, run_values):
            self.got, self.session = run_values.results, run_context.session

    first, second = Two(), Two()
    kind = of_graphs(BackendModel(naive_backend.NaiveGraph))
    train(kind, first, second, steps=3)
    assert first.session.transfers == 3
    assert first.got == second.got == [0.5, 3.0]


def test_a_run_in_which_no_hook_asks_transfers_nothing():
    kept = []

    class Keep(hookbus.SessionRunHook):
        def after_create_session(self, session):
            kept.append(session)

    train(of_graphs(BackendModel(naive_backend.NaiveGraph)), Keep(), steps=3)
    assert kept[0].transfers == 0


def test_every_other_distribution_is_for_a_library_or_a_trainer():
    others = {folder.name for folder in {*EVERY} - {*HOOKS} - {*COMMANDS} - {*TRACKERS}}
    assert others == {
        "hookbus-ignite",  # this one and the next three are for a trainer
        "hookbus-keras",
        "hookbus-lightning",
        "hookbus-transformers",
        "hookbus-jax",
        "hookbus-sklearn",
        "hookbus-tensorflow",
        "hookbus-torch",
    }
