"""Finds codecs, which convert values to bytes, in an entry-point group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from hookbus.checkpoint.files import CheckpointFiles
from hookbus.discovery import entries_of
from hookbus.errors import CheckpointError, UsageError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hookbus.codec"
DEFAULT = "safetensors"
"""The codec that writes checkpoints; each is read with the codec that wrote it."""
MOST_LEVELS = 100
"""The levels of dicts, lists and tuples that a state may have, one inside the other.

Codecs and copies are recursive, so Python limits the depth anyway: to a number that depends
on how deep the calls of the program are at that moment.
"""


class Codec(Protocol):
    """Writes one nested structure into files and reads it back, bit for bit.

    The structure is made of dicts with str keys, lists, tuples, numbers, strings, None,
    arrays and values of libraries; each part of it has at most 100 levels. Nothing may be
    unpickled.

    >>> import json
    >>> class JsonCodec:
    ...     def write(self, state, files):
    ...         with files.open("state.json") as file:
    ...             file.write(json.dumps(state).encode())
    ...     def read(self, directory):
    ...         return json.loads((directory / "state.json").read_bytes())
    >>> files = CheckpointFiles()
    >>> JsonCodec().write({"w": 2.0}, files)
    >>> files.records["state.json"].bytes
    10
    """

    def write(self, state: Mapping[str, Any], files: CheckpointFiles) -> None:
        """Write *state* into new files.

        Equal states get equal files, because a session compares the hashes to find out
        whether the last checkpoint has the current state. Large arrays are copied neither
        all at once nor more often than once.

        Args:
            state: the structure to write.
            files: creates the files of the checkpoint.

        Raises:
            CheckpointError: a value is of a type that the codec cannot write.
        """

    def read(self, directory: Path) -> dict[str, Any]:
        """Read the structure that :meth:`write` wrote.

        The files were verified before, if the manifest lists them.

        Args:
            directory: the directory of the checkpoint.

        Raises:
            CheckpointError: the files have contents that :meth:`write` never writes; an
                older checkpoint is tried. Any other error ends the session.
        """


class ExportingCodec(Codec, Protocol):
    """A codec that also writes values into one file, for programs without hookbus.

    ``hookbus export`` takes the codec whose name is the suffix of the file: ``safetensors``
    for ``model.safetensors``.
    """

    def export(
        self, values: Mapping[str, Any], metadata: Mapping[str, str], file: BinaryIO
    ) -> None:
        """Write arrays, numbers and values of libraries under exactly these names.

        Args:
            values: the values by name, in their order in the state. Numbers are Python's
                ``bool``, ``int`` of 64 bits, and ``float``.
            metadata: where the values come from. A format without metadata leaves it out.
            file: is open for writing, and empty. ``hookbus export`` makes it appear under
                its name when it is complete.

        Raises:
            UsageError: the format cannot hold a value, or a name.
            CheckpointError: the library of a value refuses to pack it.
        """


def too_deep(state: Any) -> str:
    """Return why a state has too many levels for a codec, or an empty text.

    >>> too_deep({"momentum": [0.5]})
    ''
    """
    level = [state]
    for _ in range(MOST_LEVELS):
        # Each object once: two lists that hold each other twice would grow without end.
        inner = {id(part): part for whole in level for part in _containers(whole)}
        if not inner:
            return ""
        level = [*inner.values()]
    return f"has more than {MOST_LEVELS} levels, or contains itself"


def _containers(whole: Any) -> Iterator[Any]:
    parts = whole.values() if isinstance(whole, Mapping) else whole
    if isinstance(whole, Mapping | list | tuple):
        yield from (part for part in parts if isinstance(part, Mapping | list | tuple))


def codecs() -> dict[str, EntryPoint]:
    """Return the installed codecs by name; none is imported.

    Raises:
        CheckpointError: two distributions provide a codec of one name.
    """
    found: dict[str, tuple[EntryPoint, str]] = {}
    for entry, release in entries_of(GROUP):
        other = found.setdefault(entry.name, (entry, release.label))[1]
        if other != release.label:
            raise CheckpointError(
                f"two distributions provide the checkpoint codec {entry.name!r}: "
                f"{' and '.join(sorted((other, release.label)))}; uninstall one"
            )
    return {name: found[name][0] for name in sorted(found)}


def load_exporting_codec(suffix: str) -> ExportingCodec:
    """Load the codec that writes files with this suffix, like ``safetensors``.

    Raises:
        UsageError: no codec that is installed writes such files.
        CheckpointError: the codec cannot be loaded.
    """
    known = codecs()
    if not suffix:
        raise UsageError(
            f"a file needs a suffix, which names its format, like model.{DEFAULT}"
        )
    if suffix not in known:
        hint = did_you_mean(suffix, {DEFAULT, *known} - {suffix})
        raise UsageError(
            f"no codec for files with the suffix '.{suffix}' is installed; a file "
            f"'.{DEFAULT}' needs hookbus-checkpoint-saver (pip install "
            f"hookbus-checkpoint-saver); installed codecs: {', '.join(known) or 'none'}"
            f"{hint}"
        )
    codec = load_codec(suffix)
    if not hasattr(codec, "export"):
        raise UsageError(
            f"the codec {suffix!r} ({known[suffix].value}) writes checkpoints only: it has "
            f"no method export(); name a file '.{DEFAULT}'"
        )
    return cast("ExportingCodec", codec)


def load_codec(name: str = DEFAULT) -> Codec:
    """Load the codec *name*, by default the one that checkpoints are written with.

    Raises:
        CheckpointError: it is not installed, or cannot be loaded.
    """
    chosen = codecs().get(name)
    if chosen is None:
        raise CheckpointError(
            f"the checkpoint codec {name!r} is not installed, so such checkpoints can be "
            "neither written nor read; pip install hookbus-checkpoint-saver"
        )
    try:
        return cast("Codec", chosen.load()())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise CheckpointError(
            f"the checkpoint codec {chosen.name!r} ({chosen.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
