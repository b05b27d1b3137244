"""Tests events around a block: who is called before and after it, and upon an error."""

from __future__ import annotations

import pytest

from hookbus import PluginError, hookimpl
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Registration
from hookbus.errors import culprit_of


class Wraps:
    """A wrapper of ``evaluating`` that notes when it runs."""

    def __init__(self, name, seen, swallows=False):
        self.name, self.seen, self.swallows = name, seen, swallows

    @hookimpl(wrapper=True)
    def evaluating(self, session, name):
        self.seen.append(f"{self.name} before {session} {name}")
        try:
            yield
        except ArithmeticError:
            self.seen.append(f"{self.name} failed")
            if not self.swallows:
                raise
        else:
            self.seen.append(f"{self.name} after")


class Plain:
    """A hook that is no wrapper."""

    def __init__(self, seen):
        self.seen = seen

    @hookimpl
    def evaluating(self, name):
        self.seen.append(f"plain {name}")


def bus_of(*hooks) -> Bus:
    bus = Bus()
    bus.register(*[Registration(f"h{n}", hook, "test") for n, hook in enumerate(hooks)])
    return bus


@pytest.mark.parametrize("observed", [False, True])
def test_wrappers_surround_the_block(observed):
    """They end in the opposite order; the other hooks are called before the block."""
    seen, calls = [], []
    bus = bus_of(Wraps("a", seen), Plain(seen), Wraps("b", seen))
    if observed:
        bus.observe(calls.append)
    with bus.around("evaluating", session="s", name="n"):
        seen.append("inside")
    assert seen == [
        "a before s n",
        "b before s n",
        "plain n",
        "inside",
        "b after",
        "a after",
    ]
    if observed:
        assert [call.plugin for call in calls] == ["h1", "h2", "h0", None]
        assert calls[-1].arguments == {"session": "s", "name": "n"}


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("error", [ArithmeticError("bad"), StopIteration("end")])
def test_an_error_of_the_block_goes_on(observed, error):
    """Wrappers see it, and none of them can suppress it; it leaves as itself."""
    seen = []
    bus = bus_of(Wraps("a", seen), Wraps("b", seen, swallows=True))
    if observed:
        bus.observe(lambda call: None)
    with (
        pytest.raises(type(error)) as caught,
        bus.around("evaluating", session="s", name="n"),
    ):
        raise error
    assert caught.value is error
    assert culprit_of(error) is None
    if isinstance(error, ArithmeticError):
        assert seen[2:] == ["b failed", "a after"]


def test_an_error_of_a_hook_keeps_the_block_from_running():
    """Wrappers that have begun are ended."""
    seen = []

    class Fails:
        @hookimpl
        def evaluating(self):
            raise ArithmeticError("not now")

    bus = bus_of(Wraps("a", seen), Fails())
    around = bus.around("evaluating", session="s", name="n")
    with pytest.raises(ArithmeticError, match="not now"), around:
        seen.append("inside")
    assert seen == ["a before s n", "a failed"]


def test_the_arguments_are_those_of_the_event():
    """An unknown event or another argument is an error, as in emit()."""
    bus = bus_of()
    with pytest.raises(PluginError, match="'evaluating' takes session, name, not name"):
        bus.around("evaluating", name="n")
    with pytest.raises(PluginError, match="there is no event 'evaluate'"):
        bus.around("evaluate")
