"""Tests monitor: its values, its steps, and its period in a resumed session."""

from __future__ import annotations

import numpy as np
import pytest
from hookbus_monitor import MonitorHook

import hookbus
from hookbus import Config, Graph, MonitoredSession, UsageError
from hookbus.testing import run_steps
from tests.support.watching import lines as lines

QUIET = Config(autoload=False, header=False)


class Heard(hookbus.SessionRunHook):
    """Keeps what is measured, by step."""

    def __init__(self):
        self.values = {}

    @hookbus.hookimpl
    def measured(self, values, global_step):
        self.values[global_step] = values


def looped(hook, steps=5, **reports) -> Heard:
    """Do steps of a custom loop that track and report values."""
    heard, model = Heard(), {"w": np.array([3.0, -4.0]), "b": 2.0}
    with MonitoredSession(hooks=[hook, heard], config=QUIET) as session:
        session.track(model=model)
        for _ in session.iterate(range(steps)):
            with session.step() as step:
                step.report(**reports)
    return heard


def test_norms_of_all_that_matches_are_measured():
    """Each value has a norm under its own name."""
    heard = looped(MonitorHook("model.*"))

    assert heard.values == {1: {"monitor/norm/model.w": 5.0, "monitor/norm/model.b": 2.0}}


def test_the_mean_and_the_largest_number_are_settings():
    """Of the largest number the sign does not count."""
    heard = looped(MonitorHook(["model.w"], mean=True, max=True))

    assert heard.values[1] == {
        "monitor/norm/model.w": 5.0,
        "monitor/mean/model.w": -0.5,
        "monitor/max/model.w": 4.0,
    }


def test_it_measures_every_so_many_steps():
    """The first step is measured, and then one in each period."""
    assert [*looped(MonitorHook("*", every_n_steps=2), steps=6).values] == [1, 3, 5]


def test_nested_values_have_the_keys_in_their_names():
    """A value that is no number, like a text or an empty array, is left out."""
    pair = {"pair": (1.0, [np.full((2, 2), 3, np.int8)]), "text": "a", "none": np.zeros(0)}
    heard = looped(MonitorHook(["pair", "t*", "none", "flag"]), flag=True, **pair)

    assert heard.values[1] == {"monitor/norm/pair/0": 1.0, "monitor/norm/pair/1/0": 6.0}


def test_complex_and_half_numbers_are_measured():
    """A norm beyond the dtype of its value is finite."""
    half = np.full(4, 6e4, np.float16)
    heard = looped(MonitorHook(["z", "half"], mean=True), z=np.array([3 + 4j]), half=half)

    assert heard.values[1]["monitor/mean/z"] == 5.0
    assert heard.values[1]["monitor/norm/half"] == pytest.approx(1.2e5, rel=1e-3)


def test_a_graph_computes_nothing_in_the_other_steps():
    """A value is fetched in the measured runs, and one that needs a feed is left out."""
    graph, calls, heard = Graph(), [], Heard()
    graph.placeholder("x")
    graph.variable("w", 2.0)
    graph.op(lambda w: (calls.append(w), w)[1], name="watched")
    graph.op(lambda w, x: w * x, name="wx")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    hooks = [MonitorHook("w*", every_n_steps=3), heard]
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(6):
            session.run("train")

    assert calls == [2.0, 5.0]
    assert heard.values[4] == {"monitor/norm/w": 5.0, "monitor/norm/watched": 5.0}


def test_nothing_that_matches_is_warned_of_once(lines):
    """The training goes on; the warning names the pattern."""
    heard = looped(MonitorHook("modl.*", every_n_steps=1))

    [warning] = [line for line in lines if line["event"] == "nothing to measure"]
    assert warning["why"] == "no number of the run matches modl.*"
    assert heard.values == {}


def test_the_log_has_short_numbers(lines):
    """A line has the step and each value with four digits."""
    looped(MonitorHook("third"), third=1 / 3)

    [line] = [line for line in lines if line["event"] == "monitored"]
    assert (line["step"], line["values"]) == (1, {"norm/third": 0.3333})


@pytest.mark.parametrize("custom_loop", [False, True])
def test_a_resumed_session_continues_the_period(custom_loop):
    """A session that was cut short measures as one that was not."""
    heard = Heard()
    for _ in range(3):
        run_steps(
            MonitorHook("loss", every_n_steps=3),
            heard,
            steps=5,
            errors={5: OSError()},
            reraise=False,
            custom_loop=custom_loop,
            directory="saved",
            save_checkpoint_steps=1,
        )

    assert [*heard.values] == [1, 4, 7, 10]


def test_names_must_be_given():
    """Without a name there is nothing to measure."""
    with pytest.raises(UsageError, match="monitor has nothing to measure: name"):
        MonitorHook([])
