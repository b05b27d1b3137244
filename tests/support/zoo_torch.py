"""Trainings with PyTorch in the shapes in which people write them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from tests.support import zoo
from tests.support.zoo import Run

torch.set_num_threads(1)
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3].sum(1) > 0).long()
DATA = TensorDataset(X, Y)
STEPS = 5


@contextlib.contextmanager
def aside(tracked: Mapping[str, Any]) -> Iterator[None]:
    """Evaluate: modules in evaluation mode, no gradients, and no effect on generators."""
    modules = [each for each in tracked.values() if isinstance(each, nn.Module)]
    modes = {part: part.training for module in modules for part in module.modules()}
    state = torch.get_rng_state()
    for module in modules:
        module.eval()
    try:
        with zoo.aside(tracked), torch.no_grad():
            yield
    finally:
        torch.set_rng_state(state)
        for part, mode in modes.items():
            part.training = mode


def seeded() -> None:
    """Seed PyTorch."""
    torch.manual_seed(7)


def network() -> nn.Module:
    """Return a network with a layer norm and dropout."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )


def loader(**parts: Any) -> DataLoader[Any]:
    """Return a loader with a shuffle, in five batches."""
    return DataLoader(DATA, **{"batch_size": 8, "shuffle": True, **parts})


def loss_of(model: nn.Module, x: Any, y: Any) -> Any:
    """Return the loss of a batch."""
    return functional.cross_entropy(model(x), y)


def end_of(*things: Any) -> Any:
    """Return the states of some objects, and those of the generators."""
    states = [each.state_dict() for each in things]
    return states, torch.get_rng_state(), random.random(), float(np.random.rand())


def mnist(run: Run) -> Any:
    """A loader that shuffles, a schedule for each epoch, and a validation."""
    seeded()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer, scheduler=scheduler)
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step() as step:
                    optimizer.zero_grad()
                    loss = loss_of(model, x, y)
                    loss.backward()
                    optimizer.step()
                    step.report(loss=loss)
            scheduler.step()
            with session.evaluation("val") as evaluation:
                for x, y in DataLoader(DATA, batch_size=20):
                    evaluation.report(loss=float(loss_of(model, x, y)))
            run.say(epoch, evaluation.metrics["loss"], scheduler.get_last_lr())
    return end_of(model, optimizer, scheduler)


def in_range(run: Run) -> Any:
    """Epochs are counted by ``range``, and a loader is rebuilt for each."""
    seeded()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for _ in range(run.epochs):
            for x, y in session.iterate(loader()):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
    return end_of(model, optimizer)


def one_cycle(run: Run) -> Any:
    """A schedule for each batch, after the step, that knows the number of all steps."""
    seeded()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS * 8)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer, scheduler=scheduler)
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
                scheduler.step()
            run.say(epoch, scheduler.get_last_lr())
    return end_of(model, optimizer, scheduler)


def accumulating(run: Run) -> Any:
    """An update after each third batch."""
    seeded()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(run.epochs):
            for i, (x, y) in session.enumerate(data):
                with session.step():
                    (loss_of(model, x, y) / 3).backward()
                    if (i + 1) % 3 == 0:
                        optimizer.step()
                        optimizer.zero_grad()
    return end_of(model, optimizer)


def accelerated(run: Run) -> Any:
    """accelerate's loop, with its accumulation."""
    seeded()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader())
    with run.session() as session:
        count = (lambda: accelerator.step, lambda step: setattr(accelerator, "step", step))
        session.track(model=model, optimizer=optimizer, count=count)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with accelerator.accumulate(model), session.step():
                    accelerator.backward(loss_of(model, x, y))
                    optimizer.step()
                    optimizer.zero_grad()
    return end_of(model, optimizer)


def adversarial(run: Run) -> Any:
    """A GAN: two optimizers, and two steps for one batch."""
    seeded()
    g, d = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    g_optimizer = torch.optim.Adam(g.parameters(), lr=0.01)
    d_optimizer = torch.optim.Adam(d.parameters(), lr=0.01)
    data = loader()
    with run.session() as session:
        session.track(g=g, d=d, g_optimizer=g_optimizer, d_optimizer=d_optimizer)
        for _ in session.epochs(run.epochs):
            for x, _ in session.iterate(data):
                noise = torch.randn(len(x), 3)
                with session.step() as step:
                    d_optimizer.zero_grad()
                    d_loss = functional.softplus(-d(x)).mean()
                    d_loss = d_loss + functional.softplus(d(g(noise).detach())).mean()
                    d_loss.backward()
                    d_optimizer.step()
                    step.report(d_loss=d_loss)
                with session.step() as step:
                    g_optimizer.zero_grad()
                    g_loss = functional.softplus(-d(g(noise))).mean()
                    g_loss.backward()
                    g_optimizer.step()
                    step.report(g_loss=g_loss)
    return end_of(g, d, g_optimizer, d_optimizer)


