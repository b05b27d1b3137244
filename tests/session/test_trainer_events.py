"""Tests what a foreign loop tells beside its steps, and which requests it serves."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_final_ops import FinalOpsHook
from hookbus_progress import ProgressHook
from hookbus_spike_rollback import SpikeRollbackHook
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    Config,
    DrivenSession,
    Due,
    Graph,
    HookOptions,
    MonitoredSession,
    OutOfRangeError,
    SessionRunArgs,
    SessionRunHook,
    TrainerAdapter,
    UsageError,
    hookimpl,
)
from hookbus.errors import CheckpointError, SessionClosedError, UnfedPlaceholderError

OFF = Config(autoload=False, header=False)


@attrs.define(eq=False)
class CountHook(SessionRunHook):
    """Adds up the losses of every third step, counts all, and notes its events."""

    total: float = 0.0
    runs: int = 0
    seen: list[Any] = attrs.field(factory=list)

    @hookimpl
    def next_due(self, global_step: int) -> Any:
        """Wait for the next third step."""
        return Due(step=global_step // 3 * 3 + 3)

    @hookimpl
    def idled(self, runs: int) -> None:
        """Count the steps without the hook."""
        self.runs += runs

    def before_run(self, run_context):
        self.seen.append(
            (run_context.global_step, run_context.epoch, run_context.last_step)
        )
        return SessionRunArgs("loss")

    def after_run(self, run_context, run_values):
        self.runs += 1
        if run_context.global_step % 3 == 2:
            self.total += run_values.results

    @hookimpl
    def epoch_ended(self, epoch, global_step):
        self.seen.append(f"epoch {epoch} ended at {global_step}")

    @hookimpl
    def evaluated(self, metrics, global_step, name):
        self.seen.append((name, dict(metrics), global_step))

    @hookimpl
    def after_save(self, global_step, path):
        self.seen.append((path.name, global_step))

    def state_dict(self):
        return {"total": self.total, "runs": self.runs}

    def load_state_dict(self, state):
        self.total, self.runs = state["total"], state["runs"]


def session_of(*hooks: Any, **arguments: Any) -> DrivenSession:
    return DrivenSession(hooks=hooks, config=OFF, **arguments)


def begin(driven: DrivenSession, global_step: int | None = None, **given: Any) -> None:
    driven.begin(**given)
    driven.created(global_step=global_step)


def steps(driven: DrivenSession, count: int, loss: float = 1.0) -> Any:
    for _ in range(count):
        driven.before_step()
        stop = driven.after_step({"loss": loss * (driven.global_step + 1)})
        if stop is not None:
            return stop
    return None


def test_hooks_see_the_epochs_and_the_last_step_of_the_loop() -> None:
    """The loop reports them; between two epochs there is no epoch."""
    hook = CountHook()
    with session_of(hook) as driven:
        begin(driven, last_step=6)
        for epoch in range(2):
            driven.epoch_began(epoch)
            steps(driven, 3)
            driven.epoch_ended(epoch)
    assert hook.seen == [
        (0, 0, 6),
        (2, 0, 6),
        "epoch 0 ended at 3",
        (5, 1, 6),
        "epoch 1 ended at 6",
    ]


@pytest.mark.parametrize("at", range(1, 8))
def test_a_state_that_the_loop_keeps_resumes_hooks_exactly(at: int) -> None:
    """Waiting hooks are settled before it is read, at whatever step that is."""
    whole = CountHook()
    with session_of(whole) as driven:
        begin(driven)
        steps(driven, 9)
    first, second = CountHook(), CountHook()
    with session_of(first) as driven:
        begin(driven)
        driven.record({"rate": 0.1})
        steps(driven, at)
        kept = driven.state_dict()
    assert kept["global_step"] == at
    with session_of(second) as driven:
        driven.begin()
        driven.load_state_dict(kept)
        driven.created(global_step=at)
        assert driven.global_step == at
        assert driven.state_dict()["params"] == {"rate": 0.1}
        steps(driven, 9 - at)
    assert (second.total, second.runs) == (whole.total, whole.runs)


def test_a_state_of_other_plugins_is_named_and_left_out(capsys: Any) -> None:
    """A hook without a state begins anew."""
    with session_of(CountHook()) as driven:
        begin(driven)
        kept = driven.state_dict()
    stopper = EarlyStoppingHook("loss", patience=3)
    with session_of(stopper) as driven:
        driven.begin()
        driven.load_state_dict(kept)
        driven.created(global_step=4)
    log = capsys.readouterr().err
    assert "the checkpoint contains the state of a hook that is not on hook=count" in log
    assert "the checkpoint has no state for this hook hook=early-stopping" in log


@pytest.mark.parametrize(
    "state", [None, {}, {"form": 2}, {"form": 1, "hooks": 3}], ids=repr
)
def test_another_state_is_refused(state: Any) -> None:
    """Nothing is restored from it."""
    with session_of(CountHook()) as driven:
        driven.begin()
        with pytest.raises(CheckpointError, match=r"^load_state_dict\(\) got something"):
            driven.load_state_dict(state)
        driven.created()


def test_a_state_comes_before_the_session_is_created() -> None:
    """Later it would have no effect, and beside a directory there would be two."""
    with session_of(CountHook()) as driven:
        begin(driven)
        with pytest.raises(UsageError, match=r"^load_state_dict\(\) after created\(\)"):
            driven.load_state_dict(driven.state_dict())
        driven.before_step()
        with pytest.raises(UsageError, match=r"^saved\(\) inside a step"):
            driven.saved("own")
        driven.cancel_step()
        kept = driven.state_dict()
    with session_of(CountHook(), checkpoint_dir="run") as driven:
        driven.begin()
        with pytest.raises(
            UsageError, match="with a checkpoint_dir, from which it restores"
        ):
            driven.load_state_dict(kept)
        driven.created()


def test_the_loop_and_its_checkpoint_have_the_same_step() -> None:
    """Otherwise one of them would train steps twice, or leave some out."""
    for start in (None, 0):
        with session_of(checkpoint_dir="run") as driven:
            driven.begin()
            if start is None:
                driven.created()
                steps(driven, 2)
                continue
            with pytest.raises(UsageError, match=r"the checkpoint in .* is of step 2"):
                driven.created(global_step=0)
    of_graph = DrivenSession(Graph(), config=OFF)
    of_graph.begin()
    with pytest.raises(UsageError, match=r"^created\(\) takes no global_step") as caught:
        of_graph.created(global_step=1)
    of_graph.failed(caught.value)


def test_an_evaluation_is_only_told() -> None:
    """Neither modes nor generators change; hooks may stop, and get the metrics once."""
    hook, stopper = CountHook(), EarlyStoppingHook("loss", patience=1)
    with session_of(hook, stopper) as driven:
        begin(driven)
        for loss in (1.0, 2.0, 3.0):
            steps(driven, 1)
            before = np.random.get_state()[2]
            driven.evaluation_began("val")
            np.random.rand()
            driven.evaluation_ended({"loss": np.float32(loss), "note": "text"})
            assert np.random.get_state()[2] != before
            if driven.stop is not None:
                break
    told = [each for each in hook.seen if each[0] == "val"]
    assert (
        told
        == [("val", {"loss": loss}, step) for step, loss in enumerate((1.0, 2.0), 1)][
            : len(told)
        ]
    )


def test_the_clock_stands_still_in_an_evaluation() -> None:
    """Hooks surround it, also one that the loop leaves by an error."""

    class Around(SessionRunHook):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def begin(self, clock):
            self.clock = clock

        @hookimpl(wrapper=True)
        def evaluating(self, name):
            self.seen.append(f"in {name}")
            began = self.clock()
            result = yield
            assert self.clock() == began
            self.seen.append("out")
            return result

    hook = Around()
    driven = session_of(hook)
    begin(driven)
    steps(driven, 1)
    driven.evaluation_began("val")
    with pytest.raises(UsageError, match=r"^evaluation_began\(\) inside an evaluation"):
        driven.evaluation_began("test")
    driven.evaluation_ended({})
    driven.evaluation_began("test")
    driven.failed(ValueError("of the loop"))
    assert hook.seen == ["in val", "out", "in test", "out"]


def test_an_evaluation_in_an_open_step_is_served_with_it() -> None:
    """A trainer may evaluate between the batches of one update."""
    stopper = EarlyStoppingHook("loss", patience=1)
    with session_of(stopper) as driven:
        begin(driven)
        steps(driven, 1)
        driven.evaluation_ended({"loss": 1.0})
        driven.before_step()
        driven.evaluation_ended({"loss": 2.0})
        assert driven.after_step({"loss": 1.0}).who == "early-stopping"
    assert driven.global_step == 2


class Asks(SessionRunHook):
    """Makes one request in the second step."""

    def __init__(self, request: str) -> None:
        self.request = request

    def before_run(self, run_context):
        if run_context.global_step != 1:
            return None
        if self.request == "skip":
            run_context.skip_update()
        return SessionRunArgs(None, {"loss": 99.0}) if self.request == "feed" else None

    def after_run(self, run_context):
        if run_context.global_step == 1 and self.request == "rollback":
            run_context.request_rollback("a spike")
        if run_context.global_step == 1 and self.request == "save":
            run_context.request_save("it is good")


REFUSED = {
    "skip": "called run_context.skip_update(), but the trainer makes every update",
    "feed": "feeds 'loss', but the trainer uses no values of hooks",
    "rollback": "called run_context.request_rollback(), but the trainer cannot go back",
    "save": "asked for a checkpoint, but the trainer saves no checkpoint for hooks",
}


@pytest.mark.parametrize("request_", REFUSED)
def test_what_the_loop_does_not_serve_is_an_error_of_the_hook(request_: str) -> None:
    """The message names the hook, the loop, and what to do."""
    driven = session_of(
        Asks(request_), loop="the trainer", instead={request_: "do it there"}
    )
    begin(driven)
    steps(driven, 1)
    with pytest.raises(UsageError) as caught:
        steps(driven, 1)
    driven.failed(caught.value)
    assert str(caught.value) == f"hook 'asks' {REFUSED[request_]}: do it there"


def test_a_value_that_the_loop_does_not_report_is_an_error_that_names_the_loop() -> None:
    """The user of a trainer has no ``step.report()``, which a custom loop would call."""
    driven = session_of(FinalOpsHook("lost"), loop="the trainer")
    begin(driven)
    steps(driven, 1)
    with pytest.raises(UnfedPlaceholderError) as caught:
        driven.end()
    assert str(caught.value).startswith(
        "'lost' is not reported; the step reports 'loss'; did you mean 'loss'? If not: "
        "have the trainer report it"
    )


def test_a_trainer_has_no_runs_beside_its_steps_to_advise() -> None:
    """A hook that lacks a value can only be switched off there."""

    class Wants(SessionRunHook):
        def before_run(self) -> SessionRunArgs:
            return SessionRunArgs("lost")

    driven = session_of(Wants(), loop="the trainer")
    begin(driven)
    with pytest.raises(UnfedPlaceholderError) as caught:
        steps(driven, 1)
    driven.failed(caught.value)
    assert str(caught.value).endswith(
        "'lost' is fetched by wants; to run without that hook: -p no:wants"
    )


def test_what_the_loop_serves_reaches_it() -> None:
    """It is told who skips, what is fed, and to which step it has gone back."""
    weights, asks = np.zeros(1), [Asks(request) for request in ("skip", "feed", "rollback")]
    serves = {"skip", "feed", "rollback"}
    with session_of(*asks, serves=serves, checkpoint_dir="run") as driven:
        begin(driven)
        driven.track(weights=weights)
        wanted, went_back = [], []
        for _ in range(2):
            request = driven.before_step()
            wanted.append((request.skipped_by, dict(request.feeds)))
            weights += 1
            driven.after_step({"loss": 1.0})
            went_back.append(driven.rolled_back_to)
        driven.before_step()
        driven.after_step({"loss": 1.0})
        assert driven.rolled_back_to is None
    assert wanted == [(None, {}), ("asks", {"loss": 99.0})]
    assert went_back == [None, 0]
    assert weights[0] == 0


class TrialHook(SessionRunHook):
    """Tries steps and undoes them."""

    options = HookOptions(rolls_back="step")


@pytest.mark.parametrize("hook", [SpikeRollbackHook("loss"), TrialHook()])
def test_a_hook_that_will_go_back_is_refused_before_the_first_step(hook: Any) -> None:
    """No hook has got its ``begin`` by then."""
    driven = session_of(hook, loop="the trainer")
    with pytest.raises(UsageError, match="but the trainer cannot go back"):
        driven.begin()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"serves": {"skips"}}, "serves='skips'.*did you mean 'skip'"),
        ({"serves": "save"}, "serves='save'.* needs save="),
        ({"serves": "rollback"}, "serves='rollback'.* needs checkpoint_dir="),
        ({"save": print, "checkpoint_dir": "run"}, "either the session writes"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: Any, message: str) -> None:
    """Each message tells what to give."""
    with pytest.raises(UsageError, match=message):
        session_of(**arguments)


class Trainer:
    """A trainer that writes checkpoints of its own."""

    def __init__(self, *hooks: Any, **arguments: Any) -> None:
        self.saved: list[int] = []
        self.driven = session_of(*hooks, save=self.save, loop="the trainer", **arguments)

    def save(self) -> None:
        """Write one, and report it."""
        self.saved.append(self.driven.state_dict()["global_step"])
        self.driven.saved(Path(f"own-{self.saved[-1]}"))


def test_the_loop_writes_the_checkpoints_that_hooks_ask_for() -> None:
    """Periods of checkpoint-saver, requests of hooks, and those of the loop are told."""
    hook = CountHook()
    trainer = Trainer(hook, CheckpointSaverHook(save_steps=2), Asks("save"))
    with trainer.driven as driven:
        begin(driven)
        steps(driven, 5)
        trainer.save()
    assert trainer.saved == [2, 4, 5]
    told = [each for each in hook.seen if str(each[0]).startswith("own")]
    assert told == [("own-2", 2), ("own-4", 4), ("own-5", 5)]


def test_a_hook_may_ask_for_the_last_checkpoint_at_the_end() -> None:
    """The session is closed by then, and the loop may still keep its state."""

    class Last(SessionRunHook):
        def begin(self, checkpoints):
            self.checkpoints = checkpoints

        def end(self):
            self.checkpoints.request_save("the last one")

    hook = CountHook()
    trainer = Trainer(Last(), hook)
    with trainer.driven as driven:
        begin(driven)
        steps(driven, 2)
    assert trainer.saved == [2]
    assert hook.seen[-1] == ("own-2", 2)
    with pytest.raises(SessionClosedError):
        driven.state_dict()


def test_a_refused_checkpoint_is_not_asked_of_the_loop() -> None:
    """A hook may keep the loop from saving bad weights."""

    class Refuses(SessionRunHook):
        @hookimpl
        def veto_save(self, values, global_step):
            assert {*values} == {"weights"}
            return "bad" if global_step == 2 else None

    trainer = Trainer(Refuses(), CheckpointSaverHook(save_steps=2))
    with trainer.driven as driven:
        begin(driven)
        driven.track(weights=np.ones(2))
        steps(driven, 4)
    assert trainer.saved == [4]


def test_an_answer_of_after_save_stops_the_loop() -> None:
    """Also for a checkpoint that the loop has written by itself."""

    class Stops(SessionRunHook):
        @hookimpl
        def after_save(self, path):
            return f"{path.name} is enough"

    trainer = Trainer(Stops())
    with trainer.driven as driven:
        begin(driven)
        steps(driven, 2)
        assert driven.stop is None
        trainer.save()
        assert driven.stop is not None
        assert driven.stop.why == "own-2 is enough"


def test_after_a_signal_the_loop_saves() -> None:
    """SIGTERM asks for a checkpoint of the loop's own, and exits with 75."""
    trainer = Trainer()
    begin(trainer.driven)
    steps(trainer.driven, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert steps(trainer.driven, 1).kind == "preempted"
    with pytest.raises(SystemExit) as exits:
        trainer.driven.end()
    assert exits.value.code == 75
    assert trainer.saved == [2]


def test_after_a_signal_between_two_steps_the_loop_saves() -> None:
    """The loop looks at stop there, as it does after an evaluation."""
    trainer = Trainer()
    begin(trainer.driven)
    steps(trainer.driven, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    stop = trainer.driven.stop
    assert stop is not None
    assert stop.kind == "preempted"
    with pytest.raises(SystemExit) as exits:
        trainer.driven.end()
    assert exits.value.code == 75
    assert trainer.saved == [1]


@pytest.mark.parametrize("saves", [True, False])
def test_the_command_knows_whether_the_loop_has_saved(saves: bool, capfd: Any) -> None:
    """Then it exits with the code that has the program started again."""
    config = Config(autoload=False, header=False)
    driven = DrivenSession(
        config=config, save=lambda: driven.saved("own") if saves else None
    )
    begin(driven)
    os.kill(os.getpid(), signal.SIGTERM)
    steps(driven, 1)
    assert "finishing this step, then saving" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        driven.end()
    assert [record.saved for record in config.records] == [saves]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint_dir": "own"}, "would save into own, but the trainer writes the"),
        ({"keep_best": 1}, "keep_best of checkpoint-saver has no effect: the trainer"),
        ({"keep_every_steps": 9}, "keep_every_steps of checkpoint-saver has no effect"),
        ({"background": True}, "background of checkpoint-saver has no effect"),
        ({"save_on_failure": True}, "would save a session that failed, but the trainer"),
    ],
)
def test_settings_for_checkpoints_of_hookbus_are_refused(
    settings: Any, message: str
) -> None:
    """The trainer keeps and removes its checkpoints by rules of its own."""
    trainer = Trainer(CheckpointSaverHook(save_steps=2, **settings))
    with pytest.raises(UsageError, match=message), trainer.driven as driven:
        driven.begin()


