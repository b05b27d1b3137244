"""After steps that were alike, one that differs is served as any other, with PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hookbus_torch import TorchGraph
from torch import nn

from hookbus import (
    Config,
    DrivenSession,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.errors import NoValueYetError
from tests.support.profiles import cases
from tests.support.thread_library import ranked, thread_library

QUIET = Config(autoload=False, header=False)
STEPS = 9


@pytest.fixture(scope="module", autouse=True)
def _library(tmp_path_factory) -> Iterator[None]:
    """The library whose ranks are threads."""
    with thread_library(tmp_path_factory.mktemp("library")):
        yield


class Asks(SessionRunHook):
    """Asks for one thing, and from a step on for another."""

    def __init__(self, first: Any, then: Any, at: int = STEPS) -> None:
        self.first, self.then, self.at = first, then, at
        self.got: list[Any] = []

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return self.then if run_context.global_step >= self.at else self.first

    def after_run(self, run_values: Any) -> None:
        self.got.append(run_values.results)


class Model:
    """A small model, whose step has no gradient if it is told so."""

    def __init__(self, rank: int = 0, without: int | None = None) -> None:
        torch.manual_seed(1)
        self.net, self.without = nn.Linear(3, 1), without
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.x = torch.ones(4, 3) * (1 + rank)

    def step(self, number: int) -> torch.Tensor:
        """Do a step; return its loss."""
        self.optimizer.zero_grad()
        loss = self.net(self.x).square().mean()
        if number != self.without:
            loss.backward()
            self.optimizer.step()
        return loss


def in_graph(model: Model, hooks: list[Any]) -> None:
    """Train in a graph."""
    graph = TorchGraph(model=model.net, optimizer=model.optimizer)

    @graph.train_op(outputs="loss")
    def train(global_step):
        return {"loss": model.step(global_step)}

    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(STEPS):
            session.run("train")


def in_blocks(model: Model, hooks: list[Any]) -> None:
    """Train in a custom loop."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        session.track(model=model.net, optimizer=model.optimizer)
        for number in session.iterate(range(STEPS)):
            with session.step() as step:
                step.report(loss=model.step(number))


def driven(model: Model, hooks: list[Any]) -> None:
    """Train in a loop that drives its session."""
    with DrivenSession(hooks=hooks, config=QUIET) as session:
        session.begin()
        session.created()
        session.track(model=model.net, optimizer=model.optimizer)
        for number in range(STEPS):
            session.before_step()
            session.after_step({"loss": model.step(number)})


UNITED = {"mean": lambda pair: sum(pair) / 2, "sum": sum, "max": max}
FORMS = {"graph": in_graph, "blocks": in_blocks, "driven": driven}
IN_EACH_FORM = pytest.mark.parametrize("form", FORMS)


@IN_EACH_FORM
@pytest.mark.parametrize("reduce", cases(["mean"], [*UNITED]))
def test_a_hook_may_ask_for_a_tensor_of_all_ranks_at_any_time(form, reduce):
    """It gets its own rank's value until then."""

    def train(rank: int) -> tuple[Any, Any]:
        own = SessionRunArgs("loss")
        changing = Asks(own, SessionRunArgs("loss", reduce=reduce), at=6)
        plain = Asks(own, own)
        FORMS[form](Model(rank), [changing, plain])
        return changing.got, plain.got

    ranks = ranked(2, train)
    losses = [[float(loss) for loss in plain] for _, plain in ranks]
    united = [UNITED[reduce](pair) for pair in zip(*losses, strict=True)]
    for changing, plain in ranks:
        assert changing[:6] == plain[:6]
        assert changing[6:] == pytest.approx(united[6:])
    assert losses[0] != losses[1]


@IN_EACH_FORM
@pytest.mark.parametrize("fetch", ["model.weight:grad", "model:grad_norm"])
@pytest.mark.parametrize("without", [1, 6])
def test_a_missing_gradient_is_blamed_on_the_hook_that_fetches_it(form, fetch, without):
    """In a step whose loop computes none; the message tells how to run without the hook."""
    args = SessionRunArgs([fetch])
    hooks = [Asks(SessionRunArgs("loss"), None), Asks(args, args)]
    with pytest.raises(NoValueYetError) as caught:
        FORMS[form](Model(without=without), hooks)
    aside = ", or kind='aux' for a run that is no step of the training"
    assert str(caught.value).endswith(
        f"{fetch!r} is fetched by asks-2; to run without that hook: -p no:asks-2"
        f"{'' if form == 'driven' else aside}"
    )
    (note,) = caught.value.__notes__
    assert note == "hookbus: plugin 'asks-2' asked for it in before_run()"
    assert len(hooks[1].got) == without


class GoesBack(SessionRunHook):
    """Rolls back once, after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == self.at:
            self.at = -1
            run_context.request_rollback("it is bad")


def test_an_input_that_a_hook_reads_in_a_run_that_is_undone_is_left_out(tmp_path: Path):
    """Its next value comes instead when the session is there again."""
    torch.manual_seed(1)
    net = nn.Linear(3, 1)
    graph = TorchGraph(model=net)
    graph.input("x", lambda: torch.arange(1.0, 40.0))
    graph.input("read", lambda: range(100, 140))

    @graph.train_op
    def train(x):
        with torch.no_grad():
            net.weight += x

    reads = Asks(None, SessionRunArgs(["x", "read"]), at=7)
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir=tmp_path,
        hooks=[reads, GoesBack(8)],
        save_checkpoint_steps=5,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        for _ in range(13):
            session.run("train")
    read = [[float(value) for value in values] for values in reads.got if values]
    # It goes back from step 8 to 5, and leaves out what the last run has read.
    assert read == [[8, 100], [9, 101], [10, 102], [11, 103]]
