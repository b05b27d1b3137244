"""Tests that optimizers and schedulers are saved, and that hooks can read them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hookbus_lr_finder import LRFinderHook
from hookbus_torch.library import TorchLibrary
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from hookbus import Config, GraphError, MonitoredSession, UsageError

LIBRARY = TorchLibrary()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Do one step on fixed data."""
    optimizer.zero_grad()
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()


def layer() -> nn.Linear:
    """A layer that is the same each time."""
    torch.manual_seed(1)
    return nn.Linear(3, 2)


OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: Adam(p, lr=0.1, amsgrad=True),
    "adamw tensor lr": lambda p: AdamW(p, lr=torch.tensor(0.1)),
    "adam fused": lambda p: Adam(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_restored_optimizer_goes_on_bit_for_bit(make):
    whole, cut = layer(), layer()
    optimizer, before = make(whole.parameters()), make(cut.parameters())
    for _ in range(3):
        step(whole, optimizer)
        step(cut, before)
    again, state = make(cut.parameters()), copy.deepcopy(before.state_dict())
    tracked = LIBRARY.tracked("optimizer", again)
    assert not list(tracked.faults(state))
    assert tracked.put(state) is again
    for _ in range(3):
        step(whole, optimizer)
        step(cut, again)
    assert torch.equal(whole.weight, cut.weight)


def test_a_state_in_float32_of_a_bfloat16_parameter_stays_exact():
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = SGD([parameter], lr=0.1, momentum=0.9)
    exact = optimizer.state[parameter]["momentum_buffer"] = torch.tensor([1 / 3] * 3)
    state = copy.deepcopy(optimizer.state_dict())
    LIBRARY.tracked("optimizer", optimizer).put(state)
    restored = optimizer.state[parameter]["momentum_buffer"]
    assert restored.dtype == torch.float32
    assert torch.equal(restored, exact)


def test_a_scheduler_may_step_first_after_a_restore(recwarn):
    """A run may be cut after the last step of an epoch."""
    model = layer()
    optimizer, again = Adam(model.parameters()), Adam(model.parameters())
    step(model, optimizer)
    scheduler = StepLR(again, 1)
    LIBRARY.tracked("optimizer", again).put(copy.deepcopy(optimizer.state_dict()))
    scheduler.step()
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]


def test_saving_copies_no_state():
    model = layer()
    optimizer = Adam(model.parameters())
    step(model, optimizer)
    state = LIBRARY.tracked("optimizer", optimizer).get()
    held = optimizer.state[model.weight]["exp_avg"]
    assert state["state"][0]["exp_avg"].data_ptr() == held.data_ptr()


def minimize(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    """Do one step, with a closure for the optimizers that need one."""

    def loss():
        optimizer.zero_grad()
        value = sum(p.square().sum() for p in parameters)
        value.backward()
        return value

    optimizer.step(loss)


@pytest.mark.parametrize("name", ["Adafactor", "LBFGS"])
def test_a_state_of_another_shape_than_its_parameter_fits(name):
    make = getattr(torch.optim, name, None)
    if make is None:
        pytest.skip(f"PyTorch {torch.__version__} has no {name}")
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 4))]
    optimizer = make(parameters)
    minimize(optimizer, parameters)
    state = copy.deepcopy(optimizer.state_dict())
    again = [nn.Parameter(p.detach().clone()) for p in parameters]
    resumed = make(again)
    tracked = LIBRARY.tracked("optimizer", resumed)
    assert not list(tracked.faults(state))
    tracked.put(state)
    minimize(optimizer, parameters)
    minimize(resumed, again)
    assert all(map(torch.equal, parameters, again))


