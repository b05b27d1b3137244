"""Tests how sessions end: who is told, what leaves the block, what the outcome says."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import hookbus
from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
)

OFF = Config(autoload=False)
NO_AUTOMATIC: dict[str, Any] = {"save_checkpoint_secs": None, "save_summaries_steps": None}


class Epoch(hookbus.OutOfRangeError):
    """An end of input of a library's own."""


class Drained(StopIteration):
    """Another one."""


# What is raised -> whether it leaves the block, which event tells it, the outcome's kind.
ENDS = [
    (None, False, "end", "completed"),
    (hookbus.OutOfRangeError("no more"), False, "end", "end_of_input"),
    (Epoch("no more"), False, "end", "end_of_input"),
    (StopIteration("no more"), False, "end", "end_of_input"),
    (Drained("no more"), False, "end", "end_of_input"),
    (GeneratorExit(), True, "end", "completed"),
    (SystemExit(), True, "end", "completed"),
    (SystemExit(0), True, "end", "completed"),
    (SystemExit(3), True, "on_exception", "failed"),
    (SystemExit("no disk"), True, "on_exception", "failed"),
    (KeyboardInterrupt(), True, "on_exception", "interrupted"),
    (ValueError("broken"), True, "on_exception", "failed"),
    # The session raises these itself, after a stop or a signal. Here neither comes.
    (hookbus.errors.SessionInterruptedError("no signal"), True, "on_exception", "failed"),
    (hookbus.errors.SessionStoppedError("no stop"), True, "on_exception", "failed"),
]
NAMES = [repr(end[0]) for end in ENDS]
# Where it is raised -> whom the outcome names, and the global step at that time.
PLACES = {
    "body": ("caller", 1),
    "before_run": ("second", 1),
    "op": ("op 'train'", 1),
    "after_run": ("second", 2),
}


class FirstHook(SessionRunHook):
    """Notes its calls and raises its *errors*, event to error; begins at the second run."""

    def __init__(self, calls: list[str], **errors: BaseException | None) -> None:
        self.calls, self.errors = calls, errors
        self.told: list[tuple[Any, ...]] = []

    def note(self, event: str) -> None:
        self.calls.append(f"{type(self).__name__[0]}.{event}")
        error = self.errors.get(event)
        if error is not None:
            raise error

    def begin(self):
        self.note("begin")

    def after_create_session(self):
        self.note("after_create_session")

    def before_run(self, run_context):
        if run_context.global_step > 0:
            self.note("before_run")

    def after_run(self, run_context):
        if run_context.global_step > 0:
            self.note("after_run")

    def end(self, session, outcome):
        self.told.append((session.run("n"), outcome))
        self.note("end")

    def on_exception(self, session, exception, outcome):
        self.told.append((session and session.run("n"), exception, outcome))
        self.note("on_exception")


class SecondHook(FirstHook):
    """The one in the middle."""


class ThirdHook(FirstHook):
    """The last one."""


def open_session(hooks: Any, error: BaseException | None = None) -> MonitoredSession:
    """Make a session whose op raises *error* in its second run."""
    graph = Graph()
    graph.variable("n", 0)

    @graph.train_op(updates="n")
    def train(n):
        if error is not None and n == 1:
            raise error
        return n + 1

    return MonitoredTrainingSession(
        graph, checkpoint_dir="runs", hooks=hooks, config=OFF, **NO_AUTOMATIC
    )


def trained(
    hooks: Any, error: BaseException | None = None, raises: BaseException | None = None
) -> None:
    """Run a step, raise *raises*, run a second one, whose op raises *error*."""
    with open_session(hooks, error) as session:
        session.run("train")
        if raises is not None:
            raise raises
        session.run("train")


def trio(calls: list[str], **errors: BaseException | None) -> list[FirstHook]:
    """Return three hooks, the second of which raises."""
    return [FirstHook(calls), SecondHook(calls, **errors), ThirdHook(calls)]


