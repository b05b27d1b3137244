"""Tests what a step of a custom loop shows: under which names, when, and to whom."""

from __future__ import annotations

import pytest

from hookbus import SessionRunArgs, SessionRunHook, UsageError
from hookbus.errors import UnfedPlaceholderError

KINDS = ["scalar", "histogram", "image", "text"]


class Viewer(SessionRunHook):
    """Asks every so many steps for all summaries, and keeps what it got."""

    def __init__(self, every=1):
        self.every, self.seen = every, []

    def after_create_session(self, session):
        self.request = SessionRunArgs(session.graph.summaries)

    def before_run(self, run_context):
        return self.request if run_context.global_step % self.every == 0 else None

    def after_run(self, run_values):
        if run_values.results is not None:
            self.seen.append(run_values.results)


class Watcher(SessionRunHook):
    """Asks for graph.metrics in every step, and keeps what it got."""

    def __init__(self):
        self.seen = []

    def begin(self, graph):
        self.request = SessionRunArgs(graph.metrics)

    def before_run(self):
        return self.request

    def after_run(self, run_values):
        self.seen.append(run_values.results)


class Declares(SessionRunHook):
    """Declares a summary of a node that it derives from what steps report."""

    def __init__(self, kind="scalar"):
        self.kind = kind

    def begin(self, graph):
        graph.op(lambda hits, total: hits / total, name="ratio")
        getattr(graph.summary, self.kind)("rate", "ratio")


class Costly:
    """A value that counts how often it is computed."""

    def __init__(self, value=0.5):
        self.value = value
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.value


def show(step, kind, name, value):
    """Have a step show a value as some kind."""
    getattr(step.summary, kind)(name, value)


def test_each_kind_reaches_whoever_asks(own):
    """Kind to name to value, as from a graph."""
    viewer = Viewer()
    with own(viewer) as session, session.step() as step:
        step.summary.scalar("rate", 0.1)
        step.summary.histogram("weights", [1.0, 2.0])
        step.summary.image("picture", [[0.0]])
        step.summary.text("notes", "words")
        step.summary.scalar("other", 2)

    assert viewer.seen == [
        {
            "scalar": {"rate": 0.1, "other": 2},
            "histogram": {"weights": [1.0, 2.0]},
            "image": {"picture": [[0.0]]},
            "text": {"notes": "words"},
        }
    ]


def test_each_step_shows_its_own(own):
    """One may well show nothing, or something else than the one before."""
    viewer = Viewer()
    with own(viewer) as session:
        for kind in ("scalar", None, "text"):
            with session.step() as step:
                if kind is not None:
                    show(step, kind, kind, 1)

    assert viewer.seen == [{"scalar": {"scalar": 1}}, {}, {"text": {"text": 1}}]


def test_metrics_have_the_scalars(own):
    """After loss and accuracy; no other kind, and nothing of the step before."""
    watcher = Watcher()
    with own(watcher) as session:
        with session.step() as step:
            step.summary.scalar("rate", 0.1)
            step.summary.histogram("weights", [1.0])
            step.report(accuracy=0.9, loss=1.0, other=3.0)
        with session.step() as step:
            step.summary.scalar("grad", 7.0)

    first, second = watcher.seen
    assert list(first.items()) == [("loss", 1.0), ("accuracy", 0.9), ("rate", 0.1)]
    assert second == {"grad": 7.0}