def test_an_optimizer_of_other_parameters_does_not_fit():
    model, other = layer(), nn.Linear(5, 2)
    optimizer, larger = Adam(model.parameters()), Adam(other.parameters())
    larger.zero_grad()
    other(torch.ones(1, 5)).sum().backward()
    larger.step()
    faults = list(LIBRARY.tracked("optimizer", optimizer).faults(larger.state_dict()))
    assert faults[0] == (
        "'optimizer.state.0.exp_avg' is a tensor of shape (2, 5) and dtype float32 in the "
        "checkpoint, and its parameter is a tensor of shape (2, 3) and dtype float32 here"
    )
    one = SGD([model.weight], lr=0.1)
    assert list(LIBRARY.tracked("optimizer", one).faults(larger.state_dict())) == [
        "'optimizer' has groups of 1 parameters here and of 2 in the checkpoint"
    ]
    assert list(LIBRARY.tracked("optimizer", one).faults([])) == [
        "'optimizer' is an optimizer here and not in the checkpoint"
    ]


def test_an_optimizer_has_the_parameters_of_the_tracked_model():
    model, other = layer(), layer()
    optimizer = SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(
        UsageError, match="trains 2 of its 4 parameters outside all tracked"
    ):
        LIBRARY.check({"model": model, "optimizer": optimizer})
    LIBRARY.check({"model": model, "other": other, "optimizer": optimizer})
    LIBRARY.check({"optimizer": optimizer})  # the models may be tracked by a later call
    extra = torch.zeros(2, requires_grad=True)
    both = SGD([*model.parameters(), extra], lr=0.1)
    LIBRARY.check({"model": model, "extra": extra, "optimizer": both})


def test_the_learning_rate_is_read_and_set():
    optimizer = SGD(layer().parameters(), lr=0.1)
    live = LIBRARY.tracked("optimizer", optimizer).live()
    assert list(live) == [".lr"]
    assert live[".lr"].get() == 0.1
    live[".lr"].put(np.float64(0.5))
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_rate_in_a_tensor_stays_that_tensor():
    rate = torch.tensor(0.1)
    live = LIBRARY.tracked("o", Adam(layer().parameters(), lr=rate)).live()[".lr"]
    live.put(0.25)
    assert rate == 0.25


def test_the_rate_is_that_of_the_restored_optimizer():
    optimizer = SGD(layer().parameters(), lr=0.1)
    tracked = LIBRARY.tracked("optimizer", optimizer)
    live = tracked.live()[".lr"]
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.7
    tracked.put(state)
    assert live.get() == 0.7
    live.put(0.2)
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_a_rate_in_a_tensor_is_restored_into_that_tensor():
    rate = torch.tensor(0.1)
    optimizer = AdamW(layer().parameters(), lr=rate)
    state = copy.deepcopy(optimizer.state_dict())
    rate.fill_(0.5)
    LIBRARY.tracked("optimizer", optimizer).put(state)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == torch.tensor(0.1)


def test_rates_in_tensors_are_moved_with_the_other_values():
    model = layer()
    groups = [{"params": [p], "lr": torch.tensor(0.5)} for p in model.parameters()]
    live = LIBRARY.tracked("optimizer", Adam(groups)).live()
    assert isinstance(live[".lr.0"].get(), torch.Tensor)
    assert live[".lr"].get().tolist() == [0.5, 0.5]


def test_several_groups_have_a_rate_each():
    model = layer()
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}]
    optimizer = SGD(groups, lr=1.0)
    live = LIBRARY.tracked("optimizer", optimizer).live()
    assert live[".lr"].get().tolist() == [0.1, 0.2]
    live[".lr.1"].put(0.4)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.4]
    live[".lr"].put(0.5)
    assert live[".lr"].get().tolist() == [0.5, 0.5]
    live[".lr"].put(torch.tensor([0.25, 0.75], dtype=torch.bfloat16))
    assert live[".lr"].get().tolist() == [0.25, 0.75]


def test_lr_finder_gives_each_group_the_rate_that_it_tests():
    """Trainers put weights with decay and others into groups of their own."""
    model = torch.nn.Linear(1, 1)
    optimizer = SGD([{"params": [part], "lr": 1.0} for part in model.parameters()])
    finder, seen = LRFinderHook(min_lr=0.25, max_lr=1.0, steps=3, output_dir="."), []
    with MonitoredSession(hooks=[finder], config=Config(autoload=False)) as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.iterate(range(9)):
            with session.step() as step:
                seen.append([group["lr"] for group in optimizer.param_groups])
                step.report(loss=1.0)
    assert seen == [[rate, rate] for rate in (0.25, 0.5, 1.0)]