def told(calls: list[str]) -> list[str]:
    """Leave the calls that tell how it ended."""
    return [call for call in calls if call.endswith((".end", ".on_exception"))]


def written() -> dict[str, Any]:
    """Read ``outcome.json``."""
    return json.loads(Path("runs/outcome.json").read_text())


@pytest.mark.parametrize(("error", "leaves", "event", "kind"), ENDS, ids=NAMES)
@pytest.mark.parametrize("place", PLACES)
def test_every_way_to_end(place, error, leaves, event, kind):
    """The error that reaches the block's exit decides once, wherever it was raised."""
    calls: list[str] = []
    error = error and type(error)(*error.args)
    hooks = trio(calls, **({place: error} if place.endswith("_run") else {}))
    caught = None
    try:
        with open_session(hooks, error if place == "op" else None) as session:
            session.run("train")
            assert session.outcome is None
            if place == "body" and error is not None:
                raise error
            session.run("train")
    except BaseException as other:
        caught = other
    assert caught is (error if leaves else None)
    assert told(calls) == [f"F.{event}", f"S.{event}", f"T.{event}"]
    assert session.should_stop()
    who, step = PLACES[place]
    outcome = session.outcome
    assert outcome.kind == kind
    if error is None:
        step = 2
    if kind == "completed":
        who = "caller"
    elif (place, kind) == ("body", "end_of_input"):
        who = "input"
    assert (outcome.who, outcome.step) == (who, step)
    assert hooks[0].told[0][-1] == outcome
    unsaid = {"params": {}, "label": None, "skipped": 0, "rolled_back": 0}
    assert {**written(), **unsaid} == attrs.asdict(outcome)


@pytest.mark.parametrize("kind", ["SessionInterruptedError", "SessionStoppedError"])
@pytest.mark.parametrize("place", ["before_run", "after_run"])
def test_a_hook_that_raises_an_error_of_the_session_breaks_its_loop(place, kind):
    """A loop that the session itself drives does not take it for a signal or a stop."""
    error = getattr(hookbus.errors, kind)("no reason")
    hook = FirstHook([], **{place: error})
    with pytest.raises(type(error), match="no reason"), open_session([hook]) as session:
        list(zip(range(5), session.loop(), strict=False))
    assert session.outcome.kind == "failed"
    assert session.outcome.who == "first"


@pytest.mark.parametrize("error", [end[0] for end in ENDS[1:]], ids=NAMES[1:])
@pytest.mark.parametrize("place", ["begin", "after_create_session"])
def test_an_error_while_a_session_is_made_leaves_as_itself(place, error):
    """Each hook that began is told exactly once, whatever it was; nobody else is."""
    calls: list[str] = []
    error = type(error)(*error.args)
    hooks = trio(calls, **{place: error})
    with pytest.raises(type(error)) as caught:
        open_session(hooks)
    assert caught.value is error
    begun = [call[0] for call in calls if call.endswith(".begin")]
    assert begun == (["F", "S"] if place == "begin" else ["F", "S", "T"])
    assert [call[0] for call in told(calls)] == begun


def test_a_hook_without_a_begin_of_its_own_has_begun_when_its_turn_is_over():
    """A hook before the one whose ``begin`` raises is told, though it inherits its own."""

    class Quiet(SessionRunHook):
        errors = ()

        def on_exception(self, exception):
            self.errors = (*self.errors, exception)

    before, after, error = Quiet(), Quiet(), ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        open_session([before, SecondHook([], begin=error), after])
    assert before.errors == (error,)
    assert after.errors == ()


@pytest.mark.parametrize(
    "event", ["begin", "after_create_session", "before_run", "after_run", "end"]
)
def test_an_error_out_of_a_hook_bears_a_note(event):
    """The note names the plugin and the event."""
    error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        trained(trio([], **{event: error}))
    assert len(error.__notes__) == 1
    assert "plugin 'second'" in error.__notes__[0]
    assert f"{event}()" in error.__notes__[0]


