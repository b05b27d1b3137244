"""Verifies checkpoints, by a list of their files with sizes and hashes.

A checkpoint is bad if hookbus would never write such a manifest, or if a file differs from
it. Only regular files are opened: a pipe or a device must not stop a session. An error
of the disk or of permissions does not make a checkpoint bad: it may be readable later.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import reprlib
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from hookbus.checkpoint.forms import is_count
from hookbus.errors import NoGoodCheckpointError, UsageError

MANIFEST_NAME = "manifest.json"
FORMAT = 1
_MOST_STEPS = 2**62
"""Nobody trains for so many, and there is room for further ones in 64 bits."""
_LARGEST = 2**24
"""The most bytes that a manifest may have."""
_LARGEST_PARAMS = 2**20
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib")
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


_Validator: TypeAlias = "Callable[[Any, attrs.Attribute[Any], Any], None]"


def _fits(test: Callable[[Any], bool]) -> _Validator:
    """Return a validator for values that pass a test."""

    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not test(value):
            raise ValueError(f"{attribute.name} is {reprlib.repr(value)}")

    return check


def _one_of(*types: type) -> _Validator:
    """Return a validator for values of these types."""
    return _fits(lambda value: isinstance(value, types))


def _names_to(*types: type) -> _Validator:
    """Return a validator for mappings from names to values of these types."""

    def maps(value: Any) -> bool:
        return isinstance(value, Mapping) and all(
            isinstance(v, types) for v in value.values()
        )

    return _fits(maps)


def _is_step(value: Any) -> bool:
    """Return whether a value can be a global step, with others after it."""
    return is_count(value) and value < _MOST_STEPS


@attrs.frozen
class FileRecord:
    """Size in bytes and SHA-256 of one file."""

    bytes: int = attrs.field(validator=_fits(is_count))
    sha256: str = attrs.field(validator=_one_of(str))

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Measure a file."""
        with _naming(path), path.open("rb") as file:
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
        wraps: the names of the ops that wrapped a node, in order, by the node's name.
        saved_at: when it was saved, in seconds since the epoch.
        kept: why it is never pruned, by the name of the hook that asked for that.
        values: the numbers that hooks have recorded for its step, by name.
        params: the hyperparameters that the program has recorded; None if they are too
            long, or an older hookbus wrote it. The files of the checkpoint also have them.
        format: the version of this layout.
    """

    global_step: int = attrs.field(validator=_fits(_is_step))
    codec: str = attrs.field(validator=_one_of(str))
    saved_by: str = attrs.field(validator=_one_of(str))
    why: str = attrs.field(validator=_one_of(str))
    files: Mapping[str, FileRecord] = attrs.field(validator=_names_to(FileRecord))
    versions: Mapping[str, str] = attrs.field(validator=_names_to(str))
    ended: str | None = attrs.field(default=None, validator=_one_of(str, type(None)))
    wraps: Mapping[str, Sequence[str]] = attrs.field(
        factory=dict, validator=_names_to(list, tuple)
    )
    saved_at: float = attrs.field(default=0.0, validator=_one_of(float))
    kept: Mapping[str, str] = attrs.field(factory=dict, validator=_names_to(str))
    values: Mapping[str, float] = attrs.field(factory=dict, validator=_names_to(float))
    params: Mapping[str, Any] | None = attrs.field(
        default=None, validator=_one_of(dict, type(None))
    )
    format: int = attrs.field(default=FORMAT, validator=_fits(is_count))

    def text(self) -> str:
        """Return the manifest as JSON, with a hash of itself."""
        body = attrs.asdict(self)
        return json.dumps({**body, "sha256": _digest(body)}, indent=2) + "\n"

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read a checkpoint's manifest.

        Raises:
            NoGoodCheckpointError: it is missing or damaged.
            UsageError: another version of hookbus wrote it; the checkpoint may be good.
            OSError: it cannot be read now.
        """
        path = directory / MANIFEST_NAME
        size = _size_of(path, f"its {MANIFEST_NAME}")
        if size > _LARGEST:
            raise NoGoodCheckpointError(f"its {MANIFEST_NAME} is damaged: {size} bytes")
        with _naming(path):
            content = path.read_bytes()
        try:
            return cls._parse(content, directory)
        except (UsageError, NoGoodCheckpointError):
            raise
        except _DAMAGE as error:
            raise NoGoodCheckpointError(
                f"its {MANIFEST_NAME} is damaged: {error!r}"
            ) from error

    @classmethod
    def _parse(cls, content: bytes, directory: Path) -> Manifest:
        raw: dict[str, Any] = json.loads(content)
        if raw.pop("sha256") != _digest(raw):
            raise NoGoodCheckpointError(f"its {MANIFEST_NAME} was altered (hash differs)")
        written = raw["format"]
        if is_count(written) and written > FORMAT:
            raise UsageError(
                f"{directory} has checkpoint format {written}, but this version "
                f"of hookbus reads format {FORMAT}; upgrade hookbus"
            )
        if type(written) is not int or written != FORMAT:
            raise ValueError(f"format is {reprlib.repr(written)}")
        files = {name: FileRecord(**entry) for name, entry in raw["files"].items()}
        if not files:
            raise ValueError("it lists no files")
        for name in files:
            of_a_rank = _OF_A_RANK.fullmatch(name)
            if not is_file_name(of_a_rank[2] if of_a_rank else name):
                raise ValueError(f"it lists a file {reprlib.repr(name)}")
        return cls(**{**raw, "files": files})

    @property
    def ranks(self) -> int:
        """The number of processes that have saved it together."""
        of_ranks = filter(None, map(_OF_A_RANK.fullmatch, self.files))
        return 1 + max((int(found[1]) for found in of_ranks), default=0)

    def verify(self, directory: Path, contents: bool = True) -> None:
        """Compare the files with this manifest: their sizes and, if asked, their hashes.

        hookbus opens no file that the manifest does not list. A file that is named like a
        pickle still makes the checkpoint bad, because other programs may open it, and
        somebody has put it there.

        Raises:
            NoGoodCheckpointError: a file is missing, short, altered, or not a regular one,
                or there is one that could hold a pickle.
            OSError: a file cannot be read now.
        """
        _check_no_pickle(directory, self.files)
        for rank in range(1, self.ranks):
            folder = RANK_FOLDER.format(rank)
            if (directory / folder).is_symlink():
                raise NoGoodCheckpointError(f"its folder {folder} is a link")
        for name, record in self.files.items():
            size = _size_of(directory / name, f"its file {name}")
            if size != record.bytes:
                raise NoGoodCheckpointError(
                    f"its file {name} has {size} bytes instead of {record.bytes}"
                )
        for name, record in self.files.items() if contents else ():
            if FileRecord.of(directory / name) != record:
                raise NoGoodCheckpointError(f"its file {name} was altered (hash differs)")


