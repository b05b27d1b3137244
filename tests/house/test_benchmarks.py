"""The benchmarks find what they are to find, and the pages show what they found."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from tests.support.pages import ROOT
from tests.support.profiles import cases


@pytest.fixture
def benchmark(monkeypatch):
    """Return the function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.fixture
def peers(benchmark):
    return benchmark("peers")


@pytest.fixture
def published(peers):
    """Return the results that the page of peers shows."""
    return peers.Results.read(peers.RESULTS)


def test_the_page_of_peers_shows_the_results(peers, published):
    """The tables have the numbers of the JSON file beside the page."""
    assert peers.PAGE.text(peers.told(published)) == peers.PAGE.path.read_text("utf-8")


def test_the_page_shows_the_results_on_tensors(benchmark):
    """The table has the numbers of the JSON file beside the page."""
    tensors = benchmark("tensors")
    results = tensors.json.loads(tensors.RESULTS.read_text("utf-8"))
    assert tensors.PAGE.text(tensors.told(results)) == tensors.PAGE.path.read_text("utf-8")


def test_all_peers_were_measured(peers, published):
    """The results have each loop with each number of hooks."""
    assert not published.missing
    for loops in map(published.by_loop, peers.KINDS):
        assert set(peers.OWN) <= set(loops)
        assert all(tuple(costs) == peers.COUNTS for costs in loops.values())


def test_hookbus_adds_less_than_the_peers_that_it_has_to_beat(published):
    """The published results show hookbus ahead of each, with each number of hooks."""
    assert [*published.lost()] == []


def test_peers_are_pinned(peers):
    """Another day's run measures the same versions of the peers."""
    for peer in peers.peers():
        needs = {*peers.requirements_of(peer)} - {"hookbus"}
        assert all("==" in need for need in needs), peer


def cost(peers, loop, overhead, factor):
    factors = dict.fromkeys(peers.OWN, factor)
    return [peers.Cost(loop, "empty", n, 1.0, overhead, 9.0, factors) for n in peers.COUNTS]


def test_the_page_says_where_a_peer_is_ahead(peers):
    """A factor below 1 is bold, and a sentence names the peer and the numbers of hooks."""
    costs = [*cost(peers, "Fast", 0.5, 0.5), *cost(peers, "Slow", 4.0, 4.0)]
    text = peers.told(peers.Results("2026-01-01", "3.11.7", 9, {}, {}, costs))
    assert "| Fast | **0.50** / **0.50** |" in text
    assert "| Slow | 4.00 / 4.00 |" in text
    for own in ("session.run()", "session.step()"):
        assert f"Ahead of `{own}`: Fast (with 1, 5, 20 and 100 hooks)." in text


def test_a_peer_that_is_to_be_beaten_and_is_not_is_named(peers):
    """The check names each peer that adds less, or that is missing."""
    ignite = cost(peers, "Ignite", 0.5, 0.5)
    lost = [*peers.Results("2026-01-01", "3.11.7", 9, {}, {}, ignite).lost()]
    assert lost[0] == "Ignite, 1 hook: 0.50 times hookbus, session.run()"
    assert "Lightning was not measured" in lost


def test_a_peer_that_does_not_run_says_why(peers, tmp_path):
    """The error is the last line that the peer wrote."""
    with (tmp_path / "errors").open("w+") as errors:
        fails = [sys.executable, "-c", "import keras_of_another_age"]
        process = subprocess.Popen(fails, stdout=subprocess.PIPE, stderr=errors, text=True)
        with process, pytest.raises(peers.PeerError) as raised:
            peers.Worker(process, errors)
    why = "ModuleNotFoundError: No module named 'keras_of_another_age'"
    assert str(raised.value) == f"does not run: {why}"


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_told(peers, tmp_path, monkeypatch):
    """The others are measured, each in an environment of its own."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    results = peers.measure(["direct", "pluggy"], tmp_path, 2)
    why = "ERROR: Could not find a version that satisfies the requirement pluggy==1.7.0"
    assert results.missing["pluggy"].startswith(f"cannot be installed: {why}")
    assert [each.hooks for each in results.costs] == [*peers.COUNTS]
    assert "\npluggy was not measured: it cannot be installed" in peers.told(results)


@pytest.mark.parametrize(("slow_times", "code"), [(0, 0), (2, 0), (3, 1)])
def test_the_short_check_fails_only_if_a_part_is_slow_three_times(
    benchmark, capsys, slow_times, code
):
    """Noise of a busy machine passes; hooks that became slower do not."""
    step_overhead = benchmark("step_overhead")
    medians = iter([2.0] * slow_times + [1.0] * 3)

    def part(rounds):
        return [step_overhead.Ratio("a part", next(medians), 0.9, 2.1, 1.1, {})]

    assert step_overhead.check_shortly([part]) == code
    assert capsys.readouterr().out.count("above the bar") == slow_times


@pytest.mark.parametrize("custom", cases([False], [False, True]))
@pytest.mark.long
def test_nothing_grows_with_the_number_of_steps(benchmark, capsys, custom):
    """Neither memory nor files, but for what was logged, with every hook that watches."""
    grown = benchmark("memory").training(custom, cases(20_000, 100_000), 1_000, every=100)
    assert grown.faults == []
    kept = {name.partition("/")[0] for name in grown.sizes}
    assert len([name for name in kept if name.startswith("ckpt-")]) == 5
    assert len([name for name in grown.sizes if "events.out" in name]) == 2


def test_the_faults_of_a_training_that_grows_are_told(benchmark):
    """Memory, event files and checkpoints, each with how much there is."""
    memory = benchmark("memory")
    sizes = {"events.out.1": 9_000, **{f"ckpt-{n}/manifest.json": 1 for n in range(6)}}
    grown = memory.Grown("graph", 1, memory.MOST_GROWTH + 1, ["a.py:1"], sizes, records=9)
    assert grown.faults == [
        "1048577 bytes of memory: a.py:1",
        "9000 bytes of events for 9 records",
        "6 checkpoints",
    ]


def test_the_table_of_costs_has_each_hook(benchmark, capsys):
    """With a step in which it is due, and one in which it is not."""
    costs = benchmark("hook_costs")
    text = costs.told(rounds=1)
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line[:2] == "| "]
    assert rows == ["", "---", "no hook, the whole step", *costs.SUBJECTS]
    page = costs.PAGE.path.read_text("utf-8")
    assert costs.PAGE.text("").startswith(page[: page.index("<!-- benchmarks")])
    for name in costs.SUBJECTS:
        assert f"\n| {name} |" in page
