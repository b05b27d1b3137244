"""Wishes for an order that make no sense are found before the first event."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from hookbus import (
    Config,
    Graph,
    HookOptions,
    MonitoredSession,
    PluginError,
    SessionRunHook,
    hookimpl,
)
from hookbus.bus.bus import Bus
from hookbus.bus.ordering import OrderedHook as Called
from hookbus.bus.registry import Registration as Member
from tests.support.buses import bus, called


class Wishing:
    """A hook with wishes."""

    def __init__(self, before: Any = (), after: Any = ()) -> None:
        self.options = HookOptions(before=before, after=after)

    def before_run(self) -> str:
        return "here"


class First(Wishing):
    """One that is tryfirst in before_run."""

    @hookimpl(tryfirst=True)
    def before_run(self) -> str:
        return "first"


class Last(Wishing):
    """One that is trylast in before_run."""

    @hookimpl(trylast=True)
    def before_run(self) -> str:
        return "last"


class Around(Wishing):
    """One that wraps before_run."""

    @hookimpl(wrapper=True)
    def before_run(self) -> Generator[None, Any, Any]:
        return (yield)


def warned(capsys: Any, **plugins: Any) -> list[str]:
    """Return the warnings of a check of these plugins, without the clock."""
    bus(**plugins).check_order()
    return [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize("wish", [3, 0.5, {"a"}, {"a": 1}, ("a", 3), [None], b"a"])
@pytest.mark.parametrize("key", ["before", "after"])
def test_a_wish_that_is_no_name_is_refused(key: str, wish: Any) -> None:
    """Names are text, one or a tuple of some; the message says what was given."""
    with pytest.raises(PluginError, match=rf"HookOptions\({key}=.*\): .*tuple of names"):
        Wishing(**{key: wish})


@pytest.mark.parametrize("wish", [None, (), [], "two", ["two"], ("two", "three")])
def test_wishes_are_names(wish: Any) -> None:
    """One name, several, or none."""
    bus(one=Wishing(before=wish)).check_order()


def test_an_attribute_called_before_is_no_wish() -> None:
    """It belongs to the author of the hook, whatever it is: a method, a number, a name."""

    class Foreign:
        after = "p1"

        def __init__(self) -> None:
            self.before: Any = 0.0

        def before_run(self) -> str:
            self.before = "p0"
            return "here"

    class Other:
        def before(self) -> None: ...

        def before_run(self) -> str:
            return "there"

    assert called(bus(Foreign(), Other())) == ["p0", "p1"]


@pytest.mark.parametrize("spelled", ["one", "ONE", "hookbus_one"])
@pytest.mark.parametrize("key", ["before", "after"])
def test_a_plugin_cannot_come_before_itself(key: str, spelled: str) -> None:
    """Any spelling of a plugin's own name is a mistake of its own."""
    with pytest.raises(PluginError, match=f"{key} names 'one', which is the plugin itself"):
        bus(one=Wishing(**{key: (spelled,)}))


@pytest.mark.parametrize(
    "wishes",
    [
        {"one": {"before": "two"}, "two": {"before": "one"}},
        {"one": {"after": "two"}, "two": {"after": "one"}},
        {"one": {"before": "two", "after": "two"}, "two": {}},
        {"one": {"before": "two"}, "two": {"before": "three"}, "three": {"before": "one"}},
        {"one": {"after": "three"}, "two": {"after": "one"}, "three": {"after": "two"}},
        {
            "one": {"after": "three", "before": "two"},
            "two": {"before": "three"},
            "three": {},
        },
    ],
)
def test_a_circle_is_an_error_that_names_its_members(wishes: Any) -> None:
    """Two or three plugins that each want to be first are all named, and only they."""
    made = bus(**{name: Wishing(**wish) for name, wish in wishes.items()}, other=Wishing())
    with pytest.raises(PluginError, match="plugins ask for an impossible order") as info:
        made.check_order()
    text = str(info.value)
    assert all(f"'{name}'" in text for name in wishes)
    assert "'other'" not in text
    assert "-p no:NAME" in text


def test_a_circle_in_runs_of_another_kind_is_found_as_early() -> None:
    """Hooks that serve aux runs only are also checked before the first event."""
    made = Bus()
    for name, other in [("one", "two"), ("two", "one")]:
        hook = Wishing(before=other)
        made.register(Member(name, hook, "here", kinds=("aux",)))
    with pytest.raises(PluginError, match="an impossible order"):
        made.check_order()


def test_a_session_refuses_a_circle_before_any_event() -> None:
    """No begin is called, and nobody is told of an end."""
    told = []

    class Hook(SessionRunHook):
        def __init__(self, before: str) -> None:
            self.options = HookOptions(before=before)

        def begin(self) -> None:
            told.append("begin")

        def on_exception(self) -> None:
            told.append("on_exception")

    hooks = [Hook("hook-2"), Hook("hook")]
    with pytest.raises(PluginError, match="'hook' before 'hook-2'"):
        MonitoredSession(Graph(), hooks=hooks, config=Config(autoload=False))
    assert told == []


