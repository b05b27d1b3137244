"""An evaluation of a custom loop: a block whose reports reach hooks as means."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hookbus_early_stopping import EarlyStoppingHook, stop_if_no_decrease_hook
from hookbus_summary_saver import SummarySaverHook
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    SessionRunHook,
    UsageError,
    hookimpl,
    random_state,
)
from hookbus.errors import SessionClosedError


class Listener(SessionRunHook):
    """Keeps the evaluations that it hears of."""

    def __init__(self):
        self.heard = []

    @hookimpl
    def evaluated(self, metrics, global_step, name):
        self.heard.append((name, global_step, dict(metrics)))


class Failure(Exception):
    """An error that a test raises on purpose."""


def left_by(error, evaluation):
    with evaluation:
        random.random()
        evaluation.report(loss=1.0)
        raise error


def steps(session, number=1):
    for _ in range(number):
        with session.step() as step:
            step.report(loss=1.0)


def test_reports_reach_hooks_as_means(own):
    """Each value is averaged over the reports that have it; the step is the current one."""
    listener = Listener()
    with own(listener) as session:
        steps(session, 3)
        with session.evaluation("val") as evaluation:
            evaluation.report(loss=1.0, accuracy=np.float32(0.5))
            evaluation.report(loss=2.0)
        assert evaluation.metrics == {"loss": 1.5, "accuracy": 0.5}

    assert listener.heard == [("val", 3, {"loss": 1.5, "accuracy": 0.5})]
    assert session.global_step == 3


def test_weights_count(own):
    """A report counts as often as its weight; one without weight counts for nothing."""
    listener = Listener()
    with own(listener) as session, session.evaluation() as evaluation:
        evaluation.report(loss=1.0, weight=3)
        evaluation.report(loss=5.0, weight=np.int64(1))
        evaluation.report(loss=float("nan"), empty=float("nan"), weight=0)

    assert listener.heard == [(None, 0, {"loss": 2.0})]


def test_evaluations_have_names_and_come_in_any_number(own, lines):
    """Several blocks, of one name or of several, are several evaluations."""
    listener = Listener()
    with own(listener) as session:
        evaluation = session.evaluation("val")
        for loss in (1.25, 0.5):
            with evaluation:
                evaluation.report(loss=loss)
            steps(session)
        with session.evaluation("test") as test:
            test.report(loss=1 / 3)

    assert listener.heard == [
        ("val", 0, {"loss": 1.25}),
        ("val", 1, {"loss": 0.5}),
        ("test", 2, {"loss": 1 / 3}),
    ]
    logged = [line for line in lines if line["event"] == "evaluated"]
    shown = [(line["step"], line["name"], line["metrics"]) for line in logged]
    assert shown[-1] == (2, "test", {"loss": 0.333333})


def test_a_block_without_reports_is_a_warning(own, lines):
    """Hooks hear of no evaluation without metrics; a line says why."""
    listener = Listener()
    with own(listener) as session, session.evaluation("val"):
        pass

    assert listener.heard == []
    (line,) = [line for line in lines if line["event"] == "an evaluation reports nothing"]
    assert (line["log_level"], line["name"]) == ("warning", "val")


@pytest.mark.parametrize("error", [Failure(), StopIteration(), KeyboardInterrupt()])
def test_an_error_leaves_no_evaluation(own, error):
    """Half an evaluation does not count; generators are restored, and the loop goes on."""
    listener = Listener()
    with own(listener) as session:
        before = random_state.capture()
        with pytest.raises(type(error)):
            left_by(error, session.evaluation())
        assert random_state.same(random_state.capture(), before)
        steps(session)

    assert listener.heard == []
    assert session.outcome.kind == "completed"


def test_an_evaluation_changes_nothing(own):
    """It may draw from all generators of the training, which are restored."""
    numbers = []
    for evaluates in (False, True):
        random.seed(1)
        np.random.seed(1)
        draw = np.random.default_rng(1)
        numbers.append([])
        with own() as session:
            session.track(draw=draw)
            for value in session.iterate(range(4)):
                with session.step():
                    drawn = value, random.random(), np.random.rand(), draw.random()
                    numbers[-1].append(drawn)
                if evaluates:
                    with session.evaluation() as evaluation:
                        noise = random.random() + np.random.rand() + draw.random()
                        evaluation.report(noise=noise)

    assert numbers[0] == numbers[1]


INSIDE = {
    "step": (lambda s: s.step().__enter__(), r"step\(\) inside evaluation\(\): leave the"),
    "evaluation": (
        lambda s: s.evaluation().__enter__(),
        r"evaluation\(\) inside evaluation\(\): leave the",
    ),
    "iterate": (
        lambda s: s.iterate([1]),
        r"iterate\(\) inside evaluation\(\): iterate over the data without the session",
    ),
}


@pytest.mark.parametrize("what", INSIDE)
def test_blocks_do_not_nest(own, what):
    """Inside an evaluation there is no step, evaluation or pass of the training."""
    use, message = INSIDE[what]
    with own() as session, session.evaluation() as evaluation:
        evaluation.report(loss=1.0)
        with pytest.raises(UsageError, match=message):
            use(session)


def test_an_evaluation_does_not_start_inside_a_step(own):
    """The step is not done yet, so there is no model to evaluate."""
    with (
        own() as session,
        session.step(),
        pytest.raises(UsageError, match=r"evaluation\(\) inside step\(\): leave the"),
    ):
        session.evaluation().__enter__()


def test_the_last_reports_can_be_read_inside(own):
    """session.run() gives what the last step reported, as between two steps."""
    with own() as session:
        steps(session)
        with session.evaluation() as evaluation:
            evaluation.report(train_loss=session.run("loss"))

    assert evaluation.metrics == {"train_loss": 1.0}


def test_a_graph_has_other_evaluations():
    """The error names what evaluates a graph."""
    config = Config(autoload=False)
    with (
        MonitoredSession(Graph(), config=config) as session,
        pytest.raises(UsageError) as caught,
    ):
        session.evaluation()
    assert str(caught.value) == (
        "evaluation() is for a custom loop, but this session has a graph: use the plugin "
        "in-memory-evaluator, or run(..., kind='eval')"
    )


def test_a_hook_evaluates_in_no_block(own):
    """Inside an event, a block would call the hooks that are being called."""

    class Evaluator(SessionRunHook):
        def after_run(self):
            session.evaluation()

    with (
        pytest.raises(UsageError, match="hook 'evaluator' cannot"),
        own(Evaluator()) as session,
    ):
        steps(session)


def test_a_closed_session_has_no_evaluations(own):
    """Neither a new one nor one that was made before."""
    with own() as session:
        made = session.evaluation()
    for use in (session.evaluation, made.__enter__):
        with pytest.raises(SessionClosedError):
            use()


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (
            {"loss": "low"},
            "evaluation: 'loss' is not a number (type str); report a number",
        ),
        (
            {"loss": np.zeros(3)},
            "evaluation: 'loss' is not a number (type ndarray); report a number",
        ),
        (
            {"loss": lambda: 1.0},
            "evaluation: 'loss' is not a number (type function); report a number",
        ),
        (
            {"loss": 1.0, "weight": -1},
            "evaluation: the weight is -1; expected a finite number of at least 0",
        ),
        (
            {"loss": 1.0, "weight": float("nan")},
            "evaluation: the weight is nan; expected a finite number of at least 0",
        ),
        (
            {"loss": 1.0, "weight": "2x"},
            "evaluation: the weight is '2x'; expected a finite number of at least 0",
        ),
    ],
)
def test_what_is_no_number_is_an_error(own, report, message):
    """Values and weights are numbers; nothing of a wrong report counts."""
    with own() as session, session.evaluation() as evaluation:
        with pytest.raises(UsageError) as caught:
            evaluation.report(first=1.0, **report)
        assert str(caught.value) == message
        evaluation.report(second=2.0)

    assert evaluation.metrics == {"second": 2.0}


def test_reports_belong_into_the_block(own):
    """A report outside of it is an error."""
    with own() as session:
        evaluation = session.evaluation()
        with pytest.raises(UsageError, match=r"call report\(\) inside the block of its"):
            evaluation.report(loss=1.0)


def test_a_name_leads_into_no_other_folder(own):
    """The name is part of a folder's name, so it has no slash."""
    with own() as session, pytest.raises(UsageError, match="must not have a slash"):
        session.evaluation("../val")