def test_an_error_out_of_an_op_names_the_op():
    """The note says which op raised; the caller's own errors bear none."""
    error, own = ValueError("broken"), ValueError("mine")
    with pytest.raises(ValueError, match="broken"):
        trained([], error)
    assert error.__notes__ == ["hookbus: raised in op 'train'"]
    with pytest.raises(ValueError, match="mine"):
        trained([], raises=own)
    assert not hasattr(own, "__notes__")


def test_a_hook_is_told_the_error_while_the_session_can_still_be_read():
    """``on_exception`` gets the session, the error itself and the outcome."""
    hook, error = FirstHook([]), ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        trained([hook], raises=error)
    ((value, seen, outcome),) = hook.told
    assert (value, outcome.step) == (1, 1)
    assert seen is error
    assert "ValueError: broken" in outcome.why


@pytest.mark.parametrize(
    "error", [ValueError("late"), StopIteration(), KeyboardInterrupt()], ids=repr
)
def test_an_error_in_one_end_keeps_nobody_from_theirs(error):
    """It leaves the block as itself, end of input too; the outcome stays as decided."""
    calls: list[str] = []
    with (
        pytest.raises(type(error)) as caught,
        open_session(trio(calls, end=error)) as session,
    ):
        session.run("train")
    assert caught.value is error
    assert told(calls) == ["F.end", "S.end", "T.end"]
    assert session.outcome.kind == "completed"


def test_errors_in_several_ends_leave_as_a_group():
    """All of them are in the group, each with its note."""
    calls: list[str] = []
    one, two = ValueError("one"), TypeError("two")
    hooks = [FirstHook(calls, end=one), SecondHook(calls), ThirdHook(calls, end=two)]
    with pytest.raises(ExceptionGroup) as caught, open_session(hooks):
        pass
    assert caught.value.exceptions == (one, two)
    assert told(calls) == ["F.end", "S.end", "T.end"]
    assert "plugin 'third'" in two.__notes__[0]


def test_an_error_in_on_exception_is_a_note_on_the_first(capsys):
    """The original leaves unchanged, everybody else is told, and a log line says it."""
    calls: list[str] = []
    error = KeyError("first")
    hooks = trio(calls, on_exception=OSError("second"))
    with pytest.raises(KeyError) as caught, open_session(hooks):
        raise error
    assert caught.value is error
    assert told(calls) == ["F.on_exception", "S.on_exception", "T.on_exception"]
    assert "'second'" in error.__notes__[0]
    assert "OSError('second')" in error.__notes__[0]
    assert "OSError('second')" in capsys.readouterr().err


def test_an_error_that_the_caller_caught_counts_for_nothing():
    """Only what reaches the end of the block decides."""
    calls: list[str] = []
    with open_session(trio(calls), ValueError("broken")) as session:
        session.run("train")
        with pytest.raises(ValueError, match="broken"):
            session.run("train")
        assert not session.should_stop()
    assert told(calls) == ["F.end", "S.end", "T.end"]
    assert session.outcome.kind == "completed"


def test_end_of_input_without_a_block_ends_nothing():
    """``run`` raises it, the session stays open, and ``close`` ends it well."""
    calls: list[str] = []
    session = open_session(trio(calls, before_run=StopIteration("no more")))
    session.run("train")
    for _ in range(2):
        with pytest.raises(StopIteration):
            session.run("train")
    assert told(calls) == []
    assert not session.should_stop()
    session.close()
    assert told(calls) == ["F.end", "S.end", "T.end"]
    assert session.outcome.kind == "completed"


