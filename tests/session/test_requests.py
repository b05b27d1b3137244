"""Tests when each request of a hook takes effect, from every event, as the page states."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import hookbus
from hookbus import (
    AbortedError,
    Config,
    Due,
    Graph,
    MonitoredSession,
    PluginError,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    hookimpl,
    hookspec,
    latest_checkpoint,
)
from hookbus.checkpoint.reader import read_checkpoint
from hookbus.hooks import hookspecs
from hookbus.hooks.hookspecs import PROJECT
from hookbus.lifecycle.recovery import Recovery
from tests.support.profiles import cases

OFF = Config(autoload=False, header=False)
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "requests.md"
RUN = Path("run")
EVENTS = {
    name
    for name, function in vars(hookspecs).items()
    if hasattr(function, f"{PROJECT}_spec")
}


@attrs.define
class Kept:
    """The objects that a hook keeps, and the requests that it sees.

    Attributes:
        context: of the current run, or of the last one, maybe of an earlier session.
        checkpoints: of the session, or of an earlier one.
        graph: of the session, as a hook may know it from its constructor.
        bus: of the session.
        phase: where the session is: opening, running or closing.
        runs: how many runs began.
        asked: the step at which the request was made, and whether a save was under way.
        error: what the request raised.
        results: of the one who asked, in each run.
        inside: the value of v in the last after_run of each run.
        before: the same for the beginning of each run.
        wrapped: the value of an op that reads v, in each run.
        saved: the step of each checkpoint that was written after the request.
        skipped: whether each run skipped its update.
        saves_first: whether to save a checkpoint at the start, to which it can go back.
        cancels: whether a step is cancelled before.
        tracked: the variable v of a custom loop.
        went_back: the number of runs before the session went back to a checkpoint.
        stopped_at: the step at which a stop ended the session.
        is_saving: whether a checkpoint is being written.
        is_pruning: whether the request was made while old checkpoints were removed.
    """

    context: Any = None
    checkpoints: Any = None
    graph: Graph | None = None
    bus: Any = None
    phase: str = "opening"
    runs: int = 0
    asked: tuple[int, bool] | None = None
    error: BaseException | None = None
    results: list[Any] = attrs.Factory(list)
    before: list[float] = attrs.Factory(list)
    inside: list[float] = attrs.Factory(list)
    wrapped: list[float] = attrs.Factory(list)
    saved: list[int] = attrs.Factory(list)
    skipped: list[bool] = attrs.Factory(list)
    saves_first: bool = False
    cancels: bool = False
    tracked: Any = attrs.Factory(lambda: np.array(0.0))
    went_back: int | None = None
    stopped_at: int | None = None
    is_saving: bool = False
    is_pruning: bool = False


def fetches_and_feeds(_: Kept) -> SessionRunArgs:
    return SessionRunArgs("x", {"x": 7.0})


def wraps(kept: Kept) -> None:
    assert kept.graph is not None
    kept.graph.wrap("v", lambda v: v + 5.0)


def assigns_now(kept: Kept) -> None:
    kept.context.assign({"v": 1.0}, now=True)
    assert kept.context.session.variables()["v"] == 1.0


def records(kept: Kept) -> None:
    for step in (2, 3, 4):  # whichever is the last
        kept.checkpoints.record_values({"score": 0.5}, step)


REQUESTS: dict[str, Callable[[Kept], object]] = {
    "run_context.request_stop": lambda kept: kept.context.request_stop("asked"),
    'run_context.request_stop(kind="preempted")': lambda kept: kept.context.request_stop(
        "asked", kind="preempted"
    ),
    "run_context.request_save": lambda kept: kept.context.request_save("asked", keep=True),
    "run_context.assign": lambda kept: kept.context.assign({"v": 1.0}),
    "run_context.assign(now=True)": assigns_now,
    "run_context.skip_update": lambda kept: kept.context.skip_update(),
    "run_context.request_rollback": lambda kept: kept.context.request_rollback("asked"),
    "checkpoints.request_save": lambda kept: kept.checkpoints.request_save(
        "asked", keep=True
    ),
    "checkpoints.record_values": records,
    "SessionRunArgs": fetches_and_feeds,
    "graph.wrap": wraps,
}


class OwnEvents:
    """An event of a plugin."""

    @hookspec
    def rendered(self) -> None:
        """Called when something is drawn."""


EMITTED: dict[str, dict[str, Any]] = {
    "logged": {"values": {}, "global_step": 0},
    "measured": {"values": {}, "global_step": 0},
    "file_written": {"path": RUN, "global_step": 0},
    "evaluating": {"session": None, "name": None},
    "evaluated": {"metrics": {}, "global_step": 0, "name": None},
    "line_logged": {"event": "a line", "level": "info", "fields": {}},
    "rendered": {},
}


class FirstHook(SessionRunHook):
    """Keeps what hooks are handed, before any other hook is called."""

    def __init__(self, kept: Kept, directory: Path = RUN) -> None:
        self.kept, self.directory = kept, directory

    @hookimpl
    def addhooks(self, bus: Any) -> None:
        self.kept.bus = bus
        bus.add_events(OwnEvents)

    @hookimpl(tryfirst=True)
    def begin(self, checkpoints: Any, graph: Graph) -> None:
        self.kept.checkpoints, self.kept.graph = checkpoints, graph
        checkpoints.enable(self.directory, max_to_keep=1)
        checkpoints.save_on_exception()

    def after_create_session(self) -> None:
        if self.kept.saves_first:
            self.kept.checkpoints.request_save("first")
        if self.kept.asked is not None and self.kept.runs:
            self.kept.went_back = self.kept.runs - self.kept.cancels

    @hookimpl(tryfirst=True)
    def before_training(self, run_context: Any) -> None:
        self.kept.context = run_context

    @hookimpl(tryfirst=True)
    def before_run(self, run_context: Any) -> None:
        self.kept.context, self.kept.phase = run_context, "running"
        self.kept.runs += 1
        self.kept.before.append(run_context.session.variables().get("v"))

    def end(self, outcome: Any) -> None:
        if outcome.kind in ("stopped", "preempted"):
            self.kept.stopped_at = outcome.step

    @hookimpl(tryfirst=True)
    def veto_save(self) -> None:
        self.kept.is_saving = True

    @hookimpl(tryfirst=True)
    def pruning(self) -> str:
        self.kept.is_saving = False
        return "the test reads it"

    @hookimpl(tryfirst=True)
    def after_save(self, global_step: int) -> None:
        self.kept.is_saving = False
        if self.kept.asked is not None and not self.kept.is_pruning:
            self.kept.saved.append(global_step)
        self.kept.is_pruning = False


class LastHook(SessionRunHook):
    """Brings about the event in which a request is made, as the last hook of all."""

    def __init__(self, kept: Kept, event: str, when: str) -> None:
        self.kept, self.event, self.when = kept, event, when

    def after_create_session(self) -> None:
        if self.when == "first checkpoint" or self.event == "pruning":
            self.kept.checkpoints.request_save("first")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.kept.inside.append(run_context.session.variables().get("v"))
        self.kept.skipped.append(run_values.skipped)
        if self.kept.runs != 2:
            return
        if self.when == "after a run":
            run_context.request_save("second")
        elif self.event == "rolled_back":
            run_context.request_rollback("to look at it")
        elif self.event == "planned_last_step":
            assert run_context.last_step is None
        elif self.event in EMITTED and self.when == "in a run":
            run_context.emit(self.event, **EMITTED[self.event])

    def end(self) -> None:
        if self.event in EMITTED and self.when == "in `end`":
            self.kept.bus.emit(self.event, **EMITTED[self.event])


def is_due(kept: Kept, when: str) -> bool:
    """Return whether this call of the event is the one in which the request is made."""
    if kept.asked is not None:
        return False
    if when == "first checkpoint":
        return kept.phase == "opening"
    if when in ("last checkpoint", "in `end`", "failed session"):
        return kept.phase == "closing"
    if when in ("after a run", "in a run") and kept.phase != "running":
        return False
    return kept.phase != "running" or kept.runs == 2


SETTINGS = """
from hookbus import hookimpl

