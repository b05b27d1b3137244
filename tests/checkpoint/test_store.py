"""The directory that checkpoints lie in: what is found, set aside, replaced and pruned."""

from __future__ import annotations

import os
import shutil
import sys

import attrs
import pytest

import hookbus
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from tests.support.stored import write


@pytest.fixture
def store(tmp_path):
    """A store in a folder that does not exist yet."""
    return Store(tmp_path / "runs" / "mine")


def put(store, step, content="content"):
    """Write a checkpoint that holds one file."""

    def fill(files):
        with files.open("file") as file:
            file.write(content.encode())

    return write(store, Manifest(step, "codec", "who", "why", {}, {}), fill)


def replacing(store):
    """Leave what a crash leaves after the second rename of a replacement."""
    put(store, 3, "new").rename(store.directory / "aside")
    put(store, 3, "old").rename(store.directory / "ckpt-3.old")
    (store.directory / "aside").rename(store.directory / "ckpt-3")


def steps(store):
    """Return the steps of the good checkpoints, the newest first; set the others aside."""
    good = []
    for found in store.found():
        try:
            good.append(found.manifest().global_step)
        except hookbus.errors.NoGoodCheckpointError as error:
            store.set_aside(found.path, str(error))
    return good


def test_a_checkpoint_is_a_directory_named_after_its_step(store):
    """The new contents lie in ckpt-STEP with a manifest, and nothing else does."""
    path = put(store, 7)
    assert path == store.directory / "ckpt-7"
    assert sorted(p.name for p in path.iterdir()) == ["file", "manifest.json"]
    assert [p.name for p in store.directory.iterdir()] == ["ckpt-7"]


def test_the_newest_is_the_one_of_the_highest_step(store):
    """Steps are compared as numbers, whatever the order of writing."""
    for step in (9, 100, 10):
        put(store, step)
    assert steps(store) == [100, 10, 9]


@pytest.mark.parametrize(
    "name",
    [
        "ckpt-",
        "ckpt-x",
        "ckpt-03",
        "ckpt-\u0663",
        "ckpt-3.tmp-1",
        "ckpt-3.gone-1",
        "my-ckpt-3",
        "ckpt-3.bad",
    ],
)
def test_other_names_are_no_checkpoints(name, store):
    """Whatever is called otherwise is never read."""
    put(store, 3).rename(store.directory / name)
    assert steps(store) == []


def test_an_empty_place_has_no_checkpoints(store):
    """A directory that does not exist is looked at without an error, and not made."""
    assert store.found() == []
    assert not store.had_any()
    assert not store.directory.exists()


def test_a_replaced_checkpoint_has_the_new_content(store):
    """A second write of a step takes the place of the first; no copy stays."""
    put(store, 3, "old")
    put(store, 3, "new")
    assert (store.directory / "ckpt-3" / "file").read_text() == "new"
    assert [p.name for p in store.directory.iterdir()] == ["ckpt-3"]


def test_one_that_was_being_replaced_is_accepted(store):
    """ckpt-STEP.old stands in where a crash came before the new one was in place."""
    put(store, 3).rename(store.directory / "ckpt-3.old")
    put(store, 2)
    assert steps(store) == [3, 2]


def test_the_new_one_comes_before_the_one_it_replaces(store):
    """Where both are there, ckpt-STEP is the newer."""
    replacing(store)
    assert [found.path.name for found in store.found()] == ["ckpt-3", "ckpt-3.old"]


def test_a_bad_one_is_reported_and_set_aside(store, capsys):
    """It is renamed, so that nobody takes it for good, and the log says why."""
    path = put(store, 3)
    put(store, 2)
    (path / "file").write_text("altered")
    assert steps(store) == [2]
    assert (store.directory / "ckpt-3.bad" / "file").read_text() == "altered"
    told = capsys.readouterr().err
    assert "bad checkpoint" in told
    assert "hash differs" in told
    assert str(store.directory / "ckpt-3.bad") in told


