"""``hookbus hooks`` shows which hooks each event calls, why, and on which ranks."""

from __future__ import annotations

import json

import pytest

from tests.support.in_process import run_here


def shown(*words: str) -> dict[str, str]:
    """Return the ranks of each hook that the command shows for after_run."""
    code, told = run_here(["hooks", *words, "after_run"])
    assert code == 0, told
    rows = [line.split() for line in told.splitlines() if line.startswith("after_run")]
    return {plugin: ranks for _, _, plugin, _, ranks, *_ in rows}


def test_it_shows_on_which_ranks_a_hook_takes_part():
    """One that only shows something is on the chief alone."""
    assert shown("-p", "nan-tensor") == {"progress": "chief", "nan-tensor": "all"}


@pytest.mark.parametrize(("reduce", "ranks"), [("none", "chief"), ("mean", "all")])
def test_a_setting_may_decide_on_which_ranks(reduce, ranks):
    """The hook as it is set counts, and not its class."""
    words = ("--logging-tensor", "loss", "--logging-tensor-reduce", reduce)
    assert shown(*words)["logging-tensor"] == ranks


def test_ranks_are_in_the_document_too():
    """With --json, each hook of an event has them."""
    code, told = run_here(["hooks", "--json", "-p", "nan-tensor", "after_run"])
    assert code == 0
    events = json.loads(told)["events"]
    found = {each["plugin"]: each["ranks"] for each in events["after_run"]}
    assert found == {"progress": "chief", "nan-tensor": "all"}
