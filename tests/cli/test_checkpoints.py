"""``hookbus checkpoints`` lists, verifies and compares checkpoints, and changes nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from hookbus import list_checkpoints
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from tests.support.shelves import (
    RUNS,
    KeepsHook,
    SavesFailedHook,
    checkpoints,
    everything,
    train,
)


def listed(*words: str) -> list[list[str]]:
    """Return the cells of the list, without its head."""
    _, shown = checkpoints(RUNS, *words)
    return [re.split(r"\s{2,}", line) for line in shown.splitlines()[1:]]


def document(*words: Any) -> dict[str, Any]:
    """Return the output of the command for programs."""
    found: dict[str, Any] = json.loads(checkpoints(RUNS, *words, "--json")[1])
    return found


def spoil(step: int, name: str = "arrays.safetensors") -> None:
    """Change one byte of a file, and not its size."""
    path = RUNS / f"ckpt-{step}" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def shelve_all_kinds() -> None:
    """Leave a checkpoint of each kind: kept, failed, being replaced, and set aside."""
    train(SavesFailedHook(), KeepsHook(2), until=3, fails=True)
    train(until=4)
    spoil(4)
    train(until=5)
    (RUNS / "ckpt-2").rename(RUNS / "ckpt-2.old")


def test_it_lists_each_checkpoint_and_the_newest_last():
    """With its step, age and size, who saved and kept it, its values, and its end."""
    train(KeepsHook(3))
    assert checkpoints(RUNS)[1].splitlines()[0].split("  ")[0] == "STEP"
    rows = listed()
    assert [row[0] for row in rows] == ["0", "2", "3", "4", "5"]
    assert all(re.fullmatch(r"\d+s", row[1]) for row in rows)
    assert all(re.fullmatch(r"[\d.]+ kB", row[2]) for row in rows)
    assert [row[3:] for row in rows] == [
        ["checkpoint-saver (start)", "-", "-", "-", "not verified"],
        ["checkpoint-saver (every 2 steps)", "-", "-", "-", "not verified"],
        ["keeps (it is mine)", "keeps", "val/loss=0.25", "-", "not verified"],
        ["checkpoint-saver (every 2 steps)", "-", "-", "-", "not verified"],
        ["checkpoint-saver (end: completed)", "-", "-", "completed", "not verified"],
    ]


def test_an_old_checkpoint_has_a_large_unit_and_an_older_one_none():
    """An early version of hookbus has not recorded the time of a save."""
    train(until=1)
    for path, saved_at in ((RUNS / "ckpt-0", 0.0), (RUNS / "ckpt-1", time.time() - 2.5e5)):
        manifest = attrs.evolve(Manifest.read(path), saved_at=saved_at)
        Store(RUNS).rewrite_manifest(path, manifest)
    assert [row[1] for row in listed()] == ["?", "2d"]


def test_each_kind_is_marked_as_what_it_is():
    """Those of failed sessions, those set aside, and those that were being replaced."""
    shelve_all_kinds()
    assert [row[-1] for row in listed("--verify")] == [
        "good",
        "ckpt-2.old, was being replaced: good",
        "failed/ckpt-3, of a failed session: good",
        "ckpt-4.bad, set aside: bad: its file arrays.safetensors was altered (hash "
        "differs)",
        "good",
        "good",
    ]
    assert [(row["name"], row["kind"]) for row in document()["checkpoints"]] == [
        ("ckpt-0", "checkpoint"),
        ("ckpt-2.old", "replaced"),
        ("failed/ckpt-3", "failed"),
        ("ckpt-4.bad", "bad"),
        ("ckpt-4", "checkpoint"),
        ("ckpt-5", "checkpoint"),
    ]


def test_verify_hashes_every_file():
    """The list alone compares sizes; with the flag a bad one is exit code 1."""
    train()
    assert checkpoints(RUNS, "--verify")[0] == 0
    assert {row[-1] for row in listed("--verify")} == {"good"}
    spoil(2)
    code, shown = checkpoints(RUNS)
    assert (code, "bad" in shown) == (0, False)
    code, shown = checkpoints(RUNS, "--verify")
    assert code == 1
    assert shown.count("good\n") == 3
    assert "bad: its file arrays.safetensors was altered (hash differs)\n" in shown
    assert checkpoints(RUNS, "--verify", "--json")[0] == 1


def test_without_verify_a_short_file_is_found():
    """And a checkpoint without a manifest tells nothing but its size."""
    train()
    (RUNS / "ckpt-2/state.json").write_text("{}")
    (RUNS / "ckpt-4/manifest.json").unlink()
    code, shown = checkpoints(RUNS)
    assert code == 0
    assert "bad: its file state.json has 2 bytes instead of " in shown
    (row,) = [row for row in document()["checkpoints"] if row["step"] == 4]
    assert (row["status"], row["reason"]) == ("bad", "its manifest.json is missing")
    assert row["bytes"] > 0
    assert (row["saved_by"], row["files"], row["ranks"]) == (None, None, None)


def test_one_of_a_later_version_is_not_bad():
    """It cannot be verified here, so that --verify is not content, either."""
    train(until=1)
    manifest = attrs.evolve(Manifest.read(RUNS / "ckpt-1"), format=99)
    Store(RUNS).rewrite_manifest(RUNS / "ckpt-1", manifest)
    code, shown = checkpoints(RUNS, "--verify")
    assert (code, "unknown: runs/ckpt-1 has checkpoint format 99" in shown) == (1, True)


def test_a_file_that_cannot_be_read_now_makes_none_bad(monkeypatch):
    """The disk may be back later."""
    train(until=1)
    io_open, refused = type(RUNS).open, RUNS / "ckpt-1/state.json"

    def refuse(path, *arguments, **settings):
        if path == refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return io_open(path, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(type(RUNS), "open", refuse)
        code, shown = checkpoints(RUNS, "--verify")
    assert code == 1
    assert "unknown: [Errno 5] Input/output error: 'runs/ckpt-1/state.json'\n" in shown
    assert "bad" not in shown


def test_json_has_all_fields():
    """The names of the manifest, sizes in bytes, and times since the epoch."""
    train(KeepsHook(1), until=1)
    found = document("--verify")
    assert (found["schema"], found["directory"]) == (1, "runs")
    last = found["checkpoints"][-1]
    manifest = Manifest.read(RUNS / "ckpt-1")
    files = sum(path.stat().st_size for path in (RUNS / "ckpt-1").iterdir())
    assert last == {
        "name": "ckpt-1",
        "path": "runs/ckpt-1",
        "step": 1,
        "kind": "checkpoint",
        "status": "good",
        "reason": None,
        "bytes": files,
        "ranks": 1,
        "codec": "safetensors",
        "saved_by": "keeps",
        "why": manifest.why,
        "files": {n: attrs.asdict(record) for n, record in manifest.files.items()},
        "versions": manifest.versions,
        "ended": "completed",
        "wraps": {},
        "saved_at": list_checkpoints(RUNS)[-1].saved_at,
        "kept": {"keeps": "it is mine"},
        "values": {"val/loss": 0.25},
        "params": {},
    }


def test_the_failed_ones_behind_a_link_are_those_of_another_training():
    train(until=1)
    (RUNS / "failed").symlink_to(RUNS.absolute())
    assert [row[0] for row in listed()] == ["0", "1"]


def test_reading_changes_nothing():
    """Not a byte and not a time, whatever is asked."""
    shelve_all_kinds()
    before = everything()
    for words in (
        (),
        ("--verify",),
        ("--json",),
        ("diff", 0, 2),
        ("diff", "failed/ckpt-3", 5),
    ):
        assert "ERROR" not in checkpoints(RUNS, *words)[1]
    assert everything() == before


@pytest.mark.long
def test_it_lists_while_a_session_saves():
    """Each list is one of whole checkpoints, though another process prunes meanwhile."""
    train(until=1)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            train(until=200, most=1)
        os._exit(0)
    lists = 0
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        code, shown = checkpoints(RUNS, "--verify")
        assert code == 0, shown
        lists += 1
    assert lists


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 4, "hookbus checkpoints needs a directory: hookbus checkpoints DIRECTORY"),
        (
            ["no/runs"],
            4,
            "there are no checkpoints in 'no/runs', which does not exist: give",
        ),
        (["file"], 4, "there are no checkpoints in 'file', which is a file: give"),
        (["empty"], 1, "there is no checkpoint in 'empty'"),
        (["empty", "rm", "1"], 1, "there is no checkpoint in 'empty'"),
        (
            ["runs/ckpt-2"],
            1,
            "'runs/ckpt-2'; the newest in 'runs' are ckpt-5, ckpt-4, ckpt-2, ckpt-0",
        ),
        (["runs", "remove", "1"], 4, "no action 'remove'; the actions are keep, rm, diff"),
        (["runs", "dif", "1"], 4, "no action 'dif'; did you mean 'diff'? (hookbus checkp"),
        (
            ["runs", "rm"],
            4,
            "DIRECTORY rm needs a checkpoint: hookbus checkpoints DIRECTORY rm",
        ),
        (["runs", "keep"], 4, "DIRECTORY keep needs a checkpoint: hookbus checkpoints DIR"),
        (
            ["runs", "diff", "1"],
            4,
            "diff compares two checkpoints: hookbus checkpoints DIR",
        ),
        (["runs", "diff", "2", "4", "5"], 4, "diff compares two checkpoints: hookbus"),
        (["runs", "diff", "2", "2"], 4, "ckpt-2 is named twice: give each checkpoint once"),
        (["runs", "rm", "2", "ckpt-2"], 4, "ckpt-2 is named twice: give each checkpoint"),
        (
            ["runs", "rm", "3"],
            4,
            "'runs' has no checkpoint '3'; the nearest steps are 2 and 4",
        ),
        (["runs", "keep", "99"], 4, "no checkpoint '99'; the nearest steps are 4 and 5"),
        (["runs", "diff", "2", "9" * 5000], 4, "the newest one is ckpt-7.bad"),
        (["runs", "rm", "ckpt4"], 4, "no checkpoint 'ckpt4'; did you mean 'ckpt-4'"),
        (["runs", "rm", "7"], 4, "no checkpoint '7'; did you mean 'ckpt-7.bad'?"),
        (["runs", "--force"], 4, "DIRECTORY does not take --force; it takes --verify"),
        (["runs", "rm", "1", "--json"], 4, "rm does not take --json; it takes --force"),
        (["runs", "diff", "1", "3", "--undo"], 4, "does not take --undo; it takes --json"),
        (["runs", "keep", "1", "--verify"], 4, "does not take --verify; it takes --undo"),
    ],
)
def test_a_mistake_says_what_to_do_and_changes_nothing(words, code, told):
    train()
    (RUNS / "ckpt-7.bad").mkdir()
    Path("empty").mkdir()
    Path("file").touch()
    before = everything()
    found, shown = checkpoints(*words)
    assert (found, shown[:7]) == (code, "ERROR: ")
    assert told in shown
    assert everything() == before
    assert not [*Path("empty").iterdir()]


def test_its_help_names_every_flag():
    code, shown = checkpoints("--help")
    assert code == 0
    assert shown.startswith("usage: hookbus checkpoints DIRECTORY [--verify] [--json]\n")
    for flag in ("--verify", "--undo", "--force", "--json", "-h, --help"):
        assert f"\n  {flag} " in shown


@pytest.mark.long
def test_only_diff_imports_a_codec_and_none_imports_a_hook(process, install):
    """Not even a plugin that is on."""
    install("loud", "raise SystemExit('imported')", autouse=True)
    train()
    code = (
        "import sys; from hookbus.cli import main; words = sys.argv[1:]; "
        "main(['checkpoints', 'runs', *words]); print(); print(*sys.modules)"
    )
    for words, reads in (
        ((), False),
        (("--verify",), False),
        (("keep", "2"), False),
        (("rm", "2"), False),
        (("diff", "4", "5"), True),
    ):
        done = process("-c", code, *words, HOOKBUS_PLUGINS="loud")
        assert done.returncode == 0, done.stderr
        modules = set(done.stdout.splitlines()[-1].split())
        assert ("hookbus_safetensors" in modules) is reads
        assert not modules & {"hookbus_checkpoint_saver", "torch", "fake_loud"}
