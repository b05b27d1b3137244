"""The bus: in which order each event reaches the hooks, and which runs reach whom."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from hookbus import HookOptions, PluginError, UsageError, hookimpl
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Registration as Member
from tests.support.buses import answering, bus, called


def test_the_first_registered_is_called_first() -> None:
    """Every event goes in the order of registration, the end included."""

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self) -> str:
            return self.name

        def end(self) -> str:
            return self.name

    made = bus(Recorder("a"), Recorder("b"), Recorder("c"))
    assert list(made.members) == ["p0", "p1", "p2"]
    assert made.emit(
        "begin",
        graph=None,
        checkpoints=None,
        kind="train",
        rank=0,
        ranks=1,
        clock=float,
        requests=None,
    ) == [
        "a",
        "b",
        "c",
    ]
    assert made.emit("end", session=None, outcome=None) == ["a", "b", "c"]


def test_tryfirst_and_trylast_come_around_the_others() -> None:
    """Tryfirst is called before, trylast after; within each class registration counts."""
    made = bus(
        answering(trylast=True),
        answering(),
        answering(tryfirst=True),
        answering(),
        answering(trylast=True),
        answering(tryfirst=True),
    )
    assert called(made) == ["p2", "p5", "p1", "p3", "p0", "p4"]


def test_the_first_registered_wrapper_is_the_outermost() -> None:
    """Wrappers are entered in the same order as hooks, and left the other way round."""
    seen = []

    def wrapping(name: str, **options: Any) -> Any:
        class Wrapping:
            @hookimpl(wrapper=True, **options)
            def before_run(self) -> Generator[None, Any, Any]:
                seen.append(name)
                result = yield
                seen.append(name.upper())
                return result

        return Wrapping()

    called(bus(wrapping("a"), answering(), wrapping("b"), wrapping("c", tryfirst=True)))
    assert seen == ["c", "a", "b", "B", "A", "C"]


class Ordered:
    """A hook that declares its place among others."""

    def __init__(self, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> None:
        self.options = HookOptions(before=before, after=after)

    def before_run(self) -> str:
        return "here"


def test_before_and_after_name_plugins_to_come_around() -> None:
    """A plugin's before= and after= move it inside its class; absent names are ignored."""
    made = bus(
        late=Ordered(after=("last", "absent-one")),
        other=Ordered(),
        last=Ordered(),
        early=Ordered(before=("other",)),
    )
    order = called(made)
    assert order.index("early") < order.index("other")
    assert order.index("last") < order.index("late")
    assert sorted(order) == ["early", "last", "late", "other"]


def test_contradicting_orders_are_an_error_that_names_the_members() -> None:
    """Two plugins that each want to be first are refused, both named."""
    with pytest.raises(PluginError, match=r"(?s)'one'.*'two'|'two'.*'one'"):
        called(bus(one=Ordered(before=("two",)), two=Ordered(before=("one",))))


def test_kinds_decide_which_runs_reach_a_hook() -> None:
    """A hook without kinds serves the session's kind, one with kinds just those."""
    made = Bus("eval")
    made.register(Member("own", answering(), "hooks="))
    made.register(Member("aux", answering(), "hooks=", kinds=("aux", "train")))
    assert called(made) == called(made, kind="eval") == ["own"]
    assert called(made, kind="aux") == called(made, kind="train") == ["aux"]
    assert called(made, kind="predict") == []


def test_a_kind_that_there_is_none_of_is_refused() -> None:
    """It would reach nobody; the message lists the kinds and suggests the nearest."""
    with pytest.raises(UsageError, match=r"kind='trian': expected .*did you mean 'train'"):
        bus(answering()).order("after_run", "trian")
    with pytest.raises(UsageError, match="kind='trian'"):
        bus(answering()).caller("after_run", "trian")
