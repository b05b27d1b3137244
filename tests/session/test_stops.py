"""Tests the effect of a stop on a finished run, and on a loop that continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import (
    AbortedError,
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Outcome,
    Recovery,
    RunAfterStopError,
    SessionRunHook,
    hookimpl,
)
from hookbus.cli.why import why
from hookbus.errors import SessionStoppedError

OFF = Config(autoload=False, header=False)


def make_graph() -> Graph:
    """Return a graph whose train op counts."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    return graph


class StopHook(SessionRunHook):
    """Stops at a step, and notes how it is told of the end."""

    def __init__(self, at: int = 5) -> None:
        self.at, self.told = at, []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == self.at:
            run_context.request_stop("enough")

    def end(self, outcome: Outcome) -> None:
        self.told.append(outcome.kind)

    def on_exception(self, exception: BaseException) -> None:
        self.told.append(type(exception))


class OverHook(SessionRunHook):
    """Declares the training over, and notes its calls."""

    def __init__(self, reason: str | None = "all is done") -> None:
        self.reason, self.calls = reason, []

    def after_create_session(self) -> None:
        self.calls.append("create")

    @hookimpl
    def before_first_run(self, session: Any) -> str | None:
        self.calls.append(session.global_step)
        return self.reason

    def before_run(self) -> None:
        self.calls.append("run")


def saving(*hooks: Any, graph: Graph | None = None, **given: Any) -> MonitoredSession:
    """Open a session that saves into ``runs`` every ten steps."""
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir="runs",
        save_checkpoint_steps=10,
        save_summaries_steps=None,
        log_step_count_steps=None,
        hooks=hooks,
        config=OFF,
        **given,
    )


def run_on(session: MonitoredSession) -> None:
    """Run a hundred steps, whatever ``should_stop`` returns."""
    for _ in range(100):
        if session.graph is not None and "train" in session.graph:
            session.run("train")
            continue
        with session.step():
            pass


def run_to_the_stop(session: MonitoredSession) -> None:
    """Run steps until ``should_stop`` returns True."""
    while not session.should_stop():
        if session.graph is not None and "train" in session.graph:
            session.run("train")
            continue
        with session.step():
            pass


def saved() -> list[int]:
    """Return the steps of the checkpoints."""
    return sorted(int(path.name[5:]) for path in Path("runs").glob("ckpt-*"))


def ended() -> str | None:
    """Return how the session ended that wrote the newest checkpoint."""
    manifest = Path(f"runs/ckpt-{saved()[-1]}/manifest.json")
    return json.loads(manifest.read_text())["ended"]


def test_a_bare_step_loop_ends_well_at_a_stop():
    """The block catches the error, saves, calls end, and the code after it runs."""
    hook, behind = StopHook(), []
    with saving(hook) as session:
        for _ in range(100):
            with session.step():
                pass
        behind.append("the rest of the block is left")
    assert behind == []
    assert session.outcome == Outcome("stopped", "stop", "enough", 5)
    assert (hook.told, saved(), ended()) == (["stopped"], [0, 5], "stopped")


def test_the_error_that_leaves_a_step_loop_can_be_caught_inside_the_block():
    """It names the hook that stopped, is no Exception, and the block goes on behind it."""
    with saving(StopHook()) as session:
        told = r"stop stopped the session \(enough\)"
        with pytest.raises(SessionStoppedError, match=told) as caught:
            run_on(session)
        assert not isinstance(caught.value, Exception)
        with session.step(kind="aux"):
            pass
    assert session.outcome == Outcome("stopped", "stop", "enough", 5)


def test_a_run_after_a_stop_leaves_the_block_of_a_session_that_ends_well():
    """As in TensorFlow the error goes on; unlike there, no trained step is lost."""
    hook = StopHook()
    session = saving(hook, graph=make_graph())
    with pytest.raises(RunAfterStopError) as caught, session:
        run_on(session)
    assert type(caught.value) is RunAfterStopError
    assert session.outcome == Outcome("stopped", "stop", "enough", 5)
    assert (hook.told, saved(), ended()) == (["stopped"], [0, 5], "stopped")


def test_an_error_after_a_stop_is_still_a_failure():
    """Only the refused run is a clean end, not whatever else comes after the stop."""
    hook = StopHook(at=1)
    session = saving(hook)

    def fail() -> None:
        with session.step():
            pass
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"), session:
        fail()
    assert (session.outcome.kind, hook.told) == ("failed", [ValueError])


@pytest.mark.parametrize("graph", [True, False])
def test_the_stop_of_another_session_is_a_failure_of_this_one(graph):
    """A session that no stop ended does not take another one's error for its own end."""
    inner = MonitoredSession(
        make_graph() if graph else None, hooks=[StopHook(at=1)], config=OFF
    )
    hook = StopHook()
    outer = saving(hook)

    with pytest.raises((RunAfterStopError, SessionStoppedError)) as caught, outer:
        run_on(inner)
    inner.close()
    assert (outer.outcome.kind, hook.told) == ("failed", [type(caught.value)])


