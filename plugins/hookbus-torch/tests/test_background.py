"""Checkpoints of tensors are written in the background, from a copy on the CPU."""

from __future__ import annotations

import pytest
import torch
from hookbus_torch.library import TorchLibrary

from hookbus import CheckpointError, Config, MonitoredTrainingSession, load_tracked

LIBRARY = TorchLibrary()
TENSORS = {
    "float32": lambda: torch.arange(6.0).reshape(2, 3),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "bfloat16": lambda: torch.arange(6.0).bfloat16(),
    "float8": lambda: torch.arange(6.0).to(torch.float8_e4m3fn),
    "conjugated": lambda: torch.arange(6.0).to(torch.complex64).mul(1 + 2j).conj(),
    "negated": lambda: torch.arange(6.0).to(torch.complex64).mul(1j).conj().imag,
    "expanded": lambda: torch.arange(3.0).expand(2, 3),
    "without axes": lambda: torch.tensor(3),
    "empty": lambda: torch.zeros(0, 3),
    "bool": lambda: torch.tensor([True, False]),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3)),
}


def content(tensor):
    packed = LIBRARY.pack(tensor)
    return packed.dtype, packed.shape, packed.data().tobytes()


@pytest.mark.parametrize("kind", TENSORS)
def test_a_copy_has_the_bytes_of_the_tensor_and_remains_as_it_is(kind):
    """Also in the memory of an earlier copy, which is used again."""
    tensor = TENSORS[kind]()
    before = content(tensor)
    copied = LIBRARY.copied(tensor)
    again = LIBRARY.copied(tensor, LIBRARY.copied(torch.zeros_like(tensor)))
    assert content(copied) == content(again) == before
    if kind != "expanded":
        with torch.no_grad():
            tensor.zero_()
    assert content(copied) == content(again) == before


def test_the_memory_of_a_copy_is_used_again_for_a_tensor_of_its_form():
    """Fresh memory takes longer than the copy itself."""
    first = LIBRARY.copied(torch.zeros(3))
    assert LIBRARY.copied(torch.ones(3), first) is first
    assert first.tolist() == [1, 1, 1]
    for other in (torch.ones(4), torch.ones(3).double(), torch.ones(3, 1)):
        assert LIBRARY.copied(other, first) is not first


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_a_tensor_that_cannot_be_saved_is_refused_as_ever(kind):
    """By the codec, with the reason."""
    tensor = torch.eye(2).to_sparse() if kind == "sparse" else torch.empty(2, device="meta")
    with pytest.raises(CheckpointError, match="cannot be saved"):
        LIBRARY.pack(LIBRARY.copied(tensor))


def test_each_checkpoint_has_the_weights_and_the_moments_of_its_step(tmp_path):
    """The optimizer changes them in place while the thread writes."""
    torch.manual_seed(0)
    net = torch.nn.Linear(400, 400)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    expected = {}
    config = Config(autoload=False).with_options(
        "checkpoint-saver", save_steps=2, background=True, max_to_keep=0
    )
    with MonitoredTrainingSession(checkpoint_dir=tmp_path, config=config) as session:
        session.track(net=net, optimizer=optimizer)
        for x in session.iterate(torch.randn(9, 400)):
            with session.step():
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
            moments = optimizer.state[net.weight]["exp_avg"].clone()
            expected[session.global_step] = net.weight.detach().clone(), moments
    for step in (2, 4, 6, 8, 9):
        path = tmp_path / f"ckpt-{step}"
        weight, moments = expected[step]
        assert torch.equal(load_tracked(path, "net")["weight"], weight)
        saved = load_tracked(path, "optimizer")["state"][0]["exp_avg"]
        assert torch.equal(saved, moments)
