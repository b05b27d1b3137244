"""Tests whether an exception that leaves a hook ends the session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookbus
from hookbus import (
    AbortedError,
    Config,
    EmbeddedSession,
    Graph,
    GraphError,
    MonitoredSession,
    MonitoredTrainingSession,
    OutOfRangeError,
    PluginError,
    Recovery,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.bus.bus import Bus
from hookbus.bus.caller import Caller, Implementation
from hookbus.bus.error_policy import ErrorGuard as Guard
from hookbus.bus.error_policy import FailureLog as Failures
from hookbus.bus.registry import Registration as Member
from hookbus.errors import SessionInterruptedError, UnknownNodeError, WriteConflictError
from hookbus.hooks.hook_options import ErrorPolicy, parse_policy
from hookbus.hooks.requests import CurrentHook as Turn
from hookbus.lifecycle.creators import ChiefSessionCreator
from tests.support import behaviours
from tests.support.buses import bus, called

ALONE = Config(autoload=False)
WARN, QUARANTINE = ErrorPolicy("warn"), ErrorPolicy("quarantine", 2)


class Failing(SessionRunHook):
    """Raises in the events that it is told, and writes down which ones it got."""

    def __init__(self, *events: str, policy: str = "warn", error: Any = OSError) -> None:
        self.options = hookbus.HookOptions(on_error=policy)
        self.events, self.error = events, error
        self.got: list[str] = []

    def _take(self, event: str) -> None:
        self.got.append(event)
        if event in self.events:
            raise self.error("no disk")

    def begin(self) -> None:
        self._take("begin")

    def after_create_session(self) -> None:
        self._take("after_create_session")

    def before_run(self) -> SessionRunArgs:
        self._take("before_run")
        return SessionRunArgs("global_step")

    def after_run(self) -> None:
        self._take("after_run")

    @hookimpl
    def finished(self) -> None:
        self._take("finished")

    def end(self) -> None:
        self._take("end")

    def on_exception(self) -> None:
        self._take("on_exception")


class Witness(SessionRunHook):
    """Notes that it was called, for errors that must not keep others from their events."""

    def __init__(self) -> None:
        self.got: list[str] = []

    def after_run(self) -> None:
        self.got.append("after_run")

    def end(self) -> None:
        self.got.append("end")

    def on_exception(self) -> None:
        self.got.append("on_exception")


def train(*hooks: Any, steps: int = 2, **arguments: Any) -> MonitoredSession:
    """Do some steps in a session of these hooks only."""
    with MonitoredSession(Graph(), hooks=hooks, config=ALONE, **arguments) as session:
        for _ in range(steps):
            session.run("global_step")
    return session


def warnings_in(text: str, what: str) -> list[str]:
    """Return the log lines that say *what*."""
    return [line for line in text.splitlines() if what in line]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("raise", ErrorPolicy("raise")),
        (" warn ", ErrorPolicy("warn")),
        ("quarantine", ErrorPolicy("quarantine", 3)),
        ("quarantine:12", ErrorPolicy("quarantine", 12)),
    ],
)
def test_a_policy_is_a_word(text: str, policy: ErrorPolicy) -> None:
    """Three words are known; quarantine has a number, 3 unless said."""
    assert parse_policy(text, "here") == policy
    assert parse_policy(str(policy), "here") == policy


@pytest.mark.parametrize(
    "text",
    [
        "quarantine:0",
        "quarantine:x",
        "quarantine:",
        "",
        "warn:2",
        3,
        f"quarantine:{'9' * 5000}",
        f"quarantine:{'9' * 400}",
        "quarantine:\N{ARABIC-INDIC DIGIT THREE}",
    ],
)
def test_what_is_no_policy_is_told_with_its_place(text: Any) -> None:
    """An unknown word is a usage error, which tells its place and the words allowed."""
    with pytest.raises(UsageError, match=r"-o a\.on_error: .* expected raise, warn"):
        parse_policy(text, "-o a.on_error")


def test_a_misspelt_policy_is_suggested() -> None:
    """The message names the word that is close, the number left out."""
    with pytest.raises(UsageError, match="did you mean 'quarantine'"):
        parse_policy("quarantin:3", "here")


@pytest.mark.parametrize(
    "event", ["begin", "after_create_session", "before_run", "after_run"]
)
def test_by_default_an_error_ends_the_session(event: str) -> None:
    """A hook without a policy raises: the error leaves, all others are told."""
    witness = Witness()
    with pytest.raises(OSError, match="no disk"):
        train(witness, Failing(event, policy="raise"))
    assert witness.got[-1] == "on_exception"


@pytest.mark.parametrize(
    "event", ["after_create_session", "before_run", "after_run", "end", "finished"]
)
def test_warn_drops_the_event_and_goes_on(event: str, capsys: Any) -> None:
    """An error in any event is a warning; everybody gets all the others."""
    hook, witness = Failing(event), Witness()
    session = train(hook, witness)

    assert session.outcome.kind == "completed"
    assert hook.got == [
        "begin",
        "after_create_session",
        *["before_run", "after_run"] * 2,
        "end",
        "finished",
    ]
    assert witness.got == ["after_run", "after_run", "end"]
    (line,) = warnings_in(capsys.readouterr().err, "hook failed")
    for told in (
        "plugin=failing",
        "distribution='hooks='",
        f"bus_event={event}",
        "no disk",
    ):
        assert told in line
    assert f"where={__file__}" in line


@pytest.mark.parametrize("policy", ["warn", "quarantine:1", "quarantine:5"])
def test_a_hook_that_fails_to_begin_gets_no_further_event(policy: str, capsys: Any) -> None:
    """It is not set up, so not even its end could work."""
    hook, witness = Failing("begin", policy=policy), Witness()
    session = train(hook, witness)

    assert session.outcome.kind == "completed"
    assert hook.got == ["begin"]
    assert witness.got == ["after_run", "after_run", "end"]
    (line,) = warnings_in(capsys.readouterr().err, "hook switched off")
    assert "plugin=failing" in line
    assert "bus_event=begin" in line


def test_what_the_dropped_event_would_have_answered_is_missing() -> None:
    """A hook whose before_run is dropped asks for nothing, and has no results."""

    class Asking(SessionRunHook):
        options = hookbus.HookOptions(on_error="warn")
        results: Any = "untouched"

        def before_run(self) -> SessionRunArgs:
            raise ValueError

        def after_run(self, run_values: Any) -> None:
            self.results = run_values.results

    hook = Asking()
    train(hook, steps=1)
    assert hook.results is None


def test_repeats_are_counted_and_told_once(capsys: Any) -> None:
    """The first error of a kind is told at once, all of them in one line at the end."""
    errors = itertools.cycle([OSError, ValueError])
    train(Failing("after_run", error=lambda text: next(errors)(text)), steps=20)

    err = capsys.readouterr().err
    assert len(warnings_in(err, "hook failed")) == 2
    (line,) = warnings_in(err, "hook failures")
    for told in (
        "plugin=failing",
        "bus_event=after_run",
        "failures=20",
        "quarantined=False",
    ):
        assert told in line
    assert "last=\"ValueError('no disk')\"" in line
    assert err.index("hook failures") < err.index("session ended")


def test_on_exception_is_held_back_too(capsys: Any) -> None:
    """An error in a mild hook's on_exception is no note on the error that ended it all."""
    hook = Failing("on_exception")
    with pytest.raises(KeyError) as info:
        train(hook, Failing("after_run", policy="raise", error=KeyError))
    assert hook.got[-1] == "on_exception"
    assert not [note for note in info.value.__notes__ if "on_exception" in note]
    assert "bus_event=on_exception" in capsys.readouterr().err


