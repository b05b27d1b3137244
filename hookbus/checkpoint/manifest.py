"""Verifies checkpoints, by a list of their files with sizes and hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.errors import CheckpointError, UsageError

MANIFEST_NAME = "manifest.json"
FORMAT = 1


@attrs.frozen
class FileRecord:
    """Size in bytes and SHA-256 of one file."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Measure a file."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.stat().st_size, digest)


@attrs.frozen
class Manifest:
    """The description of a checkpoint, written last; a checkpoint is invalid without it.

    Attributes:
        codec: the codec that reads its files.
        saved_by: the plugin that asked for it.
        why: the reason that this plugin gave.
        versions: the versions of core, backend and plugins.
        ended: the kind of outcome if the session ended here, or None.
        format: the version of this layout.
    """

    global_step: int
    codec: str
    saved_by: str
    why: str
    files: Mapping[str, FileRecord]
    versions: Mapping[str, str]
    ended: str | None = None
    format: int = FORMAT

    def text(self) -> str:
        """Return the manifest as JSON, with a hash of itself."""
        body = attrs.asdict(self)
        return json.dumps({**body, "sha256": _digest(body)}, indent=2) + "\n"

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read a checkpoint's manifest.

        Raises:
            CheckpointError: it is missing or damaged.
            UsageError: another version of hookbus wrote it; the checkpoint may be good.
        """
        try:
            raw: dict[str, Any] = json.loads((directory / MANIFEST_NAME).read_bytes())
            if raw.pop("sha256") != _digest(raw):
                raise CheckpointError(f"its {MANIFEST_NAME} was altered (hash differs)")
            if raw["format"] != FORMAT:
                raise UsageError(
                    f"{directory} has checkpoint format {raw['format']}, but this version "
                    f"of hookbus reads format {FORMAT}; upgrade hookbus"
                )
            files = {name: FileRecord(**entry) for name, entry in raw["files"].items()}
            return cls(**{**raw, "files": files})
        except (UsageError, CheckpointError):
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(f"its {MANIFEST_NAME} is missing") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"its {MANIFEST_NAME} is damaged: {error!r}") from error

    def verify(self, directory: Path, contents: bool = True) -> None:
        """Compare the files with this manifest: their sizes and, if asked, their hashes.

        Raises:
            CheckpointError: a file is missing, short or altered.
        """
        for name, record in self.files.items():
            try:
                size = (directory / name).stat().st_size
                if size != record.bytes:
                    raise CheckpointError(
                        f"its file {name} has {size} bytes instead of {record.bytes}"
                    )
                if contents and FileRecord.of(directory / name) != record:
                    raise CheckpointError(f"its file {name} was altered (hash differs)")
            except (FileNotFoundError, NotADirectoryError) as error:
                raise CheckpointError(f"its file {name} is missing") from error


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