events = {}


@hookimpl
def addoption(group):
    group.add("every", int, 1)
    return events.get("addoption", lambda: None)()


@hookimpl
def configure():
    return events.get("configure", lambda: None)()
"""


@pytest.fixture(scope="module")
def plugin_with_settings(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[types.ModuleType]:
    """Install a module that can be switched on as a plugin, because it has settings.

    All tests share it: after each change of the path every distribution is read again.
    """
    folder = tmp_path_factory.mktemp("site")
    (folder / "with_settings.py").write_text(SETTINGS, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("with_settings")
        del sys.modules["with_settings"]


@pytest.fixture
def with_settings(
    plugin_with_settings: types.ModuleType,
) -> Iterator[types.ModuleType]:
    """Return that module; it has the events that the test gives it."""
    yield plugin_with_settings
    plugin_with_settings.events.clear()


def asking(
    kept: Kept, event: str, when: str, request: Callable[[Kept], object]
) -> types.ModuleType:
    """Return a plugin that makes one request, in one event."""

    def ask() -> Any:
        if not is_due(kept, when):
            return None
        steps = 0 if event == "rolled_back" else kept.runs - (event in UNDONE)
        kept.asked = max(steps, 0), kept.is_saving
        kept.is_pruning = event == "pruning"
        try:
            return request(kept)
        except hookbus.HookbusError as error:
            kept.error = error
            return None

    plugin = types.ModuleType("asking_plugin")
    vars(plugin)[event] = hookimpl(ask)
    if event == "idled":
        vars(plugin)["next_due"] = hookimpl(lambda: Due(runs=2))
    if event != "after_run":

        def after_run(run_values: Any) -> None:
            kept.results.append(run_values.results)

        vars(plugin)["after_run"] = hookimpl(after_run)
    return plugin


class LeaveError(Exception):
    """Leaves the block of a session."""


class FailedStepError(Exception):
    """Leaves the block of a step."""


UNDONE = ("cancelled", "step_failed")
"""Events of a step that does not count."""


def graph_with_v() -> Graph:
    """Return a graph with a variable v, a placeholder x and a train op that counts in n."""
    graph = Graph()
    graph.variable("v", 0.0)
    graph.variable("n", 0)
    graph.placeholder("x")
    graph.op(lambda v: v, name="seen")
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Kept:
    """Return the objects that a hook keeps of a session that is over."""
    kept = Kept()
    first = FirstHook(kept, tmp_path_factory.mktemp("earlier"))
    with MonitoredSession(graph_with_v(), hooks=[first], config=OFF) as session:
        session.run("train")
    return kept


@pytest.fixture
def effect(earlier: Kept, with_settings: types.ModuleType) -> Callable[..., str]:
    """Return a function that makes a request and returns its effect."""
    return functools.partial(effect_of, earlier, with_settings)


def effect_of(
    earlier: Kept,
    module: types.ModuleType,
    event: str,
    when: str,
    request: str,
    *,
    is_custom: bool = False,
) -> str:
    """Make one request in a session of four runs; return its effect in the page's words."""
    kept = Kept(earlier.context, earlier.checkpoints)
    kept.saves_first = "rollback" in request or event == "rolled_back"
    kept.cancels = event in UNDONE
    plugin = asking(kept, event, when, REQUESTS[request])
    hooks = [FirstHook(kept), plugin, LastHook(kept, event, when)]
    config = OFF
    if event in ("addoption", "configure"):
        module.events[event] = getattr(plugin, event)
        config = config.with_plugins(module.__name__)
        hooks.remove(plugin)
    graph = kept.graph = None if is_custom else graph_with_v()
    try:
        with MonitoredSession(
            graph, hooks=hooks, config=config, exit_on_signal=False
        ) as session:
            if is_custom:
                session.track(v=kept.tracked)
            for _ in range(4):
                if session.should_stop():
                    break
                if is_custom:
                    one_epoch(session, kept, event, when)
                else:
                    kept.wrapped.append(session.run(["seen", "train"])[0])
                if event == "params_recorded":
                    session.record({"runs": kept.runs})
            kept.phase = "closing"
            if event == "on_exception" or when == "failed session":
                raise LeaveError
    except LeaveError as error:
        notes = [note for note in getattr(error, "__notes__", ()) if "PluginError" in note]
        kept.error = PluginError(notes[0]) if notes else kept.error
    except PluginError as error:
        kept.error = error
    assert kept.asked is not None
    return described(kept, request, event)


