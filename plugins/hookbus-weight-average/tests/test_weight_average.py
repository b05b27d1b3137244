"""The plugin weight-average: equal to a loop by hand, and invisible to the training."""

from __future__ import annotations

import numpy as np
import pytest
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_safetensors import SafetensorsCodec
from hookbus_weight_average import WeightAverageHook
from safetensors.numpy import load_file

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
    hookimpl,
    load_tracked,
)
from hookbus.evaluating import swapped
from tests.support.in_process import run_here

OFF = Config(autoload=False)
STEPS = 20
SETTINGS = [
    {"decay": 0.9},
    {"decay": 0.99, "start_step": 5, "every_n_steps": 3},
    {"decay": None, "start_step": 4},
]


def stepped(w):
    """Do a step of a run whose arithmetic rounds."""
    return (w * np.float32(0.97) + np.float32(0.1) / (1 + w * w)).astype(np.float32)


def by_hand(decay=0.999, start_step=0, every_n_steps=1, steps=STEPS):
    """Return the weights and the average of a plain loop, of each step."""
    w, average, n, seen = np.linspace(-1, 1, 5, dtype=np.float32), None, 0, []
    for step in range(1, steps + 1):
        w = stepped(w)
        if step > start_step and (step - start_step) % every_n_steps == 0:
            if average is None:
                average = w
            elif decay is None:
                average = average + (w - average) / (n + 1)
            else:
                average = average * decay + w * (1 - decay)
            n += 1
        seen.append((w.tobytes(), w.tobytes() if average is None else average.tobytes()))
    return seen


class Evaluated(SessionRunHook):
    """Keeps what evaluations saw."""

    def __init__(self):
        self.seen = []

    def look(self, session):
        value = session.variables()["m.w"]
        self.seen.append((session.global_step, value.tobytes()))
        return {"norm": float((value * value).sum())}


class Killed(Exception):
    """Ends a session without an end."""


def train(kind, hooks, directory=None, fails_at=None):
    """Train in a graph or in a custom loop; return the last weights."""
    reads = {"reads": {"w": "m.w"}}
    graph, model = None, {"w": np.linspace(-1, 1, 5, dtype=np.float32), "rate": 0.5}
    if kind == "graph":
        graph = Graph()
        graph.variable("m.w", model["w"])
        graph.train_op(stepped, updates="m.w", name="train", **reads)
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory,
        hooks=hooks,
        save_checkpoint_steps=3,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=OFF,
    ) as session:
        if kind == "loop":
            session.track(m=model)
        while session.global_step < STEPS:
            if session.global_step == fails_at:
                raise Killed
            if kind == "graph":
                session.run("train")
                continue
            with session.step():
                model["w"][:] = stepped(model["w"])
    return session, model["w"]