def test_bad_ones_of_one_step_do_not_overwrite_each_other(store):
    """Each bad checkpoint is kept under its own name, so that it can be examined."""
    for content in ("one", "two", "three"):
        (put(store, 3) / "file").write_text(content)
        assert steps(store) == []
    kept = {p.name: (p / "file").read_text() for p in store.directory.iterdir()}
    assert kept == {"ckpt-3.bad": "one", "ckpt-3.bad-2": "two", "ckpt-3.bad-3": "three"}
    assert store.had_any()


def test_a_bad_old_one_is_set_aside_too(store):
    """The one that was being replaced is proved like any other."""
    path = put(store, 3).rename(store.directory / "ckpt-3.old")
    (path / "manifest.json").unlink()
    assert steps(store) == []
    assert (store.directory / "ckpt-3.old.bad").is_dir()
    assert store.had_any()


def test_a_file_in_the_place_of_a_checkpoint_is_bad(store):
    """ckpt-STEP that is no directory is reported like any bad one."""
    put(store, 2)
    (store.directory / "ckpt-3").write_text("what is this?")
    assert steps(store) == [2]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_while_writing_leaves_what_was_there(error, store):
    """A writer may fail in any way: nothing of the checkpoint stays."""
    put(store, 3, "old")

    def fill(files):
        with files.open("half") as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        write(store, Manifest(3, "codec", "who", "why", {}, {}), fill)
    assert [p.name for p in store.directory.iterdir()] == ["ckpt-3"]
    assert (store.directory / "ckpt-3" / "file").read_text() == "old"


def test_a_disk_that_refuses_is_a_checkpoint_error(store):
    """The error names the step, the place and the reason, and what is still there."""
    put(store, 3)

    def fill(files):
        raise OSError(28, "No space left on device")

    with pytest.raises(hookbus.CheckpointError, match=r"step 4 .*No space.* still there"):
        write(store, Manifest(4, "codec", "who", "why", {}, {}), fill)
    assert steps(store) == [3]


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_pruning_keeps_the_newest(keep, store):
    """All but the newest are removed, whole."""
    paths = [put(store, step) for step in range(4)]
    store.prune(keep, paths[-1])
    assert steps(store) == [3, 2, 1, 0][:keep]
    assert len(list(store.directory.iterdir())) == min(keep, 4)


def test_pruning_never_removes_the_one_just_written(store):
    """It stays though its step is the lowest, as after a start from an older one."""
    for step in (10, 11, 12):
        put(store, step)
    store.prune(2, put(store, 3))
    assert steps(store) == [12, 11, 3]


def test_pruning_leaves_alone_what_is_no_checkpoint(store):
    """Bad ones and foreign files are not removed."""
    path = put(store, 1)
    (put(store, 0) / "file").unlink()
    assert steps(store) == [1]
    (store.directory / "notes.txt").write_text("mine")
    store.prune(1, path)
    kept = sorted(p.name for p in store.directory.iterdir())
    assert kept == ["ckpt-0.bad", "ckpt-1", "notes.txt"]


def test_the_only_copy_of_a_step_counts_as_one_that_is_kept(store):
    """ckpt-STEP.old is as good as ckpt-STEP where that is missing."""
    put(store, 3).rename(store.directory / "ckpt-3.old")
    newest = put(store, 4)
    store.prune(2, newest)
    assert steps(store) == [4, 3]


