"""Checkpoints that nobody wrote: odd files, and forged ones whose hashes are right.

A session takes them for bad, and uses the one before. It neither stops nor hangs. What the
system does not let it read now is an error, and stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket

import numpy as np
import pytest

import hookbus
from hookbus.checkpoint.reader import for_rank, load_variables, read_checkpoint
from hookbus.errors import NoGoodCheckpointError
from tests.support.forging import forge_manifest, store

pytestmark = pytest.mark.timeout(20)


def a_directory(path):
    path.mkdir()


def a_link_to_itself(path):
    path.symlink_to(path.name)


def a_broken_link(path):
    path.symlink_to("nowhere")


def a_link_to_zeros(path):
    path.symlink_to("/dev/zero")


def a_pipe(path):
    os.mkfifo(path)


def a_socket(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)  # the name of a socket is short


ODD = [a_directory, a_link_to_itself, a_broken_link, a_link_to_zeros, a_pipe, a_socket]


def is_passed_over(directory, opened, names):
    """Check that readers and a session that saves use the checkpoint before the newest."""
    before = names(directory)
    assert load_variables(directory)["global_step"] == 1
    assert hookbus.Estimator(lambda: None, directory).get_variable_value("w")[0] == 1.0
    with opened(directory, config=NO_SAVER) as session:
        assert session.global_step == 1
    assert names(directory) == before
    with opened(directory) as session:
        assert session.global_step == 1
    assert names(directory) == ["ckpt-0", "ckpt-1", "ckpt-2.bad"]


NO_SAVER = hookbus.Config(autoload=False).with_plugins("no:checkpoint-saver")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["manifest.json", "state.json", "arrays.safetensors"])
def test_an_odd_file_makes_a_checkpoint_bad(odd, name, tmp_path, killed, opened, names):
    """Whatever stands in the place of a file: only regular files are opened."""
    killed(tmp_path, 2)
    path = tmp_path / "ckpt-2" / name
    path.unlink()
    odd(path)
    is_passed_over(tmp_path, opened, names)


@pytest.mark.parametrize("odd", ODD[1:])
def test_an_odd_file_in_the_place_of_a_checkpoint_is_bad(
    odd, tmp_path, killed, opened, names
):
    """It has the name of a checkpoint, and is no directory."""
    killed(tmp_path, 2)
    (tmp_path / "ckpt-2").rename(tmp_path / "aside")
    odd(tmp_path / "ckpt-2")
    is_passed_over(tmp_path, opened, names)


@pytest.mark.parametrize("name", ["model.pt", "a/b.PKL", "optimizer.pickle", "w.pth"])
def test_a_planted_pickle_makes_a_checkpoint_bad(name, tmp_path, killed, opened, names):
    """Nobody opens it, and the checkpoint that it was put into is not trusted either."""
    killed(tmp_path, 2)
    planted = tmp_path / "ckpt-2" / name
    planted.parent.mkdir(exist_ok=True)
    planted.write_bytes(b"\x80\x04.")
    is_passed_over(tmp_path, opened, names)


def test_a_file_of_the_user_does_not_make_a_checkpoint_bad(tmp_path, killed, opened):
    """Notes and what a file system leaves do no harm."""
    killed(tmp_path, 2)
    for name in ("notes.txt", ".nfs0001"):
        (tmp_path / "ckpt-2" / name).write_text("good")
    with opened(tmp_path) as session:
        assert session.global_step == 2


def altered(**entries):
    """Return a forger of manifests with other entries."""

    def alter(directory, manifest):
        manifest.update(entries)

    return alter


def lists(name):
    """Return a forger of a manifest that lists one more file."""

    def alter(directory, manifest):
        manifest["files"][name] = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}

    return alter


def records(**entries):
    """Return a forger of a manifest with another record of a file."""

    def alter(directory, manifest):
        manifest["files"]["state.json"].update(entries)

    return alter


def stores(name, content):
    """Return a forger of a file, with its right size and hash."""

    def alter(directory, manifest):
        store(name, content, directory, manifest)

    return alter


def holds(**changes):
    """Return a forger of the entry of an array."""

    def alter(directory, manifest):
        tree = json.loads((directory / "state.json").read_text())
        tree["variables"]["w"].update(changes)
        stores("state.json", json.dumps(tree).encode())(directory, manifest)

    return alter


def has_state(**parts):
    """Return a forger of parts of the state."""

    def alter(directory, manifest):
        tree = json.loads((directory / "state.json").read_text()) | parts
        stores("state.json", json.dumps(tree).encode())(directory, manifest)

    return alter


def python_generator(words=(*([0] * 624), 624), gauss=None):
    """Return a forger of the state of Python's generator."""
    state = [3, {"$": "tuple", "items": [*words]}, gauss]
    return has_state(random={"python": {"$": "tuple", "items": state}})


def numpy_generator(**changes):
    """Return a forger of the state of NumPy's generator."""

    def alter(directory, manifest):
        tree = json.loads((directory / "state.json").read_text())
        tree["random"]["numpy"]["state"].update(changes)
        stores("state.json", json.dumps(tree).encode())(directory, manifest)

    return alter


