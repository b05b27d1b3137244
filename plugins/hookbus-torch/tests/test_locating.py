"""`locate-nan` names the first value that is not finite, and where it came from."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hookbus_torch import TorchGraph
from hookbus_torch.locating import LocateNanHook, NotFiniteError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Config, MonitoredSession, UsageError

QUIET = Config(autoload=False, header=False)


class Net(nn.Module):
    """Has a function between two modules, which may make NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
        self.spoils = self.spoils_gradient = False

    def forward(self, x):
        hidden = self.first(x)
        if self.spoils:
            hidden = torch.log(-hidden.abs() - 1)
        if self.spoils_gradient:
            hidden = hidden + torch.sqrt((hidden * 0).abs()).sum()
        return self.last(hidden)


def train(x, model=None, steps=None, before=lambda step, model: None, **settings):
    """Train on rows, with two epochs; do something before each step."""
    torch.manual_seed(0)
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x), batch_size=10)
    hook = LocateNanHook(**settings)
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(2):
            for (batch,) in session.iterate(loader, name="rows"):
                before(session.global_step, model)
                with session.step():
                    optimizer.zero_grad()
                    model(batch).square().mean().backward()
                    optimizer.step()
    return session


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_value_in_5000_examples_is_named(value):
    """With the step, the module, the number of the input, and the place in it."""
    x = torch.randn(5000, 4)
    x[3217, 2] = value
    with pytest.raises(NotFiniteError) as caught:
        train(x)
    assert str(caught.value) == (
        f"locate-nan: the input of 'model' is {value:g} at [7, 2], in step 322; "
        "input 321 of 'rows' in epoch 0"
    )


def spoil(name: str, at: int):
    """Return a function that makes NaN from a step on."""

    def before(step: int, model: Net) -> None:
        if step == at:
            setattr(model, name, True)

    return before


def test_what_is_computed_between_two_modules_is_the_input_of_the_next_one():
    """No module has made it."""
    with pytest.raises(NotFiniteError, match=r"the input of 'model.last' is nan.*step 3;"):
        train(torch.randn(50, 4), before=spoil("spoils", 2))


def test_a_gradient_is_named_by_what_it_is_the_gradient_of():
    """In the order of the backward pass; also in another epoch."""
    with pytest.raises(NotFiniteError) as caught:
        train(torch.randn(50, 4), before=spoil("spoils_gradient", 7))
    text = str(caught.value)
    assert "the gradient of the output of 'model.first' is nan" in text
    assert text.endswith("in step 8; input 2 of 'rows' in epoch 1")


def test_gradients_may_be_left_out():
    """A scaler makes infinite ones on purpose; parameters count anyway."""
    with pytest.raises(NotFiniteError) as caught:
        train(torch.randn(50, 4), before=spoil("spoils_gradient", 2), gradients=False)
    assert "the parameter 'model.first.weight' after the update is nan" in str(caught.value)


def test_a_parameter_that_is_bad_from_the_start_is_named():
    """Before a module is called."""
    model = Net()
    with torch.no_grad():
        model.last.weight[0, 1] = math.inf
    with pytest.raises(NotFiniteError, match=re.escape("'model.last.weight' at the start")):
        train(torch.randn(50, 4), model)


def test_nothing_is_looked_at_between_two_steps():
    """A program may try the model with any values there."""

    def before(_: int, model: Net) -> None:
        model(torch.full((1, 4), math.nan))

    assert train(torch.randn(20, 4), before=before).global_step == 4


def test_the_training_is_the_same_bit_for_bit():
    """The hook only looks, and leaves no hook in the modules."""
    x = torch.randn(50, 4)
    torch.manual_seed(0)
    watched, plain = Net(), None
    train(x, watched)
    torch.manual_seed(0)
    plain = Net()
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-3)
    for _ in range(2):
        for (batch,) in DataLoader(TensorDataset(x), batch_size=10):
            optimizer.zero_grad()
            plain(batch).square().mean().backward()
            optimizer.step()
    for one, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not watched.first._forward_hooks
    assert not watched.first._forward_pre_hooks


def test_a_program_without_a_module_is_an_error():
    """There is nothing to watch."""
    with (
        pytest.raises(UsageError, match="locate-nan has nothing to watch"),
        MonitoredSession(hooks=[LocateNanHook()], config=QUIET) as session,
        session.step(),
    ):
        pass


def test_a_graph_is_watched_as_well():
    """Its inputs have names, and numbers."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    graph = TorchGraph(model, optimizer)
    rows = torch.randn(30, 4)
    rows[17, 3] = math.nan
    graph.input("row", lambda: list(rows))

    @graph.train_op(outputs="loss")
    def train_op(row):
        optimizer.zero_grad()
        loss = model(row).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    expected = r"the input of 'model' is nan at \[3\], in step 18; input 17 of 'row'"
    with (
        pytest.raises(NotFiniteError, match=expected),
        MonitoredSession(graph, hooks=[LocateNanHook()], config=QUIET) as session,
    ):
        for _ in session.loop():
            pass


def test_a_compiled_model_is_looked_at_as_a_whole():
    """The code of its parts runs as one."""
    model = Net()
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(50, 4)
    x[21, 0] = math.nan
    with pytest.raises(NotFiniteError, match=r"the input of 'model' is nan.*step 3;"):
        train(x, compiled)