def test_quarantine_switches_a_hook_off(capsys: Any) -> None:
    """After N failures, of all its events together, a hook gets nothing but its end."""
    hook, witness = Failing("before_run", "after_run", policy="quarantine:3"), Witness()
    train(hook, witness, steps=5)

    assert hook.got == [
        "begin",
        "after_create_session",
        *["before_run", "after_run", "before_run"],
        "end",
    ]
    assert witness.got == ["after_run"] * 5 + ["end"]
    err = capsys.readouterr().err
    (line,) = warnings_in(err, "hook quarantined")
    assert "plugin=failing" in line
    assert "on_error=quarantine:3" in line
    assert "failures=3" in line
    told = warnings_in(err, "hook failures")
    assert ["bus_event=before_run failures=2" in line for line in told] == [True, False]
    assert all("quarantined=True" in line for line in told)


def test_a_quarantined_hook_is_told_of_an_error_once(capsys: Any) -> None:
    """Its one on_exception comes, guarded, though it is switched off."""
    hook = Failing("before_run", "on_exception", policy="quarantine:1")
    with pytest.raises(KeyError):
        train(hook, Failing("after_run", policy="raise", error=KeyError))
    assert hook.got == ["begin", "after_create_session", "before_run", "on_exception"]
    assert len(warnings_in(capsys.readouterr().err, "hook quarantined")) == 1


