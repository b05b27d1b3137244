"""Tests the reports of steps, which are computed only for those who want them."""

from __future__ import annotations

import pytest

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
    SingularMonitoredSession,
    UsageError,
)
from hookbus.errors import UnfedPlaceholderError


class Costly:
    """A value that counts how often it is computed."""

    def __init__(self, value):
        self.value = value
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.value


def test_what_nobody_wants_is_not_computed(own, fetch):
    """A reported callable is left alone where no hook fetches it."""
    accuracy = Costly(0.9)
    with own(fetch("loss")) as session, session.step() as step:
        step.report(loss=1.0, accuracy=accuracy)

    assert accuracy.calls == 0


def test_what_several_want_is_computed_once(own, fetch):
    """Two hooks, and a reader after the step, share one call."""
    accuracy = Costly(0.9)
    one, other = fetch("accuracy"), fetch(["accuracy", "accuracy"])
    with own(one, other) as session:
        with session.step() as step:
            step.report(accuracy=accuracy)
        assert session.run("accuracy") == 0.9

    assert (one.results, other.results) == ([0.9], [[0.9, 0.9]])
    assert accuracy.calls == 1


def test_a_hook_that_is_not_due_costs_nothing(own):
    """A callable is only called in the steps in which somebody asks."""
    accuracy = Costly(0.9)

    class EveryThird(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs("accuracy") if run_context.global_step % 3 == 0 else None

    with own(EveryThird()) as session:
        for _ in range(7):
            with session.step() as step:
                step.report(accuracy=accuracy)

    assert accuracy.calls == 3


def test_a_callable_is_called_when_the_block_is_left(own, fetch):
    """It sees what the whole block has done, not the state in which it was reported."""
    weights = [1.0]
    hook = fetch("total")
    with own(hook) as session, session.step() as step:
        step.report(total=lambda: sum(weights))
        weights.append(2.0)

    assert hook.results == [3.0]


def test_an_error_of_a_callable_leaves_the_step(own, fetch):
    """Its error comes out of the block; the step is not counted."""
    with (
        pytest.raises(ZeroDivisionError),
        own(fetch("loss")) as session,
        session.step() as step,
    ):
        step.report(loss=lambda: 1 / 0)

    assert session.global_step == 0


def test_reading_between_steps_gives_the_last_report(own):
    """session.run() outside a step has the value of the step before, any nesting of it."""
    with own() as session:
        for loss in (3.0, 2.0):
            with session.step() as step:
                step.report(loss=loss, rate=0.1)
        assert session.run({"l": "loss", "both": ["rate", "loss"]}) == {
            "l": 2.0,
            "both": [0.1, 2.0],
        }


def test_reading_one_value_computes_no_other(own):
    """session.run("loss") leaves the callables alone that it does not name."""
    accuracy = Costly(0.9)
    with own() as session:
        with session.step() as step:
            step.report(loss=1.0, accuracy=accuracy)
        assert session.run("loss") == 1.0

    assert accuracy.calls == 0


def test_a_hooks_own_reading_computes_no_other(own):
    """Nor does a run of the backend session in a hook's after_run."""
    accuracy = Costly(0.9)
    read = []

    class Reader(SessionRunHook):
        def after_run(self, run_context):
            read.append(run_context.session.run("loss"))

    with own(Reader()) as session, session.step() as step:
        step.report(loss=1.0, accuracy=accuracy)

    assert (read, accuracy.calls) == ([1.0], 0)


NOT_YET = (
    "'loss' is not reported yet: no step has ended; read it in after_run() or after the "
    "first step"
)


def test_reading_before_the_first_step_says_that_nothing_is_there(own):
    """Before anything is reported, reading is an error that says when it is."""
    with own() as session, pytest.raises(UnfedPlaceholderError) as caught:
        session.run("loss")

    assert str(caught.value) == NOT_YET


def test_a_hook_that_reads_before_the_first_step_learns_when_it_can(own):
    """The error does not blame the step that has only begun; later, there is a value."""
    read = []

    class Reader(SessionRunHook):
        def before_run(self, run_context):
            try:
                read.append(run_context.session.run("loss"))
            except UnfedPlaceholderError as error:
                read.append(str(error))

    with own(Reader()) as session:
        for loss in (2.0, 1.0):
            with session.step() as step:
                step.report(loss=loss)

    assert read == [NOT_YET, 2.0]


def test_a_step_without_reports_says_that_it_reports_nothing(own, fetch):
    """The error names the report that is missing once a step could have made it."""
    with pytest.raises(UnfedPlaceholderError) as caught, own(fetch("loss")) as session:
        session.step().__enter__().__exit__(None, None, None)

    assert str(caught.value).startswith(
        "'loss' is not reported; the step reports nothing: step.report(loss=...)"
    )


def test_reading_reaches_no_hook(own, fetch):
    """session.run() between steps is no step: no hook is called."""
    hook = fetch()
    with own(hook) as session:
        with session.step() as step:
            step.report(loss=1.0)
        session.run("loss")

    assert hook.steps == [0, 1]


def test_a_cancelled_step_leaves_the_last_report(own):
    """Reading after a cancelled step gives what the step before it reported."""
    with own() as session:
        with session.step() as step:
            step.report(loss=1.0)
        with session.step() as step:
            step.report(loss=2.0)
            step.cancel()
        assert session.run("loss") == 1.0


def test_begin_gets_an_empty_graph(own):
    """A hook that looks at the graph in begin sees the global step and nothing else."""
    seen = []

    class Looker(SessionRunHook):
        def begin(self, graph):
            seen.append(sorted(graph.nodes))

    with own(Looker()):
        pass

    assert seen == [["global_step"]]


def test_a_hook_may_derive_nodes_from_reports(own, fetch):
    """An op that a hook adds in begin reads reported names, computed if it is fetched."""

    class Ratio(fetch):
        def begin(self, graph):
            graph.op(lambda hits, total: hits / total, name="ratio")

    hook = Ratio("ratio")
    with own(hook) as session:
        with session.step() as step:
            step.report(hits=3, total=Costly(4))
        assert session.run("ratio") == 0.75

    assert hook.results == [0.75]


def test_a_derived_node_says_what_it_lacks(own, fetch):
    """A derived node whose source is not reported is an error that names both."""

    class Ratio(fetch):
        def begin(self, graph):
            graph.op(lambda hits, total: hits / total, name="ratio")

    with (
        pytest.raises(UnfedPlaceholderError, match="'total' is not reported") as caught,
        own(Ratio("ratio")) as session,
        session.step() as step,
    ):
        step.report(hits=3)

    assert "'ratio' is fetched by ratio" in str(caught.value)


def test_different_steps_may_report_different_names(own):
    """Each step reports what it has; a hook that asks when it is there is content."""
    seen = []

    class Alternating(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs("ab"[run_context.global_step % 2])

        def after_run(self, run_values):
            seen.append(run_values.results)

    with own(Alternating()) as session:
        for number in range(4):
            with session.step() as step:
                step.report(**{"ab"[number % 2]: number})

    assert seen == [0, 1, 2, 3]


def test_a_later_step_that_does_not_report_what_a_hook_asks_for_is_an_error(own, fetch):
    """The message is that of a first step; a step before it has reported the value."""

    def loop(session):
        for reports in ({"loss": 1}, {"rate": 2}):
            with session.step() as step:
                step.report(**reports)

    hook, message = fetch("loss"), r"^'loss' is not reported; the step reports 'rate'"
    with pytest.raises(UnfedPlaceholderError, match=message), own(hook) as session:
        loop(session)
    assert hook.results == [1]


def test_metrics_are_those_of_loss_and_accuracy_that_are_reported(own, fetch):
    """graph.metrics, which hooks take when told no names, follows what a step reports."""

    class Metrics(fetch):
        def begin(self, graph):
            self.request = type(self.request)(graph.metrics)

    hook = Metrics()
    with own(hook) as session:
        for report in ({"loss": 1.0}, {"accuracy": 0.5, "loss": 2.0, "other": 3.0}):
            with session.step() as step:
                step.report(**report)

    assert hook.results == [{"loss": 1.0}, {"loss": 2.0, "accuracy": 0.5}]


def test_metrics_see_what_is_fed(own, fetch):
    """graph.metrics holds the loss that a hook feeds, reported or not."""

    class Metrics(fetch):
        def begin(self, graph):
            self.request = type(self.request)(graph.metrics)

    hook = Metrics()
    with own(fetch(None, {"loss": 7.0}), hook) as session:
        for report in ({"loss": 1.0}, {"accuracy": 0.5}):
            with session.step() as step:
                step.report(**report)

    assert hook.results == [{"loss": 7.0}, {"loss": 7.0, "accuracy": 0.5}]


@pytest.mark.parametrize("what", ["step", "track", "iterate"])
def test_a_session_with_a_graph_has_no_custom_loop(what):
    """step(), track() and iterate() of a session with a graph say to use run or loop."""
    with MonitoredSession(Graph(), config=Config(autoload=False)) as session:
        use = {
            "step": lambda: session.step(),
            "track": lambda: session.track(model=1),
            "iterate": lambda: session.iterate([1]),
        }[what]
        with pytest.raises(UsageError, match=rf"^{what}\(\) is for a custom loop"):
            use()


@pytest.mark.parametrize("what", ["loop", "run_step_fn"])
def test_a_session_without_a_graph_has_only_a_custom_loop(own, what):
    """loop() and run_step_fn() have nothing to run without a graph, and say so."""
    with own() as session:
        use = {
            "loop": lambda: next(session.loop()),
            "run_step_fn": lambda: session.run_step_fn(
                lambda step_context: step_context.run_with_hooks("loss")
            ),
        }[what]
        with pytest.raises(UsageError, match=rf"^{what}\(\) .*graph"):
            use()


def test_every_session_class_serves_a_custom_loop(fetch):
    """A singular session without a graph has steps as well, on the same bus."""
    hook = fetch("loss")
    config = Config(autoload=False)
    with SingularMonitoredSession(hooks=[hook], config=config) as session:
        with session.step() as step:
            step.report(loss=1.0)
        assert session.raw_session().run("loss") == 1.0

    assert (hook.results, hook.ended) == ([1.0], ["end"])