def test_a_session_that_is_dropped_ends_as_failed() -> None:
    """Its hooks get the error, its directory is free, and its signals are not watched."""

    class Told(SessionRunHook):
        def __init__(self) -> None:
            self.seen: list[str] = []

        @hookimpl
        def on_exception(self, exception, outcome):
            self.seen.append(f"{outcome.kind}: {exception}")

    hook, before = Told(), signal.getsignal(signal.SIGTERM)
    driven = session_of(hook, checkpoint_dir="run")
    begin(driven)
    steps(driven, 1)
    del driven
    gc.collect()
    assert hook.seen == ["failed: the loop left its session without end() or failed()"]
    assert signal.getsignal(signal.SIGTERM) is before
    with MonitoredSession(config=OFF) as session:
        assert session.outcome is None


def test_a_new_session_takes_the_place_of_one_that_was_left_open() -> None:
    """In the same directory; another directory has nothing to do with it."""
    left, other = session_of(checkpoint_dir="run"), session_of(checkpoint_dir="other")
    for driven in (left, other):
        begin(driven)
        steps(driven, 1)
    with session_of(checkpoint_dir="run") as driven:
        begin(driven)
        assert left.outcome is not None
        assert left.outcome.kind == "failed"
        assert other.outcome is None
    other.end()