@pytest.mark.parametrize("kind", ["graph", "loop"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_it_is_a_loop_by_hand(kind, settings):
    """Evaluations see the averages bit for bit, and the training goes on as without."""
    looks = Evaluated()
    average = WeightAverageHook(**settings)
    evaluator = InMemoryEvaluatorHook(looks.look, every_n_iter=1)
    after = []

    class Looks(SessionRunHook):
        def after_run(self, run_context):
            after.append(run_context.session.variables()["m.w"].tobytes())

    train(kind, [average, evaluator, Looks()])
    seen = dict(looks.seen)
    expected = by_hand(**settings)
    assert [seen[step] for step in range(1, STEPS + 1)] == [each for _, each in expected]
    assert after == [weights for weights, _ in expected]
    assert average.averages.keys() == {"m.w"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["graph", "loop"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_training_that_was_cut_short_has_the_same_averages(kind, settings, tmp_path):
    """Whatever the step: the checkpoint has the averages of its step."""
    expected = by_hand(**settings)[-1][1]
    for step in (1, 7, 16):
        directory = tmp_path / str(step)
        with pytest.raises(Killed):
            train(kind, [WeightAverageHook(**settings)], directory, step)
        resumed = WeightAverageHook(**settings)
        train(kind, [resumed], directory)
        assert resumed.averages["m.w"].tobytes() == expected


def test_a_checkpoint_has_the_weights_of_the_training(tmp_path):
    """The averages are in it as the state of the hook alone."""
    _, w = train("loop", [WeightAverageHook(0.5)], tmp_path)
    state = SafetensorsCodec().read(tmp_path / f"ckpt-{STEPS}")
    assert state["tracked"]["m"]["w"].tobytes() == w.tobytes()
    assert state["hooks"]["weight-average"]["updates"] == STEPS


def test_it_averages_what_variables_names():
    """A number is averaged if it is named; a wrong name is an error with the right ones."""
    hook = WeightAverageHook(0.5, variables=["m.rate"])
    train("loop", [hook])
    assert hook.averages == {"m.rate": 0.5}
    with pytest.raises(UsageError) as caught:
        train("loop", [WeightAverageHook(variables=["m.rat"])])
    assert str(caught.value) == (
        "weight-average: there is no variable 'm.rat'; the variables are 'm.w', 'm.rate'"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 1.0}, "invalid decay=1.0; expected a number below 1"),
        ({"decay": -0.1}, "decay"),
        ({"every_n_steps": 0}, "every_n_steps"),
        ({"start_step": -1}, "start_step"),
    ],
)
def test_a_number_is_in_range(settings, message):
    """The error names the setting."""
    with pytest.raises(UsageError, match=message):
        WeightAverageHook(**settings)


def test_another_hook_that_swaps_the_weights_is_an_error():
    """It names both hooks."""

    class Zeros(SessionRunHook):
        @hookimpl(wrapper=True)
        def evaluating(self, session):
            with swapped(session, {"m.w": 0 * session.variables()["m.w"]}):
                yield

    evaluator = InMemoryEvaluatorHook(lambda session: {"x": 1.0}, every_n_iter=2)
    with pytest.raises(RuntimeError) as caught:
        train("loop", [WeightAverageHook(), Zeros(), evaluator])
    assert "hook 'weight-average' and hook 'zeros'" in str(caught.value) or (
        "hook 'zeros' and hook 'weight-average'" in str(caught.value)
    )


def test_an_evaluation_before_the_first_update_sees_the_weights():
    """There is nothing to swap."""
    with MonitoredSession(hooks=[WeightAverageHook()], config=OFF) as session:
        model = session.track(m={"w": np.ones(1)})
        with session.evaluation() as evaluation:
            evaluation.report(w=model["w"][0])
    assert evaluation.metrics == {"w": 1.0}


@pytest.mark.parametrize("kind", ["graph", "loop"])
def test_a_session_without_a_step_has_the_averages(kind, tmp_path):
    """The program of a run that has ended gives them again."""
    trained, again = WeightAverageHook(0.5), WeightAverageHook(0.5)
    train(kind, [trained], tmp_path)
    session, _ = train(kind, [again], tmp_path)
    assert session.outcome.step == STEPS
    assert again.averages["m.w"].tobytes() == trained.averages["m.w"].tobytes()


LONG = 3000


def drifting(dtype):
    """Return weights that begin at 1 and move; each step changes them a little."""
    return np.array([1.0, -3.0, 0.25], dtype)


def long_training(kind, dtype, hook, directory=None, steps=LONG):
    """Train weights of a dtype for many steps; return what an evaluation sees."""
    goal = np.array([2.0, 5.0, -0.5], dtype)
    graph, model = None, {"w": drifting(dtype)}
    if kind == "graph":
        graph = Graph()
        graph.variable("m.w", model["w"])
        graph.train_op(lambda w: goal, updates="m.w", name="train", reads={"w": "m.w"})
    looks = Evaluated()
    evaluator = InMemoryEvaluatorHook(looks.look, every_n_iter=steps)
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory,
        hooks=[hook, evaluator],
        save_checkpoint_steps=steps,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=OFF,
    ) as session:
        if kind == "loop":
            session.track(m=model)
        for _ in range(steps):
            if kind == "graph":
                session.run("train")
                continue
            with session.step():
                model["w"][:] = goal if session.global_step else drifting(dtype)
    return np.frombuffer(looks.seen[-1][1], dtype), model["w"]


def long_by_hand(kind, decay, dtype, steps=LONG):
    """Return the average in float64."""
    goal = np.array([2.0, 5.0, -0.5], dtype).astype(float)
    first = goal if kind == "graph" else drifting(dtype).astype(float)
    average = first
    for n in range(1, steps):
        if decay is None:
            average = average + (goal - average) / (n + 1)
        else:
            average = average * decay + goal * (1 - decay)
    return average