@pytest.mark.parametrize(
    "error",
    [
        UsageError,
        GraphError,
        PluginError,
        WriteConflictError,
        UnknownNodeError,
        SessionInterruptedError,
    ],
)
@pytest.mark.parametrize("policy", ["warn", "quarantine:1"])
def test_what_was_asked_for_wrongly_is_never_dropped(error: Any, policy: str) -> None:
    """An error that says that something is set or used wrongly leaves, whatever is said."""
    hook = Failing("after_run", policy=policy, error=error)
    with pytest.raises(error, match="no disk"):
        train(hook)
    assert hook.got[-1] == "on_exception"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_failure_is_never_dropped(error: Any) -> None:
    """Errors that are no Exception go through; GeneratorExit and an exit are a good end."""
    hook = Failing("after_run", error=error)
    with pytest.raises(error):
        train(hook)


@pytest.mark.parametrize("error", [OutOfRangeError, StopIteration])
def test_the_end_of_input_is_never_dropped(error: Any) -> None:
    """A hook that says that the input has ended ends the session."""
    hook = Failing("after_run", error=error)
    session = train(hook, steps=5)
    assert hook.got.count("after_run") == 1
    assert session.outcome is not None


class Lost(Exception):
    """The error that a backend of its own raises when it loses its machine."""


class Fragile(EmbeddedSession):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.preemption_errors = (*self.preemption_errors, Lost)


@pytest.mark.parametrize("error", [AbortedError, Lost])
def test_a_preemption_is_never_dropped(error: Any) -> None:
    """A preemption that comes up in a hook is recovered from, the backend's own too."""
    times = iter([True])

    class Unlucky(SessionRunHook):
        options = hookbus.HookOptions(on_error="warn")
        created = 0

        def after_create_session(self) -> None:
            self.created += 1

        def after_run(self) -> None:
            if next(times, False):
                raise error("the machine is gone")

    graph, hook = Graph(), Unlucky()
    creator = ChiefSessionCreator(graph, backend=Fragile)
    recovery = Recovery(first_wait=0)
    with MonitoredSession(
        graph, creator, [hook], config=ALONE, recovery=recovery
    ) as session:
        session.run("global_step")
    assert hook.created == 2


def test_the_error_of_another_hook_is_not_ones_own() -> None:
    """A hook that emits an event cannot drop what a strict hook raises in it."""

    class Sender(SessionRunHook):
        options = hookbus.HookOptions(on_error="warn")

        def after_run(self, run_context: Any) -> None:
            run_context.emit("measured", values={}, global_step=1)

    class Strict(SessionRunHook):
        @hookimpl
        def measured(self) -> None:
            raise OSError("strict")

    with pytest.raises(OSError, match="strict"):
        train(Sender(), Strict())


def test_the_member_beats_the_class() -> None:
    """A policy from outside counts more than that of the class."""
    hook = Failing("after_run", policy="raise")
    made = Bus()
    made.register(Member("a", hook, "hooks=", policy=WARN))
    made.emit("after_run", run_context=None, run_values=None)
    strict = Failing("after_run", policy="warn")
    made.register(Member("b", strict, "hooks=", policy=ErrorPolicy("raise")))
    with pytest.raises(OSError, match="no disk"):
        made.emit("after_run", run_context=None, run_values=None)


def test_a_class_or_an_object_declares_its_policy() -> None:
    """on_error is among the options of a class, or of one object."""

    class Sloppy(Failing):
        options = hookbus.HookOptions(on_error="raise")

    hook = Sloppy("before_run")
    assert bus(hook).guard("p0").policy == WARN
    del hook.options
    assert bus(hook).guard("p0") is None


