"""Tests what a recorder keeps, and what a bus without a session is."""

from __future__ import annotations

import pytest

from hookbus import PluginError, SessionRunArgs, SessionRunHook, UsageError, hookimpl
from hookbus.testing import Recorder, bus_with, run_steps


class LossHook(SessionRunHook):
    """Asks for the loss, plans its end, and says how it went."""

    def before_run(self):
        return SessionRunArgs("loss")

    def after_run(self, run_values):
        """Have results."""

    def end(self, outcome):
        """Be told."""

    @hookimpl
    def planned_last_step(self):
        return 7


def test_every_call_of_a_hook_is_kept():
    """Each with what it was handed, and what it answered."""
    recorder = Recorder()
    run_steps(LossHook(), recorder, values={"loss": [0.5]})
    own = [call for call in recorder.calls if call.plugin == "loss"]
    assert [call.event for call in own] == ["before_run", "after_run", "end"]
    asked, got, ended = own
    assert asked.result.fetches == "loss"
    assert got.arguments["run_values"].results == 0.5
    assert ended.arguments["outcome"].kind == "completed"
    assert all(call.seconds >= 0 and call.error is None for call in own)


def test_a_recorder_does_not_show_itself(recorder):
    """Nor does any other: the hooks act as they would have without it."""
    run_steps(recorder, Recorder(), steps=1)
    assert {call.plugin for call in recorder.calls} == {None}


def test_calls_can_be_chosen(recorder):
    """By event, and by hook where there are several; whole events are left out."""
    run_steps(LossHook(), LossHook(), recorder, steps=2)
    names = [call.plugin for call in recorder.calls_of("before_run")]
    assert names == ["loss", "loss-2", "loss", "loss-2"]
    assert len(recorder.calls_of("before_run", "loss-2")) == 2
    assert recorder.calls_of("measured") == []


def test_the_backend_session_can_be_read_later(recorder):
    """Variables are still there when the session is over."""
    run_steps(recorder, steps=3)
    assert recorder.session.variables() == {"w": 6.0}


def test_a_recorder_observes_only(recorder):
    """It says so, and the model trains as without it."""
    assert recorder.options.only_observes
    assert run_steps(recorder, steps=3).variables == run_steps(steps=3).variables


def test_a_bus_gives_the_names_that_a_session_gives():
    """The class's in kebab case, numbered where there are several."""
    bus = bus_with(LossHook(), LossHook())
    assert list(bus.members) == ["loss", "loss-2"]
    assert bus.emit("planned_last_step") == [7, 7]


def test_a_plugin_has_its_entry_points_name(fake_dist):
    """Also on a bus without a session."""
    source = "import hookbus\nclass OddHook(hookbus.SessionRunHook): ..."
    entries = {"hookbus": {"even": "fake_odd:OddHook"}}
    fake_dist("fake-odd", entries, modules={"fake_odd": source})
    from fake_odd import OddHook

    (member,) = bus_with(OddHook()).members.values()
    assert (member.name, member.distribution) == ("even", "fake-odd 1.0")


def test_a_bus_lets_its_hooks_add_events():
    """As in a session, before any of them is registered."""

    class Specs:
        @staticmethod
        def drifted(by):
            """Come when something has drifted."""

    from hookbus import hookspec

    Specs.drifted = staticmethod(hookspec(Specs.drifted))

    class DriftHook(SessionRunHook):
        @hookimpl
        def addhooks(self, bus):
            bus.add_events(Specs)

        @hookimpl
        def drifted(self, by):
            return by + 1

    assert bus_with(DriftHook()).emit("drifted", by=1) == [2]


def test_a_bus_refuses_what_a_session_refuses():
    """A misspelt event, and one hook given twice."""

    class WrongHook(SessionRunHook):
        @hookimpl
        def befor_run(self):
            """Be no event."""

    with pytest.raises(PluginError, match="did you mean 'before_run'"):
        bus_with(WrongHook())
    hook = LossHook()
    with pytest.raises(UsageError, match="given twice"):
        bus_with(hook, hook)


@pytest.mark.parametrize("listens", [False, True])
def test_what_a_hook_emits_is_kept_even_if_nobody_listens(listens):
    """Each time once, with its arguments."""

    class EmittingHook(SessionRunHook):
        def after_run(self, run_context, run_values):
            values = {"speed": float(run_values.global_step)}
            run_context.emit("measured", values=values, global_step=run_values.global_step)

    class ListeningHook(SessionRunHook):
        @hookimpl
        def measured(self, values):
            """Listen."""

    hooks = [EmittingHook(), *([ListeningHook(), MoreHook()] if listens else [])]
    steps = run_steps(*hooks, steps=2)
    found = [
        (each["global_step"], dict(each["values"])) for each in steps.emitted("measured")
    ]
    assert found == [(1, {"speed": 1.0}), (2, {"speed": 2.0})]
    assert len(steps.calls_of("measured")) == (4 if listens else 0)


class MoreHook(SessionRunHook):
    """Also listens."""

    @hookimpl
    def measured(self):
        """Listen."""