def recurrent(run: Run) -> Any:
    """A language model: the hidden state is carried, and detached, from batch to batch."""
    seeded()
    model = nn.ModuleDict({"rnn": nn.GRU(6, 5, batch_first=True), "out": nn.Linear(5, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    carried = {"hidden": torch.zeros(1, 1, 5)}
    with run.session() as session:
        session.track(model=model, optimizer=optimizer, carried=carried)
        for epoch in session.epochs(run.epochs):
            carried["hidden"] = torch.zeros(1, 1, 5)
            for start in session.iterate(range(0, 40, 8)):
                x, y = X[start : start + 8][None], Y[start : start + 8]
                with session.step():
                    optimizer.zero_grad()
                    out, hidden = model["rnn"](x, carried["hidden"])
                    functional.cross_entropy(model["out"](out[0]), y).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                    optimizer.step()
                carried["hidden"] = hidden.detach()
            run.say(epoch, float(carried["hidden"].sum()))
    return end_of(model, optimizer), carried


def lbfgs(run: Run) -> Any:
    """An optimizer that takes a closure."""
    seeded()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):

                def closure(x: Any = x, y: Any = y) -> Any:
                    optimizer.zero_grad()
                    loss = loss_of(model, x, y)
                    loss.backward()
                    return loss

                with session.step():
                    optimizer.step(closure)
    return end_of(model, optimizer)


def scaled(run: Run) -> Any:
    """Autocast and a gradient scaler, as far as the CPU has them."""
    seeded()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer, scaler=scaler)
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        loss = loss_of(model, x, y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            run.say(epoch, scaler.get_scale())
    return end_of(model, optimizer, scaler)


def averaged(run: Run) -> Any:
    """An exponential average of the weights after each step, and SWA from epoch 1 on."""
    seeded()
    model = network()
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    swa = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loader()
    with run.session() as session:
        session.track(model=model, ema=ema, swa=swa, optimizer=optimizer)
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
                ema.update_parameters(model)
            if epoch >= 1:
                swa.update_parameters(model)
    return end_of(model, ema, swa, optimizer)


def mixed_up(run: Run) -> Any:
    """MixUp: numbers of NumPy and PyTorch are drawn in the body, before the step."""
    seeded()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                weight = float(np.random.beta(0.4, 0.4))
                other = torch.randperm(len(x))
                mixed = weight * x + (1 - weight) * x[other]
                with session.step():
                    optimizer.zero_grad()
                    loss = weight * loss_of(model, mixed, y)
                    loss = loss + (1 - weight) * loss_of(model, mixed, y[other])
                    loss.backward()
                    optimizer.step()
    return end_of(model, optimizer)


def unfrozen(run: Run) -> Any:
    """A part is frozen at first; epoch 1 trains it, with parameters of its own."""
    seeded()
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for epoch in session.epochs(run.epochs):
            if epoch == 1:
                model[0].requires_grad_(True)
                optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
    return end_of(model, optimizer)


def own_sampler(run: Run) -> Any:
    """A sampler with a generator of its own, which is tracked."""
    seeded()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(11)
    sampler = RandomSampler(DATA, generator=generator)
    data = loader(shuffle=False, sampler=sampler)
    with run.session() as session:
        session.track(model=model, optimizer=optimizer, generator=generator)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
    return end_of(model, optimizer), generator.get_state()


class Stream(IterableDataset[Any]):
    """A data set without a length, which workers share."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        yield from ((X[i], Y[i]) for i in range(first, 40, every))


def two_loaders(run: Run) -> Any:
    """Two passes in an epoch, over loaders with generators of their own, not tracked."""
    seeded()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    one = loader(generator=torch.Generator().manual_seed(1))
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for epoch in session.epochs(run.epochs):
            other = loader(generator=torch.Generator().manual_seed(epoch), batch_size=20)
            for data in (one, other):
                for x, y in session.iterate(data):
                    with session.step():
                        optimizer.zero_grad()
                        loss_of(model, x, y).backward()
                        optimizer.step()
    return end_of(model, optimizer)


def streamed(run: Run) -> Any:
    """An iterable data set, read by two workers."""
    seeded()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = DataLoader(Stream(), batch_size=8, num_workers=2)
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
    return end_of(model, optimizer)


def with_persistent_workers(run: Run) -> Any:
    """Workers that stay from epoch to epoch."""
    seeded()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = loader(num_workers=2, persistent_workers=True)
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
    return end_of(model, optimizer)


TRAININGS: dict[str, Callable[[Run], Any]] = {
    each.__name__: each
    for each in (
        mnist,
        in_range,
        one_cycle,
        accumulating,
        accelerated,
        adversarial,
        recurrent,
        lbfgs,
        scaled,
        averaged,
        mixed_up,
        unfrozen,
        own_sampler,
        two_loaders,
        streamed,
        with_persistent_workers,
    )
}
WITH_WORKERS = ("streamed", "with_persistent_workers")
"""Trainings of which a run takes long."""