@pytest.mark.long
def test_a_session_may_be_dropped_in_another_thread() -> None:
    """Its directory is free then, and its files are closed."""
    driven = [session_of(checkpoint_dir="run")]
    begin(driven[0])
    thread = threading.Thread(target=driven.clear)
    thread.start()
    thread.join()
    gc.collect()
    with session_of(checkpoint_dir="run") as session:
        begin(session)


def test_directories_switch_on_what_they_do_in_a_training_session() -> None:
    """Summaries and speed go into the summary directory."""
    with session_of(summary_dir="logs") as driven:
        begin(driven)
        names = {*driven.before_step().fetches}
        driven.after_step({"loss": 1.0})
    assert "hookbus.metrics" in names
    assert [path.name.split(".")[2] for path in Path("logs").iterdir()] == ["tfevents"]


def test_progress_and_stops_know_the_last_step_of_the_loop() -> None:
    """The earlier of both ends counts."""
    hook = CountHook()
    with session_of(hook, StopAtStepHook(last_step=5), ProgressHook()) as driven:
        begin(driven, last_step=9)
        steps(driven, 9)
    assert {last for _, _, last in hook.seen} == {5}


class Saving(TrainerAdapter):
    """Serves a trainer that writes checkpoints for hooks."""

    saves = True

    def save(self) -> None:
        self.asked = True


