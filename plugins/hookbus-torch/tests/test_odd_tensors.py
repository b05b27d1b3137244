"""Tests hooks that look for NaN on tensors that PyTorch itself cannot compare."""

from __future__ import annotations

import math

import pytest
import torch
from hookbus_nan_tensor import NanLossDuringTrainingError, NanTensorHook
from hookbus_spike_rollback import SpikeRollbackHook

import hookbus
from hookbus import MonitoredTrainingSession, UsageError

OFF = hookbus.Config(autoload=False)
KINDS = {
    "sparse": lambda fill: torch.full((3, 3), fill).to_sparse(),
    "sparse rows": lambda fill: torch.full((3, 3), fill).to_sparse_csr(),
    "sparse number": lambda fill: torch.tensor(fill).to_sparse(),
    "float8": lambda fill: torch.full((3,), fill).to(torch.float8_e4m3fn),
    "bfloat16": lambda fill: torch.full((3,), fill).to(torch.bfloat16),
    "complex half": lambda fill: torch.full((3,), fill).to(torch.complex32),
    "complex": lambda fill: torch.full((3,), fill * 1j),
    "complex number": lambda fill: torch.tensor(complex(fill)),
}


def report(hook, **values):
    """Report values in one step."""
    with (
        MonitoredTrainingSession(hooks=[hook], config=OFF) as session,
        session.step() as step,
    ):
        step.report(**values)


@pytest.mark.filterwarnings("ignore:Sparse|ComplexHalf")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [True, False])
def test_nan_is_found_in_a_tensor_of_any_kind(kind, named):
    """Whether the value is named or all are watched; a tensor without NaN passes."""
    hook = NanTensorHook("loss") if named else NanTensorHook()
    report(hook, loss=KINDS[kind](1.0))
    with pytest.raises(NanLossDuringTrainingError, match="loss is NaN at step 1"):
        report(hook, loss=KINDS[kind](math.nan))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("named", [True, False])
def test_a_tensor_that_no_array_can_hold_is_told_with_what_to_report(named):
    """The message is that of every other hook which asks for it."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(
        UsageError, match=r"a hook asks for a nested tensor.*report tensor\."
    ):
        report(NanTensorHook("loss") if named else NanTensorHook(), loss=nested)


@pytest.mark.filterwarnings("ignore:Sparse|ComplexHalf")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [NanTensorHook, SpikeRollbackHook])
def test_a_save_is_refused_for_nan_in_a_tensor_of_any_kind(kind, make):
    """Weights and buffers may be of such a kind; one without NaN is no reason."""
    hook = make("loss", fail_on_nan_loss=False) if make is NanTensorHook else make()
    given = {"global_step": 1, "run_context": None} if make is NanTensorHook else {}
    assert hook.veto_save({"w": KINDS[kind](1.0)}, **given) is None
    assert "variable w holds NaN" in hook.veto_save({"w": KINDS[kind](math.nan)}, **given)
