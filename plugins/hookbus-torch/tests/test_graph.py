"""A PyTorch model as a graph: in a session, in an Estimator, and in a custom loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hookbus_torch import TorchGraph
from torch import nn

import hookbus
from hookbus import (
    AbortedError,
    CheckpointError,
    Config,
    Estimator,
    EstimatorSpec,
    ModeKeys,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
)
from hookbus.errors import NoValueYetError, UnknownNodeError
from hookbus.evaluating import undisturbed
from tests.support.versions import versions_in

QUIET = Config(autoload=False, header=False)
DATA = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(5))


def build(fails_at: tuple[int, ...] = ()) -> TorchGraph:
    """A model with dropout, and its training as a train op."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    graph = TorchGraph(model, optimizer)
    graph.input("x", lambda: iter(DATA))
    fails = list(fails_at)

    @graph.train_op(outputs="loss")
    def train(x, global_step):
        if global_step in fails:
            fails.remove(global_step)
            raise AbortedError("the machine is gone")
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    @graph.op
    def prediction(x):
        return model(x)

    return graph


def model_of(graph: TorchGraph) -> dict[str, Any]:
    """The weights of the model of a graph, as plain lists."""
    return {
        key: value.tolist() for key, value in graph.objects["model"].state_dict().items()
    }


class Fetch(SessionRunHook):
    """Fetches names in each run, and keeps what it gets."""

    def __init__(self, *names: str) -> None:
        self.names, self.got = names, []

    def before_run(self):
        return SessionRunArgs(list(self.names))

    def after_run(self, run_values):
        self.got.append(run_values.results)


def test_hooks_get_host_values_and_the_caller_keeps_tensors():
    graph, fetch = build(), Fetch("loss", "model.0.weight")
    with MonitoredSession(graph, hooks=[fetch], config=QUIET) as session:
        loss, _ = session.run(["loss", "train"])
    assert isinstance(loss, torch.Tensor)
    ((seen, weight),) = fetch.got
    assert isinstance(seen, np.float32)
    assert seen == loss.item()
    np.testing.assert_array_equal(weight, graph.objects["model"][0].weight.detach())


def test_what_a_run_fetches_of_the_model_is_its_value_after_the_train_op():
    graph = build()
    names = ["model.0.weight:grad", "model.0:output", "model:grad_norm", "train"]
    with MonitoredSession(graph, config=QUIET) as session:
        with pytest.raises(NoValueYetError, match="there was no gradient"):
            session.run("model.0.weight:grad")
        gradient, output, norm, _ = session.run(names)
    assert torch.equal(gradient, graph.objects["model"][0].weight.grad)
    assert output.shape == (8, 4)
    assert norm > 0


def test_parameters_themselves_stand_in_fetches_and_feeds():
    graph = build()
    model = graph.objects["model"]
    with MonitoredSession(graph, config=QUIET) as session:
        value = session.run({"weight": model[0].weight})["weight"]
        assert torch.equal(value, model[0].weight)
        with pytest.raises(hookbus.errors.FetchTypeError, match="Tensor is not a fetch"):
            session.run(torch.zeros(1))


def test_a_run_without_a_train_op_evaluates():
    graph = build()
    model = graph.objects["model"]
    with MonitoredSession(graph, config=QUIET) as session:
        first, second = (session.run("prediction", {"x": DATA[0]}) for _ in range(2))
        assert torch.equal(first, second)
        assert not first.requires_grad
        assert model.training


def test_an_unknown_part_of_the_model_is_told_with_close_matches():
    with (
        MonitoredSession(build(), config=QUIET) as session,
        pytest.raises(UnknownNodeError, match=r"did you mean 'model\.0\.weight'"),
    ):
        session.run("model.0.wieght")


