"""Trainings with PyTorch on a CUDA device, with deterministic algorithms.

Without a device they run on the CPU, which shows nothing but that they are written well.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from tests.support import zoo_torch
from tests.support.zoo import Run
from tests.support.zoo_torch import loader, loss_of, network

VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""The environment variables that deterministic algorithms need."""


def device() -> str:
    """Return the name of the device, which starts CUDA in a child only."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def aside(tracked: Mapping[str, Any]) -> Iterator[None]:
    """Evaluate without an effect on the generators, those of the devices included."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    with zoo_torch.aside(tracked):
        try:
            yield
        finally:
            if states:
                torch.cuda.set_rng_state_all(states)


def prepared() -> str:
    """Seed PyTorch, and demand deterministic algorithms; return the device."""
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return device()


def end_of(*things: Any) -> Any:
    """Return the states of some objects, and those of all generators."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return zoo_torch.end_of(*things), states


def scaled(run: Run) -> Any:
    """float16 under autocast, with a gradient scaler, dropout, and a validation."""
    place = prepared()
    half = torch.float16 if place == "cuda" else torch.bfloat16
    model = network().to(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(place, init_scale=2.0**17, growth_interval=4)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer, scaler=scaler)
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step() as step:
                    optimizer.zero_grad()
                    with torch.autocast(place, dtype=half):
                        loss = loss_of(model, x.to(place), y.to(place))
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    step.report(loss=loss)
            with session.evaluation("val") as evaluation:
                for x, y in zoo_torch.DataLoader(zoo_torch.DATA, batch_size=20):
                    found = loss_of(model, x.to(place), y.to(place))
                    evaluation.report(loss=float(found))
            run.say(epoch, evaluation.metrics["loss"], scaler.get_scale())
    return end_of(model, optimizer, scaler)


def pinned(run: Run) -> Any:
    """A loader that pins its batches, which move while the program goes on."""
    place = prepared()
    model = network().to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = loader(pin_memory=place == "cuda")
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                x, y = x.to(place, non_blocking=True), y.to(place, non_blocking=True)
                with session.step() as step:
                    optimizer.zero_grad(set_to_none=True)
                    loss = loss_of(model, x, y)
                    loss.backward()
                    optimizer.step()
                    step.report(loss=loss)
    return end_of(model, optimizer)


def data_parallel(run: Run) -> Any:
    """DistributedDataParallel in a group of one process."""
    place = prepared()
    torch.distributed.init_process_group(
        "nccl" if place == "cuda" else "gloo",
        store=torch.distributed.HashStore(),
        rank=0,
        world_size=1,
    )
    model = nn.parallel.DistributedDataParallel(network().to(place))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x.to(place), y.to(place)).backward()
                    optimizer.step()
    found = end_of(model, optimizer)
    torch.distributed.destroy_process_group()
    return found


def convolved(run: Run) -> Any:
    """Convolutions in channels-last order, with an average of the weights."""
    place = prepared()
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 8, 2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(96, 2),
    ).to(place, memory_format=torch.channels_last)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loader()
    with run.session() as session:
        session.track(model=model, average=average, optimizer=optimizer)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x.to(place), y.to(place)).backward()
                    optimizer.step()
                average.update_parameters(model)
    return end_of(model, average, optimizer)


def augmented(run: Run) -> Any:
    """Noise from a generator of the device, and an optimizer that is one kernel."""
    place = prepared()
    model = network().to(place)
    noise = torch.Generator(place).manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer, noise=noise)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                x = x.to(place)
                x = x + 0.1 * torch.randn(x.shape, device=place, generator=noise)
                with session.step():
                    optimizer.zero_grad()
                    loss_of(model, x, y.to(place)).backward()
                    optimizer.step()
    return *end_of(model, optimizer), noise.get_state()


def graphed(run: Run) -> Any:
    """A model that is captured as a CUDA graph, with an optimizer made for that."""
    place = prepared()
    warnings.simplefilter("ignore")  # PyTorch warns of the streams of the capture
    model = network().to(place)
    graphs = place == "cuda"
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=graphs)
    data = loader()
    with run.session() as session:
        session.track(model=model, optimizer=optimizer)
        example = torch.zeros(8, 6, device=place)
        called = torch.cuda.make_graphed_callables(model, (example,)) if graphs else model
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    loss_of(called, x.to(place), y.to(place)).backward()
                    optimizer.step()
    return end_of(model, optimizer)


def accelerated(run: Run) -> Any:
    """accelerate's loop in float16, with its accumulation and its scaler."""
    place = prepared()
    accelerator = Accelerator(
        cpu=place == "cpu",
        gradient_accumulation_steps=2,
        mixed_precision="fp16" if place == "cuda" else "no",
    )
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader())
    scaler = {} if accelerator.scaler is None else {"scaler": accelerator.scaler}
    with run.session() as session:
        count = (lambda: accelerator.step, lambda step: setattr(accelerator, "step", step))
        session.track(model=model, optimizer=optimizer, count=count, **scaler)
        for _ in session.epochs(run.epochs):
            for x, y in session.iterate(data):
                with accelerator.accumulate(model), session.step():
                    accelerator.backward(loss_of(model, x, y))
                    optimizer.step()
                    optimizer.zero_grad()
    return end_of(model, optimizer, *scaler.values())


TRAININGS: dict[str, Callable[[Run], Any]] = {
    each.__name__: each
    for each in (
        scaled,
        pinned,
        data_parallel,
        convolved,
        augmented,
        graphed,
        accelerated,
    )
}
