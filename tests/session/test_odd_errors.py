"""Exceptions whose classes refuse what a session does with an error, or fail at it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

from hookbus import Config, Graph, HookOptions, MonitoredSession, SessionRunHook
from hookbus.errors import add_note, culprit_of, summary_of
from hookbus.evaluating import undisturbed
from hookbus.logs import configure
from tests.support.profiles import cases

OFF = Config(autoload=False, header=False)


class NoTextError(Exception):
    """Cannot be shown, and is neither true nor equal to anything."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise ValueError("no truth")

    def __len__(self) -> int:
        raise ValueError("no length")

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = Exception.__hash__


class WrongTextError(Exception):
    """Has a ``__str__`` that returns no text."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value]

    __repr__ = __str__


class NoAttributesError(Exception):
    """Refuses every attribute, and has none."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(name)

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


@dataclasses.dataclass(frozen=True)
class FrozenDataError(Exception):
    """A frozen dataclass, which refuses notes and a traceback."""

    code: int = 7


@attrs.frozen
class FrozenAttrsError(Exception):
    """The class with attrs."""

    code: int = 7


ODD = [NoTextError, WrongTextError, NoAttributesError, FrozenDataError, FrozenAttrsError]


def grouped() -> Exception:
    """Return a group of errors without text."""
    return ExceptionGroup("several", [NoTextError(), FrozenDataError()])


EACH = pytest.mark.parametrize("make", [*ODD, grouped], ids=lambda make: make.__name__)


class WatchHook(SessionRunHook):
    """Keeps what it was told, and fails in one event."""

    def __init__(self, fails_in: str = "", error: Exception | None = None) -> None:
        self.fails_in, self.error = fails_in, error
        self.told: list[str] = []

    def _tell(self, event: str) -> None:
        self.told.append(event)
        if event == self.fails_in and self.error is not None:
            raise self.error

    def begin(self):
        self._tell("begin")

    def after_create_session(self):
        self._tell("after_create_session")

    def before_run(self):
        self._tell("before_run")

    def after_run(self):
        self._tell("after_run")

    def end(self):
        self._tell("end")

    def on_exception(self):
        self._tell("on_exception")


def run(error: Exception, fails_in: str) -> list[str]:
    """Run a session that meets *error* somewhere; return how a hook's last event was."""
    last = WatchHook()
    graph = Graph()

    @graph.train_op
    def train():
        if fails_in == "op":
            raise error
        return ()

    hooks = [WatchHook(fails_in, error), CheckpointSaverHook("runs", save_steps=10), last]
    with MonitoredSession(graph, hooks=hooks, config=OFF) as session:
        if fails_in == "thread":
            session._state.backend.coord.request_stop(error)
        else:
            session.run("train")
        if fails_in in ("block", "on_exception"):
            raise error
        if fails_in == "undisturbed":
            with undisturbed():
                raise error
    return last.told


def left_by(error: Exception, where: str) -> object:
    """Return ``"itself"`` if an error leaves a session that meets it, or else what does.

    pytest cannot report every one of these errors.
    """
    try:
        run(error, where)
    except BaseException as left:
        return "itself" if left is error else type(left)
    return None


WHERE = cases(
    ["begin", "op", "end", "thread", "undisturbed"],
    [
        *("begin", "after_create_session", "before_run", "op", "after_run", "end"),
        *("thread", "block", "on_exception", "undisturbed"),
    ],
)


@EACH
@pytest.mark.parametrize("where", WHERE)
def test_any_error_leaves_the_session_itself_and_the_session_ends(where, make):
    """The hooks are told, the directory is free, the outcome is written."""
    assert left_by(make(), where) == "itself"
    if where not in ("begin", "after_create_session"):
        outcome = json.loads(Path("runs/outcome.json").read_text())
        assert outcome["kind"] == ("completed" if where == "end" else "failed")
    assert run(ValueError(), "")[-1] == "end"


@EACH
def test_a_hook_that_fails_with_any_error_keeps_no_other_from_its_end(make):
    """Each hook gets its last event."""
    hooks = [WatchHook("end", make()), WatchHook("end", make()), WatchHook()]
    session = MonitoredSession(Graph(), hooks=hooks, config=OFF)
    with pytest.raises(ExceptionGroup, match="several hooks failed"):
        session.close()
    assert [hook.told[-1] for hook in hooks] == ["end"] * 3


@EACH
@pytest.mark.parametrize("policy", ["warn", "quarantine:1"])
def test_the_errors_of_a_tolerated_hook_may_be_any(policy, make):
    """The policy holds back each of them, and logs it."""
    hook = WatchHook("before_run", make())
    hook.options = HookOptions(on_error=policy)
    graph = Graph()
    graph.train_op(lambda: (), name="train")
    with MonitoredSession(graph, hooks=[hook], config=OFF) as session:
        session.run("train")
    assert session.outcome is not None
    assert session.outcome.kind == "completed"


@EACH
@pytest.mark.parametrize("log_format", ["console", "json"])
def test_any_error_can_be_a_value_of_a_log_line(log_format, make, capfd):
    """A line that cannot be rendered must not end a session."""
    import structlog

    from hookbus import log

    configure(log_format)
    try:
        log.info("a line", error=make())
    finally:
        structlog.reset_defaults()
    assert "a line" in capfd.readouterr().err


@pytest.mark.parametrize("make", ODD)
def test_any_error_takes_a_note_and_names_its_culprit(make):
    """A frozen class also keeps its notes."""
    error = make()
    assert left_by(error, "before_run") == "itself"
    assert culprit_of(error) == "watch"
    add_note(error, "a note")
    notes = object.__getattribute__(error, "__notes__")
    assert notes[0].startswith("hookbus: raised by plugin 'watch'")
    assert notes[-1] == "hookbus: a note"


def test_an_error_without_text_is_named_by_its_class(capfd):
    """The log line and the outcome show what there is."""
    assert summary_of(NoTextError()) == (
        "NoTextError: <NoTextError without text: ValueError>"
    )
    assert left_by(NoTextError(), "op") == "itself"
    outcome = json.loads(Path("runs/outcome.json").read_text())
    assert outcome["why"] == "NoTextError: <NoTextError without text: ValueError>"
    assert outcome["who"] == "op 'train'"