def test_an_attribute_called_on_error_is_no_policy() -> None:
    """An object of another library may well have a method or a value of that name."""

    class Foreign:
        on_error = "warn"

        def before_run(self) -> None: ...

    assert bus(Foreign()).guard("p0") is None


def test_only_mild_hooks_are_wrapped() -> None:
    """The row of a strict hook holds its own method: it costs nothing more."""

    class Plain(SessionRunHook):
        def before_run(self, run_context: Any) -> None: ...

    strict, mild = Plain(), Plain()
    mild.options = hookbus.HookOptions(on_error="warn")
    rows = dict(bus(strict, mild).caller("before_run").rows)
    assert rows["p0"] == strict.before_run
    assert rows["p1"] != mild.before_run


Body = Callable[[], Generator[None, Any, Any]]


def wrapping(body: Body, policy: ErrorPolicy = WARN) -> Member:
    """Return a hook that wraps before_run with *body*."""

    class Wrapping:
        @hookimpl(wrapper=True)
        def before_run(self) -> Generator[None, Any, Any]:
            return (yield from body())

    return Member("wrapping", Wrapping(), "hooks=", policy=policy)


def fails_before() -> Generator[None, Any, Any]:
    raise OSError
    yield


def fails_after() -> Generator[None, Any, Any]:
    yield
    raise OSError


def spoils_and_fails() -> Generator[None, Any, Any]:
    answers = yield
    answers.clear()
    raise OSError


def never_yields() -> Generator[None, Any, Any]:
    return
    yield


def yields_twice() -> Generator[None, Any, Any]:
    yield
    yield


def fails_while_handling() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except KeyError:
        raise OSError  # noqa: B904 (a slip in an except block)


BODIES = [fails_before, fails_after, spoils_and_fails, never_yields, yields_twice]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("policy", [WARN, QUARANTINE])
def test_a_wrapper_that_fails_is_skipped(body: Body, policy: ErrorPolicy) -> None:
    """Whatever is wrong with a mild wrapper, the answers stay as they were."""
    made = bus(Failing(policy="raise"))
    made.register(wrapping(body, policy))
    for _ in range(3):
        assert called(made) == ["p0"]


@pytest.mark.parametrize("body", [*BODIES, fails_while_handling])
def test_an_exception_inside_a_wrapper_that_fails_stays(body: Body) -> None:
    """The error of a hook inside is not replaced by that of a mild wrapper around it."""
    made = bus(Failing("before_run", policy="raise", error=KeyError))
    made.register(wrapping(body))
    with pytest.raises(KeyError):
        called(made)


FAULTY = [
    behaviours.raises_before,
    behaviours.raises_after,
    behaviours.stops_before,
    behaviours.stops_after,
    behaviours.never_yields,
    behaviours.yields_twice,
    behaviours.swallows_and_yields_twice,
    behaviours.fails_when_closed,
]
SOUND = [
    *behaviours.PLAIN,
    behaviours.passes,
    behaviours.extends,
    behaviours.swallows,
    behaviours.reraises,
]


def answers_of(stack: Sequence[Implementation]) -> Any:
    """Call a stack; return its answers or the type of its error."""
    try:
        return Caller("event", ("arg",), stack, Turn()).collect([])
    except BaseException as error:
        return type(error)


@given(st.lists(st.sampled_from(SOUND + FAULTY), max_size=7))
def test_faulty_wrappers_might_as_well_not_be_there(stack: list[Any]) -> None:
    """Any stack with mild wrappers that fail goes as the same stack without them."""
    guarded = []
    for place, behaviour in enumerate(stack):
        made = behaviours.implementation(place, behaviour, traces=False)
        mild = behaviour in FAULTY
        guard = Guard(made.plugin, "here", WARN, Failures(Turn(), ())) if mild else None
        guarded.append(attrs.evolve(made, guard=guard))
    sound = [made for made in guarded if made.guard is None]
    assert answers_of(guarded) == answers_of(sound)


