"""Tests what plugins declare before a session begins: events of their own, and settings."""

from __future__ import annotations

import copy
import types
from collections.abc import Generator, Mapping
from typing import Any

import pytest

from hookbus import (
    Config,
    Graph,
    HookOptions,
    MonitoredSession,
    OptionGroup,
    PluginError,
    SessionRunHook,
    hookimpl,
    hookspec,
)
from hookbus.bus.bus import Bus, call_one
from hookbus.bus.registry import Registration as Member
from hookbus.errors import culprit_of, session_left_was_ready
from tests.support.buses import BEGIN, bus

ALONE = Config(autoload=False)


class Events:
    """The events of the renderer."""

    @hookspec
    def rendered(self, frame: int, scale: float) -> None:
        """Come when a frame is drawn."""


class Renderer(SessionRunHook):
    """Declares an event, and emits it after each run."""

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        bus.add_events(Events)

    def after_run(self, run_context: Any) -> None:
        run_context.emit("rendered", frame=3, scale=0.5)


class Viewer(SessionRunHook):
    """Takes part in the event that another one declares."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    def rendered(self, frame: int) -> None:
        self.seen.append(frame)


@pytest.mark.parametrize("place", [0, 1])
def test_an_event_is_there_for_whoever_comes_before_its_plugin(place: int) -> None:
    """All addhooks are called before any hook is registered."""
    viewer = Viewer()
    hooks: list[Any] = [viewer]
    hooks.insert(place, Renderer())
    with MonitoredSession(Graph(), hooks=hooks, config=ALONE) as session:
        session.run("global_step")
    assert viewer.seen == [3]


def test_two_of_a_kind_declare_their_events_once() -> None:
    """The same declaration again is no second event."""
    made = bus(Renderer(), Renderer(), Viewer())
    made.emit("rendered", frame=1, scale=1.0)
    assert made.members["p2"].plugin.seen == [1]
    assert made.events["rendered"] == ("frame", "scale")


def test_a_base_class_of_events_may_be_declared_before() -> None:
    """Of a class that adds to events that are known, only the new ones are added."""

    class More(Events):
        @hookspec(firstresult=True)
        def resized(self) -> int | None:
            """Come when the window is resized."""

    made = Bus()
    made.add_events(Events)
    made.add_events(More)
    assert set(made.events) >= {"rendered", "resized"}


def test_two_declarations_of_one_name_are_an_error() -> None:
    """The message names both places."""

    class Rival:
        @hookspec
        def another(self) -> None: ...

        @hookspec
        def rendered(self) -> None: ...

    made = bus(Renderer())
    with pytest.raises(PluginError, match="'rendered' is declared twice, by Events and by"):
        made.add_events(Rival)
    assert "another" not in made.events


def test_a_function_that_waits_for_an_event_must_fit_it() -> None:
    """Where the event is declared after the plugin came, the mistake is found then."""

    class Wrong(SessionRunHook):
        @hookimpl(optionalhook=True)
        def rendered(self, picture: int) -> None: ...

    made = bus(Wrong())
    with pytest.raises(PluginError, match=r"'p0' for hook 'rendered'.*picture"):
        made.add_events(Events)


def test_cores_events_cannot_be_declared_anew() -> None:
    """A plugin's begin would be another event than everybody's."""

    class Rival:
        @hookspec
        def begin(self) -> None: ...

    with pytest.raises(PluginError, match=r"by hookbus\.hooks\.hookspecs and by Rival"):
        Bus().add_events(Rival)


def test_a_module_declares_events_too() -> None:
    """Functions of a module are marked in the same way; one without any is an error."""
    module = types.ModuleType("my_events")
    with pytest.raises(
        PluginError, match="declares no event: mark its functions @hookspec"
    ):
        Bus().add_events(module)

    @hookspec
    def rendered(frame: int) -> None: ...

    module.rendered = rendered
    made = Bus()
    made.add_events(module)
    assert made.events["rendered"] == ("frame",)


def failing(event: str, policy: str = "raise") -> Any:
    """Return a hook that fails in one event that needs the decorator."""

    @hookimpl(specname=event)
    def fails(self: Any) -> None:
        raise OSError("cannot")

    declared = {"fails": fails, "options": HookOptions(on_error=policy)}
    return type("FailingHook", (SessionRunHook,), declared)()


def open_session(*members: Member) -> None:
    """Do with these hooks what a session does before its first event."""
    made = Bus()
    made.register(*members)
    made.check_order()
    made.configure()


@pytest.mark.parametrize("event", ["addhooks", "configure"])
def test_an_error_before_the_session_begins_carries_the_note(event: str) -> None:
    """It names plugin, distribution and event, like any."""
    member = Member("bad", failing(event), "-p bad", "acme-bad 1.0", options={})
    with pytest.raises(OSError, match="cannot") as info:
        open_session(member)
    assert info.value.__notes__ == [
        f"hookbus: raised by plugin 'bad' (acme-bad 1.0) in {event}()"
    ]


@pytest.mark.parametrize("event", ["addhooks", "configure"])
def test_an_error_before_the_session_begins_can_be_held_back(event: str) -> None:
    """The policy of a plugin holds from its first event on."""
    open_session(Member("bad", failing(event, "warn"), "-p bad", options={}))


def test_a_session_that_does_not_come_about_is_recorded() -> None:
    """The command learns that a plugin failed before there was a session."""
    config = Config(autoload=False)
    with pytest.raises(OSError, match="cannot") as info:
        MonitoredSession(Graph(), hooks=[failing("addhooks")], config=config)
    (record,) = config.records
    assert (record.first_step, record.outcome.who) == (None, "failing")
    assert session_left_was_ready(info.value) is False


class Set(SessionRunHook):
    """Keeps what it is configured with."""

    options: Any = None
    begun_with: Any = None

    @hookimpl
    def configure(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def begin(self) -> None:
        self.begun_with = self.options


def test_each_plugin_is_configured_with_its_own_options() -> None:
    """Hooks with options get them, each its own; the others are not called."""
    hooks = [Set(), Set(), Set()]
    open_session(
        Member("a", hooks[0], "-p a", options={"every": 1}),
        Member("b", hooks[1], "-p b", options={}),
        Member("c", hooks[2], "-p c"),
    )
    assert [hook.options for hook in hooks] == [{"every": 1}, {}, None]


def test_a_wrapper_of_configure_gets_its_own_options_too() -> None:
    """A wrapper is around all others, and has nobody's options but its own."""
    seen = []

    class Around(SessionRunHook):
        @hookimpl(wrapper=True)
        def configure(self, options: Any) -> Generator[None, Any, Any]:
            seen.append(options)
            return (yield)

    inner = Set()
    open_session(
        Member("a", inner, "-p a", options={"every": 1}),
        Member("b", Around(), "-p b", options={"every": 2}),
    )
    assert seen == [{"every": 2}]
    assert inner.options == {"every": 1}


