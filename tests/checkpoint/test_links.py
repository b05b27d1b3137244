"""Links in a directory of checkpoints lead no session to a file or folder elsewhere.

A user may have got the directory from somebody else. Whatever a session opens for
writing, renames or removes there is the directory's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

import hookbus
from hookbus import BestExporter
from hookbus.checkpoint.files import replacing
from hookbus.checkpoint.lock import LOCK_NAME
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from hookbus.errors import CheckpointDirectoryError, NoGoodCheckpointError
from tests.checkpoint.test_odd_checkpoints import a_directory, a_pipe
from tests.support.profiles import cases

PRECIOUS = b"precious\n"


@pytest.fixture
def precious() -> Iterator[Path]:
    """Give a folder of somebody else, and check that it stays as it is."""
    folder = Path("elsewhere")
    (folder / "sub").mkdir(parents=True)
    for name in ("file", "sub/file"):
        (folder / name).write_bytes(PRECIOUS)
    yield folder
    assert content(folder) == {"file": PRECIOUS, "sub/file": PRECIOUS}


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def a_link(path: Path) -> None:
    path.symlink_to(Path("elsewhere/file").absolute())


def a_second_name(path: Path) -> None:
    path.hardlink_to("elsewhere/file")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(Path("elsewhere/new").absolute())


@pytest.mark.parametrize(
    "odd", [a_link, a_second_name, a_link_to_nothing, a_directory, a_pipe]
)
@pytest.mark.timeout(20)
def test_a_lock_file_that_is_no_file_of_its_own_is_refused(odd, opened, precious, names):
    """A session would write its process id into whatever it leads to."""
    Path("runs").mkdir()
    odd(Path("runs") / LOCK_NAME)
    told = rf"runs/{re.escape(LOCK_NAME)} is not an ordinary file.*: remove it"
    with pytest.raises(CheckpointDirectoryError, match=told):
        opened("runs")
    assert names("runs") == []
    path = Path("runs") / LOCK_NAME
    path.rmdir() if path.is_dir() else path.unlink()
    opened("runs").close()
    assert names("runs") == ["ckpt-0"]


def test_the_folder_of_failed_sessions_is_not_that_of_another_training(
    opened, trained, names
):
    """Its old checkpoints would be removed, as if they were those of failed sessions."""
    trained("other", 4)
    before = content(Path("other"))
    Path("runs").mkdir()
    Path("runs/failed").symlink_to("../other")
    saver = CheckpointSaverHook(save_steps=1, save_on_failure=True, max_to_keep=1)
    with pytest.raises(
        CheckpointDirectoryError, match=r"runs/failed is a link, and .*name"
    ):
        trained("runs", 1, saver, error=ZeroDivisionError())
    assert content(Path("other")) == before
    Path("runs/failed").unlink()

    class Links(hookbus.SessionRunHook):
        def after_run(self) -> None:
            Path("runs/failed").rmdir()
            Path("runs/failed").symlink_to("../other")

    with pytest.raises(ZeroDivisionError) as caught:
        trained("runs", 1, saver, Links(), error=ZeroDivisionError())
    assert any("runs/failed is a link" in note for note in caught.value.__notes__)
    assert content(Path("other")) == before


def test_a_linked_checkpoint_is_read_and_not_changed(
    opened, trained, killed, names, capsys
):
    """It may be that of another run. Pruning removes the link alone."""
    trained("other", 2, error=None)
    before = content(Path("other"))
    Path("runs").mkdir()
    Path("runs/ckpt-2").symlink_to("../other/ckpt-2")
    (Path("other/ckpt-2") / "manifest.json.tmp").write_text("being written")
    killed("runs", 0)
    again = hookbus.Config(autoload=False, again=True)
    with opened("runs", config=again) as session:
        assert session.global_step == 2
    Store(Path("runs")).rewrite_manifest(
        Path("runs/ckpt-2"), Manifest.read(Path("runs/ckpt-2")), "a change"
    )
    assert "a linked checkpoint is not changed" in capsys.readouterr().err
    trained(
        "runs",
        3,
        save_checkpoint_steps=None,
        hooks=[CheckpointSaverHook(save_steps=1, max_to_keep=1)],
        config=again,
    )
    assert names("runs") == ["ckpt-5"]
    after = content(Path("other"))
    assert after.pop("ckpt-2/manifest.json.tmp") == b"being written"
    assert after == before


def test_an_unfinished_manifest_is_not_written_through_a_link(trained, precious):
    """It has a name that others can guess."""
    trained("runs", 1)
    path = Path("runs/ckpt-1")
    a_link(path / "manifest.json.tmp")
    manifest = Manifest.read(path)
    Store(Path("runs")).rewrite_manifest(path, manifest)
    assert Manifest.read(path) == manifest
    assert not (path / "manifest.json").is_symlink()


def test_a_file_is_replaced_through_no_link(precious):
    """The name of the file that is being written can be guessed as well."""
    with replacing(Path("outcome.json")) as unfinished:
        pass_name = unfinished.name
        unfinished.write_text("old")
    a_link(Path(pass_name))
    with replacing(Path("outcome.json")) as unfinished:
        unfinished.write_text("new")
    assert Path("outcome.json").read_text() == "new"


@pytest.mark.parametrize("linked", ["export", "export/best"])
def test_an_export_is_copied_into_no_linked_folder(linked, trained, names):
    """Old copies would be removed there, and they may be checkpoints of a run."""
    trained("other/best", 4)
    before = content(Path("other"))
    Path(linked).parent.mkdir(exist_ok=True)
    Path(linked).symlink_to(Path("other", *Path(linked).parts[1:]).absolute())
    exporter, metrics = BestExporter(exports_to_keep=1), {"loss": 1.0, "global_step": 4}
    trained("runs", 1)
    with pytest.raises(CheckpointDirectoryError, match=f"{linked} is a link"):
        exporter.export(Path("export/best"), Path("runs/ckpt-1"), metrics, False)
    assert content(Path("other")) == before


def test_the_part_of_a_rank_is_read_through_no_link(trained):
    """A checkpoint is what is in its folder."""
    trained("runs", 1)
    path = Path("runs/ckpt-1")
    manifest = Manifest.read(path)
    files = {**manifest.files}
    files |= {f"rank-1/{name}": record for name, record in files.items()}
    (path / "rank-1").symlink_to(path.absolute())
    manifest = Manifest(1, manifest.codec, "me", "why", files, {})
    with pytest.raises(NoGoodCheckpointError, match="its folder rank-1 is a link"):
        manifest.verify(path)


recorded: list[str] | None = None


def record(event: str, arguments: Any) -> None:
    """Note each name that is opened to be written, made, renamed or removed."""
    if recorded is None:
        return
    if event == "open" and isinstance(arguments[0], str | Path):
        if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            recorded.append(os.fspath(arguments[0]))
    elif event in ("os.mkdir", "os.remove", "os.rename"):
        recorded.extend(os.fspath(each) for each in arguments[:2] if isinstance(each, str))


@contextlib.contextmanager
def recording() -> Iterator[list[str]]:
    """Record these names in a block."""
    global recorded
    recorded = names = []
    try:
        yield names
    finally:
        recorded = None


def train(directory: Path) -> None:
    """Use whatever writes into a directory: saves, a failure, values, evaluations."""
    graph = hookbus.Graph()
    graph.variable("w", np.zeros(2))
    graph.op(lambda w: float(w.sum()), name="loss")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    saver = CheckpointSaverHook(save_steps=1, save_on_failure=True, keep_best=1)
    allowed = (hookbus.HookbusError, ZeroDivisionError, OSError)
    for error in (ZeroDivisionError(), None):
        with (
            contextlib.suppress(*allowed),
            hookbus.MonitoredTrainingSession(
                graph,
                checkpoint_dir=directory,
                hooks=[saver],
                save_summaries_steps=1,
                config=hookbus.Config(autoload=False),
            ) as session,
        ):
            for _ in range(2):
                session.run(["train", "loss"])
            if error is not None:
                raise error


@pytest.mark.long
def test_no_name_that_a_session_uses_leads_elsewhere(precious):
    """A link is planted at each name in turn; what it leads to stays as it is."""
    sys.addaudithook(record)
    with recording() as used:
        train(Path("first"))
    root = f"{Path('first').absolute()}{os.sep}"
    found = [Path(root, name).absolute() for name in used]
    inside = {p.relative_to(root) for p in found if p.is_relative_to(root)} - {Path()}
    below = sorted(name for name in inside if "tfevents" not in name.name)  # has the time
    assert {LOCK_NAME, "outcome.json", "failed"} <= {str(name) for name in below}
    assert any(name.name == "manifest.json.tmp" for name in below)
    for number, name in enumerate(below):
        for target in cases(("file", "sub"), ("file", "sub", "new")):
            planted = Path(f"planted-{number}-{target}") / name
            planted.parent.mkdir(parents=True)
            planted.symlink_to(Path("elsewhere", target).absolute())
            train(Path(planted.parts[0]))
            where = f"{name} -> {target}"
            now = content(Path("elsewhere"))
            assert now == {"file": PRECIOUS, "sub/file": PRECIOUS}, where
