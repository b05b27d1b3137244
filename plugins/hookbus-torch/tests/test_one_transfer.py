"""Values that hooks ask for leave the device together, and only when they ask."""

from __future__ import annotations

import pytest
import torch
from hookbus_torch import values
from hookbus_torch.library import TorchLibrary
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from hookbus import Config, MonitoredSession, SessionRunArgs, SessionRunHook

QUIET = Config(autoload=False, header=False)
NAMES = ("loss", "model.weight", "model.weight:grad", "model:grad_norm", "model:output")


class Due(SessionRunHook):
    """Asks for some values in every third step."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def before_run(self, run_context):
        due = run_context.global_step % 3 == 0
        return SessionRunArgs({name: name for name in self.names}) if due else None


class Copies(TorchDispatchMode):
    """Counts the ops that copy a tensor to the host, as PyTorch dispatches them."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and args[1].device.type == "meta":
            self.copies += 1
            return args[0]  # there is nothing to copy
        return func(*args, **(kwargs or {}))


def train(device: str, each_step) -> None:
    """Train with three hooks that fetch several values each; *each_step* enters a step."""
    model = torch.nn.Linear(4, 2).to(device)
    x = torch.ones(3, 4, device=device)
    hooks = [Due("loss"), Due(*NAMES[:3]), Due(*NAMES)]
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        session.track(model=model)
        for _ in session.iterate(range(6)):
            with each_step(), session.step() as step:
                loss = model(x).square().mean()
                model.zero_grad()
                loss.backward()
                step.report(loss=loss)


def test_a_due_step_asks_once_for_all_values_and_an_idle_step_never(monkeypatch):
    """Each value once, whatever number of hooks wants it."""
    asked = []

    class Step:
        def __enter__(self):
            asked.append([])

        def __exit__(self, *_):
            pass

    moved = values.on_host

    def on_host(given):
        asked[-1].append(len(given))
        return moved(given)

    monkeypatch.setattr(TorchLibrary, "on_host", staticmethod(on_host))
    train("cpu", Step)
    assert asked == [[5], [], [], [5], [], []]


def test_small_values_of_a_device_leave_it_in_one_copy():
    """A device without data still shows which copies are made."""
    tensors = [torch.empty(n, device="meta") for n in (1, 5, 7)]
    tensors.append(torch.empty(3, dtype=torch.int64, device="meta"))
    with Copies() as counted:
        values._transfer(tensors[0].device, tensors)
    assert counted.copies == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_a_due_step_has_one_copy_and_an_idle_step_none():
    """The profiler's own events say so."""
    copies: list[int] = []

    class Step:
        def __enter__(self):
            self.profile = profile(activities=[ProfilerActivity.CUDA])
            self.profile.__enter__()

        def __exit__(self, *error):
            self.profile.__exit__(*error)
            names = [event.name for event in self.profile.events()]
            copies.append(sum("Memcpy DtoH" in name for name in names))

    train("cuda", Step)
    assert copies == [1, 0, 0, 1, 0, 0]
