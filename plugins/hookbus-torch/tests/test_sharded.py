"""Models that FSDP2 shards: each rank saves and restores its own part of them."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hookbus_torch.sharded import KEY, joined
from torch import nn

from hookbus import UsageError, latest_checkpoint, load_tracked
from tests.support.profiles import cases
from tests.support.ranks import RanksRun, kill, run

SCRIPT = Path(__file__).with_name("sharded_training.py")


def trained(ranks: int, folder: Path, *arguments: str) -> RanksRun:
    return run(SCRIPT, ranks, folder, *arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> RanksRun:
    """A run that nothing has interrupted."""
    done = trained(2, tmp_path_factory.mktemp("whole"))
    assert done.code == 0, done.output
    return done


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The directory of a run that ended at step 6."""
    folder = tmp_path_factory.mktemp("saved")
    done = trained(2, folder, "--steps", "6")
    assert done.code == 0, done.output
    return folder / "checkpoints"


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    """A folder with a copy of it."""
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path


@pytest.mark.sampled(1)
@pytest.mark.parametrize("who", cases(["all ranks"], ["all ranks", "one rank"]))
@pytest.mark.parametrize("number", range(cases(1, 10)))
@pytest.mark.parametrize(
    "how", [[], ["--background"]], ids=["at once", "in the background"]
)
def test_killed_and_resumed_each_rank_has_the_same_bits(how, who, number, whole, tmp_path):
    """Its part of the model and of Adam's state, as in a run without a kill."""
    arguments = ["--pause", "0.1", *how]
    kill(who, SCRIPT, 2, tmp_path, arguments, f"{who} {number}", seconds=1.5)
    again = trained(2, tmp_path, *how)
    assert again.of_each("bits") == whole.of_each("bits"), again
    assert len({*again.of_each("bits")}) == 2  # each has a part of its own
    assert "restored path=checkpoints/ckpt-" in again.output


@pytest.mark.long
def test_killed_among_batches_that_add_up_each_rank_has_the_same_bits(tmp_path):
    """Its part of the gradients that were pending is there again."""
    adds_up = ("--accumulate", "4")
    alone = trained(2, tmp_path / "alone", *adds_up)
    arguments = ["--pause", "0.1", *adds_up]
    kill("all ranks", SCRIPT, 2, tmp_path / "cut", arguments, "adds up", seconds=1.5)
    again = trained(2, tmp_path / "cut", *adds_up)
    assert again.of_each("bits") == alone.of_each("bits"), again
    assert "restored path=checkpoints/ckpt-" in again.output


def test_a_checkpoint_has_the_part_of_each_rank(saved):
    """The state of a part is in it as plain data."""
    newest = latest_checkpoint(saved)
    assert newest is not None
    names = {str(path.relative_to(newest.path)) for path in newest.path.rglob("*.*")}
    assert {name for name in names if name.startswith("rank-")} == {
        f"rank-1/{name}" for name in names if "/" not in name and name != "manifest.json"
    }


def test_without_processes_a_model_is_whole(saved):
    """load_tracked() puts the parts of all ranks together, also those of uneven size."""
    state = load_tracked(saved, "model")
    assert [*state] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    weights = json.loads((saved.parent / "rank-0.json").read_text())["weights"]
    assert [value.tolist() for value in state.values()] == weights
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    net.load_state_dict(state)


def test_parts_that_are_missing_are_an_error(saved):
    """Half a model is not a model."""
    with pytest.raises(UsageError, match=r"'optimizer.state.0.exp_avg' is of shape"):
        load_tracked(saved, "optimizer")
    with pytest.raises(
        UsageError, match="'x' is sharded over 2 ranks, and the checkpoint "
    ):
        joined("x", [{KEY: {"ranks": 2}}])


@pytest.mark.long
def test_a_failed_training_leaves_no_checkpoint_of_one_part(tmp_path):
    """The ranks cannot save together after an error, and the part of rank 0 is no model."""
    done = trained(2, tmp_path, "--fails-at", "4")
    assert done.code
    assert not [*(tmp_path / "checkpoints" / "failed").glob("ckpt-*")]
    assert re.search(
        r"the failed session is not saved why=.each rank holds a part of 'model\.0\.",
        done.output,
    )
    again = trained(2, tmp_path / "whole", "--whole", "--fails-at", "4")
    assert again.code
    assert [*(tmp_path / "whole" / "checkpoints" / "failed").glob("ckpt-4")]


def parts_of(placements, mesh, parts):
    """Return the states of all ranks for one tensor of ten numbers."""
    form = {"shape": [10], "placements": placements, "mesh": mesh}
    return [
        {
            "w": torch.tensor(part),
            KEY: {"ranks": len(parts), "values": {"w": {**form, "place": [*place]}}},
        }
        for place, part in parts.items()
    ]


GRID = {(0, 0): [0, 1, 2], (0, 1): [3, 4, 5], (1, 0): [6, 7], (1, 1): [8, 9]}
TWICE = {(0, 0): [*range(5)], (1, 0): [*range(5)], (0, 1): [*range(5, 10)], (1, 1): []}


