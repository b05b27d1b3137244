"""Hooks change gradients, rates and outputs on their way inside tracked objects."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from hookbus_torch import TorchGraph
from torch import nn

from hookbus import (
    Config,
    GraphError,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
)

QUIET = Config(autoload=False, header=False)
STEPS = 6


class WrapHook(SessionRunHook):
    """Wraps names in ``begin``."""

    def __init__(self, names, fn, **options) -> None:
        self.names, self.fn, self.options = names, fn, options

    def begin(self, graph) -> None:
        graph.wrap(self.names, self.fn, **self.options)


class Parts:
    """A model, its optimizer, and batches."""

    def __init__(self, optimizer=torch.optim.Adam, **options) -> None:
        torch.manual_seed(3)
        self.x = torch.randn(STEPS, 8, 4)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
        self.optimizer = optimizer(self.model.parameters(), lr=0.1, **options)

    def loss(self, x):
        return self.model(x).square().mean()

    @property
    def weights(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def trained(parts, *hooks, between=lambda: None, closure=False, **things):
    """Train with hooks; *between* is called between backward and the update."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        session.track(model=parts.model, optimizer=parts.optimizer, **things)
        for x in session.iterate(parts.x):
            with session.step():
                update(parts, x, between, closure)
    return parts.weights


def by_hand(parts, between, closure=False):
    for x in parts.x:
        update(parts, x, between, closure)
    return parts.weights


def update(parts, x, between, closure):
    def computed():
        parts.optimizer.zero_grad()
        loss = parts.loss(x)
        loss.backward()
        between()
        return loss

    if closure:
        parts.optimizer.step(computed)
    else:
        computed()
        parts.optimizer.step()


def equal(some, others) -> bool:
    return all(map(torch.equal, some, others))


def clipped(gradients):
    """Clip a dict of gradients by their common norm, in place."""
    for each in gradients.values():
        each.mul_(0.01 / sum(g.square().sum() for g in gradients.values()).sqrt())
    return gradients


def scaled(gradients):
    """Return other tensors."""
    return {name: gradient * 0.5 for name, gradient in gradients.items()}


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("change", [clipped, scaled])
def test_all_gradients_of_a_module_are_changed_before_each_update(change, closure):
    """In place or not, and also where a closure computes them."""

    def between():
        every = {name: p.grad for name, p in parts.model.named_parameters()}
        for name, gradient in change(dict(every)).items():
            every[name].copy_(gradient)

    parts = Parts()
    expected = by_hand(parts, between, closure)
    assert equal(
        trained(Parts(), WrapHook("model:grads", change), closure=closure), expected
    )
    assert not equal(expected, trained(Parts(), closure=closure))


def test_with_lbfgs_each_gradient_of_its_closure_is_changed():
    """It computes several before one update."""

    def between():
        for p in parts.model.parameters():
            p.grad.mul_(0.5)

    parts = Parts(torch.optim.LBFGS, max_iter=3)
    expected = by_hand(parts, between, True)
    other = Parts(torch.optim.LBFGS, max_iter=3)
    assert equal(trained(other, WrapHook("model:grads", scaled), closure=True), expected)


def test_single_gradients_are_wrapped_alone_and_together():
    """A wrap of one composes with one of several."""

    def between():
        first, last = parts.model[0].weight.grad, parts.model[2].weight.grad
        first += 1
        first *= last.sum()

    parts = Parts()
    expected = by_hand(parts, between)
    names = ["model.0.weight:grad", "model.2.weight:grad"]
    first, last = names

    def both(values):
        return {first: values[first] * values[last].sum(), last: values[last]}

    hooks = WrapHook(first, lambda g: g + 1), WrapHook(names, both)
    assert equal(trained(Parts(), *hooks), expected)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_a_rate_has_another_value_for_the_update_only(rate):
    """Schedulers and checkpoints see the rate as it was, with its type."""
    parts, other = Parts(), Parts()
    for group in parts.optimizer.param_groups:
        group["lr"] = 0.1 * 0.5
    expected = by_hand(parts, lambda: None)
    (group,) = other.optimizer.param_groups
    group["lr"] = rate
    found = trained(other, WrapHook("optimizer.lr", lambda lr: lr * 0.5))
    assert all(map(torch.allclose, found, expected))
    assert type(group["lr"]) is type(rate)
    assert group["lr"] == rate == pytest.approx(0.1)