def one_epoch(session: MonitoredSession, kept: Kept, event: str, when: str) -> None:
    """Do one step of a custom loop, and what leads to an event after it."""
    for _ in session.iterate([1]) if event == "epoch_ended" else [1]:
        with contextlib.suppress(FailedStepError), session.step() as step:
            step.report(x=7.0)
            if event == "cancelled" and kept.runs == 2:
                step.cancel()
            if event == "step_failed" and kept.runs == 2:
                raise FailedStepError
    evaluates = event in ("evaluating", "evaluated")
    if evaluates and (when, kept.runs) == ("between steps", 2):
        with session.evaluation() as evaluation:
            evaluation.report(loss=1.0)


def described(kept: Kept, request: str, event: str) -> str:
    """Return the fate of the request, in the words of the page."""
    assert kept.asked is not None
    run, _ = kept.asked
    if kept.error is not None:
        return "raises"
    if (event, request) == ("rolled_back", "checkpoints.request_save"):
        return "after the roll-back" if kept_why(0) == ["asked"] else "nothing"
    if request == "SessionRunArgs":
        return "in the run" if kept.results[run - 1] == 7.0 else "nothing"
    if request == "graph.wrap":
        return "each run" if kept.wrapped == [5.0] * 4 else "nothing"
    if request == "run_context.skip_update":
        others = kept.skipped.count(True) - kept.skipped[run - 1]
        return "in the run" if kept.skipped[run - 1] and not others else "nothing"
    if request == "run_context.request_rollback":
        return "after the run" if kept.went_back == run else "nothing"
    if request == "checkpoints.record_values":
        last = hookbus.list_checkpoints(RUN)[-1]
        return "its checkpoint" if last.values == {"score": 0.5} else "nothing"
    if "request_stop" in request:
        return stopped(kept, run, "preempted" in request)
    if "now" in request:
        return written(kept, *kept.asked)
    return assigned(kept, *kept.asked) if "assign" in request else saved(kept, *kept.asked)