def short_params(params: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return hyperparameters for a manifest; None if they would make it too long."""
    return params if len(json.dumps(params, indent=2)) <= _LARGEST_PARAMS else None


def _check_no_pickle(directory: Path, listed: Collection[str]) -> None:
    """Check that no file is there that could hold a pickle.

    Raises:
        NoGoodCheckpointError: there is one.
        OSError: the directory cannot be read now.
    """
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if name not in listed and path.suffix.lower() in _PICKLES:
            raise NoGoodCheckpointError(
                f"its manifest does not list its file {name}, which may be a pickle: a "
                "pickle can run any program"
            )


def _size_of(path: Path, what: str) -> int:
    """Return the size of a regular file.

    Raises:
        NoGoodCheckpointError: it is missing, or something else.
    """
    try:
        status = path.lstat()
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        raise NoGoodCheckpointError(f"{what} is missing") from error
    if not stat.S_ISREG(status.st_mode):
        raise NoGoodCheckpointError(f"{what} is not a regular file")
    return status.st_size


RANK_FOLDER = "rank-{}"
"""The folder for the files of one rank, unless it is the chief."""
_OF_A_RANK = re.compile(r"rank-([1-9][0-9]{0,8})/(.*)", re.DOTALL)


def is_file_name(name: str) -> bool:
    """Return whether a file in a checkpoint may have this name: it leads nowhere else."""
    plain = name.isprintable() and "/" not in name and "\\" not in name
    reserved = ("", ".", "..", MANIFEST_NAME)
    return plain and name not in reserved and len(name.encode()) <= 255


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in an error of the disk; reading from an open file leaves that out."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