def test_a_wrap_reads_other_values_of_the_program():
    """The rate, the global step, or what lives in a tracked module."""
    seen = []

    def noted(gradients, lr, step, bias):
        seen.append((lr, step, bias[0].item()))
        return gradients

    reads = {"lr": "optimizer.lr", "step": "global_step", "bias": "model.2.bias"}
    parts = Parts()
    first = parts.model[2].bias.item()
    trained(parts, WrapHook("model:grads", noted, reads=reads))
    assert [(lr, step) for lr, step, _ in seen] == [(0.1, n) for n in range(STEPS)]
    assert seen[0][2] == first


def test_an_output_is_changed_while_its_module_trains(capsys):
    """Later modules get it, and so do hooks; an evaluation gets the module's own."""
    seen = []

    class Fetch(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs("model.0:output")

        def after_run(self, run_context, run_values):
            seen.append(run_values.results)

    parts = Parts()
    hook = WrapHook("model.0:output", lambda output: output + 100.0)
    with MonitoredSession(hooks=[hook, Fetch()], config=QUIET) as session:
        session.track(model=parts.model, optimizer=parts.optimizer)
        with session.step():
            parts.loss(parts.x[0]).backward()
        with session.evaluation("val") as evaluation:
            output = float(parts.model[0](parts.x[0]).max())
            evaluation.report(output=output)
    assert seen[0].min() > 90 > output


def test_two_optimizers_of_which_one_is_wrapped():
    """The gradients of the other are as they were; so are those of a foreign optimizer."""

    def gan(hook=None):
        torch.manual_seed(1)
        g, d, foreign = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (g, d, foreign)]

        def body():
            loss = d(g(torch.ones(2, 3))).sum() + foreign(torch.ones(2, 3)).sum()
            loss.backward()
            if hook is None:
                clipped({name: p.grad for name, p in d.named_parameters()})
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

        if hook is None:
            for _ in range(3):
                body()
        else:
            with MonitoredSession(hooks=[hook], config=QUIET) as session:
                session.track(g=g, d=d, a=optimizers[0], b=optimizers[1])
                for _ in session.iterate(range(3)):
                    with session.step():
                        body()
        return [p.detach() for each in (g, d, foreign) for p in each.parameters()]

    assert equal(gan(WrapHook("d:grads", clipped)), gan())


def test_of_one_module_each_optimizer_has_its_own_gradients():
    """A wrap of all gradients gets those that the update uses."""
    seen = []

    def noted(gradients):
        seen.append([*gradients])
        return gradients

    parts = Parts()
    body = torch.optim.SGD(parts.model[0].parameters(), lr=0.1)
    head = torch.optim.SGD(parts.model[2].parameters(), lr=0.1)
    with MonitoredSession(hooks=[WrapHook("model:grads", noted)], config=QUIET) as session:
        session.track(model=parts.model, body=body, head=head)
        for x in session.iterate(parts.x[:1]):
            with session.step():
                parts.loss(x).backward()
                body.step()
                head.step()
    assert seen == [["0.weight", "0.bias"], ["2.weight", "2.bias"]]


def test_gradients_that_are_missing_are_left_out():
    """A frozen parameter has none; an update without any calls no wrap."""
    seen = []

    def noted(gradients):
        seen.append([*gradients])
        return gradients

    parts = Parts()
    parts.model[0].requires_grad_(False)
    with MonitoredSession(hooks=[WrapHook("model:grads", noted)], config=QUIET) as session:
        session.track(model=parts.model, optimizer=parts.optimizer)
        for x in session.iterate(parts.x[:2]):
            with session.step():
                parts.optimizer.step()
                parts.loss(x).backward()
                parts.optimizer.step()
                parts.optimizer.zero_grad()
    assert seen == [["2.weight", "2.bias"]] * 2


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_seen_unscaled(fused):
    """A scaler leaves it to a fused optimizer to unscale them."""
    options = {"fused": True} if fused else {}

    def amp(parts, step, unscales):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for x in parts.x:
            with step():
                parts.optimizer.zero_grad()
                scaler.scale(parts.loss(x)).backward()
                if unscales:
                    scaler.unscale_(parts.optimizer)
                    nn.utils.clip_grad_norm_(parts.model.parameters(), 0.01)
                scaler.step(parts.optimizer)
                scaler.update()
        return parts.weights

    expected = amp(Parts(**options), nullcontext, True)

    def clip(gradients):
        norm = nn.utils.get_total_norm(list(gradients.values()))
        for each in gradients.values():
            each.mul_(torch.clamp(0.01 / (norm + 1e-6), max=1.0))
        return gradients

    parts = Parts(**options)
    with MonitoredSession(hooks=[WrapHook("model:grads", clip)], config=QUIET) as session:
        session.track(model=parts.model, optimizer=parts.optimizer)
        assert equal(amp(parts, session.step, False), expected)