def test_preparing_makes_the_directory(store):
    """A session that will save makes the place before its first step."""
    store.prepare()
    assert store.directory.is_dir()
    assert list(store.directory.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_every_directory_that_is_made_is_synced(tmp_path, monkeypatch):
    """A crash of the machine does not lose a new directory, nor those above it."""
    synced = []
    fsync = os.fsync

    def note(descriptor):
        synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    Store(tmp_path / "runs" / "far" / "mine").prepare()
    assert synced == [str(tmp_path / each) for each in ("", "runs", "runs/far")]


def test_clearing_removes_the_manifest_that_was_not_finished(store):
    """A crash while the end was being recorded leaves it in the checkpoint."""
    (put(store, 3) / "manifest.json.tmp").write_text("{")
    store.clear()
    assert sorted(p.name for p in (store.directory / "ckpt-3").iterdir()) == [
        "file",
        "manifest.json",
    ]
    assert steps(store) == [3]


@pytest.mark.parametrize("there", ["nothing", "a bad one", "a good one"])
def test_clearing_ends_an_interrupted_replacement(there, store):
    """The one that was being replaced goes only if the new one is good."""
    replacing(store)
    if there == "nothing":
        shutil.rmtree(store.directory / "ckpt-3")
    if there == "a bad one":
        (store.directory / "ckpt-3" / "file").write_text("???")
    store.clear()
    expected = {"ckpt-3": "new" if there == "a good one" else "old"}
    if there == "a bad one":
        expected["ckpt-3.bad"] = "???"
    left = {p.name: (p / "file").read_text() for p in store.directory.iterdir()}
    assert left == expected


def test_clearing_leaves_a_replacement_of_a_later_version_alone(store):
    """Only that version can tell which of the two is good."""
    replacing(store)
    path = store.directory / "ckpt-3"
    store.rewrite_manifest(path, attrs.evolve(Manifest.read(path), format=2))
    store.clear()
    assert sorted(p.name for p in store.directory.iterdir()) == ["ckpt-3", "ckpt-3.old"]


def test_what_could_not_be_removed_is_in_nobodys_way(store):
    """A replaced checkpoint that the system kept goes with the next replacement."""
    replacing(store)
    put(store, 3, "newest")
    left = {p.name: (p / "file").read_text() for p in store.directory.iterdir()}
    assert left == {"ckpt-3": "newest"}


def test_clearing_removes_what_crashes_left(store):
    """Temporary folders of any process go; checkpoints and other files stay."""
    put(store, 1)
    put(store, 2).rename(store.directory / "ckpt-2.bad")
    for name in ("ckpt-3.tmp-99999", "ckpt-0.gone-1", f"ckpt-5.tmp-{os.getpid()}"):
        (store.directory / name).mkdir()
        (store.directory / name / "part").write_text("x")
    (store.directory / "ckpt-4.tmp-1").symlink_to("ckpt-1")
    (store.directory / "ckpt-6.gone-1").write_text("a file")
    (store.directory / "notes.txt").write_text("mine")
    store.clear()
    left = sorted(p.name for p in store.directory.iterdir())
    assert left == ["ckpt-1", "ckpt-2.bad", "notes.txt"]


def test_a_left_over_of_a_process_with_the_same_id_is_cleared(store):
    """In a container every start may have the same process id."""
    left = store.directory / f"ckpt-0.tmp-{os.getpid()}"
    left.mkdir(parents=True)
    (left / "part").write_text("x")
    store.prepare()
    assert list(store.directory.iterdir()) == []


@pytest.mark.parametrize("below", [".", "below", "far/below"])
def test_a_directory_that_cannot_be_is_told_at_once(below, tmp_path):
    """The message names the place and the ways out, and nothing is written."""
    (tmp_path / "file").write_text("I am a file")
    directory = tmp_path / "file" / below
    with pytest.raises(hookbus.CheckpointError, match="cannot write checkpoints into") as e:
        Store(directory).prepare()
    assert str(directory) in str(e.value)
    assert "-p no:checkpoint-saver" in str(e.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_noting_the_end_replaces_the_manifest_alone(store):
    """The files of the checkpoint stay as they are, and no temporary file is left."""
    path = put(store, 3)
    before = (path / "file").stat()
    store.rewrite_manifest(path, attrs.evolve(Manifest.read(path), ended="completed"))
    assert Manifest.read(path).ended == "completed"
    assert sorted(p.name for p in path.iterdir()) == ["file", "manifest.json"]
    assert (path / "file").stat().st_mtime_ns == before.st_mtime_ns
    assert steps(store) == [3]