def stopped(kept: Kept, run: int, preempts: bool) -> str:
    """Return when the session stopped, for a request that was made after so many runs."""
    if kept.stopped_at != run:
        return "nothing"
    if preempts:
        last = latest_checkpoint(RUN)
        ended = "preempted" if run else None  # no run, no mark
        assert (last.global_step, last.ended) == (run, ended)
    return "after the run" if run else "before the first run"


def written(kept: Kept, run: int, was_saving: bool) -> str:
    """Return whether v has kept the value that was written in a run."""
    if was_saving:
        assert values_of(run)["v"] == 1.0
    following = kept.before[run + kept.cancels :]
    stays = following and all(each == 1.0 for each in following)
    return "immediately" if stays else "nothing"


def assigned(kept: Kept, run: int, was_saving: bool) -> str:
    """Return when v got the value that was assigned in a run."""
    if was_saving:
        return "this checkpoint" if values_of(run)["v"] == 1.0 else "nothing"
    if run == 0 and kept.before[0] == 1.0:
        return "before the first run"
    if kept.inside[run - 1] == 1.0:
        return "with the run"
    following = kept.before[run + kept.cancels]
    return "before the next run" if following == 1.0 else "nothing"


def saved(kept: Kept, run: int, was_saving: bool) -> str:
    """Return the checkpoint that was written for a request after so many runs."""
    step = kept.saved[0] if kept.saved else None
    assert step is None or "asked" in kept_why(step)
    if was_saving:
        return "this checkpoint" if step == run else "nothing"
    if step in (0, 4):
        words = {0: "first checkpoint", 4: "last checkpoint"}
        return words[step] if step == run else "nothing"
    if step is None or latest_why(step) != "asked":
        return "nothing"
    return {run: "after the run", run + 1: "after the next run"}[step]


def values_of(step: int) -> dict[str, Any]:
    state = read_checkpoint(RUN / f"ckpt-{step}").state
    return {**state["variables"], **state.get("tracked", {})}


def kept_why(step: int) -> list[str]:
    return [*read_checkpoint(RUN / f"ckpt-{step}").manifest.kept.values()]


def latest_why(step: int) -> str:
    return read_checkpoint(RUN / f"ckpt-{step}").manifest.why