def test_a_step_loop_in_a_session_that_is_over_runs_nothing():
    """It is left before its first step."""
    with saving(OverHook()) as session:
        for _ in range(3):
            with session.step():
                raise AssertionError("a step was run")
    assert session.outcome == Outcome("stopped", "over", "all is done", 0)


@pytest.mark.parametrize("loop", ["while", "loop", "iterate"])
def test_a_session_that_is_over_runs_nothing(loop, capsys):
    """The hook that declares it over is asked once, after every after_create_session."""
    hook = OverHook()
    with saving(hook, graph=None if loop == "iterate" else make_graph()) as session:
        if loop == "while":
            while not session.should_stop():
                session.run("train")
        else:
            turns = session.loop() if loop == "loop" else session.iterate(range(5))
            assert list(turns) == []
    assert hook.calls == ["create", 0]
    assert session.outcome == Outcome("stopped", "over", "all is done", 0)
    line = "nothing to train step=0 by=over why='all is done'"
    assert line in capsys.readouterr().err.replace("    ", "").replace("  ", " ")


def test_without_a_reason_the_training_begins():
    """A hook that answers None keeps no run from happening."""
    hook = OverHook(reason=None)
    with saving(hook, graph=make_graph()) as session:
        session.run("train")
    assert hook.calls == ["create", 0, "run"]


def test_the_first_reason_decides():
    """The hooks after it are not asked."""
    first, second = OverHook("one"), OverHook("two")
    with saving(first, second, graph=make_graph()) as session:
        pass
    assert (session.outcome.who, session.outcome.why) == ("over", "one")
    assert second.calls == ["create"]


@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_only_trainings_are_asked_whether_they_are_over(kind):
    """An evaluation of a finished model is not over."""
    hook = OverHook()
    with MonitoredSession(make_graph(), hooks=[hook], config=OFF, kind=kind) as session:
        session.run("w")
    assert hook.calls == ["create", "run"]


def test_an_error_in_before_first_run_fails_the_start():
    """It is an error before the first step, and names the hook."""

    class BrokenHook(SessionRunHook):
        @hookimpl
        def before_first_run(self):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        saving(BrokenHook(), graph=make_graph())
    assert "before_first_run" in str(caught.value.__notes__)


def test_a_preemption_in_before_first_run_is_recovered_from():
    """The session is opened again, and the hook is asked again."""
    errors = iter([AbortedError("gone")])

    class GoneHook(OverHook):
        @hookimpl
        def before_first_run(self, session):
            error = next(errors, None)
            if error is not None:
                raise error
            return super().before_first_run(session)

    hook = GoneHook()
    recovery = Recovery(first_wait=0.0)
    with saving(hook, graph=make_graph(), recovery=recovery) as session:
        assert session.should_stop()
    assert hook.calls == ["create", "create", 0]


def test_a_training_that_is_over_after_a_recovery_stops():
    """``should_stop`` recovers from a thread's preemption, and sees the stop at once."""

    class ThreadHook(OverHook):
        def after_create_session(self, coord):
            self.coord = coord
            self.reason = "it is over" if self.calls else None

    hook = ThreadHook()
    recovery = Recovery(first_wait=0.0)
    with saving(hook, graph=make_graph(), recovery=recovery) as session:
        session.run("train")
        hook.coord.request_stop(AbortedError("gone"))
        assert session.should_stop()
    assert (session.outcome.kind, session.outcome.who) == ("stopped", "thread")


def test_a_start_that_does_nothing_keeps_how_the_training_ended():
    """The mark of a session that completed stays; one that was killed is marked as over."""
    with saving(graph=make_graph()) as session:
        session.run("train")
    assert ended() == "completed"
    with saving(OverHook(), graph=make_graph()):
        pass
    assert ended() == "completed"
    assert hookbus.latest_checkpoint("runs").global_step == 1


def test_a_training_that_was_killed_at_its_end_is_over_after_the_next_start():
    """The next session does nothing, and no later one continues what was cut short."""

    class KilledHook(SessionRunHook):
        def end(self):
            raise OSError("killed")

    session = saving(KilledHook())
    with pytest.raises(OSError, match="killed"), session, session.step():
        pass
    assert ended() is None
    with saving(OverHook()):
        pass
    assert ended() == "stopped"


class LabelHook(SessionRunHook):
    """Stops after the first run, with a label."""

    def __init__(self, label: Any = "pruned", **more: Any) -> None:
        self.label, self.more = label, more

    def after_run(self, run_context: Any) -> None:
        run_context.request_stop("no better than others", label=self.label, **self.more)