def test_a_train_op_of_a_graph_updates_with_changed_gradients():
    """As a loop does; ops that read them get the changed ones, once."""
    parts = Parts()
    loop = trained(parts, WrapHook("model:grads", scaled))
    other = Parts()
    graph = TorchGraph(other.model, other.optimizer)
    graph.placeholder("x")

    @graph.train_op
    def train(x):
        other.optimizer.zero_grad()
        other.loss(x).backward()
        other.optimizer.step()

    @graph.op(reads={"gradients": "model:grads"})
    def largest(gradients):
        return max(float(each.abs().max()) for each in gradients.values())

    with MonitoredSession(
        graph, hooks=[WrapHook("model:grads", scaled)], config=QUIET
    ) as session:
        for x in other.x:
            found, _ = session.run(["largest", "train"], {"x": x})
            assert found == max(float(p.grad.abs().max()) for p in other.model.parameters())
    assert equal(other.weights, loop)


def test_when_the_session_ends_so_do_the_changes():
    """The objects go on without hooks, and nothing keeps them alive."""
    parts = Parts()
    hooks = [
        WrapHook("model:grads", scaled),
        WrapHook("optimizer.lr", lambda lr: lr * 2),
        WrapHook("model.0:output", lambda output: output),
    ]
    trained(parts, *hooks)
    assert not parts.optimizer._optimizer_step_pre_hooks
    assert not parts.model[0]._forward_hooks
    ends = weakref.ref(parts.model), weakref.ref(parts.optimizer)
    del parts, hooks
    gc.collect()
    assert [end() for end in ends] == [None, None]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("model.0.weight", "cannot wrap 'model.0.weight': it lives in an object"),
        ("model:grad_norm", "cannot wrap 'model:grad_norm': it lives in an object"),
        (
            ["model.0:output", "model.2:output"],
            "wraps 'model.0:output' and 'model.2:output' together, which a step does not "
            "have at one time; wrap them one by one",
        ),
        (
            ["model:grads", "optimizer.lr"],
            "wraps 'model:grads' and 'optimizer.lr' together, which a step does not have",
        ),
    ],
)
def test_what_no_step_can_change_is_refused(names, told):
    """At the first step; the error names the hook."""
    with pytest.raises(GraphError, match=f"plugin 'wrap' {told}"):
        trained(Parts(), WrapHook(names, lambda value: value))


def test_a_gradient_that_no_tracked_optimizer_uses_is_refused():
    """Nobody knows when it is used."""
    parts = Parts()
    hook = WrapHook("model:grads", scaled)
    told = (
        "plugin 'wrap' cannot wrap 'model:grads': no tracked optimizer makes updates from "
        "it; track the one that does"
    )
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(model=parts.model)
        with pytest.raises(GraphError) as caught:
            session.step().__enter__()
    assert str(caught.value) == told


def test_a_gradient_that_is_missing_beside_others_is_an_error():
    """A function of both cannot be called."""
    parts = Parts()
    parts.model[0].requires_grad_(False)
    names = ["model.0.weight:grad", "model.2.weight:grad"]
    with pytest.raises(GraphError, match=r"'model\.0\.weight:grad' has no gradient in an"):
        trained(parts, WrapHook(names, lambda values: values))


def test_a_name_that_nothing_has_is_told_with_close_ones():
    """At the end of the first pass."""
    told = r"wraps 'mode:grads', and no such value came .*; did you mean 'model:grads'\?"
    with pytest.raises(GraphError, match=told):
        trained(Parts(), WrapHook("mode:grads", scaled))