def table() -> Iterator[tuple[str, str, str, str]]:
    """Yield each event, when it comes, the request, and the effect, from the page."""
    section = PAGE.read_text("utf-8").split("## From each event")[1]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    rows = rows[: next(i for i, row in enumerate(rows) if row[0] == "Cell")]
    requests = [cell.strip("`") for cell in rows[0][2:]]
    for events, when, *cells in rows[1:]:
        for event in re.findall(r"`(\w+)`", events):
            for request, cell in zip(requests, cells, strict=True):
                yield event, when, request, cell


TABLE = list(table())


def test_the_table_has_every_event_and_every_request():
    """A new event needs a row of the table."""
    assert {event for event, *_ in TABLE} == EVENTS | {"rendered"}
    assert {request for _, _, request, _ in TABLE} == set(REQUESTS)


@pytest.mark.sampled(132)
@pytest.mark.parametrize(
    ("event", "when", "request_", "cell"),
    TABLE,
    ids=[f"{e} {w}-{r}".replace("`", "") for e, w, r, _ in TABLE],
)
def test_a_request_has_the_effect_that_the_table_states(
    event, when, request_, cell, effect
):
    """For every event and every request, the effect is that of the page."""
    only_custom = event in UNDONE or when == "between steps"
    assert effect(event, when, request_, is_custom=only_custom) == cell


@pytest.mark.sampled(22)
@pytest.mark.parametrize(
    ("event", "when", "request_", "cell"),
    [row for row in TABLE if row[2] != "graph.wrap" and row[3] != "raises"][:: cases(3, 1)],
)
def test_the_table_holds_for_a_custom_loop(event, when, request_, cell, effect):
    """There the block of a step is the run."""
    assert effect(event, when, request_, is_custom=True) == cell


def session_of(*hooks: Any, graph: Graph | None = None, **more: Any) -> MonitoredSession:
    return MonitoredSession(graph or graph_with_v(), hooks=hooks, config=OFF, **more)


class KeepsHook(SessionRunHook):
    """Keeps the context of each run, and the checkpoints."""

    def __init__(self) -> None:
        self.contexts: list[Any] = []

    def begin(self, checkpoints: Any) -> None:
        self.checkpoints = checkpoints

    def before_run(self, run_context: Any) -> None:
        self.contexts.append(run_context)


def hook_that(event: str, function: Callable[..., object]) -> Any:
    """Return a hook, called ``asking``, with a function for one event."""
    return type("Asking", (), {event: hookimpl(function)})()


@pytest.mark.parametrize(
    ("ask", "method"),
    [
        (lambda context: context.request_stop(), "request_stop"),
        (lambda context: context.request_save(), "request_save"),
        (lambda context: context.assign({"v": 1.0}), "assign"),
    ],
)
def test_a_context_is_of_no_use_after_its_run(ask, method):
    """The error names the method and the hook; its note names the event."""
    keeps = KeepsHook()
    asking = hook_that("end", lambda _: ask(keeps.contexts[0]))
    session = session_of(keeps, asking)
    session.run("train")
    with pytest.raises(UsageError, match=rf"the caller called run_context\.{method}"):
        ask(keeps.contexts[0])
    with pytest.raises(UsageError) as caught:
        session.close()
    assert str(caught.value) == (
        f"hook 'asking' called run_context.{method}() after the run of this context; ask "
        "during the run, through its own context"
    )
    note = "hookbus: raised by plugin 'asking' (hooks=) in end()"
    assert caught.value.__notes__ == [note]


def test_a_context_tells_whether_it_still_takes_requests():
    """It does in every event of its run, and no longer in the next run or at the end."""
    keeps, seen = KeepsHook(), []
    look = hookimpl(lambda _: seen.append([each.is_over for each in keeps.contexts]))
    looks = type("Looks", (), {"before_run": look, "after_run": look, "end": look})()
    with session_of(keeps, looks) as session:
        session.run("train")
        session.run("train")
    assert seen == [[False], [False], [True, False], [True, False], [True, True]]


