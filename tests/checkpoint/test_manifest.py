"""The manifest: what it tells about a checkpoint, and that it proves it good."""

from __future__ import annotations

import hashlib
import json
import shutil

import attrs
import pytest

import hookbus
from hookbus.checkpoint.manifest import FileRecord, Manifest


@pytest.fixture
def sealed(tmp_path):
    """A checkpoint directory with one file and its manifest."""
    directory = tmp_path / "ckpt-3"
    directory.mkdir()
    (directory / "values").write_bytes(b"0123456789")
    files = {"values": FileRecord.of(directory / "values")}
    manifest = Manifest(3, "some-codec", "saver", "every 3 steps", files, {"hookbus": "1"})
    (directory / "manifest.json").write_text(manifest.text(), "utf-8")
    return directory


def test_a_manifest_is_read_as_it_was_written(sealed):
    """Step, codec, who, why, files, versions and the end come back."""
    manifest = Manifest.read(sealed)
    assert manifest.global_step == 3
    assert (manifest.codec, manifest.saved_by) == ("some-codec", "saver")
    assert (manifest.why, manifest.versions) == ("every 3 steps", {"hookbus": "1"})
    assert manifest.ended is None
    manifest.verify(sealed)


def test_a_manifest_tells_all_about_a_real_checkpoint(tmp_path, trained):
    """It names the format, the step, who saved it and why, and all versions."""
    trained(tmp_path, 2)
    manifest = json.loads((tmp_path / "ckpt-1" / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert manifest["global_step"] == 1
    assert manifest["codec"] == "safetensors"
    assert manifest["saved_by"] == "checkpoint-saver"
    assert manifest["why"] == "every 1 steps"
    versions = manifest["versions"]
    assert versions.keys() == {"hookbus", "backend", "hookbus-checkpoint-saver"}


def test_a_manifest_lists_every_file_with_size_and_hash(tmp_path, trained):
    """Each file of the checkpoint but the manifest itself stands in it."""
    trained(tmp_path, 1)
    directory = tmp_path / "ckpt-1"
    listed = json.loads((directory / "manifest.json").read_text())["files"]
    expected = {}
    for path in directory.iterdir():
        content = path.read_bytes()
        expected[path.name] = {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    del expected["manifest.json"]
    assert listed == expected


def test_a_reason_of_any_type_is_written_as_text(tmp_path, trained):
    """A hook may give whatever says why; a save never fails for its sake."""

    class Asks(hookbus.SessionRunHook):
        def after_run(self, run_context):
            run_context.request_save(ZeroDivisionError("soon"))

    trained(tmp_path, 1, Asks(), save_checkpoint_steps=9)
    assert Manifest.read(tmp_path / "ckpt-1").why == "soon"


def test_the_last_checkpoint_tells_how_the_session_ended(tmp_path, trained, killed):
    """Only the checkpoint at which a session ended says so, and a crash says nothing."""
    trained(tmp_path / "ended", 2)
    killed(tmp_path / "killed", 2)
    assert Manifest.read(tmp_path / "ended" / "ckpt-2").ended == "completed"
    assert Manifest.read(tmp_path / "ended" / "ckpt-1").ended is None
    assert Manifest.read(tmp_path / "killed" / "ckpt-2").ended is None


@pytest.mark.parametrize(
    ("alter", "told"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(b""), "0 bytes instead of 10"),
        (lambda path: path.write_bytes(b"01234567"), "8 bytes instead of 10"),
        (lambda path: path.write_bytes(b"0123456789x"), "11 bytes instead of 10"),
        (lambda path: path.write_bytes(b"0123456788"), "altered"),
    ],
    ids=["missing", "emptied", "truncated", "longer", "one byte altered"],
)
def test_a_file_that_changed_is_noticed(alter, told, sealed):
    """A file that is not what was written is an error that names it and what is wrong."""
    alter(sealed / "values")
    with pytest.raises(hookbus.CheckpointError, match=rf"values.* {told}"):
        Manifest.read(sealed).verify(sealed)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"format": 1, '],
)
def test_a_damaged_manifest_is_a_checkpoint_error(content, sealed):
    """Whatever is no JSON object with a format is called damaged."""
    (sealed / "manifest.json").write_bytes(content)
    with pytest.raises(hookbus.CheckpointError, match="damaged"):
        Manifest.read(sealed)


@pytest.mark.parametrize(
    "key", ["format", "global_step", "codec", "files", "versions", "why", "ended"]
)
def test_a_manifest_without_one_of_its_entries_is_refused(key, sealed):
    """Every entry is needed."""
    content = json.loads((sealed / "manifest.json").read_text())
    del content[key]
    (sealed / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(hookbus.CheckpointError, match=r"manifest\.json (is|was)"):
        Manifest.read(sealed)


def test_a_missing_manifest_is_a_checkpoint_error(sealed):
    """A directory without a manifest is no checkpoint."""
    (sealed / "manifest.json").unlink()
    with pytest.raises(hookbus.CheckpointError, match="missing"):
        Manifest.read(sealed)


def test_an_unknown_format_is_a_matter_of_versions(sealed):
    """A checkpoint of a later hookbus may well be good: the user is told to upgrade."""
    later = attrs.evolve(Manifest.read(sealed), format=2)
    (sealed / "manifest.json").write_text(later.text())
    with pytest.raises(hookbus.UsageError, match=r"format 2, .*upgrade"):
        Manifest.read(sealed)


def test_a_format_that_was_altered_is_damage(sealed):
    """A number that no version wrote does not send anybody to upgrade."""
    content = json.loads((sealed / "manifest.json").read_text())
    (sealed / "manifest.json").write_text(json.dumps(content | {"format": 2}))
    with pytest.raises(hookbus.CheckpointError, match="altered"):
        Manifest.read(sealed)


@pytest.mark.parametrize(
    ("written", "altered"),
    [
        ('"global_step": 2', '"global_step": 3'),
        ('"ended": "completed"', '"ended": "complfted"'),
        ('"codec": "safetensors"', '"codec": "safetensorr"'),
        ('"bytes": ', '"bytes": 1'),
        ('"sha256": "', '"sha256": "0'),
    ],
)
def test_an_altered_entry_never_restores_another_state(
    written, altered, tmp_path, trained, opened
):
    """A manifest that says something else than what was saved is never believed."""
    trained(tmp_path, 2)
    manifest = tmp_path / "ckpt-2" / "manifest.json"
    text = manifest.read_text()
    assert written in text
    manifest.write_text(text.replace(written, altered))
    assert started(tmp_path, opened) in (None, STATES[1])


@pytest.mark.slow
def test_no_flipped_byte_of_a_manifest_restores_another_state(tmp_path, trained, opened):
    """Whichever byte of the newest manifest flips, a session starts whole or not at all."""
    trained(tmp_path / "saved", 2)
    manifest = (tmp_path / "saved" / "ckpt-2" / "manifest.json").read_bytes()
    wrong = {}
    for place, byte in enumerate(manifest):
        directory = shutil.copytree(tmp_path / "saved", tmp_path / "flipped")
        flipped = manifest[:place] + bytes([byte ^ 1]) + manifest[place + 1 :]
        (directory / "ckpt-2" / "manifest.json").write_bytes(flipped)
        state = started(directory, opened)
        if state not in (None, *STATES.values()):
            wrong[flipped[place - 20 : place + 20]] = state
        shutil.rmtree(directory)
    assert not wrong


STATES = {1: (1, 1.0, 1), 2: (2, 2.0, 0)}
"""Step, weight and next batch after a start from each checkpoint of an ended session.

The session that ended at step 2 was done with its pass; at step 1 it was under way.
"""


def started(directory, opened):
    """Return the step, the weight and the next batch of a new session, if it starts."""
    try:
        with opened(directory, save_checkpoint_steps=0) as session:
            first, weight = session.global_step, session.run("w")[0]
            session.run("train")
            return first, weight, session.run("seen")
    except hookbus.HookbusError:
        return None
