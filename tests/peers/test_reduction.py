"""Values over all ranks: what a hook gets that asks for them, and what it may ask for."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, ClassVar

import attrs
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


@attrs.frozen
class Half:
    """An array of a library with a dtype that NumPy knows by its size only."""

    rank: int
    dtype: ClassVar[Any] = np.dtype("V2")

    def astype(self, dtype: str) -> Any:
        return np.full(2, self.rank / 2, dtype)


VALUES = {
    "bool": bool,
    "int": lambda rank: 10**20 + rank,
    "float": lambda rank: 0.1 * rank,
    "infinite": lambda rank: [-math.inf, math.inf, -math.inf][rank],
    "scalar": np.float32,
    "complex": lambda rank: np.complex64(rank + 1j),
    "0-d": lambda rank: np.array(rank, "int8"),
    "array": lambda rank: np.full((2, 0 if rank else 3), rank, "float16"),
    "strided": lambda rank: np.arange(12.0).reshape(3, 4)[rank:, ::2],
    "big endian": lambda rank: np.array([rank], ">i4"),
    "fraction": lambda rank: Fraction(rank, 4),
    "half": Half,
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_hook_gathers_the_value_of_each_rank(kind):
    """In the order of ranks, each with all its bits, in one exchange."""

    def ask(link: Agreement) -> Any:
        value = VALUES[kind](link.peers.rank)
        hooks = [Reduced("a", "gather", [1]), Reduced("b", "gather", [1, 1])]
        seen = reduce_values(link, hooks, ["text", value, 5.0], 3)
        assert link.peers.exchanges == 1
        assert seen["a"][0] == "text"
        assert seen["b"][2] == 5.0
        return seen["a"][1]

    expected = [VALUES[kind](rank) for rank in range(3)]
    if kind == "half":
        expected = [each.astype("float32") for each in expected]
    for seen in together(3, ask):
        for one, other in zip(seen, expected, strict=True):
            assert np.shape(one) == np.shape(other)
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
            assert np.array_equal(one, other)


def test_a_hook_gathers_dicts():
    """The dict of each rank, also if it has other names."""

    def ask(link: Agreement) -> Any:
        rank = link.peers.rank
        value = {"loss": np.float32(rank), f"only {rank}": {"acc": 0.5}}
        return reduce_values(link, [Reduced("a", "gather", [0])], [value], 3)["a"][0]

    expected = [{"loss": n, f"only {n}": {"acc": 0.5}} for n in range(2)]
    assert together(2, ask) == [expected] * 2


def test_one_hook_reduces_and_another_gathers():
    """In an exchange each."""

    def ask(link: Agreement) -> Any:
        hooks = [Reduced("a", "gather", [0]), Reduced("b", "mean", [0])]
        seen = reduce_values(link, hooks, [link.peers.rank], 3)
        return seen["a"][0], seen["b"][0]

    assert together(2, ask) == [([0, 1], 0.5)] * 2


@pytest.mark.parametrize(
    "value", ["text", None, [1.0], np.array(["a"]), np.array([None]), {"note": "text"}]
)
def test_a_value_without_numbers_cannot_be_gathered(value):
    """Neither on its own nor in a dict."""

    def ask(link: Agreement) -> Any:
        reduce_values(link, [Reduced("mine", "gather", [0])], [value], 3)

    found = value["note"] if isinstance(value, dict) else value
    for error in together(2, ask):
        assert isinstance(error, UsageError)
        assert str(error) == (
            "hook 'mine' asks for reduce='gather' over all ranks, and one of its fetches "
            f"is a {type(found).__name__}, which holds no numbers; give reduce='none' for "
            "it"
        )


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


def test_there_are_five_ways():
    for reduce in ("none", "mean", "sum", "max", "gather"):
        assert SessionRunArgs("loss", reduce=reduce).reduce == reduce
    with pytest.raises(
        UsageError, match=r"^reduce='maxi': expected one of none, mean, sum, max, gather"
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