def test_hooks_assign_what_is_in_the_model():
    class Zero(SessionRunHook):
        def after_run(self, run_context):
            run_context.assign({"model.2.bias": np.zeros(1), "optimizer.lr": 0.0})

    graph = build()
    with MonitoredSession(graph, hooks=[Zero()], config=QUIET) as session:
        session.run("train")
        before = session.run("model.0.weight").clone()
        session.run("train")
        assert torch.equal(session.run("model.0.weight"), before)
    assert graph.objects["model"][2].bias.item() == 0


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_resumed_training_equals_one_that_was_not_cut(cut, tmp_path):
    whole = build()
    with MonitoredSession(whole, config=QUIET) as session:
        for _ in session.loop():
            pass
    for steps in (cut, None):
        graph = build()
        with (
            pytest.raises(OSError, match="cut")
            if steps
            else MonitoredSession(TorchGraph(), config=QUIET),
            MonitoredTrainingSession(
                graph, checkpoint_dir=tmp_path, save_checkpoint_steps=1, config=QUIET
            ) as session,
        ):
            for _ in session.loop():
                if session.global_step == steps:
                    raise OSError("cut")
    assert model_of(graph) == model_of(whole)


def test_a_preempted_training_goes_on_from_its_checkpoint(tmp_path):
    ends = []
    for fails_at, directory in (((), "whole"), ((2, 4), "preempted")):
        graph = build(fails_at)
        with MonitoredTrainingSession(
            graph,
            checkpoint_dir=tmp_path / directory,
            save_checkpoint_steps=2,
            recovery=Recovery(first_wait=0.0),
            config=Config(header=False),
        ) as session:
            for _ in session.loop():
                pass
        ends.append(model_of(graph))
    assert ends[0] == ends[1]


def test_without_a_checkpoint_a_preemption_ends_the_training():
    graph = build(fails_at=(2,))
    with (
        pytest.raises(CheckpointError, match=r"\(model, optimizer\) have changed in place"),
        MonitoredSession(graph, recovery=Recovery(first_wait=0.0), config=QUIET) as session,
    ):
        for _ in session.loop():
            pass


def test_a_graph_without_ops_serves_a_custom_loop_with_the_same_checkpoints(tmp_path):
    def loop(graph, session):
        model, optimizer = graph.objects["model"], graph.objects["optimizer"]
        for x in session.iterate(DATA):
            with session.step() as step:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                step.report(loss=loss)
            yield session.global_step

    def bare() -> TorchGraph:
        objects = build().objects
        return TorchGraph(objects["model"], objects["optimizer"])

    graph, fetch = bare(), Fetch("loss", "model:grad_norm")
    with MonitoredTrainingSession(
        graph, hooks=[fetch], checkpoint_dir=tmp_path, save_checkpoint_steps=1, config=QUIET
    ) as session:
        assert list(loop(graph, session)) == [1, 2, 3, 4, 5, 6]
    assert len(fetch.got) == 6
    graph_style = build()
    with MonitoredTrainingSession(
        graph_style, checkpoint_dir=tmp_path, config=QUIET
    ) as session:
        assert session.global_step == 6
        assert model_of(graph_style) == model_of(graph)


def test_an_object_is_tracked_once_under_a_name():
    graph = build()
    with pytest.raises(UsageError, match="'model' is already tracked"):
        graph.track(model=nn.Linear(1, 1))
    with pytest.raises(UsageError, match="'again' are the same module"):
        graph.track(again=graph.objects["model"])


def test_the_session_names_its_backend():
    labels = []

    class Label(SessionRunHook):
        def after_create_session(self, session):
            labels.append((session.label, session.xp))

    with MonitoredSession(build(), hooks=[Label()], config=QUIET):
        pass
    assert labels == [(f"PyTorch {torch.__version__} on cpu", torch)]


def test_a_checkpoint_names_the_backend(tmp_path):
    """As the session does: with the version of PyTorch, and the devices."""
    with MonitoredTrainingSession(
        build(), checkpoint_dir=tmp_path, config=QUIET
    ) as session:
        label = session.run_step_fn(lambda step_context: step_context.session.label)
        session.run("train")
    assert versions_in(tmp_path)["backend"] == label