def has_arrays_unlisted(directory, manifest):
    """Put a pipe in the place of a file, and do not list it."""
    del manifest["files"]["arrays.safetensors"]
    (directory / "arrays.safetensors").unlink()
    os.mkfifo(directory / "arrays.safetensors")


FORGED = {
    "a negative step": altered(global_step=-1),
    "a step that is a bool": altered(global_step=True),
    "a step that is a float": altered(global_step=2.0),
    "a step that is a text": altered(global_step="2"),
    "a step that is huge": altered(global_step=10**4000),
    "another step": altered(global_step=1),
    "a codec that is a list": altered(codec=["safetensors"]),
    "a codec that is null": altered(codec=None),
    "versions that are a list": altered(versions=["1"]),
    "versions that are numbers": altered(versions={"hookbus": 1}),
    "files that are a list": altered(files=["state.json"]),
    "no files": altered(files={}),
    "an end that is a list": altered(ended=["completed"]),
    "a format that is a bool": altered(format=True),
    "a format that is a float": altered(format=1.0),
    "a negative format": altered(format=-1),
    "another entry": altered(more=1),
    "a name with NUL": lists("a\0b"),
    "a name with a slash": lists("a/b"),
    "a name that leads out": lists("../ckpt-1/state.json"),
    "the directory above": lists(".."),
    "an empty name": lists(""),
    "a name that is no text": lists("\ud800"),
    "a name that is long": lists("x" * 300),
    "a negative size": records(bytes=-1),
    "a size that is a float": records(bytes=1e3),
    "a hash that is a number": records(sha256=5),
    "a record of other entries": records(more=1),
    "an unlisted pipe": has_arrays_unlisted,
    "brackets": stores("state.json", b"[" * 100_000),
    "a list": stores("state.json", b"[]"),
    "no variables": stores("state.json", b"{}"),
    "a number without end": stores("state.json", b'{"a": 1%s}' % (b"0" * 5000)),
    "no arrays": stores("arrays.safetensors", b""),
    "half a header": stores("arrays.safetensors", b"\xff" * 9),
    "variables that are a list": has_state(variables=[]),
    "inputs that are a list": has_state(inputs=[]),
    "hooks that are null": has_state(hooks=None),
    "params that are a number": has_state(params=5),
    "params with bytes": has_state(params={"a": [{"$": "bytes", "hex": "00"}]}),
    "rollbacks that are texts": has_state(rollbacks={"in_a_row": "x"}),
    "owners that are numbers": has_state(owners={"w": 1}),
    "an input without a position": has_state(inputs={"batch": {}}),
    "an input that goes back": has_state(inputs={"batch": {"pulled": -1}}),
    "a length that is a text": has_state(inputs={"batch": {"pulled": 1, "length": "9"}}),
    "passes of nothing": has_state(passes={}),
    "passes without a place": has_state(passes={"over": 1}),
    "a place without a position": has_state(passes={"over": 1, "within": {"ended": True}}),
    "a body without a place": has_state(
        passes={"over": 0, "within": {"pulled": 1, "body": {}}, "marks": 0}
    ),
    "evaluations without steps": has_state(
        passes={"over": 0, "within": {}, "marks": 0, "evaluated": {"val": None}}
    ),
    "a Python generator of a list": has_state(random={"python": [3, [0] * 625, None]}),
    "a Python generator that is short": python_generator(words=[0] * 624),
    "a Python generator beyond its end": python_generator(words=[0] * 624 + [625]),
    "a Python generator of texts": python_generator(gauss="x"),
    "a NumPy generator of another kind": has_state(random={"numpy": {"state": {}}}),
    "a NumPy generator beyond its end": numpy_generator(pos=700),
    "a NumPy generator before its beginning": numpy_generator(pos=-1),
    "a NumPy generator of few words": numpy_generator(key={"$": "tuple", "items": [1]}),
    "a generator at the start": has_state(start={"random": {"python": 1}}),
    "a tag that is a list": has_state(random={"$": []}),
    "a tag without its parts": has_state(random={"$": "scalar", "array": []}),
    "bits that are a number": has_state(random={"$": "float", "bits": 5}),
    "bytes that are no hex": has_state(random={"$": "bytes", "hex": "x"}),
    "a key that is a list": has_state(random={"$": "dict", "pairs": [[[], 1]]}),
    "a shape of many": holds(shape=[10**13]),
    "a shape of many of nothing": holds(shape=[10**13], dtype="S0"),
    "a shape that is negative": holds(shape=[-4]),
    "a shape that is a bool": holds(shape=[4, True], axes=[0, 1]),
    "a shape that is a number": holds(shape=4),
    "a shape of nothing and too many": holds(shape=[0, 2**70], axes=[0, 1]),
    "another shape": holds(shape=[5]),
    "axes that do not exist": holds(axes=[7, 3]),
    "a dtype that does not parse": holds(dtype="8f8,("),
    "a dtype of objects": holds(dtype="|O"),
    "a dtype that is a number": holds(dtype=8),
    "a dtype with half a field": holds(dtype=[["a"]]),
    "a dtype of dtypes": holds(dtype={"base": {}, "shape": []}),
    "a char of objects": holds(char="O"),
    "a key that is not there": holds(key="/elsewhere"),
    "a key that is no name": holds(key=[]),
}


