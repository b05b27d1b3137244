"""Runs PyTorch scripts that know nothing of hookbus under ``--attach torch``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hookbus_gradient_clipping import GradientClippingHook
from hookbus_torch.attaching import ScriptAdapter
from torch import nn

from hookbus import Config, Due, SessionRunArgs, SessionRunHook, UsageError, hookimpl
from tests.support import commands
from tests.support.profiles import FULL
from tests.support.zoo import Run, by_hand
from tests.support.zoo_torch import TRAININGS, WITH_WORKERS, aside

OFF = Config(autoload=False, header=False)


class LookHook(SessionRunHook):
    """Notes values of each step."""

    def __init__(self, *names: str) -> None:
        self.names, self.seen = names, list[Any]()

    def before_run(self):
        return SessionRunArgs(list(self.names))

    def after_run(self, run_context, run_values):
        values = [each.tolist() for each in map(np.asarray, run_values.results)]
        self.seen.append((run_values.global_step, *values))


@attrs.define(eq=False)
class StopHook(SessionRunHook):
    """Stops after a step."""

    at: int

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        """Wait for the step."""
        return Due(step=self.at)

    def after_run(self, run_context, run_values):
        if run_values.global_step >= self.at:
            run_context.request_stop("enough")


def watched(script: Any, *hooks: Any) -> ScriptAdapter:
    """Run a function as a script; return the adapter."""
    adapter = ScriptAdapter(hooks, config=OFF)
    with adapter, adapter.watching():
        script()
    return adapter


def data() -> tuple[Any, Any]:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


def loss_of(model: nn.Module, x: Any, y: Any) -> Any:
    return nn.functional.mse_loss(model(x), y)


@pytest.mark.parametrize("name", [n for n in TRAININGS if FULL or n not in WITH_WORKERS])
def test_a_script_computes_what_it_computes_without_hooks(
    name: str, tmp_path: Path
) -> None:
    """Weights, generators, optimizers and printed lines, bit for bit."""
    places = [tmp_path / each for each in ("alone", "watched")]
    for place in places:
        place.mkdir()
    run = Run(aside=aside)
    alone = by_hand(TRAININGS[name], run, places[0])
    seen = places[1] / "seen.json"

    def training(run: Run) -> Any:
        look, returned = LookHook("loss"), list[Any]()
        watched(lambda: returned.append(TRAININGS[name](run)), look)
        seen.write_text(json.dumps(look.seen))
        return returned[0]

    assert by_hand(training, run, places[1]) == alone
    steps = json.loads(seen.read_text())
    assert len(steps) >= 12 or name in ("lbfgs", "accumulating", "accelerated")
    assert [step for step, _ in steps] == [*range(1, len(steps) + 1)]


def test_the_loss_is_what_backward_was_called_on() -> None:
    """Parameters, gradients, rates and outputs have names, from the first step on."""
    x, y = data()
    losses = []

    def script() -> None:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            losses.append([loss.item(), optimizer.param_groups[0]["lr"]])
            optimizer.step()

    look = LookHook(
        "loss", "optimizer.lr", "model.1.bias:grad", "model:output", "model.1.bias"
    )
    adapter = watched(script, look)
    assert [[*each[1:3]] for each in look.seen] == losses
    assert all(len(each[4]) == 32 for each in look.seen)
    assert adapter.outcome is not None
    assert (adapter.outcome.kind, adapter.outcome.step) == ("completed", 3)


def test_the_losses_of_an_accumulated_update_are_added() -> None:
    """The script has divided them by their number."""
    x, y = data()

    def script() -> None:
        torch.manual_seed(1)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for number in range(8):
            (loss_of(model, x[number % 4 :: 4], y[number % 4 :: 4]) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        whole.append(loss_of(model, x, y).item())

    whole: list[float] = []
    look = LookHook("loss")
    watched(script, look)
    assert [step for step, _ in look.seen] == [1, 2]
    assert [loss for _, loss in look.seen] == pytest.approx([whole[0]] * 2)


def test_the_loss_of_a_scaler_is_the_one_that_it_scales() -> None:
    """GradScaler multiplies it by thousands."""
    x, y = data()
    losses = []

    def script() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    look = LookHook("loss")
    watched(script, look)
    assert [loss for _, loss in look.seen] == losses


def test_a_step_of_two_optimizers_is_one_of_each() -> None:
    """Modules and optimizers have the names of the script's variables."""
    noise = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))

    def script() -> None:
        maker, critic = nn.Linear(2, 4), nn.Linear(4, 1)
        critic_step = torch.optim.SGD(critic.parameters(), lr=0.1)
        maker_step = torch.optim.SGD(maker.parameters(), lr=0.2)
        for _ in range(4):
            for _ in range(2):
                critic_step.zero_grad()
                critic(maker(noise).detach()).mean().backward()
                critic_step.step()
            maker_step.zero_grad()
            (-critic(maker(noise)).mean()).backward()
            maker_step.step()

    names = "critic_step.lr", "maker_step.lr", "maker.bias", "critic.weight:grad"
    look = LookHook(*names)
    adapter = watched(script, look)
    assert [each[:3] for each in look.seen] == [(n, 0.1, 0.2) for n in range(1, 5)]
    assert adapter.outcome is not None
    assert adapter.outcome.step == 4


