"""Tests what a wrapper has to return: what its yield gave, where somebody wants answers."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from hookbus import (
    Config,
    Graph,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    PluginError,
    SessionRunHook,
    hookimpl,
    hookspec,
)
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Registration as Member
from tests.support.buses import answering, bus, called

ALONE = Config(autoload=False)
SILENT = [
    "addhooks",
    "begin",
    "after_create_session",
    "after_run",
    "logged",
    "measured",
    "before_save",
    "end",
    "finished",
]
"""Events that nobody answers, of a session that ends well."""


def wrapping(*events: str, returns: Any = None, notes: list[str] | None = None) -> Any:
    """Return a hook with a wrapper for each of some events, and what they return."""

    def function(event: str) -> Any:
        def wrapper(self: Any) -> Generator[None, Any, Any]:
            try:
                yield
            finally:
                if notes is not None:
                    notes.append(event)
            return returns

        return hookimpl(wrapper=True)(wrapper)

    functions = {event: function(event) for event in events}
    return type("WrappingHook", (SessionRunHook,), functions)()


def counting() -> Graph:
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


@pytest.mark.parametrize("returns", [None, "x", 3, [], ["x"], [("p0", "here"), 3], ()])
@pytest.mark.parametrize("observed", [False, True])
def test_a_wrapper_returns_a_list_of_pairs(returns: Any, observed: bool) -> None:
    """Whatever else it returns is an error that names plugin, event and what to write."""
    made = bus(answering(), wrapping("before_run", returns=returns))
    if observed:
        made.observe(lambda call: None)
    if returns == []:
        assert called(made) == []
        return
    with pytest.raises(PluginError, match=r"'p1' \(hooks=\).* wrapper of before_run\(\)"):
        called(made)


def test_a_forgotten_return_ends_the_session_and_is_told() -> None:
    """Outcome and note name the plugin, and the message says what to write."""
    hooks = [wrapping("before_run")]
    with (
        pytest.raises(PluginError, match=r"returned None.* return answers") as info,
        MonitoredSession(counting(), hooks=hooks, config=ALONE) as session,
    ):
        session.run("train")
    assert session.outcome.who == "wrapping"
    assert info.value.__notes__ == [
        "hookbus: raised by plugin 'wrapping' (hooks=) in before_run()"
    ]


def test_no_policy_holds_it_back() -> None:
    """It says that something was written wrongly, like any PluginError."""
    hook = wrapping("before_run", returns="x")
    hook.options = HookOptions(on_error="warn")
    with pytest.raises(PluginError, match="returned 'x'"):
        called(bus(hook))


def test_wrappers_around_it_see_an_error() -> None:
    """It comes out of the wrapper as if that had raised it, so others can clean up."""
    notes: list[str] = []
    made = bus(wrapping("before_run", notes=notes), wrapping("before_run", returns="x"))
    with pytest.raises(PluginError, match="'p1'"):
        called(made)
    assert notes == ["before_run"]


def test_a_veto_is_not_lost_in_a_wrapper() -> None:
    """A veto_save wrapper without a return is an error; nothing is written."""

    class Refusing(SessionRunHook):
        @hookimpl
        def veto_save(self) -> str:
            return "not now"

    hooks = [Refusing(), wrapping("veto_save")]
    with (
        pytest.raises(PluginError, match=r"'wrapping' .*veto_save\(\) returned None"),
        MonitoredTrainingSession(
            counting(), checkpoint_dir="run", hooks=hooks, config=ALONE
        ) as session,
    ):
        session.run("train")
    assert list(Path("run").glob("ckpt-*")) == []


def test_where_nobody_answers_a_wrapper_returns_what_it_likes() -> None:
    """Each wrapper comes, and so does what it is around."""

    class Emitting(SessionRunHook):
        def after_run(self, run_context: Any) -> None:
            run_context.emit("logged", values={}, global_step=1)
            run_context.emit("measured", values={}, global_step=1)

    notes: list[str] = []
    hooks = [wrapping(*SILENT, notes=notes), Emitting()]
    with MonitoredTrainingSession(
        counting(), checkpoint_dir="run", hooks=hooks, config=ALONE
    ) as session:
        session.run("train")
    assert sorted(set(notes)) == sorted(SILENT)
    assert sorted(path.name for path in Path("run").glob("ckpt-*")) == ["ckpt-0", "ckpt-1"]


class Events:
    """Events of a plugin, for which somebody does and does not want answers."""

    @hookspec
    def asked(self):
        """Answer something."""

    @hookspec
    def told(self) -> None:
        """Come when there is something to tell."""


def test_an_event_of_ones_own_wants_answers_unless_it_says_so() -> None:
    """One that is declared ``-> None`` has none."""
    made = Bus()
    made.add_events(Events)
    made.register(Member("w", wrapping("asked", "told"), "hooks="))
    assert made.emit("told") == []
    with pytest.raises(PluginError, match=r"asked\(\) returned None"):
        made.emit("asked")
