"""The bus: what counts as a hook, what is refused, and how events are sent."""

from __future__ import annotations

import types
from collections.abc import Generator
from typing import Any

import attrs
import pluggy
import pytest

import hookbus
from hookbus import PluginError, SessionRunHook, UsageError, hookimpl, hookspec
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Registration as Member
from hookbus.hooks.hookspecs import LIFECYCLE
from tests.support.buses import BEGIN, answering, bus, called


def test_any_object_with_lifecycle_methods_is_a_hook() -> None:
    """The five methods and on_exception count undecorated, on any object."""

    class Ducky:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    for event in LIFECYCLE:
        setattr(Ducky, event, lambda self: "called")
    made = bus(Ducky())
    assert [len(made.caller(event).rows) for event in LIFECYCLE] == [1] * 6


def test_other_events_need_the_decorator() -> None:
    """A method that merely happens to be called like an event is not called."""

    class Logger:
        def logged(self) -> str:
            return "undecorated"

        def planned_last_step(self) -> int:
            return 1

        @hookimpl
        def measured(self) -> str:
            return "decorated"

    made = bus(Logger())
    assert made.emit("logged", values={}, global_step=0) == []
    assert made.emit("planned_last_step") == []
    assert made.emit("measured", values={}, global_step=0) == ["decorated"]


def test_methods_that_are_not_overridden_cost_nothing() -> None:
    """A SessionRunHook is called only in the events that it overrides."""

    class OnlyEnd(SessionRunHook):
        def end(self) -> None: ...

    made = bus(OnlyEnd())
    rows = {event: len(made.caller(event).rows) for event in LIFECYCLE}
    assert rows == {**dict.fromkeys(LIFECYCLE, 0), "end": 1}


def test_a_subclass_need_not_call_init() -> None:
    """A SessionRunHook subclass works without super().__init__ and without attrs."""

    class Bare(SessionRunHook):
        def __init__(self) -> None:
            self.runs = 0

        def before_run(self) -> str:
            return "bare"

    assert called(bus(Bare())) == ["p0"]


def test_the_decorator_orders_an_overridden_method() -> None:
    """Hookimpl's options apply to lifecycle methods of a SessionRunHook too."""

    class Last(SessionRunHook):
        @hookimpl(trylast=True)
        def before_run(self) -> str:
            return "last"

    assert called(bus(Last(), answering())) == ["p1", "p0"]


def test_a_static_or_class_method_may_have_the_decorator_on_either_side() -> None:
    """Python keeps the mark in the method or in its function; both count."""

    class Static:
        @staticmethod
        @hookimpl
        def before_save() -> str:
            return "below"

        @hookimpl(tryfirst=True)
        @staticmethod
        def before_run() -> str:
            return "above"

        @hookimpl
        @staticmethod
        def planned_last_step() -> int:
            return 7

    class Class:
        @hookimpl(trylast=True)
        @classmethod
        def before_run(cls) -> str:
            return cls.__name__

        @classmethod
        @hookimpl
        def planned_last_step(cls) -> int:
            return 8

    made = bus(Class(), SessionRunHook(), Static())
    assert called(made) == ["p2", "p0"]
    assert made.emit("planned_last_step") == [8, 7]


def test_in_a_module_only_decorated_functions_count() -> None:
    """A module's function without hookimpl is its own business, whatever its name."""
    module = types.ModuleType("plugin_module")

    @hookimpl
    def before_run() -> str:
        return "decorated"

    def begin() -> str:
        return "undecorated"

    module.before_run, module.begin = before_run, begin
    made = bus(module)
    assert called(made) == ["p0"]
    assert made.emit("begin", **BEGIN) == []


def test_a_class_is_refused_with_the_remedy() -> None:
    """A class in place of an object is an error that shows what to write."""

    class LossHook(SessionRunHook): ...

    with pytest.raises(UsageError, match=r"LossHook is a class: write LossHook\(\.\.\.\)"):
        bus(LossHook)


def test_the_same_object_twice_is_refused() -> None:
    """One hook object cannot take part twice; a second object of its class can."""
    hook = answering()
    with pytest.raises(UsageError, match=r"'p0' \(hooks=\) is given twice"):
        bus(hook, answering(), hook)


def test_a_hook_that_compares_by_value_is_refused() -> None:
    """Hooks are compared by identity; the message says how to declare that."""

    @attrs.define
    class Equal(SessionRunHook):
        steps: int = 1

    with pytest.raises(PluginError, match=r"Equal compares by value.*define\(eq=False\)"):
        bus(Equal())


def test_an_unknown_event_is_refused_with_a_suggestion() -> None:
    """A decorated method that no event has is a mistake in its name."""

    class Typo:
        @hookimpl
        def after_runn(self) -> None: ...

    with pytest.raises(
        PluginError, match=r"'p0'.*'after_runn' is not an event.*'after_run'"
    ):
        bus(Typo())


def test_an_optional_hook_may_name_an_unknown_event() -> None:
    """optionalhook=True is for events that another plugin may declare."""

    class Guest:
        @hookimpl(optionalhook=True)
        def rendered(self) -> None: ...

    assert list(bus(Guest()).members) == ["p0"]


def test_specname_names_the_event() -> None:
    """With specname= a function takes part under another event's name."""

    class Renamed:
        @hookimpl(specname="before_run")
        def my_own_name(self) -> str:
            return "renamed"

    assert called(bus(Renamed())) == ["p0"]


def test_an_argument_that_the_event_has_not_is_refused() -> None:
    """The message names the plugin, the method and the argument."""

    class Wrong(SessionRunHook):
        def before_run(self, run_contxt: Any) -> None: ...

    with pytest.raises(PluginError, match=r"'p0'.*before_run.*run_contxt"):
        bus(Wrong())