def test_the_calls_of_a_closure_are_one_loss() -> None:
    """LBFGS computes it many times in a step; the first one is that of the step."""
    x, y = data()
    firsts: list[float] = []

    def script() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
        for _ in range(3):
            calls: list[float] = []

            def closure(calls: list[float] = calls) -> Any:
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                calls.append(loss.item())
                loss.backward()
                return loss

            optimizer.step(closure)
            firsts.append(calls[0])

    look = LookHook("loss")
    watched(script, look)
    assert [loss for _, loss in look.seen] == firsts


def test_a_hook_may_change_the_gradients() -> None:
    """Clipping equals that of the script, bit for bit."""
    x, y = data()
    ends: list[list[Any]] = []

    def script(clips: bool = False) -> None:
        torch.manual_seed(1)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        ends.append([p.tolist() for p in model.parameters()])

    script(clips=True)
    watched(script, GradientClippingHook(0.5))
    script()
    assert ends[0] == ends[1] != ends[2]


def test_an_optimizer_that_does_no_step_is_not_waited_for() -> None:
    """The first step ends when the other one has done more than twenty."""
    x, y = data()

    def script() -> None:
        model, other = nn.Linear(4, 1), nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        unused = torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(25):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        assert unused.state == {}

    adapter = watched(script)
    assert adapter.outcome is not None
    assert adapter.outcome.step == 5


def test_a_stop_leaves_the_script_at_that_step() -> None:
    """The rest of the script does not run, and its hooks are gone."""
    x, y = data()
    done: list[int] = []

    def script() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(9):
            loss_of(model, x, y).backward()
            optimizer.step()
            done.append(number)

    adapter = watched(script, StopHook(3))
    assert done == [0, 1]
    assert adapter.outcome is not None
    assert (adapter.outcome.kind, adapter.outcome.who) == ("stopped", "stop")
    done.clear()
    script()
    assert len(done) == 9


def test_an_error_of_the_script_reaches_the_hooks() -> None:
    """It leaves the block as it is."""
    told: list[str] = []

    class Told(SessionRunHook):
        @hookimpl
        def on_exception(self, exception, outcome):
            told.append(f"{outcome.kind}: {exception}")

    def script() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        raise ValueError("of the script")

    with pytest.raises(ValueError, match=r"^of the script$"):
        watched(script, Told())
    assert told == ["failed: of the script"]


class Wants(SessionRunHook):
    """Asks for what only a loop can do."""

    def __init__(self, what: str) -> None:
        self.what = what

    def begin(self, checkpoints):
        if self.what == "save":
            checkpoints.enable()

    def before_run(self, run_context):
        if self.what == "skip":
            run_context.skip_update()
        return SessionRunArgs(None, {"loss": 0.0}) if self.what == "feed" else None

    def after_run(self, run_context):
        run_context.request_rollback("a spike")


@pytest.mark.parametrize("what", ["save", "skip", "feed", "rollback"])
def test_what_needs_the_loop_is_refused_with_the_lines_that_bring_it(what: str) -> None:
    """The script has done no step by then, or its first one."""

    def script() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    with pytest.raises(UsageError, match=r"(?s)it needs the loop; .*session\.iterate"):
        watched(script, Wants(what))


SCRIPT = """
import os, signal, sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(1, 9):
    optimizer.zero_grad()
    loss = net(torch.ones(2, 4)).square().mean()
    loss.backward()
    if step == 5 and "terminated" in sys.argv:
        os.kill(os.getpid(), signal.SIGTERM)
    optimizer.step()
    print(step, float(loss), flush=True)
"""


def run(*words: str, after: tuple[str, ...] = ()) -> Any:
    """Run the script with the command; return what it has printed, and its exit code."""
    Path("train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hookbus", "run", *words, "train.py", *after]
    return commands.run_new(command, timeout=120)


def test_the_command_attaches_to_a_script() -> None:
    """It prints what Python prints, and writes what TensorBoard shows."""
    done = run("--attach", "torch", "--summary-saver-output-dir", "logs")
    assert done.returncode == 0, done.stderr
    assert done.stdout == commands.run_new([sys.executable, "train.py"]).stdout
    assert [*Path("logs").glob("events.out.tfevents.*")]
    Path("hookbus.toml").write_text('attach = ["torch"]\nplugins = ["nan-tensor"]\n')
    assert "nan-tensor" in run("--stop-at-step", "3").stderr


def test_a_stop_of_a_flag_ends_the_script_well() -> None:
    """The exit code is 0, as at any stop of a hook."""
    done = run("--attach", "torch", "--stop-at-step", "3")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2), done.stderr
    assert "kind=stopped who=stop-at-step" in done.stderr


def test_sigterm_ends_the_script_behind_its_step() -> None:
    """Nothing was saved, so the exit code does not promise that it resumes."""
    done = run("--attach", "torch", after=("terminated",))
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 4), done.stderr
    assert "preempted, and nothing was saved" in done.stderr


def test_an_unknown_name_lists_those_that_are_installed() -> None:
    """The script does not run."""
    done = run("--attach", "trch")
    assert (done.returncode, done.stdout) == (4, "")
    assert (
        "no distribution that is installed attaches to 'trch'; did you mean 'torch'?"
        in (done.stderr)
    )


def test_a_script_without_an_optimizer_is_told() -> None:
    """It runs as it is."""
    Path("train.py").write_text("print('hello')\n")
    words = ["-m", "hookbus", "run", "--attach", "torch", "train.py"]
    done = commands.run_new([sys.executable, *words])
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "trained nothing that hookbus could watch" in done.stderr
