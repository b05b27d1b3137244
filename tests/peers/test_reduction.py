"""Values over all ranks: what a hook gets that asks for them, and what it may ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hookbus import MonitoredSession, SessionRunArgs, UsageError
from hookbus.peers.agreement import Agreement
from hookbus.peers.reduction import Reduced, reduce_values, reductions_of, sums_of_all
from tests.support.threads_of_ranks import together


def test_each_hook_gets_its_values_in_its_own_way():
    """One exchange serves all hooks, and an array keeps its shape."""

    def ask(link: Agreement) -> Any:
        rank = link.peers.rank
        values = [rank, np.full((2, 2), rank, "float32"), "text"]
        hooks = [Reduced("a", "mean", [0, 1]), Reduced("b", "max", [0])]
        seen = reduce_values(link, hooks, values, 3)
        assert link.peers.exchanges == 1
        return seen

    for seen in together(3, ask):
        assert seen["a"][0] == 1.0
        assert seen["a"][1].tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert seen["a"][1].dtype == np.float64
        assert seen["a"][2] == "text"  # another hook fetches it
        assert seen["b"][0] == 2.0
        assert seen["b"][1].dtype == np.float32


def test_single_numbers_in_a_dict_are_reduced():
    """Whatever their order; other values stay those of the rank."""

    def ask(link: Agreement) -> Any:
        rank = link.peers.rank
        values = {
            "loss": np.float32(rank),
            "accuracy": 10 * rank,
            "rows": np.ones(2) * rank,
        }
        if rank:
            values = dict(reversed(values.items()))
        kinds = {"scalar": values, "text": {"note": f"rank {rank}"}}
        hooks = [Reduced("a", "mean", [0])]
        return reduce_values(link, hooks, [kinds], 3)["a"][0]

    for rank, seen in enumerate(together(2, ask)):
        numbers = seen["scalar"]
        assert (numbers["loss"], numbers["accuracy"]) == (0.5, 5.0)
        assert numbers["rows"].tolist() == [rank, rank]
        assert seen["text"] == {"note": f"rank {rank}"}


@pytest.mark.parametrize("value", ["text", None, np.array(["a", "b"])])
def test_a_value_without_numbers_cannot_be_reduced(value):
    def ask(link: Agreement) -> Any:
        reduce_values(link, [Reduced("mine", "sum", [0])], [value], 3)

    for error in together(2, ask):
        assert isinstance(error, UsageError)
        assert str(error) == (
            "hook 'mine' asks for reduce='sum' over all ranks, and one of its fetches is a "
            f"{type(value).__name__}, which holds no numbers; give reduce='none' for it"
        )


def test_a_hook_on_the_chief_alone_cannot_ask():
    """The other ranks would not take part."""
    asked = [("here", SessionRunArgs("loss", reduce="mean")), ("old", object())]
    assert reductions_of(asked, lambda _: True) == {"here": "mean"}
    with pytest.raises(UsageError) as raised:
        reductions_of(asked, lambda _: False)
    assert str(raised.value) == (
        "hook 'here' asks for reduce='mean', in which all ranks take part, but it takes "
        "part on rank 0 only: declare HookOptions(ranks='all')"
    )


def test_there_are_four_ways():
    for reduce in ("none", "mean", "sum", "max"):
        assert SessionRunArgs("loss", reduce=reduce).reduce == reduce
    with pytest.raises(
        UsageError, match=r"^reduce='maxi': expected one of none, mean, sum"
    ):
        SessionRunArgs("loss", reduce="maxi")  # type: ignore[arg-type]


def test_an_evaluation_takes_means_only():
    with MonitoredSession() as session:
        with session.evaluation(reduce="mean") as evaluation:
            evaluation.report(loss=2.0)
        assert evaluation.metrics == {"loss": 2.0}
        with pytest.raises(UsageError, match=r"^reduce='max': expected one of none, mean"):
            session.evaluation(reduce="max")  # type: ignore[arg-type]


def test_sums_of_all_ranks_weigh_each_value():
    """A rank may have reported something that no other has."""

    def ask(link: Agreement) -> Any:
        rank = link.peers.rank
        return sums_of_all(link, {"loss": (4.0 * rank, 1.0 + rank), str(rank): (1, 1)}, 3)

    expected = {"loss": (4.0, 3.0), "0": (1.0, 1.0), "1": (1.0, 1.0)}
    assert together(2, ask) == [expected] * 2
