"""reduce-lr-on-plateau decides like the class of PyTorch, after any values and settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookbus import Config, MonitoredSession
from tests.support.profiles import examples

QUIET = Config(autoload=False, header=False)
FIRST = 1.0

# Few different values, so that many are equal or just about a threshold apart.
values = st.one_of(
    st.sampled_from([1.0, 0.9999, 0.5, 2.0, 0.0, -0.0, -1.0, -1.0001]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.floats(),
)
arguments = st.fixed_dictionaries(
    {
        "factor": st.sampled_from([0.1, 0.5, 0.9, 1 - 1e-9]),
        "patience": st.integers(0, 3),
        "threshold": st.one_of(
            st.sampled_from([0.0, 1e-4, 0.5, 1.0, 2.0]), st.floats(0, 9)
        ),
        "cooldown": st.integers(0, 3),
        "min_lr": st.sampled_from([0.0, 1e-3, 0.25, FIRST, 2 * FIRST]),
    }
)


def optimizer_of(groups: int = 1) -> Any:
    each = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
    for number, group in enumerate(each):
        group["lr"] = FIRST / 2**number
    return torch.optim.SGD(each)


def rates_in(optimizer: Any) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def rates_of_torch(
    found: Sequence[float], higher: bool, groups: int, **more: Any
) -> list[list[float]]:
    """Return the learning rates after each value, with the class of PyTorch."""
    optimizer = optimizer_of(groups)
    mode = "max" if higher else "min"
    scheduler = ReduceLROnPlateau(optimizer, mode, threshold_mode="rel", **more)
    rates = []
    for value in found:
        scheduler.step(value)
        rates.append(rates_in(optimizer))
    return rates


def rates_of_hook(
    found: Sequence[float], higher: bool, groups: int, evaluates: bool, **more: Any
) -> list[list[float]]:
    """Return the learning rates after each value, that of a step or an evaluation."""
    optimizer, rates = optimizer_of(groups), []
    watched = "" if evaluates else None
    hook = ReduceLROnPlateauHook("loss", watched, 1, higher_is_better=higher, **more)
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(optimizer=optimizer)
        for value in found:
            with session.step() as step:
                step.report(loss=1.0 if evaluates else value)
            if evaluates:
                with session.evaluation() as evaluation:
                    evaluation.report(loss=value)
            rates.append(rates_in(optimizer))
    return rates


@pytest.mark.parametrize("evaluates", [False, True])
@settings(max_examples=examples(400))
@given(
    found=st.lists(values, min_size=1, max_size=16),
    higher=st.booleans(),
    groups=st.integers(1, 3),
    more=arguments,
)
def test_the_rates_are_those_of_pytorch(evaluates, found, higher, groups, more):
    """Bit for bit, also if values are NaN or infinite, and for each group of parameters."""
    expected = rates_of_torch(found, higher, groups, **more)
    assert rates_of_hook(found, higher, groups, evaluates, **more) == expected
