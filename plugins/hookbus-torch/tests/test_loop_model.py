"""Hooks are tested with a PyTorch model: in the conformance suite, and in run_steps."""

from __future__ import annotations

import pytest
import torch
from hookbus_gradient_clipping import GradientClippingHook
from hookbus_torch.loop_model import TorchLoopModel

from hookbus.errors import NoValueYetError
from hookbus.testing import run_steps
from tests.support.suites import results_of
from tests.support.wanting import Wants

HOOKS = {
    "hookbus_gradient_clipping:GradientClippingHook": ["norm=0.1"],
    "hookbus_monitor:MonitorHook": ["names=model:grads", "every_n_steps=2"],
    "hookbus_weight_average:WeightAverageHook": ["decay=0.5"],
}
"""Hooks to their settings, each of which needs a model of PyTorch."""
FAULTY = """
from hookbus import SessionRunArgs, SessionRunHook

class ScalarHook(SessionRunHook):
    def before_run(self):
        return SessionRunArgs("model.0.weight:grad")

    def after_run(self, run_values):
        self.seen = float(run_values.results)

class ForgetfulHook(SessionRunHook):
    total = 0.0

    def before_run(self):
        return SessionRunArgs("model:grad_norm")

    def after_run(self, run_values):
        self.total += float(run_values.results)

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        pass
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_for_pytorch_passes_the_suite(hook):
    """It acts on what the model has, in each session, and resumes from a checkpoint."""
    settings = [f"--hook-setting={setting}" for setting in HOOKS[hook]]
    options = "--hook-backend", "torch", "-W", "error"
    (found,) = results_of("conformance", "--hook", hook, *settings, *options).values()
    assert found["failed"] == {}
    assert {"test_it_survives", "test_it_cleans_up"} <= found["passed"].keys()


def test_a_faulty_hook_for_pytorch_is_found_out(fake_dist):
    """The suite names the rule that each breaks."""
    fake_dist("faulty", {}, modules={"faulty": FAULTY})
    hooks = "--hook=faulty:ScalarHook", "--hook=faulty:ForgetfulHook"
    results = results_of("conformance", *hooks, "--hook-backend", "torch")
    assert results["ForgetfulHook"]["failed"].keys() == {"test_it_goes_on_where_it_stopped"}
    told = results["ScalarHook"]["failed"]["test_it_survives"]
    assert "after_run() raised TypeError: only 0-dimensional arrays" in told
    assert "faulty.py:9" in told


def test_both_backends_are_tested_in_one_run(fake_dist):
    """A hook that needs the model fails on a graph, which does not have one."""
    fake_dist("wanting", {}, modules={"wanting": FAULTY})
    backends = "--hook-backend=torch", "--hook-backend=graph"
    chosen = "-k", "completed and custom_loop"
    results = results_of("conformance", "--hook=wanting:ForgetfulHook", *backends, *chosen)
    (found,) = results.values()
    assert "'model:grad_norm'" in found["failed"]["test_it_survives"]


def test_a_step_has_the_names_of_a_model():
    """`run_steps` trains it, and other values are those that the test gives."""
    hook = Wants({"loss": "loss", "grads": "model:grads", "a": "accuracy", "w": "w"})
    steps = run_steps(hook, steps=2, backend="torch")
    assert steps.variables == {"w": 3.0}
    first, second = hook.seen
    assert first["grads"].keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert (first["a"], second["a"]) == (0.0, 0.5)
    assert first["loss"] == pytest.approx(TorchLoopModel().evaluate(1.0)["loss"].item())


def test_a_hook_changes_what_the_model_computes():
    """Wraps of gradients are in effect."""
    hook = Wants("model:grad_norm")
    run_steps(GradientClippingHook(norm=0.01), hook, steps=1, backend="torch")
    assert hook.seen == [pytest.approx(0.01, rel=1e-3)]


def test_an_evaluation_computes_the_loss_and_no_gradients():
    """Evaluations inside a run, and sessions that only evaluate."""
    hook = Wants(["loss", "model:grad_norm"], "skip")
    run_steps(hook, steps=1, backend="torch", evaluates=True)
    with pytest.raises(NoValueYetError):
        run_steps(Wants("model:grad_norm"), steps=1, backend="torch", kind="eval")


def test_making_the_model_draws_no_number():
    """Each new model is equal, and the program's generator stays as it is."""
    state = torch.random.get_rng_state()
    one, other = (TorchLoopModel().objects["model"].state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), state)