def test_more_or_fewer_rates_than_groups_are_refused_and_change_nothing():
    model = layer()
    optimizer = SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    live = LIBRARY.tracked("optimizer", optimizer).live()
    with pytest.raises(GraphError, match=r"'optimizer.lr' takes a number or an array of 2"):
        live[".lr"].put([0.1, 0.2, 0.3])
    with pytest.raises(
        GraphError, match=r"'optimizer.lr.0' takes a number, not \[0.1, 0.2"
    ):
        live[".lr.0"].put([0.1, 0.2])
    assert live[".lr"].get().tolist() == [0.1, 0.1]


@pytest.mark.parametrize("value", ["fast", float("nan"), [[0.1]]])
def test_a_rate_that_is_no_number_is_refused(value):
    optimizer = SGD(layer().parameters(), lr=0.1)
    live = LIBRARY.tracked("optimizer", optimizer).live()[".lr"]
    with pytest.raises(GraphError, match=r"'optimizer.lr' takes"):
        live.put(value)
    assert live.get() == 0.1


SCHEDULERS = {
    "step": lambda o: StepLR(o, 2, 0.5),
    "milestones": lambda o: MultiStepLR(o, [1, 3, 3, 5], 0.5),
    "cosine": lambda o: CosineAnnealingLR(o, 10),
    "lambda": lambda o: LambdaLR(o, lambda epoch: 0.9**epoch),
    "one cycle": lambda o: OneCycleLR(o, 0.5, total_steps=20),
    "sequence": lambda o: SequentialLR(o, [StepLR(o, 1), CosineAnnealingLR(o, 9)], [3]),
    "sequence of milestones": lambda o: SequentialLR(
        o, [StepLR(o, 1), MultiStepLR(o, [1, 2], 0.5)], [6]
    ),
}


def without_counters(state):
    """Return a state as a checkpoint gives it back."""
    if isinstance(state, dict):
        return {key: without_counters(value) for key, value in state.items()}
    return [*map(without_counters, state)] if isinstance(state, list) else state


@pytest.mark.filterwarnings("ignore:Detected call of")  # the optimizer does not step here
@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_restored_scheduler_goes_on(make):
    def pair():
        optimizer = SGD(layer().parameters(), lr=0.1, momentum=0.9)
        return optimizer, make(optimizer)

    optimizer, scheduler = pair()
    rates = []
    for number in range(8):
        if number == 4:
            saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    again, resumed = pair()
    # What a checkpoint makes of it: a Counter is a dict there.
    state = without_counters(saved[1])
    LIBRARY.tracked("optimizer", again).put(saved[0])
    assert LIBRARY.tracked("scheduler", resumed).put(state) is resumed
    for rate in rates[4:]:
        resumed.step()
        assert again.param_groups[0]["lr"] == rate
    assert {k: type(v) for k, v in vars(resumed).items()} == {
        k: type(v) for k, v in vars(scheduler).items()
    }


def test_a_scheduler_that_watches_a_value_is_saved_with_what_it_saw():
    optimizer = SGD(layer().parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer, patience=1)
    scheduler.step(1.0)
    tracked = LIBRARY.tracked("scheduler", ReduceLROnPlateau(optimizer, patience=1))
    assert tracked.put(tracked.get() | scheduler.state_dict()).best == 1.0
    assert list(tracked.faults(None)) == [
        "'scheduler' is a scheduler here and a NoneType in the checkpoint"
    ]


def test_another_kind_of_scheduler_does_not_fit():
    optimizer = SGD(layer().parameters(), lr=0.1)
    saved = StepLR(optimizer, 2).state_dict()
    cosine = LIBRARY.tracked("scheduler", CosineAnnealingLR(optimizer, 9))
    assert list(cosine.faults(saved)) == [
        "'scheduler' is a CosineAnnealingLR here, and the checkpoint has no T_max, "
        "eta_min: it was another scheduler"
    ]
    older = saved | {"verbose": False}  # PyTorch drops a setting now and then
    assert not list(LIBRARY.tracked("scheduler", StepLR(optimizer, 3)).faults(older))