@pytest.mark.parametrize(
    ("placements", "parts"),
    [
        (["Shard(dim=0)", "Shard(dim=0)"], GRID),
        (["Replicate()", "Shard(dim=0)"], {**TWICE, (1, 1): [*range(5, 10)]}),
    ],
)
def test_parts_on_a_grid_of_ranks_are_put_together(placements, parts):
    """Split twice, or split and copied."""
    assert joined("x", parts_of(placements, [2, 2], parts))["w"].tolist() == [*range(10)]


@pytest.mark.parametrize(
    ("placements", "parts"),
    [
        (["Partial(sum)", "Shard(dim=0)"], GRID),
        (["Shard(dim=0)", "Shard(dim=0)"], TWICE | {(0, 0): [1]}),
    ],
)
def test_parts_that_make_no_whole_are_an_error(placements, parts):
    """Of another kind, or of other sizes."""
    told = r"^'x.w' is of shape \(10,\), placed as .* and cannot be put together without"
    with pytest.raises(UsageError, match=told):
        joined("x", parts_of(placements, [2, 2], parts))


REFUSED = [
    (1, [], "is sharded over 2 ranks in the checkpoint and over 1 here: start it with 2 "),
    (3, [], "2 ranks (torchrun --nproc-per-node 2)"),
    (
        2,
        ["--whole"],
        "is sharded over 2 ranks in the checkpoint, and whole on 2 ranks here",
    ),
    (2, ["--hidden", "6"], "'model.0.weight' is of shape (6, 4), placed as "),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "arguments", "error"), cases([REFUSED[0], REFUSED[3]], REFUSED)
)
def test_parts_fit_only_the_same_ranks(ranks, arguments, error, copy):
    """All ranks say why, none hangs, and none starts with fresh weights."""
    if ranks == 1:  # a process group of one
        done = run(SCRIPT, 1, copy, *arguments, **ALONE)
    else:
        done = trained(ranks, copy, *arguments)
    assert done.code
    assert any(error in each for each in done.of_each("error")), done
    for each in done.of_each("error"):
        assert each.startswith(("CheckpointMismatchError", "PeerFailedError")), done
    assert {*done.of_each("begun")} == {0}


ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "0",
}


@pytest.mark.slow
def test_a_whole_model_does_not_become_parts(tmp_path):
    trained(2, tmp_path, "--whole", "--steps", "3")
    done = trained(2, tmp_path)
    for each in done.of_each("error"):
        assert (
            "'model' is whole in the checkpoint, and sharded over 2 ranks here: start it "
            "without fully_shard(), as it was saved"
        ) in each


class Planted:
    """Leaves a file behind when somebody unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "reason"),
    cases(
        [("rank-1/model.pt", "may be a pickle: a pickle can run any program")],
        [
            ("rank-1/model.pt", "may be a pickle: a pickle can run any program"),
            ("optimizer.pkl", "does not list its file optimizer.pkl"),
            ("rank-1/arrays.safetensors", "rank-1/arrays.safetensors has "),
            ("arrays.safetensors", "its file arrays.safetensors has "),
        ],
    ),
)
def test_a_checkpoint_with_a_planted_pickle_is_refused(name, reason, copy, whole):
    """Nothing opens it, and the training goes on from the checkpoint before."""
    newest, mark = latest_checkpoint(copy / "checkpoints"), copy / "mark"
    assert newest is not None
    assert (newest.path / name).exists() == name.endswith("safetensors")
    (newest.path / name).write_bytes(pickle.dumps(Planted(mark)))
    done = trained(2, copy)
    assert reason in done.output, done
    assert "restored path=checkpoints/ckpt-3 " in done.output
    assert done.of_each("bits") == whole.of_each("bits")
    assert not mark.exists()


def test_a_hook_on_the_chief_alone_cannot_read_a_part_of_each_rank(tmp_path):
    """It would wait for the others for ever, so the first step is refused."""
    done = trained(2, tmp_path, "--reads", "chief")
    assert done.code
    refused = (
        "hook 'reads' takes part on rank 0 only and fetches 'model.0.weight:grad', of "
        "which each rank holds a part: all ranks must read it together. Declare "
        "HookOptions(ranks='all'), or report the value from the loop"
    )
    assert done.left[0]["error"] == f"UsageError: {refused}"
    assert f"rank 0: UsageError: {refused}" in done.left[1]["error"]
    assert done.left[0]["begun"] == 0


def test_a_hook_on_all_ranks_reads_whole_values(tmp_path):
    """Each rank gets the whole array, and the norm of all gradients."""
    done = trained(2, tmp_path, "--reads", "all", "--steps", "3")
    assert done.one("seen") == [[5, 4], True, 0.0], done


@pytest.mark.slow
def test_a_hook_cannot_assign_what_each_rank_holds_a_part_of(tmp_path):
    done = trained(2, tmp_path, "--assigns")
    refused = (
        "writes 'model.0.weight', which cannot be assigned: each rank of the training "
        "holds a part of it"
    )
    for each in done.of_each("error"):
        assert refused in each


def test_what_a_part_belongs_to_is_plain_data(saved):
    newest = latest_checkpoint(saved)
    assert newest is not None
    text = json.loads((newest.path / "rank-1" / "state.json").read_text())
    assert "Shard(dim=0)" in json.dumps(text)