def test_a_close_miss_of_a_name_is_warned_about(capsys: Any) -> None:
    """A name that nobody has is fine, unless somebody's is much like it."""
    lines = warned(
        capsys, summary_saver=Wishing(), late=Wishing(after=("sumary-saver", "x"))
    )
    assert lines == ["late: after names 'sumary-saver'; did you mean 'summary-saver'?"]


NEITHER = "neither tryfirst nor trylast nor a wrapper"


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        (Wishing(before="two"), First(), f"'one' is {NEITHER}, 'two' is tryfirst"),
        (First(after="two"), Wishing(), f"'one' is tryfirst, 'two' is {NEITHER}"),
        (Last(before="two"), Wishing(), f"'one' is trylast, 'two' is {NEITHER}"),
        (Wishing(before="two"), Around(), f"'one' is {NEITHER}, 'two' is wrapper"),
        (Around(after="two"), First(), "'one' is wrapper, 'two' is tryfirst"),
    ],
)
def test_a_wish_across_groups_that_cannot_hold_is_warned_about(
    one: Any, two: Any, why: str, capsys: Any
) -> None:
    """Tryfirst, trylast and wrapper are stronger; the warning names both, and the event."""
    (line,) = warned(capsys, one=one, two=two)
    assert line.startswith("one: ")
    assert line.endswith(f'cannot hold why="{why}" events=before_run')


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (First(before="two"), Wishing()),
        (Wishing(after="two"), First()),
        (Wishing(before="two"), Last()),
        (Around(before="two"), Wishing()),
        (Wishing(after="two"), Around()),
        (Last(before="two"), Last()),
    ],
)
def test_a_wish_that_holds_is_no_matter(one: Any, two: Any, capsys: Any) -> None:
    """Nothing is said where both are as wished."""
    assert warned(capsys, one=one, two=two) == []


def test_events_with_the_same_trouble_are_told_in_one_line(capsys: Any) -> None:
    """A hook that is tryfirst everywhere makes one warning, not one an event."""

    class Everywhere(First):
        @hookimpl(tryfirst=True)
        def begin(self) -> None: ...

    class Modest(Wishing):
        def begin(self) -> None: ...

    (line,) = warned(capsys, one=Modest(before="two"), two=Everywhere())
    assert line.endswith("events='begin, before_run'")


def test_wrappers_and_the_others_are_sorted_apart() -> None:
    """The wishes of a wrapper and a hook about each other make no circle."""
    made = bus(one=Around(after="two"), two=Wishing(after="one"), three=Wishing())
    made.check_order()
    assert called(made) == ["two", "three"]


def test_the_order_is_told_with_its_reasons() -> None:
    """Order lists wrappers first, then all by group, with the wishes that hold."""
    made = bus(
        last=Last(),
        plain=Wishing(after=("wished", "absent", "first")),
        around=Around(),
        wished=Wishing(),
        first=First(before="plain"),
    )
    assert made.order("before_run") == [
        Called("around", "'around' (hooks=)", "hooks=", "wrapper", (), "all"),
        Called("first", "'first' (hooks=)", "hooks=", "tryfirst", (), "all"),
        Called("wished", "'wished' (hooks=)", "hooks=", "", (), "all"),
        Called("plain", "'plain' (hooks=)", "hooks=", "", ("after=wished",), "all"),
        Called("last", "'last' (hooks=)", "hooks=", "trylast", (), "all"),
    ]
    assert made.order("after_run") == []


def test_the_groups_are_told_in_calling_order() -> None:
    """A wrapper may be tryfirst or trylast among wrappers."""

    class FirstAround(Wishing):
        @hookimpl(wrapper=True, tryfirst=True)
        def before_run(self) -> Generator[None, Any, Any]:
            return (yield)

    class LastAround(Wishing):
        @hookimpl(wrapper=True, trylast=True)
        def before_run(self) -> Generator[None, Any, Any]:
            return (yield)

    made = bus(Last(), LastAround(), Wishing(), Around(), First(), FirstAround())
    assert [(c.plugin, c.group) for c in made.order("before_run")] == [
        ("p5", "wrapper tryfirst"),
        ("p3", "wrapper"),
        ("p1", "wrapper trylast"),
        ("p4", "tryfirst"),
        ("p2", ""),
        ("p0", "trylast"),
    ]


def test_the_order_is_that_of_a_kind_of_runs() -> None:
    """A hook that serves other runs is not in it."""
    made = Bus()
    made.register(Member("aux", Wishing(), "here", kinds=("aux",)))
    assert made.order("before_run") == []
    assert [called.plugin for called in made.order("before_run", "aux")] == ["aux"]


def test_the_order_of_an_unknown_event_is_an_error() -> None:
    """The message suggests the one that is close."""
    with pytest.raises(
        PluginError, match="no event 'befor_run'; did you mean 'before_run'"
    ):
        bus().order("befor_run")