def written(directory: Path) -> list[tuple[int, float]]:
    read = EventAccumulator(str(directory))
    read.Reload()
    return [(event.step, event.value) for event in read.Scalars("loss")]


def test_tensorboard_shows_each_evaluation_as_a_run(own, tmp_path):
    """Means are written below the directory, into ``eval`` and ``eval_NAME``."""
    with own(SummarySaverHook(save_steps=100, output_dir=str(tmp_path))) as session:
        for loss in (1.0, 0.5):
            steps(session, 2)
            for name in (None, "val"):
                with session.evaluation(name) as evaluation:
                    evaluation.report(loss=loss)

    assert written(tmp_path / "eval") == [(2, 1.0), (4, 0.5)]
    assert written(tmp_path / "eval_val") == [(2, 1.0), (4, 0.5)]


def validated(session, losses, per_epoch=5):
    """Train and validate until the session stops; return the validated steps."""
    done = []
    for epoch in session.epochs(len(losses)):
        for _ in session.iterate(range(per_epoch)):
            steps(session)
        with session.evaluation("val") as evaluation:
            evaluation.report(loss=losses[epoch])
        done.append(session.global_step)
    return done


@pytest.mark.parametrize("spelled", [("loss", "val"), ("val/loss", False)])
def test_early_stopping_watches_one_evaluation(own, spelled):
    """Patience counts the steps between the evaluated models; the loop ends at once."""
    metric, name = spelled
    hook = stop_if_no_decrease_hook(metric, 10, from_evaluations=name)
    with own(hook) as session:
        done = validated(session, [1.0, 0.5, 0.6, 0.7, 0.1, 0.0])
        assert session.should_stop()

    assert done == [5, 10, 15, 20]
    assert session.outcome.who == "early-stopping"
    why = f"no decrease in {metric} for 10 steps, and the patience is 10"
    assert session.outcome.why == why