@pytest.mark.long
def test_an_adapter_that_its_trainer_drops_ends_its_session() -> None:
    """Also one that saves, of which the session knows for that."""

    class Told(SessionRunHook):
        @hookimpl
        def on_exception(self, outcome):
            self.kind = outcome.kind

    hook = Told()
    adapter = Saving([hook], config=OFF)
    adapter.start({"w": np.ones(2)})
    del adapter
    gc.collect()
    assert hook.kind == "failed"


def test_an_adapter_saves_for_hooks_while_it_is_there() -> None:
    """Whatever the session keeps of it."""
    adapter = Saving([CheckpointSaverHook(save_steps=1)], config=OFF)
    with adapter:
        adapter.start({"w": np.ones(2)})
        adapter.step_begins()
        adapter.step_ended({"loss": 1.0})
        assert adapter.asked


def test_a_training_that_was_left_open_ends_before_the_next_one_begins() -> None:
    """A trainer may leave one by an error of which it tells nobody."""
    told: list[str] = []

    class Told(SessionRunHook):
        def begin(self) -> None:
            told.append("begin")

        def on_exception(self, exception: Exception) -> None:
            told.append(str(exception))

        def end(self) -> None:
            told.append("end")

    with TrainerAdapter([Told()], config=OFF) as adapter:
        adapter.start({"w": np.ones(2)})
        adapter.start({"w": np.ones(2)})
        adapter.session.end()
    left = "the loop left its session without end() or failed()"
    assert told == ["begin", left, "begin", "end"]