def test_a_scalar_called_loss_is_the_loss(own):
    """Hooks watch the loss that is shown as such."""
    watcher = Watcher()
    with own(watcher) as session, session.step() as step:
        step.report(loss=1.0)
        step.summary.scalar("loss", 2.0)

    assert watcher.seen == [{"loss": 2.0}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_is_called_only_when_it_is_due(own, kind):
    """In the steps in which somebody asks, and in no others."""
    costly = Costly()
    with own(Viewer(every=3)) as session:
        for _ in range(7):
            with session.step() as step:
                show(step, kind, "x", costly)

    assert costly.calls == 3


def test_a_function_is_called_once_whoever_wants_it(own):
    """Two viewers, and two hooks that watch the metrics, share one call."""
    costly = Costly()
    hooks = [Viewer(), Watcher(), Viewer(), Watcher()]
    with own(*hooks) as session, session.step() as step:
        step.summary.scalar("x", costly)

    assert costly.calls == 1
    assert hooks[0].seen == [{"scalar": {"x": 0.5}}]
    assert hooks[1].seen == [{"x": 0.5}]


def test_a_function_is_called_once_though_a_hook_feeds(own, fetch):
    """Fed values stand beside the shown ones, and make no second call."""
    costly, watcher, viewer = Costly(), Watcher(), Viewer()
    hooks = [fetch(None, {"loss": 7.0}), watcher, viewer]
    with own(*hooks) as session, session.step() as step:
        step.report(loss=1.0)
        step.summary.scalar("x", costly)

    assert (watcher.seen, costly.calls) == ([{"loss": 7.0, "x": 0.5}], 1)
    assert viewer.seen == [{"scalar": {"x": 0.5}}]


def test_a_function_that_is_only_shown_is_not_called_for_the_metrics(own):
    """To watch scalars computes no histogram."""
    costly = Costly()
    with own(Watcher()) as session, session.step() as step:
        step.summary.scalar("rate", 0.1)
        step.summary.histogram("weights", costly)

    assert costly.calls == 0


def test_a_function_is_called_when_the_block_is_left(own):
    """It sees what the whole block has done."""
    weights, viewer = [1.0], Viewer()
    with own(viewer) as session, session.step() as step:
        step.summary.scalar("total", lambda: sum(weights))
        weights.append(2.0)

    assert viewer.seen == [{"scalar": {"total": 3.0}}]


def test_an_error_of_a_function_leaves_the_step(own):
    """It comes out of the block, and the step is not counted."""
    with (
        pytest.raises(ZeroDivisionError),
        own(Viewer()) as session,
        session.step() as step,
    ):
        step.summary.scalar("x", lambda: 1 / 0)

    assert session.global_step == 0


def test_a_cancelled_step_shows_nothing(own):
    """Neither then nor in the next step, and its functions are not called."""
    costly, viewer = Costly(), Viewer()
    with own(viewer) as session:
        with session.step() as step:
            step.summary.scalar("x", costly)
            step.cancel()
        with session.step() as step:
            step.summary.scalar("y", 1)

    assert viewer.seen == [{"scalar": {"y": 1}}]
    assert costly.calls == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entered", [False, True], ids=["before", "after"])
def test_a_summary_belongs_into_its_step(own, kind, entered):
    """Before the block is entered and after it is left there is nobody to show it to."""
    with own() as session:
        step = session.step()
        if entered:
            with step:
                pass
        with pytest.raises(
            UsageError, match=rf"^call summary\.{kind}\(\) inside the block of its step$"
        ):
            show(step, kind, "x", 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_shown_once_in_a_step(own, kind):
    """Not even as two kinds; the next step may show it again."""
    with own() as session:
        for _ in range(2):
            with session.step() as step:
                step.summary.scalar("x", 1)
                with pytest.raises(
                    UsageError, match=r"^'x' is summarized twice in one step$"
                ):
                    show(step, kind, "x", 2)


def test_a_name_may_be_reported_and_shown(own, fetch):
    """Names that hooks fetch and summaries that they show do not meet."""
    viewer, hook = Viewer(), fetch("x")
    with own(viewer, hook) as session, session.step() as step:
        step.report(x=1)
        step.summary.text("x", "one")

    assert (viewer.seen, hook.results) == ([{"text": {"x": "one"}}], [1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_str_that_is_not_empty(own, kind, name):
    """As in a graph; it is told at once, and not when it is due."""
    with (
        own() as session,
        session.step() as step,
        pytest.raises(
            UsageError, match=r"a summary's name is .*; expected a non-empty str"
        ),
    ):
        show(step, kind, name, 1)


@pytest.mark.parametrize("order", [1, -1], ids=["declared first", "declared last"])
def test_a_hook_may_declare_what_is_derived(own, order):
    """In begin, wherever it stands; it is shown beside what the steps show."""
    viewer = Viewer()
    with own(*[Declares(), viewer][::order]) as session, session.step() as step:
        step.report(hits=3, total=4)
        step.summary.scalar("grad", 7.0)

    assert viewer.seen == [{"scalar": {"rate": 0.75, "grad": 7.0}}]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_step_shows_takes_the_place_of_what_was_declared(own, kind):
    """Under one name there is one thing, whatever a hook declared it to be."""
    viewer = Viewer()
    with own(Declares(kind), viewer) as session, session.step() as step:
        step.report(hits=3, total=4)
        step.summary.scalar("rate", 0.1)

    assert viewer.seen == [{"scalar": {"rate": 0.1}}]


def test_what_is_declared_and_not_reported_is_an_error_that_names_it(own):
    """A step must report what a declared node is derived from, where that is due."""
    with (
        pytest.raises(UnfedPlaceholderError, match="'total' is not reported") as caught,
        own(Declares(), Viewer()) as session,
        session.step() as step,
    ):
        step.report(hits=3)

    assert "step.report(total=...)" in str(caught.value)


def test_the_error_of_a_name_that_is_not_reported_lists_no_names_of_our_own(own, fetch):
    """Only what steps report is worth a look."""
    with own(fetch("los")) as session:
        step = session.step().__enter__()
        step.report(loss=1.0)
        step.summary.scalar("x", 1)
        with pytest.raises(
            UnfedPlaceholderError, match=r"reports 'loss'; did you mean 'loss'"
        ):
            step.__exit__(None, None, None)
