"""Tests that ranks tell each other what they ask for, and act on it at one step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from hookbus import PeerFailedError
from hookbus.errors import PeersDisagreeError
from hookbus.peers.agreement import NEVER, Agreement, Status
from tests.support.threads_of_ranks import LinkError, together

STEP_SECONDS = 0.06
"""With steps of so long the ranks exchange after each one."""


def trained(
    agreement: Agreement,
    steps: int = 8,
    acts: Callable[[Agreement, int], Any] = lambda *_: None,
    boundary: int = NEVER,
    seconds: float = STEP_SECONDS,
    signal: tuple[int, int] = (0, 0),
) -> dict[int, Any]:
    """Train for some steps; return what the ranks agreed on, by step."""
    agreed = {}
    agreement.exchange(Status(0, 0), now=True)
    for step in range(1, steps + 1):
        time.sleep(seconds)
        acts(agreement, step)
        known = boundary if boundary > step else NEVER
        came = signal[0] if signal[1] == step else 0
        asked, received = agreement.exchange(Status(step, known, signal=came))
        if asked or received:
            agreed[step] = {n: dict(each) for n, each in asked.items()} or received
    return agreed


def asking(rank: int, at: int) -> Callable[[Agreement, int], None]:
    """Have one rank ask for a stop after a step."""

    def act(agreement: Agreement, step: int) -> None:
        if (agreement.peers.rank, step) == (rank, at):
            agreement.asked["stop"] = "enough"

    return act


def test_a_request_takes_effect_one_step_later_on_all_ranks():
    """It travels while the program goes on."""
    done = together(3, lambda link: trained(link, acts=asking(rank=1, at=3)))
    assert done == [{4: {1: {"stop": "enough"}}}] * 3


def test_after_the_first_run_a_request_takes_effect_at_once():
    """All hooks are due in it, so it is a boundary."""
    done = together(2, lambda link: trained(link, acts=asking(rank=1, at=1)))
    assert done == [{1: {1: {"stop": "enough"}}}] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_at_a_boundary_of_any_rank_all_wait_and_act_at_once(rank):
    """The hooks of one rank have chosen step 5; the others learn of it before."""

    def train(link: Agreement) -> Any:
        boundary = 5 if link.peers.rank == rank else NEVER
        return trained(link, acts=asking(rank=1 - rank, at=5), boundary=boundary)

    assert together(2, train) == [{5: {1 - rank: {"stop": "enough"}}}] * 2


def test_a_request_in_short_steps_takes_effect_within_sixteen_steps():
    """The ranks exchange every 50 ms or 16 steps: each exchange costs time."""
    done = together(
        2, lambda link: trained(link, 60, asking(rank=1, at=20), seconds=0.0001)
    )
    (step,) = done[0]
    assert 20 < step <= 20 + 17
    assert done[1] == done[0]


def test_a_request_in_short_steps_still_acts_at_once_at_a_boundary():
    done = together(
        2, lambda link: trained(link, 60, asking(rank=1, at=41), 41, seconds=0.0001)
    )
    assert done == [{41: {1: {"stop": "enough"}}}] * 2


def test_a_signal_of_one_rank_reaches_all_in_one_step():
    def train(link: Agreement) -> Any:
        return trained(link, signal=(15, 4) if link.peers.rank else (0, 0))

    assert together(2, train) == [{5: 15}] * 2


def test_what_two_ranks_ask_for_arrives_together():
    def act(link: Agreement, step: int) -> None:
        if step == 2:
            link.asked["save"] = link.peers.rank

    assert (
        together(2, lambda link: trained(link, acts=act))
        == [{3: {0: {"save": 0}, 1: {"save": 1}}}] * 2
    )


def texts(found: list[Any], kind: type[BaseException] = PeersDisagreeError) -> list[str]:
    assert all(type(each) is kind for each in found), found
    return [str(each) for each in found]


def test_ranks_at_different_steps_are_an_error():
    def train(link: Agreement) -> Any:
        link.exchange(Status(3 + link.peers.rank), now=True)

    for text in texts(together(2, train)):
        assert text == (
            "the ranks are at different places of the training: some are at step 3, others "
            "at 4. Give each rank as many batches, and the same hooks"
        )


def test_a_rank_whose_pass_has_ended_before_is_an_error():
    def train(link: Agreement) -> Any:
        place = "at the end of a pass" if link.peers.rank else "in a pass"
        link.exchange(Status(3), place, now=True)

    for text in texts(together(2, train)):
        assert "after step 3 some are at the end of a pass, others in a pass" in text


@pytest.mark.parametrize("what", ["skipped", "assigned"])
def test_an_effect_on_the_model_of_one_rank_is_an_error(what):
    """Otherwise the models of the ranks drift apart, and nobody sees it."""

    def train(link: Agreement) -> Any:
        link.exchange(attrs.evolve(Status(3), **{what: 2 * link.peers.rank}), now=True)

    noun = {"skipped": "updates", "assigned": "values"}[what]
    for text in texts(together(2, train)):
        assert f"how often hooks have {what} {noun} until step 3: 0 on some, 2 on" in text


OTHERWISE = {
    "skipped_at": "in the steps in which hooks have skipped updates until step 3, so their",
    "digests": "in the values that hooks have assigned until step 3, so their models drift",
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_another_effect_on_each_rank_is_an_error(what):
    """Also if hooks act equally often."""

    def train(link: Agreement) -> Any:
        link.exchange(attrs.evolve(Status(3), **{what: 2 * link.peers.rank}), now=True)

    for text in texts(together(2, train)):
        assert text.startswith(f"the ranks differ {OTHERWISE[what]}")


def test_ranks_compare_all_that_must_be_alike_in_one_exchange():
    def begin(link: Agreement) -> Any:
        rank = link.peers.rank
        link.same({"their hooks": ["a"], "the settings of a": {"n": rank // 2}})

    for text in texts(together(3, begin)):
        assert text == (
            "the ranks differ in the settings of a: {'n': 0} on ranks 0, 1; {'n': 1} on "
            "rank 2"
        )


def test_what_only_some_ranks_have_differs():
    def begin(link: Agreement) -> Any:
        link.same({"the settings of a": {}} if link.peers.rank else {"their hooks": []})

    for text in texts(together(2, begin)):
        assert text == "the ranks differ in their hooks: [] on rank 0; None on rank 1"


def test_a_rank_that_fails_is_named_with_its_error():
    def train(link: Agreement) -> Any:
        if link.peers.rank == 1:
            raise ValueError("the model is broken")
        trained(link)

    others = [e for e in together(3, train) if not isinstance(e, ValueError)]
    failed = "another process of the training has failed. rank 1: ValueError: the model"
    first, second = texts(others, PeerFailedError)
    assert first == second == f"{failed} is broken"


def test_a_rank_that_does_not_answer_is_named():
    def train(link: Agreement) -> Any:
        if link.peers.rank != 1:
            trained(link)

    first, second, third = together(3, train, seconds=1.0)
    assert second is None
    for text in texts([first, third], PeerFailedError):
        assert text.startswith("no answer from rank 1 of 3: its process was killed")


def test_ranks_that_wait_at_different_places_say_where_they_are():
    """Each does another exchange, so none of them gets an answer."""

    def train(link: Agreement) -> Any:
        link.where = f"did {link.peers.rank}"
        if link.peers.rank:
            link.peers.exchanges += 1  # it takes part in an exchange that no other does
        link.gather()

    for text in texts(together(2, train, seconds=1.0)):
        assert "wait for each other at different places: rank 0 did 0; rank 1 did 1" in text


def test_ranks_that_are_too_slow_for_the_time_limit_learn_what_to_do():
    """No answer comes in time, but all of them are there afterwards, at the same place."""

    def train(link: Agreement) -> Any:
        link.peers.exchanges += link.peers.rank  # the answers of the others get lost
        link.gather()

    for text in texts(together(2, train, seconds=1.0), PeerFailedError):
        assert text.startswith("all ranks are there, but they did not reach each other in")


def test_an_error_of_the_program_stays_its_own():
    def train(link: Agreement) -> Any:
        error = ValueError("mine")
        return link.explained(error) is error

    assert together(2, train) == [True, True]


def test_a_rank_that_has_left_explains_nothing_more():
    def train(link: Agreement) -> Any:
        link.close()
        error = LinkError("closed")
        link.fail(error)
        return link.explained(error) is error

    assert together(2, train) == [True, True]


def test_values_are_reduced_in_one_exchange():
    def train(link: Agreement) -> Any:
        rank = link.peers.rank
        found = link.reduce([rank, rank, rank, 7], ["mean", "sum", "max", "max"])
        return found, link.peers.exchanges

    assert together(3, train) == [([1.0, 3, 2, 7], 1)] * 3