def test_arguments_by_keyword_only_are_refused() -> None:
    """Events pass arguments by position; the message says so."""

    class Keyword:
        def before_run(self, *, run_context: Any) -> None: ...

    with pytest.raises(PluginError, match="'run_context' by keyword only"):
        bus(Keyword())


def test_a_parameter_of_its_own_with_a_default_keeps_it() -> None:
    """A method may have further parameters, as long as they have defaults."""

    class Scaled:
        def before_run(self, run_context: Any, scale: int = 2) -> Any:
            return run_context, scale

    made = bus(Scaled()).caller("before_run")
    assert made.collect("context") == [("p0", ("context", 2))]


def test_an_events_argument_with_a_default_is_passed() -> None:
    """A hook gets the arguments it names, with or without a default."""

    class Relaxed:
        def before_run(self, run_context: Any = None) -> Any:
            return run_context

    assert bus(Relaxed()).caller("before_run").collect("context") == [("p0", "context")]


def test_an_old_style_wrapper_is_refused_with_the_new_one() -> None:
    """hookwrapper=True is not supported; the message names wrapper=True."""

    class Old:
        @hookimpl(hookwrapper=True)
        def before_run(self) -> Generator[None, Any, None]:
            yield

    with pytest.raises(PluginError, match=r"old-style hookwrapper; use @hookimpl\(wrapper"):
        bus(Old())


def test_a_wrapper_must_be_a_generator_function() -> None:
    """wrapper=True on a plain function is refused at registration."""

    class Plain:
        @hookimpl(wrapper=True)
        def before_run(self) -> None: ...

    with pytest.raises(PluginError, match=r"'p0'.*before_run"):
        bus(Plain())


@pytest.mark.parametrize(
    "refused",
    [answering(hookwrapper=True), types.SimpleNamespace(end=lambda: None), object()],
    ids=["old", "equal", "no hook"],
)
def test_a_refused_hook_leaves_no_trace(refused: Any) -> None:
    """After a refusal the bus is as before, and another may take the name."""
    made = Bus()
    with pytest.raises((PluginError, TypeError)):
        made.register(Member("one", refused, "hooks="))
    assert not made.members
    made.register(Member("one", answering(), "hooks="))
    assert called(made) == ["one"]


def test_unregister_takes_a_hook_out_of_every_event() -> None:
    """A hook taken out is called no more, in events already compiled too."""
    made = bus(answering(), answering())
    assert called(made) == ["p0", "p1"]
    made.unregister("p0")
    assert called(made) == ["p1"]
    with pytest.raises(KeyError):
        made.unregister("p0")


def test_a_hook_that_joins_late_is_called_from_then_on() -> None:
    """Registration makes all callers anew."""
    made = bus(answering())
    called(made)
    made.register(Member("new", answering(), "hooks="))
    assert called(made) == ["p0", "new"]
    assert [name for name, _ in made.caller("before_run", "train").rows] == ["p0", "new"]


def test_emit_wants_exactly_the_events_arguments() -> None:
    """A missing or foreign argument is an error that lists the right ones."""
    made = bus()
    with pytest.raises(PluginError, match="'logged' takes values, global_step, not values"):
        made.emit("logged", values={})
    with pytest.raises(PluginError, match="'planned_last_step' takes nothing, not step"):
        made.emit("planned_last_step", step=1)


def test_an_event_that_is_not_declared_is_refused() -> None:
    """Asking for an unknown event suggests the nearest."""
    with pytest.raises(PluginError, match="no event 'loged'; did you mean 'logged'"):
        bus().emit("loged")


def test_a_name_is_that_of_one_hook() -> None:
    """A second hook of a name is refused, however it comes, and nothing is changed."""
    first, second = (Member("a", answering(), origin) for origin in ("hooks=", "-p a"))
    with pytest.raises(PluginError, match="two plugins are called 'a': hooks= and -p a"):
        Bus().register(first, second)
    made = Bus()
    made.register(first)
    with pytest.raises(PluginError, match="two plugins are called 'a'"):
        made.register(second)
    assert made.members == {"a": first}
    assert called(made) == ["a"]


def test_plugins_may_add_events() -> None:
    """A class or module of hookspecs declares further events, firstresult included."""

    class Events:
        @hookspec(firstresult=True)
        def rendered(self, frame: int) -> str | None:
            """Come when a frame is drawn."""

    class Renderer:
        @hookimpl
        def rendered(self, frame: int) -> str:
            return f"{frame}"

    made = Bus()
    made.add_events(Events)
    made.register(Member("a", Renderer(), "hooks="))
    made.register(Member("b", Renderer(), "hooks="))
    assert made.emit("rendered", frame=3) == ["3"]


def test_the_first_reason_against_a_save_decides() -> None:
    """veto_save asks no further hook once one has given a reason."""
    asked = []

    class Refuser:
        def __init__(self, name: str, answer: str | None) -> None:
            self.name, self.answer = name, answer

        @hookimpl
        def veto_save(self) -> str | None:
            asked.append(self.name)
            return self.answer

    made = bus(Refuser("a", None), Refuser("b", "no"), Refuser("c", "never"))
    arguments = dict.fromkeys(("session", "values", "global_step", "run_context"))
    assert made.emit("veto_save", **arguments) == ["no"]
    assert asked == ["a", "b"]


def test_the_markers_are_pluggys() -> None:
    """Hookspec and hookimpl are pluggy's markers, with all their options."""
    assert isinstance(hookbus.hookimpl, pluggy.HookimplMarker)
    assert isinstance(hookbus.hookspec, pluggy.HookspecMarker)