def test_after_every_end_no_checkpoint_can_be_asked_for():
    """The error names the hook; its note names the event."""
    keeps = KeepsHook()
    asking = hook_that("finished", lambda _: keeps.checkpoints.request_save("late"))
    with pytest.raises(UsageError) as caught, session_of(keeps, asking):
        pass
    assert str(caught.value) == (
        "hook 'asking' called checkpoints.request_save() after the last end(); the session "
        "serves no further request: ask in end() at the latest"
    )
    assert "in finished()" in caught.value.__notes__[0]


def test_saving_can_be_switched_on_only_in_begin():
    """Later, the session has checked already whether it can save into the directory."""
    keeps = KeepsHook()
    asking = hook_that("after_run", lambda _: keeps.checkpoints.enable(RUN))
    with pytest.raises(UsageError) as caught, session_of(keeps, asking) as session:
        session.run("train")
    assert str(caught.value) == (
        "asking called checkpoints.enable() after the last begin(), when the session has "
        "checked whether it can save; call it in begin()"
    )


def test_a_checkpoint_that_nobody_can_save_is_logged_in_end_too(capsys):
    """No plugin saves: the request has a log line in any event."""
    keeps = KeepsHook()
    asking = hook_that("end", lambda _: keeps.checkpoints.request_save("late"))
    with session_of(keeps, asking):
        pass
    line = "a checkpoint was requested, but no plugin saves checkpoints"
    assert line in capsys.readouterr().err


def test_a_run_that_failed_takes_no_request():
    """Its requests are forgotten, and its context raises from then on."""

    def fail(self: Any, run_context: Any) -> None:
        run_context.assign({"v": 1.0})
        run_context.request_save("never")
        run_context.request_stop("never")
        raise ArithmeticError

    keeps, failing = KeepsHook(), hook_that("after_run", fail)
    with session_of(FirstHook(Kept()), keeps, failing) as session:
        with pytest.raises(ArithmeticError):
            session.run("train")
        with pytest.raises(UsageError, match="after the run of this context"):
            keeps.contexts[0].request_stop()
        assert session.run("v", kind="aux") == 0.0
        assert not session.should_stop()
        assert list(RUN.glob("ckpt-*")) == []


def test_a_checkpoint_asked_for_through_checkpoints_survives_a_failed_run():
    """It is written after the next run that succeeds."""
    kept = Kept()

    def fail_once(self: Any) -> None:
        if kept.runs == 1:
            kept.checkpoints.request_save("anyway")
            raise ArithmeticError

    with session_of(FirstHook(kept), hook_that("after_run", fail_once)) as session:
        with pytest.raises(ArithmeticError):
            session.run("train")
        session.run("train")
        assert latest_why(2) == "anyway"


def test_a_custom_loop_has_no_variables_to_assign():
    """The error comes in the hook's call, like any other of a name."""
    asking = hook_that("before_run", lambda _, run_context: run_context.assign({"v": 1.0}))
    session = MonitoredSession(hooks=[asking], config=OFF)
    with pytest.raises(hookbus.GraphError, match="'v'"):
        session.step().__enter__()
    session.close()


def test_a_step_that_failed_stops_nothing():
    """In a custom loop, too, the requests of a step that raises are forgotten."""
    asking = hook_that("before_run", lambda _, run_context: run_context.request_stop())
    hooks = [FirstHook(Kept()), asking]
    with MonitoredSession(hooks=hooks, config=OFF) as session:
        with pytest.raises(ArithmeticError), session.step():
            raise ArithmeticError
        assert not session.should_stop()
        with session.step():
            assert not session.should_stop()
        assert session.should_stop()
    assert session.outcome.step == 1


def test_a_step_whose_hooks_fail_stops_nothing():
    """Nor do requests count if a hook fails when the step is entered."""
    keeps = KeepsHook()

    def fail_once(self: Any, run_context: Any) -> None:
        if len(keeps.contexts) == 1:
            run_context.request_stop()
            raise ArithmeticError

    hooks = [keeps, hook_that("before_run", fail_once)]
    with MonitoredSession(hooks=hooks, config=OFF) as session:
        with pytest.raises(ArithmeticError):
            session.step().__enter__()
        with session.step():
            pass
        assert not session.should_stop()