def test_settings_are_declared_in_order() -> None:
    """A group keeps name, type, default and help, in the order of declaration."""
    group = OptionGroup("sampler")
    group.add("path")
    group.add("every", int, default=10, help="steps between two samples")
    assert list(group.options) == ["path", "every"]
    assert group.options["every"].type is int
    assert group.options["every"].default == 10
    assert group.options["every"].help == "steps between two samples"
    assert group.options["path"].type is str


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "is not an identifier"),
        ("every-step", "is not an identifier"),
        ("2nd", "is not an identifier"),
        (7, "is not an identifier"),
        ("on_error", "is a setting of every plugin"),
        ("every", "is declared twice"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(name: Any, fault: str) -> None:
    """The message names the plugin and the setting."""
    group = OptionGroup("sampler")
    group.add("every", int, default=10)
    with pytest.raises(PluginError, match=f"plugin 'sampler': setting {name!r} {fault}"):
        group.add(name)


class Sampler:
    """Declares a setting, and an event of its own that no bus knows yet."""

    @hookimpl
    def addoption(self, group: OptionGroup) -> str:
        group.add("every", int, default=10)
        return "answered"

    @hookimpl
    def sampled(self) -> None: ...


def test_one_event_of_one_plugin_is_called_without_a_bus() -> None:
    """The loader asks a plugin for its settings when no session is in sight."""
    group = OptionGroup("sampler")
    assert call_one(Member("sampler", Sampler(), "-p"), "addoption", group) == "answered"
    assert list(group.options) == ["every"]
    assert call_one(Member("viewer", Viewer(), "-p"), "addoption", group) is None


def test_a_function_called_without_a_bus_must_fit_its_event() -> None:
    """A wrong argument is told as on a bus, an error carries the note."""

    class Wrong:
        @hookimpl
        def addoption(self, grp: Any) -> None: ...

    with pytest.raises(
        PluginError, match=r"plugin 'w' \(-p w\): addoption\(\) takes 'grp'"
    ):
        call_one(Member("w", Wrong(), "-p w"), "addoption", None)
    bad = Member("bad", failing("addoption"), "-p bad", "acme-bad 1.0")
    with pytest.raises(OSError, match="cannot") as info:
        call_one(bad, "addoption", None)
    assert info.value.__notes__ == [
        "hookbus: raised by plugin 'bad' (acme-bad 1.0) in addoption()"
    ]


@pytest.mark.parametrize("event", ["addhooks", "configure", "begin"])
@pytest.mark.parametrize("policy", ["raise", "warn"])
@pytest.mark.parametrize("error", [SystemExit(0), SystemExit("no"), KeyboardInterrupt()])
def test_who_ends_python_is_named(event: str, policy: str, error: BaseException) -> None:
    """An error that is no Exception leaves whatever the policy, with the usual note."""

    def ends(self: Any) -> None:
        raise copy.copy(error)

    options = HookOptions(on_error=policy)
    hook = type("Ending", (), {event: hookimpl(ends), "options": options})()
    made = Bus()

    def start() -> None:
        made.register(Member("ending", hook, "hooks=", options={"every": 1}))
        made.configure()
        made.emit("begin", **BEGIN)

    with pytest.raises(type(error)) as info:
        start()
    assert info.value.__notes__ == [
        f"hookbus: raised by plugin 'ending' (hooks=) in {event}()"
    ]
    assert culprit_of(info.value, made.current) == "ending"


def test_a_session_that_somebody_ended_before_it_began_has_failed() -> None:
    """Even with success: the record names who did, and no step was done."""

    class Quitter(SessionRunHook):
        @hookimpl
        def addhooks(self) -> None:
            raise SystemExit(0)

    config = Config(autoload=False)
    with pytest.raises(SystemExit):
        MonitoredSession(Graph(), hooks=[Quitter()], config=config)
    (record,) = config.records
    assert record.first_step is None
    assert (record.outcome.kind, record.outcome.who) == ("failed", "quitter")