@pytest.mark.parametrize("loop", [True, False])
def test_the_end_of_an_input_ends_the_block_well(loop, capsys):
    """``run`` raises OutOfRangeError, the block swallows it; ``loop`` just ends."""
    graph = Graph()
    graph.input("batch", lambda: [1, 2])

    @graph.train_op
    def train(batch):
        return ()

    after = False
    with MonitoredSession(graph, config=OFF) as session:
        if loop:
            assert list(session.loop("batch")) == [1, 2]
        while not loop:
            session.run("train")
        after = True
    assert after is loop
    outcome = session.outcome
    assert (outcome.kind, outcome.who, outcome.step) == ("end_of_input", "input", 2)
    assert "'batch'" in outcome.why
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("loop", [True, False])
def test_end_of_input_from_something_that_is_no_input_is_warned_about(loop, capsys):
    """A StopIteration out of a hook is probably a mistake; the warning names it."""
    with open_session(trio([], before_run=StopIteration())) as session:
        if loop:
            assert list(session.loop("n")) == [0]
        while not loop:
            session.run("train")
    lines = capsys.readouterr().err.splitlines()
    (warning,) = [line for line in lines if "warning" in line]
    assert "second" in warning


def test_a_generator_that_is_closed_has_completed():
    """A session in a generator ends well when nobody wants more of it."""
    calls: list[str] = []
    sessions = []

    def steps() -> Iterator[int]:
        with open_session([FirstHook(calls)]) as session:
            sessions.append(session)
            while True:
                session.run("train")
                yield session.global_step

    generator = steps()
    assert [next(generator), next(generator)] == [1, 2]
    generator.close()
    assert told(calls) == ["F.end"]
    assert sessions[0].outcome.kind == "completed"


def test_a_failure_after_a_stop_is_a_failure():
    """The error at the exit decides, also when a hook had asked to stop before."""

    class Stops(SessionRunHook):
        def after_run(self, run_context):
            run_context.request_stop()

    with pytest.raises(ValueError, match="late"):
        trained([Stops()], raises=ValueError("late"))
    assert (written()["kind"], written()["who"]) == ("failed", "caller")


@pytest.mark.parametrize("event", ["begin", "before_run", "after_run", "end"])
def test_a_session_that_an_error_left_is_freed(event):
    """A program may train on, with the same Config: the error keeps no model in memory."""

    def fail() -> weakref.ref[FirstHook]:
        hook = FirstHook([], **{event: ValueError("broken")})
        with pytest.raises(ValueError, match="broken"):
            trained([hook])
        return weakref.ref(hook)

    failed = fail()
    gc.collect()
    assert failed() is None


def test_a_session_that_was_never_made_is_freed():
    """Two hooks of one name are refused before there is a session."""

    def fail() -> weakref.ref[FirstHook]:
        hook = FirstHook([])
        with pytest.raises(hookbus.UsageError, match="first"):
            open_session([hook, hook])
        return weakref.ref(hook)

    failed = fail()
    gc.collect()
    assert failed() is None


def test_the_outcome_file_is_of_the_last_session(capsys):
    """Each session replaces ``outcome.json`` and logs one line."""
    with pytest.raises(ValueError, match="broken"), open_session([]):
        raise ValueError("broken")
    assert written()["kind"] == "failed"
    with open_session([]):
        pass
    assert written()["kind"] == "completed"
    assert capsys.readouterr().err.count("session ended") == 2


class Uploads(SessionRunHook):
    """Copies the directory when the session has finished, and clears it away."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @hookbus.hookimpl
    def finished(self) -> None:
        shutil.copytree(self.directory, "uploaded")
        shutil.rmtree(self.directory)


def test_a_hook_that_uploads_at_the_end_copies_how_the_session_ended(tmp_path):
    """It may clear the directory away as well, which stays away."""
    runs = tmp_path / "runs"
    with MonitoredTrainingSession(
        checkpoint_dir=runs, hooks=[Uploads(runs)], save_summaries_steps=None, config=OFF
    ) as session:
        for _ in range(3):
            with session.step():
                pass
    assert not runs.exists()
    assert hookbus.latest_checkpoint("uploaded").ended == "completed"
    outcome = json.loads(Path("uploaded/outcome.json").read_text())
    assert (outcome["kind"], outcome["step"]) == ("completed", 3)