@pytest.mark.parametrize("graph", [None, "graph"])
def test_a_label_of_a_stop_is_in_the_outcome_its_file_and_the_log(graph, capsys):
    """A program reads it, without understanding the reason."""
    with saving(LabelHook(), LabelHook("late"), graph=graph and make_graph()) as session:
        run_to_the_stop(session)
    told = {"who": "label", "why": "no better than others", "label": "pruned", "step": 1}
    assert session.outcome == Outcome(
        "stopped", "label", "no better than others", 1, label="pruned"
    )
    assert json.loads(Path("runs/outcome.json").read_text()) == {"kind": "stopped", **told}
    assert "why='no better than others' label=pruned step=1" in capsys.readouterr().err
    assert why(["runs"]) == 0
    assert "  label         pruned\n" in capsys.readouterr().out


def test_a_stop_without_a_label_mentions_none(capsys):
    """Neither does an end without a stop."""
    with saving(LabelHook(None), graph=make_graph()) as session:
        run_to_the_stop(session)
    assert session.outcome.label is None
    assert "label" not in json.loads(Path("runs/outcome.json").read_text())
    assert " label=" not in capsys.readouterr().err


@pytest.mark.parametrize("label", ["", 7, b"pruned"])
def test_a_label_that_is_no_word_is_an_error_that_names_the_hook(label):
    """Programs compare it with the words that they know."""
    with (
        pytest.raises(hookbus.UsageError) as caught,
        saving(LabelHook(label), graph=make_graph()) as session,
    ):
        session.run("train")
    assert str(caught.value) == (
        f"hook 'label' called run_context.request_stop(label={label!r}): expected a word, "
        "like 'pruned'"
    )


class PreemptHook(SessionRunHook):
    """Ends the session at a step as if a scheduler did."""

    def __init__(self, at: int = 5, kind: Any = "preempted") -> None:
        self.at, self.kind = at, kind

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == self.at:
            run_context.request_stop("time is up", kind=self.kind)


@pytest.mark.parametrize("graph", [None, "graph"])
def test_a_hook_preempts_a_session_like_sigterm(graph):
    """It saves after the step, its block exits with 75, and the next session resumes."""
    session = saving(PreemptHook(), graph=graph and make_graph())
    with pytest.raises(SystemExit) as caught, session:
        run_to_the_stop(session)
    assert caught.value.code == 75
    assert session.outcome == Outcome("preempted", "preempt", "time is up", 5)
    assert (saved(), ended()) == ([0, 5], "preempted")


def test_what_a_preempted_loop_does_behind_its_steps_is_not_saved():
    """The checkpoint of the stop is the last: a resumed program does the rest again."""
    state = {"done": 0}
    with saving(PreemptHook(at=2), exit_on_signal=False) as session:
        session.track(state=state)
        for _ in session.iterate(range(9)):
            with session.step():
                pass
        state["done"] = 1
    with saving(exit_on_signal=False) as session:
        assert session.track(state={"done": 7}) == {"done": 0}
        assert session.global_step == 2


def test_a_session_inside_an_event_does_not_exit_when_a_hook_preempts_it():
    """The hook that opened it goes on, and the training with it."""
    inner: list[Any] = []

    class EvaluatesHook(SessionRunHook):
        def after_run(self, run_context: Any) -> None:
            with MonitoredSession(make_graph(), hooks=[PreemptHook(1)]) as session:
                while not session.should_stop():
                    session.run("train")
            inner.append(session.outcome.kind)

    with MonitoredSession(make_graph(), hooks=[EvaluatesHook()], config=OFF) as session:
        session.run("train")
    assert (inner, session.outcome.kind) == (["preempted"], "completed")


def test_a_preemption_that_a_failed_run_asked_for_saves_when_the_run_is_repeated():
    """The stop of the first attempt is kept; its checkpoint contains the whole run."""

    class FailsHook(SessionRunHook):
        failed = False

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_values.global_step == 3 and not self.failed:
                self.failed = True
                run_context.request_stop("time is up", kind="preempted")
                raise AbortedError("the machine is lost")

    graph, recovery = make_graph(), Recovery(first_wait=0.0)
    hooks = FailsHook()
    with saving(hooks, graph=graph, recovery=recovery, exit_on_signal=False) as session:
        while not session.should_stop():
            session.run("train")
    assert session.outcome == Outcome("preempted", "fails", "time is up", 3)
    assert (saved(), ended()) == ([0, 3], "preempted")


def test_another_kind_of_stop_is_an_error_that_names_the_hook():
    """A hook cannot claim that the training was completed."""
    told = (
        r"hook 'preempt' called run_context.request_stop\(kind='preemted'\): expected "
        r"'stopped' or 'preempted'; did you mean 'preempted'\?"
    )
    with (
        pytest.raises(hookbus.UsageError, match=told),
        saving(PreemptHook(1, "preemted"), graph=make_graph()) as session,
    ):
        session.run("train")
