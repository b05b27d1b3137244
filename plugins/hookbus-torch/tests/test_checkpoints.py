"""Tests that checkpoints hold tensors natively, and give them back bit for bit."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch
from hookbus_safetensors import SafetensorsCodec
from hookbus_torch.values import DTYPES
from safetensors.torch import load_file

from hookbus import (
    CheckpointError,
    CheckpointFiles,
    Config,
    MonitoredTrainingSession,
    PluginError,
    SessionRunHook,
    hookimpl,
)
from tests.support.forging import forge_state
from tests.support.in_process import run_here

NATIVE = [
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
]
OTHERS = ["complex64", "complex128", "float8_e4m3fnuz", "uint16"]


def bits(tensor):
    """Return the bytes of a tensor in C order."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", [*NATIVE, *OTHERS])
def test_every_tensor_comes_back_and_other_tools_read_it(dtype, tmp_path):
    """Parameters, and tensors of any shape and layout, keep dtype, shape and bits."""
    numbers = torch.arange(24).reshape(4, 6).to(DTYPES[dtype])
    tensors = {
        "whole": numbers,
        "transposed": numbers.T,
        "strided": numbers[::2, 1::2],
        "scalar": numbers[1, 1],
        "empty": numbers[:0],
    }
    if numbers.is_floating_point():
        tensors["parameter"] = torch.nn.Parameter(numbers.clone())
    SafetensorsCodec().write({"model": tensors}, CheckpointFiles(tmp_path))
    again = SafetensorsCodec().read(tmp_path)["model"]
    native = load_file(tmp_path / "arrays.safetensors")
    for name, tensor in tensors.items():
        assert (again[name].dtype, again[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(again[name]) == bits(tensor)
        if dtype in NATIVE:
            other = native[f"/model/{name}"]
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape)
            assert bits(other) == bits(tensor)


@pytest.mark.parametrize(
    "forged",
    [{"dtype": "qint8"}, {"dtype": "float3"}, {"shape": [2**40]}, {"shape": [-1]}],
    ids=str,
)
def test_a_forged_tensor_makes_a_checkpoint_bad(forged, tmp_path):
    """The one before it is used. PyTorch ends the process for some of these."""

    def train() -> int:
        with MonitoredTrainingSession(
            checkpoint_dir=tmp_path,
            save_checkpoint_steps=1,
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=Config(autoload=False),
        ) as session:
            session.track(model=torch.nn.Linear(2, 1))
            before = session.global_step
            for _ in session.iterate(range(2)):
                with session.step():
                    pass
        return before

    assert train() == 0
    forge_state(
        tmp_path / "ckpt-2",
        lambda tree: tree["tracked"]["model"]["weight"].update(forged),
    )
    assert train() == 1


def test_a_tensor_that_cannot_be_saved_is_named_by_its_place(tmp_path):
    """The error tells the place in the state, and why."""
    state = {"tracked": {"model": {"w": torch.eye(2).to_sparse()}}}
    with pytest.raises(CheckpointError, match=r"^/tracked/model/w: a tensor is sparse_coo"):
        SafetensorsCodec().write(state, CheckpointFiles(tmp_path))


@pytest.mark.parametrize("changes", [True, False])
def test_a_hook_that_changes_the_tensors_it_is_shown_ends_the_session(changes, tmp_path):
    """``veto_save`` is to look at the values of the training, which goes on with them."""

    class Looking(SessionRunHook):
        @hookimpl
        def veto_save(self, values):
            weight = values["model.weight"]
            if changes:
                weight.mul_(2)
            else:
                weight.clone().mul_(2)

    model = torch.nn.Linear(1, 1)
    config = Config(autoload=False, header=False)
    session = MonitoredTrainingSession(
        checkpoint_dir=tmp_path, hooks=[Looking()], config=config
    )
    message = "veto_save() of 'looking' has changed 'model.weight', with which the training"
    refused = pytest.raises(PluginError, match=re.escape(message))
    with refused if changes else contextlib.nullcontext(), session:
        session.track(model=model)
        with session.step():
            pass


def test_two_checkpoints_are_compared_value_by_value(tmp_path):
    """Also numbers of a dtype that NumPy lacks, by their largest difference."""
    model, half = torch.nn.Linear(2, 1), torch.zeros(4, dtype=torch.bfloat16)
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path,
        save_checkpoint_steps=1,
        config=Config(autoload=False, header=False),
    ) as session:
        session.track(model=model, half=half)
        with session.step():
            half[1:] += 2.5
            with torch.no_grad():
                model.bias += 1
    code, shown = run_here(["checkpoints", str(tmp_path), "diff", "0", "1"])
    rows = [line.split(maxsplit=2) for line in shown.splitlines()[2:]]
    assert code == 1
    assert [row for row in rows if row[0] == "tracked"] == [
        ["tracked", "model.bias", "1 of 1 elements, by up to 1"],
        ["tracked", "half", "3 of 4 elements, by up to 2.5"],
    ]