@pytest.mark.sampled(2)
@pytest.mark.parametrize("decay", [0.999, None])
@pytest.mark.parametrize("kind", ["graph", "loop"])
def test_the_average_of_16_bits_moves(kind, decay, tmp_path):
    """It is kept in float32, and evaluations see it in the dtype of the weights."""
    hook = WeightAverageHook(decay)
    seen, _ = long_training(kind, np.float16, hook, tmp_path)
    expected = long_by_hand(kind, decay, np.float16)
    assert hook.averages["m.w"].dtype == np.float32
    np.testing.assert_allclose(hook.averages["m.w"], expected, rtol=1e-4)
    assert seen.tobytes() == hook.averages["m.w"].astype(np.float16).tobytes()
    saved = SafetensorsCodec().read(tmp_path / f"ckpt-{LONG}")["hooks"]["weight-average"]
    assert saved["averages"]["m.w"].tobytes() == hook.averages["m.w"].tobytes()


@pytest.mark.parametrize("kind", ["graph", "loop"])
def test_averages_of_16_bits_are_loaded_in_the_dtype_of_the_weights(kind, tmp_path):
    """load_tracked(averages=True), and an export, give them as an evaluation sees them."""
    seen, _ = long_training(kind, np.float16, WeightAverageHook(0.9), tmp_path, steps=50)
    out = str(tmp_path / "out.safetensors")
    what = ["--variables"] if kind == "graph" else ["--tracked", "m"]
    code, shown = run_here(["export", str(tmp_path), *what, out, "--averages"])
    assert code == 0, shown
    (exported,) = load_file(out).values()
    assert (exported.dtype, exported.tobytes()) == (np.float16, seen.tobytes())
    if kind == "loop":
        loaded = load_tracked(tmp_path, "m", averages=True)["w"]
        assert (loaded.dtype, loaded.tobytes()) == (np.float16, seen.tobytes())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_an_average_of_an_older_checkpoint_goes_on(dtype):
    """One of 16 bits becomes float32; others keep their dtype."""
    names = ["m.w"] if dtype is np.complex64 else ()
    hook = WeightAverageHook(0.5, variables=names)
    state = {"updates": 7, "averages": {"m.w": drifting(dtype)}}
    model = {"w": np.array([2.0, 5.0, -0.5], dtype)}
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        session.track(m=model)
        hook.load_state_dict(state)
        with session.evaluation() as evaluation:
            evaluation.report(one=1.0)
            assert model["w"].tobytes() == drifting(dtype).tobytes()
        with session.step():
            pass
    wide = np.float32 if dtype is np.float16 else dtype
    assert hook.averages["m.w"].dtype == wide
    expected = (drifting(dtype).astype(wide) + model["w"]) / 2
    np.testing.assert_array_equal(hook.averages["m.w"], expected)


def test_the_average_of_bfloat16_in_numpy_moves(tmp_path):
    """NumPy has this dtype from the library ml_dtypes."""
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    hook = WeightAverageHook()
    seen, _ = long_training("loop", dtype, hook, tmp_path)
    expected = long_by_hand("loop", 0.999, dtype)
    np.testing.assert_allclose(hook.averages["m.w"], expected, rtol=1e-4)
    assert seen.tobytes() == hook.averages["m.w"].astype(dtype).tobytes()
    loaded = load_tracked(tmp_path, "m", averages=True)["w"]
    assert (loaded.dtype, loaded.tobytes()) == (dtype, seen.tobytes())


def test_a_single_number_of_16_bits_is_averaged_in_float32():
    """It is averaged if it is named; a Python number keeps its own precision."""
    hook = WeightAverageHook(0.999, variables=["m.rate", "m.plain"])
    model = {"rate": np.float16(1.0), "plain": 1.0}
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        session.track(m=model)
        for _ in range(LONG):
            with session.step():
                if session.global_step:
                    model.update(rate=np.float16(2.0), plain=2.0)
        with session.evaluation() as evaluation:
            evaluation.report(rate=model["rate"], plain=model["plain"])
            assert type(model["rate"]) is np.float16
    assert evaluation.metrics == pytest.approx({"rate": 1.95, "plain": 1.95}, abs=1e-3)