def model_fn(features, labels, mode, params):
    """A line through points, as a torch model in an Estimator's graph."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=params["rate"])
    graph = features.graph
    graph.track(model=model, optimizer=optimizer)
    reads = {"x": features, "y": labels}

    @graph.op(reads={"x": features})
    def value(x):
        return model(x)

    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=value)

    @graph.op(reads={"value": value, "y": labels})
    def loss(value, y):
        return (value - y).square().mean()

    @graph.train_op(reads=reads)
    def train(x, y):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

    return EstimatorSpec(mode, predictions=value, loss=loss, train_op=train)


def points():
    x = torch.linspace(-1, 1, 8).reshape(8, 1)
    for _ in range(200):
        yield x, 3 * x + 1


def test_an_estimator_trains_evaluates_and_predicts_with_a_torch_model(tmp_path):
    estimator = Estimator(model_fn, tmp_path, params={"rate": 0.3}, graph=TorchGraph)
    estimator.train(points, steps=150)
    estimator.train(points, steps=20)
    result = estimator.evaluate(points, steps=1)
    assert result["global_step"] == 170
    assert result["loss"] < 1e-3
    rows = estimator.predict(lambda: iter([torch.ones(2, 1)]))
    np.testing.assert_allclose([float(row[0]) for row in rows], [4, 4], atol=0.05)


def everything_in(graph: TorchGraph) -> Any:
    """The state of the objects of a graph, gradients included, as plain lists."""
    optimizer = graph.objects["optimizer"].state_dict()["state"]
    moments = {k: {n: v.tolist() for n, v in s.items()} for k, s in optimizer.items()}
    parameters = graph.objects["model"].parameters()
    return model_of(graph), moments, [p.grad.tolist() for p in parameters]


def test_a_fork_trains_without_any_effect_on_the_training():
    """It goes on as the training would, bit for bit, and the training as without it."""
    plain, losses = build(), list[Any]()
    with MonitoredSession(plain, config=QUIET) as session:
        wanted = [session.run(["loss", "train"])[0] for _ in range(6)]
    after_six, forked = everything_in(plain), build()

    class ForksHook(SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_values.global_step != 3:
                return
            before = everything_in(forked)
            with undisturbed():
                fork = run_context.session.fork()
                losses.extend(fork.run(["loss", "train"])[0] for _ in range(3))
                weight = fork.run("model.0.weight")
                assert weight.tolist() == after_six[0]["0.weight"]
                assert fork.variables()["model.2.bias"].tolist() == after_six[0]["2.bias"]
                second = fork.fork("fresh")
                assert second.run("x").tolist() == DATA[0].tolist()
                fork.write({"model.2.bias": torch.ones(1)})
                assert second.run("model.2.bias").tolist() == after_six[0]["2.bias"]
                assert fork.run("prediction", {"x": DATA[0]}).shape == (8, 1)
                fork.close()
            assert everything_in(forked) == before

    with MonitoredSession(forked, hooks=[ForksHook()], config=QUIET) as session:
        kept = [session.run(["loss", "train"])[0] for _ in range(6)]
    assert torch.stack(losses).tolist() == torch.stack(wanted[3:]).tolist()
    assert torch.stack(kept).tolist() == torch.stack(wanted).tolist()
    assert everything_in(forked) == after_six


def test_a_fork_that_cannot_copy_an_object_names_it():
    """An object whose state nobody can exchange would be trained by both."""
    graph = build()
    graph.track(ticks=[1, 2])
    with MonitoredSession(graph, config=QUIET) as session:
        backend = session._state.backend.session
        with pytest.raises(UsageError, match="the state of 'ticks', a list, cannot be ex"):
            backend.fork()


def test_a_fork_of_batch_norm_and_a_scheduler_leaves_them_alone():
    """Buffers and schedulers belong to a fork as parameters do."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    graph = TorchGraph(model, optimizer, scheduler=scheduler)

    @graph.train_op
    def train():
        model(DATA[0]).square().mean().backward()
        optimizer.step()
        scheduler.step()

    def held() -> Any:
        state = optimizer.state_dict()["param_groups"], scheduler.state_dict()
        return repr((model.state_dict(), *state))

    with MonitoredSession(graph, config=QUIET) as session:
        session.run("train")
        before = held()
        fork = session._state.backend.session.fork()
        fork.run("train")
        assert held() == before
        assert fork.run("model.1.num_batches_tracked").item() == 2
        assert fork.run("optimizer.lr") == 0.125
        assert optimizer.param_groups[0]["lr"] == 0.25