def test_a_cancelled_step_serves_its_requests():
    """The stop at once, the checkpoint when the next step is entered."""
    asked: list[int] = []

    def ask(self: Any, run_context: Any) -> None:
        if not asked:
            asked.append(1)
            run_context.request_save("cancelled")

    hooks = [FirstHook(Kept()), hook_that("before_run", ask)]
    with MonitoredSession(hooks=hooks, config=OFF) as session:
        session.track(array=(lambda: 1.0, lambda _: None))
        with session.step() as step:
            step.cancel()
        assert list(RUN.glob("ckpt-*")) == []
        with session.step():
            assert latest_why(0) == "cancelled"
    assert latest_checkpoint(RUN).global_step == 1


AUX = """
from hookbus import HookOptions, hookimpl

options = HookOptions(kinds=("train", "aux"))


@hookimpl
def after_run(run_context):
    if run_context.kind == "aux":
        run_context.assign({"v": 3.0})
        run_context.request_save("aux")
    else:
        run_context.request_stop("enough")
"""


def test_an_aux_run_serves_requests_after_a_stop(monkeypatch):
    """A plugin that declares the kind may assign and save in it."""
    Path("aux_plugin.py").write_text(AUX, "utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    config = OFF.with_plugins("aux_plugin")
    hooks = [FirstHook(Kept())]
    with MonitoredSession(graph_with_v(), hooks=hooks, config=config) as session:
        session.run("train")
        assert session.should_stop()
        session.run("n", kind="aux")
        assert latest_why(1) == "aux"
        assert values_of(1)["v"] == 3.0
        assert session.run("v", kind="aux") == 3.0
    assert session.outcome.why == "enough"
    del sys.modules["aux_plugin"]


def test_a_thread_asks_during_the_run_and_not_after_it():
    """Its request counts like a hook's; after the run it gets the error itself."""
    errors: list[UsageError] = []

    def in_thread(do: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                do()
            except UsageError as error:
                errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        thread.join()

    keeps = KeepsHook()
    asking = hook_that(
        "after_run", lambda _: in_thread(lambda: keeps.contexts[0].request_stop("enough"))
    )
    with session_of(keeps, asking) as session:
        session.run("train")
        assert session.should_stop()
        assert errors == []
        in_thread(lambda: keeps.contexts[0].request_save())
    assert "after the run of this context" in str(errors[0])
    assert session.outcome.why == "enough"


def test_a_request_belongs_to_the_session_of_its_context():
    """A hook of an inner session stops the outer one through the outer one's context."""
    keeps = KeepsHook()
    inner_hook = hook_that("after_run", lambda _: keeps.contexts[0].request_stop("inner"))
    stopped: list[bool] = []

    def nest(self: Any) -> None:
        with session_of(inner_hook) as inner:
            inner.run("train")
            stopped.append(inner.should_stop())

    with session_of(keeps, hook_that("before_run", nest)) as outer:
        outer.run("train")
        stopped.append(outer.should_stop())
    assert stopped == [False, True]
    assert (outer.outcome.who, outer.outcome.why) == ("asking", "inner")


def test_the_context_of_an_interrupted_run_is_over_when_it_is_repeated():
    """The session opens again: only the context of the repeated run takes requests."""
    keeps = KeepsHook()
    errors: list[UsageError] = []

    def ask(self: Any) -> None:
        if keeps.contexts:
            with pytest.raises(UsageError, match="after the run of this context") as caught:
                keeps.contexts[0].assign({"v": 1.0})
            errors.append(caught.value)

    def interrupt(self: Any) -> None:
        if len(keeps.contexts) == 1:
            raise AbortedError("gone")

    class AskingHook:
        after_create_session = before_run = hookimpl(ask)
        after_run = hookimpl(interrupt)

    hooks = [AskingHook(), keeps]
    with session_of(*hooks, recovery=Recovery(first_wait=0.0)) as session:
        session.run("train")
        assert session.run("v", kind="aux") == 0.0
    assert len(keeps.contexts) == 2
    assert len(errors) == 2


def test_what_is_asked_around_a_refused_checkpoint():
    """The refusal also holds for others that ask meanwhile; an assignment is made."""
    kept = Kept()

    def refuse(self: Any, run_context: Any) -> str | None:
        if run_context is None:
            return None
        run_context.assign({"v": 2.0})
        run_context.request_save("again")
        return "not now"

    hooks = [FirstHook(kept), hook_that("veto_save", refuse), LastHook(kept, "", "")]
    saves = hook_that(
        "after_run", lambda _: kept.runs == 1 and kept.context.request_save("first")
    )
    with session_of(*hooks, saves) as session:
        session.run("train")
        session.run("train")
        assert kept.before == [0.0, 2.0]
        assert list(RUN.glob("ckpt-*")) == []
    assert values_of(2)["v"] == 2.0


def test_hooks_that_assign_one_variable_around_a_checkpoint_are_both_named():
    """An assignment in an event of the checkpoint belongs to the run before it."""
    kept = Kept()
    after = hook_that("after_run", lambda _, run_context: run_context.assign({"v": 1.0}))
    other = type("Other", (), {})()
    type(other).before_save = hookimpl(
        lambda _: kept.phase == "running" and kept.context.assign({"v": 2.0})
    )
    last = LastHook(kept, "", "after a run")
    session = session_of(FirstHook(kept), after, other, last)
    session.run("train")
    with pytest.raises(hookbus.errors.WriteConflictError, match="'asking' and 'other'"):
        session.run("train")
    kept.phase = "closing"
    session.close()


def test_a_stop_after_the_first_checkpoint_is_ignored_and_logged(capsys):
    """As in TensorFlow, only a checkpoint after a run stops the session."""
    kept = Kept()
    asking = hook_that("after_save", lambda _: "seen enough")
    with session_of(FirstHook(kept), asking, LastHook(kept, "", "first checkpoint")):
        pass
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "ignored" in each]
    assert "a stop is ignored: no run came before the checkpoint" in line
    assert "by=asking" in line
    assert "why='seen enough'" in line


def test_a_reason_to_stop_after_the_last_checkpoint_changes_no_outcome(capsys):
    """The session ends anyway, so nothing is ignored that could be told."""
    asking = hook_that("after_save", lambda _: "seen enough")
    with session_of(FirstHook(Kept()), asking) as session:
        session.run("train")
    assert session.outcome.kind == "completed"
    assert "ignored" not in capsys.readouterr().err


@pytest.mark.parametrize("event", ["after_run", "end", "logged"])
def test_only_before_run_asks_for_fetches_and_feeds(event):
    """The error names the plugin and the event."""
    kept = Kept()
    asking = hook_that(event, lambda _: SessionRunArgs("n"))
    last = LastHook(kept, "logged", "in a run")
    with (
        pytest.raises(PluginError) as caught,
        session_of(FirstHook(kept), asking, last) as session,
    ):
        list(itertools.islice(session.loop(), 2))
    assert str(caught.value) == (
        f"plugin 'asking' (hooks=): {event}() returned SessionRunArgs(...); only "
        "before_run() asks for fetches and feeds"
    )


def test_an_own_event_may_answer_with_fetches():
    """An event that a plugin declares takes any answer that is not declared as None."""

    class Wanted:
        @hookspec
        def wanted(self) -> SessionRunArgs | None:
            """Return the fetches."""

    class Collects(SessionRunHook):
        @hookimpl
        def addhooks(self, bus: Any) -> None:
            bus.add_events(Wanted)

        def before_run(self, run_context: Any) -> SessionRunArgs:
            (answer,) = run_context.emit("wanted")
            return answer

        def after_run(self, run_values: Any) -> None:
            self.result = run_values.results

    hook = Collects()
    with session_of(hook, hook_that("wanted", lambda _: SessionRunArgs("n"))) as session:
        session.run("train")
    assert hook.result == 0


def test_a_hook_cannot_run_a_step_function_s_session_either():
    """The run would be inside another one, and end it."""
    errors: list[UsageError] = []

    def step_fn(step_context: Any) -> Any:
        def nest(self: Any) -> None:
            with pytest.raises(UsageError, match="cannot run the session") as caught:
                step_context.run_with_hooks("n")
            errors.append(caught.value)

        hook.react = nest
        return step_context.run_with_hooks("n")

    hook = hook_that("after_run", lambda self: self.react(self))
    with session_of(hook) as session:
        assert session.run_step_fn(step_fn) == 0
    assert len(errors) == 1