@pytest.mark.sampled(25)
@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_a_forged_one_is_bad(forge, tmp_path, killed, opened, names, capsys):
    """Whatever its right hashes vouch for: what hookbus never writes is not believed."""
    killed(tmp_path, 2)
    forge_manifest(tmp_path / "ckpt-2", forge)
    capsys.readouterr()
    is_passed_over(tmp_path, opened, names)
    logged = capsys.readouterr().err
    assert logged.count("bad checkpoint") == 4
    assert "Traceback" not in logged


@pytest.mark.parametrize("step", [2**62, 2**63 - 1])
def test_a_step_that_no_training_reaches_is_bad(step, tmp_path, killed, opened, names):
    """The next one would have no place in 64 bits."""
    killed(tmp_path, 2)
    forge_manifest(tmp_path / "ckpt-2", altered(global_step=step))
    (tmp_path / "ckpt-2").rename(tmp_path / f"ckpt-{step}")
    with opened(tmp_path) as session:
        assert session.global_step == 1
        session.run("train")
    assert names(tmp_path) == ["ckpt-0", "ckpt-1", "ckpt-2", f"ckpt-{step}.bad"]


def test_the_part_of_a_rank_is_checked_like_the_whole(tmp_path, killed):
    """Each rank reads its own."""
    killed(tmp_path, 2)
    path = tmp_path / "ckpt-2"
    (path / "rank-1").mkdir()
    for name in ("state.json", "arrays.safetensors"):
        (path / "rank-1" / name).write_bytes((path / name).read_bytes())
    tree = json.loads((path / "state.json").read_text()) | {"tracked": 1}
    content = json.dumps(tree).encode()
    forge_manifest(path, lambda *given: store("rank-1/state.json", content, *given))
    restored = read_checkpoint(path)
    with pytest.raises(NoGoodCheckpointError, match="cannot be read: tracked is 1"):
        for_rank(restored, 1, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"global_step": 1%s}' % (b"0" * 5000),
        b" " * 2**25,
    ],
    ids=["brackets", "braces", "a number without end", "much of nothing"],
)
def test_a_manifest_that_does_not_parse_is_bad(content, tmp_path, killed, opened, names):
    """Whatever stands in it."""
    killed(tmp_path, 2)
    (tmp_path / "ckpt-2" / "manifest.json").write_bytes(content)
    is_passed_over(tmp_path, opened, names)


def test_sizes_are_compared_before_hashes(tmp_path, killed, opened, names):
    """A file of a terabyte that should have some bytes is not read."""
    killed(tmp_path, 2)
    os.truncate(tmp_path / "ckpt-2" / "state.json", 2**40)
    is_passed_over(tmp_path, opened, names)


@pytest.mark.parametrize("name", ["manifest.json", "arrays.safetensors"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_what_cannot_be_read_now_is_an_error(
    number, name, tmp_path, killed, opened, names, monkeypatch
):
    """It names the file and the reason. The disk may be back later: nothing is renamed."""
    killed(tmp_path, 2)
    io_open, refused = type(tmp_path).open, tmp_path / "ckpt-2" / name

    def refuse(path, *arguments, **settings):
        if path == refused:
            raise OSError(number, os.strerror(number))
        return io_open(path, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "open", refuse)
        told = rf"{os.strerror(number)}: '.*ckpt-2/{name}'; they were not changed"
        for read in (load_variables, opened):
            with pytest.raises(hookbus.CheckpointError, match=told) as caught:
                read(tmp_path)
            assert not isinstance(caught.value, hookbus.errors.NoGoodCheckpointError)
    assert names(tmp_path) == ["ckpt-0", "ckpt-1", "ckpt-2"]
    with opened(tmp_path) as session:
        assert session.global_step == 2


def test_a_listed_array_of_nothing_is_as_good_as_any(tmp_path, opened):
    """Arrays without elements, or with elements of no bytes, are no forgeries."""
    graph = hookbus.Graph()
    graph.variable("none", np.empty((0, 3)))
    graph.variable("void", np.empty((2, 3), "V0"))
    opened(tmp_path, graph=graph).close()
    values = load_variables(tmp_path)
    assert values["none"].shape == (0, 3)
    assert values["void"].shape == (2, 3)


def test_a_linked_directory_is_a_checkpoint(tmp_path, killed, opened):
    """A user may move a checkpoint to another disk, and leave a link."""
    killed(tmp_path / "runs", 2)
    (tmp_path / "runs" / "ckpt-2").rename(tmp_path / "elsewhere")
    (tmp_path / "runs" / "ckpt-2").symlink_to("../elsewhere")
    with opened(tmp_path / "runs") as session:
        assert session.global_step == 2
