"""Tests that declared summaries are recorded when they are due, and not computed before."""

from __future__ import annotations

import numpy as np
import pytest
from hookbus_summary_saver import SummarySaverHook

from hookbus import Config, Graph, MonitoredSession, SessionRunHook

QUIET = Config(autoload=False)
KINDS = ["scalar", "histogram", "image", "text"]
TAGS = ["scalars", "histograms", "images", "tensors"]
VALUES = {
    "scalar": 0.5,
    "histogram": np.arange(4.0),
    "image": np.zeros((4, 4)),
    "text": "words",
}


class Declares(SessionRunHook):
    """Declares a scalar that it derives from w."""

    def begin(self, graph):
        graph.op(lambda w: w * 10, name="tenfold")
        graph.summary.scalar("ten", "tenfold")


@pytest.fixture
def graph(model) -> Graph:
    """The toy model, which declares one of each kind."""
    made = model()
    for kind, value in VALUES.items():
        made.op(lambda value=value: value, name=kind)
        getattr(made.summary, kind)(f"a/{kind}", kind)
    return made


def saver(period: int = 1, **settings) -> SummarySaverHook:
    """Make a hook that records every so many steps."""
    return SummarySaverHook(save_steps=period, output_dir="out", **settings)


def train(graph: Graph, *hooks: SessionRunHook, runs: int = 1) -> None:
    """Run so often."""
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(runs):
            session.run("train")


def steps_of(events) -> dict[str, list[int]]:
    """Return at which steps there is something, by tag."""
    tags = events.Tags()
    found = {tag: events.Scalars(tag) for tag in tags["scalars"]}
    found |= {tag: events.Histograms(tag) for tag in tags["histograms"]}
    found |= {tag: events.Images(tag) for tag in tags["images"]}
    found |= {tag: events.Tensors(tag) for tag in tags["tensors"]}
    return {tag: [event.step for event in each] for tag, each in found.items()}


def test_each_kind_is_recorded_as_what_it_is(graph, read_all):
    """With loss and accuracy, under the names that were declared, at the same steps."""
    train(graph, saver(3), runs=8)
    events = read_all()
    names = {tags: events.Tags()[tags] for tags in TAGS}
    assert {tags: sorted(found) for tags, found in names.items()} == {
        "scalars": ["a/scalar", "loss"],
        "histograms": ["a/histogram"],
        "images": ["a/image"],
        "tensors": ["a/text"],
    }
    assert set(map(tuple, steps_of(events).values())) == {(1, 4, 7)}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_due_is_not_computed(model, kind):
    """Only the runs with a record evaluate what is declared, and once each."""
    computed, made = [], model()
    made.op(lambda: computed.append(1) or VALUES[kind], name="costly")
    getattr(made.summary, kind)("x", "costly")
    train(made, saver(4), runs=9)
    assert len(computed) == 3


def test_named_nodes_are_recorded_instead_of_all_that_is_declared(graph, read_all):
    """Then nothing else is computed."""
    computed = []
    graph.op(lambda: computed.append(1), name="costly")
    graph.summary.text("costly", "costly")
    train(graph, saver(tensors="w"))
    assert steps_of(read_all()) == {"w": [1]}
    assert computed == []


def test_a_declared_scalar_called_loss_is_the_loss(model, read_back):
    """There is one curve of that name, the declared one."""
    made = model()
    made.op(lambda: 7.0, name="seven")
    made.summary.scalar("loss", "seven")
    train(made, saver())
    assert read_back() == {"loss": [(1, 7.0)]}


@pytest.mark.parametrize("order", [1, -1], ids=["declared first", "declared last"])
def test_what_a_hook_declares_is_recorded_wherever_it_stands(model, read_back, order):
    """All have begun before the saver looks what there is."""
    train(model(), *[Declares(), saver()][::order], runs=2)
    assert read_back()["ten"] == [(1, 0.0), (2, 10.0)]


@pytest.mark.parametrize("same_hook", [True, False])
def test_a_graph_serves_one_session_after_the_other(model, read_back, same_hook):
    """Summaries of the first session's hooks are not looked for in the second."""
    made, first = model(), saver()
    second = first if same_hook else saver()
    train(made, first, Declares(), runs=2)
    train(made, second, runs=1)
    assert read_back()["ten"] == []  # as the second starts at step 0 again
    assert read_back()["loss"] == [(1, 0.0)]


def test_a_graph_without_loss_needs_only_what_it_declares(read_back):
    """Neither loss nor accuracy, and no error."""
    made = Graph()
    made.variable("w", 2.0)
    made.train_op(lambda w: w, name="train", updates="w")
    made.summary.scalar("weight", "w")
    train(made, saver())
    assert read_back() == {"weight": [(1, 2.0)]}


def custom_loop(*hooks: SessionRunHook, steps: int, show) -> None:
    """Do so many steps of a custom loop; *show* is given each."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for _ in range(steps):
            with session.step() as step:
                show(step)


def test_a_custom_loop_has_each_kind(read_all):
    """With what it reports as loss or accuracy."""

    def show(step):
        step.report(loss=1.0, other=2.0)
        for kind, value in VALUES.items():
            getattr(step.summary, kind)(f"a/{kind}", lambda value=value: value)

    custom_loop(saver(3), steps=8, show=show)
    assert steps_of(read_all()) == {
        tag: [1, 4, 7] for tag in ["loss", *(f"a/{kind}" for kind in KINDS)]
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_is_called_when_it_is_due(kind):
    """Once, in the steps with a record."""
    called = []

    def show(step):
        getattr(step.summary, kind)("x", lambda: called.append(1) or VALUES[kind])

    custom_loop(saver(4), steps=9, show=show)
    assert len(called) == 3


def test_a_step_may_show_nothing(read_back):
    """A record has what there is in its own step."""
    values = iter([None, 2.0, None, 4.0])

    def show(step):
        value = next(values)
        if value is not None:
            step.summary.scalar("x", value)

    custom_loop(saver(), steps=4, show=show)
    assert read_back() == {"x": [(2, 2.0), (4, 4.0)]}


@pytest.mark.parametrize("order", [1, -1], ids=["declared first", "declared last"])
def test_a_hook_may_declare_in_a_custom_loop(read_back, order):
    """A value derived from the reports is recorded like the summaries of the steps."""

    def show(step):
        step.report(w=3.0)
        step.summary.scalar("x", 1.0)

    custom_loop(*[Declares(), saver()][::order], steps=1, show=show)
    assert read_back() == {"ten": [(1, 30.0)], "x": [(1, 1.0)]}


def test_recorded_hyperparameters_are_a_text(graph, read_all):
    """TensorBoard shows them as a block of code, at the step of the start."""
    with MonitoredSession(graph, hooks=[saver()], config=QUIET) as session:
        session.record({"lr": 0.5})
    (event,) = read_all().Tensors("hyperparameters")
    assert event.step == 0
    assert event.tensor_proto.string_val == [b'    {\n      "lr": 0.5\n    }']