def test_a_stop_before_the_first_step_comes_after_it(own):
    """An evaluation of the initial model can already be a reason to stop."""
    hook = EarlyStoppingHook("loss", True, "lower", threshold=0.5)
    with own(hook) as session:
        with session.evaluation() as evaluation:
            evaluation.report(loss=0.1)
        steps(session)
        assert session.should_stop()


def test_an_evaluation_is_allowed_after_a_stop(own):
    """The final model can be evaluated; hooks hear of it, and the outcome stays."""
    listener = Listener()

    class StopHook(SessionRunHook):
        def after_run(self, run_context):
            run_context.request_stop("enough")

    with own(StopHook(), listener) as session:
        steps(session)
        with session.evaluation() as evaluation:
            evaluation.report(loss=1.0)

    assert listener.heard == [(None, 1, {"loss": 1.0})]
    assert session.outcome.why == "enough"


def test_a_hook_can_ask_to_save_after_an_evaluation(saved):
    """The request is served when the block is left, with the state after the last step."""

    class Keeper(SessionRunHook):
        def before_run(self, run_context):
            self.context = run_context

        @hookimpl
        def evaluated(self):
            self.context.request_save("evaluated")

    with saved(Keeper(), every=100) as session:
        steps(session, 3)
        with session.evaluation() as evaluation:
            evaluation.report(loss=1.0)
        assert Path("runs/ckpt-3/manifest.json").is_file()


LOSSES = [1.0, 0.5, 0.6, 0.7, 0.1, 0.0]


def killed_at(saved, step, point):
    """Train with a kill at a step, before or after the evaluation there, then resume."""
    heard = []
    for dies in (True, False):
        listener = Listener()
        hook = stop_if_no_decrease_hook("loss", 10, from_evaluations="val")
        session = saved(hook, listener, every=2)
        try:
            with session:
                for loss in LOSSES:
                    for _ in session.iterate(range(5)):
                        steps(session)
                        if dies and point == "step" and session.global_step == step:
                            raise Failure
                    if session.should_stop():
                        break
                    with session.evaluation("val") as evaluation:
                        evaluation.report(loss=loss)
                    if dies and point == "evaluation" and session.global_step == step:
                        raise Failure
        except Failure:
            pass
        heard.append([at for _, at, _ in listener.heard])
    return session, heard


@pytest.mark.parametrize(
    ("step", "point", "again"),
    [
        (13, "step", [15, 20]),  # in the middle of a pass, after two evaluations
        (15, "step", [15, 20]),  # before an evaluation
        (15, "evaluation", [15, 20]),  # after it, and before the next save
        (17, "step", [20]),  # after it and the next save
    ],
)
def test_a_killed_loop_stops_at_the_same_step(saved, step, point, again):
    """Evaluations before the checkpoint do not count a second time, and none is lost."""
    session, heard = killed_at(saved, step, point)

    assert (session.global_step, session.outcome.who) == (20, "early-stopping")
    assert heard[1] == again


@pytest.mark.parametrize("dies_at", [4, 5, 6, 9])
def test_an_evaluation_before_a_step_survives_a_kill(saved, dies_at):
    """A loop that evaluates every few steps loses none, wherever it is killed."""
    heard = []
    for dies in (True, False):
        listener = Listener()
        try:
            with saved(listener, every=1) as session:
                for _ in session.iterate(range(12)):
                    if dies and session.global_step == dies_at:
                        raise Failure
                    if session.global_step % 5 == 0:
                        with session.evaluation() as evaluation:
                            evaluation.report(loss=1.0)
                    steps(session)
        except Failure:
            pass
        heard += [at for _, at, _ in listener.heard]

    assert heard == [0, 5, 10]