def test_a_wrapper_may_still_translate_an_error() -> None:
    """An error raised on purpose from the inner one is no failure of the wrapper."""

    def translates() -> Generator[None, Any, Any]:
        try:
            return (yield)
        except KeyError as error:
            raise OSError("translated") from error

    made = bus(Failing("before_run", policy="raise", error=KeyError))
    made.register(wrapping(translates))
    with pytest.raises(OSError, match="translated"):
        called(made)


def test_a_quarantined_wrapper_is_not_called() -> None:
    """A wrapper that is switched off wraps nothing any more."""
    calls = []

    def counted() -> Generator[None, Any, Any]:
        calls.append("called")
        yield
        raise OSError

    made = bus(Failing(policy="raise"))
    made.register(wrapping(counted, QUARANTINE))
    for _ in range(5):
        assert called(made) == ["p0"]
    assert calls == ["called"] * 2


def test_a_mild_wrapper_around_the_end_keeps_nobody_from_it() -> None:
    """A wrapper of end that fails before its yield is skipped, and all hooks are told."""

    class Around(SessionRunHook):
        options = hookbus.HookOptions(on_error="warn")

        @hookimpl(wrapper=True)
        def end(self) -> Generator[None, Any, Any]:
            raise OSError
            yield

    witness = Witness()
    train(Around(), witness)
    assert witness.got[-1] == "end"


@pytest.mark.parametrize("policy", ["warn", "quarantine:2"])
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "event", ["after_create_session", "before_run", "after_run", "end"]
)
def test_clean_up_is_guaranteed(policy: str, place: int, event: str) -> None:
    """Wherever the failing hook stands, each one gets exactly one end."""
    others = [Failing(policy="raise") for _ in range(3)]
    hooks: list[Any] = [*others]
    hooks.insert(place, Failing(event, policy=policy))
    train(*hooks, steps=3)
    assert [hook.got.count("end") for hook in hooks] == [1] * 4
    assert [hook.got.count("on_exception") for hook in hooks] == [0] * 4


class Stateful(SessionRunHook):
    """Has a state, and fails with it where told."""

    def __init__(self, fails: str, policy: str) -> None:
        self.fails, self.options = fails, hookbus.HookOptions(on_error=policy)
        self.loaded: Any = None

    def state_dict(self) -> dict[str, int]:
        if self.fails == "state_dict":
            raise OSError("no state")
        return {"seen": 1}

    def load_state_dict(self, state: Any) -> None:
        if self.fails == "load_state_dict":
            raise OSError("no state")
        self.loaded = state


class Steady(Stateful):
    """Has a state that never fails."""

    def __init__(self) -> None:
        super().__init__("", "raise")


def step(*hooks: Any) -> None:
    """Go on by one step from the checkpoint, if there is one, and write the next."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with MonitoredTrainingSession(
        graph, checkpoint_dir="run", hooks=hooks, config=ALONE
    ) as session:
        session.run("train")


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_a_failure_with_the_state_is_held_back(method: str, capsys: Any) -> None:
    """The checkpoint is written, and read, though a mild hook fails with its state."""
    step(Steady(), Stateful("", "warn"))
    capsys.readouterr()
    step(Steady(), Stateful(method, "warn"))
    failures = "".join(warnings_in(capsys.readouterr().err, "hook failures"))
    assert f"plugin=stateful bus_event={method}" in failures
    steady, last = Steady(), Stateful("", "warn")
    step(steady, last)
    assert Path("run/ckpt-3").is_dir()
    assert steady.loaded == {"seen": 1}
    assert last.loaded == {"seen": 1}


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_a_failure_with_the_state_ends_the_session_by_default(method: str) -> None:
    """The note names plugin and method, as for an event."""
    step(Stateful("", "raise"))
    with pytest.raises(OSError, match="no state") as info:
        step(Stateful(method, "raise"))
    assert info.value.__notes__ == [
        f"hookbus: raised by plugin 'stateful' (hooks=) in {method}()"
    ]


def test_the_public_names_are_enough_for_a_mild_hook() -> None:
    """A hook's author needs one attribute, and HookOptions for it."""
    assert hookbus.SessionRunHook.options == hookbus.HookOptions()
    assert hookbus.SessionRunHook.options.on_error == "raise"
    assert hookbus.SessionRunHook.options.only_observes is False