def test_the_block_of_an_adapter_catches_what_that_of_a_session_catches() -> None:
    """The end of an input ends the training well; another error leaves the block."""

    def left_by(error: Exception, starts: bool = True) -> str | None:
        with TrainerAdapter(config=OFF) as adapter:
            if starts:
                adapter.start({"w": np.ones(2)})
            raise error
        return adapter.outcome.kind

    assert left_by(OutOfRangeError("no batch is left")) == "end_of_input"
    with pytest.raises(ZeroDivisionError):
        left_by(ZeroDivisionError())
    with pytest.raises(OutOfRangeError):
        left_by(OutOfRangeError("nothing has begun"), starts=False)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_checkpoint_without_states_is_named(capsys: Any, resumes: bool) -> None:
    """Earlier steps without a checkpoint do not concern it."""
    with TrainerAdapter(config=OFF) as adapter:
        adapter.start({"w": np.ones(2)}, global_step=4, resumes=resumes)
    assert ("no state of hooks" in capsys.readouterr().err) is resumes


def test_a_trainer_refuses_hooks_that_change_what_it_does_not_pass_on() -> None:
    """A wrap in vain would be a hook that is dropped."""

    class ClipsHook(SessionRunHook):
        def begin(self, graph):
            graph.wrap("grads", lambda value: value)

    with TrainerAdapter([ClipsHook()], config=OFF) as adapter:
        with pytest.raises(UsageError, match=r"'clips' changes 'grads', but the trainer u"):
            adapter.start({"w": np.ones(2)})
        assert adapter.outcome.kind == "failed"
