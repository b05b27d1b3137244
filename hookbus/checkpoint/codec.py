"""Finds codecs, which convert values to bytes, in an entry-point group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from hookbus.discovery import entry_points
from hookbus.errors import CheckpointError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hookbus.codec"


class Codec(Protocol):
    """Writes one nested structure into a directory and reads it back, bit for bit.

    The structure is made of dicts with str keys, lists, tuples, numbers, strings, None
    and arrays. Nothing may be unpickled.
    """

    def write(self, state: Mapping[str, Any], directory: Path) -> None:
        """Write *state* as files into *directory*, which exists and is empty.

        Raises:
            CheckpointError: a value is of a type that the codec cannot write.
        """

    def read(self, directory: Path) -> dict[str, Any]:
        """Read the structure that :meth:`write` wrote.

        Its files have been verified by then, if the manifest lists them.

        Raises:
            CheckpointError: the files have contents that :meth:`write` never writes; an
                older checkpoint is tried. Any other error ends the session.
        """


def codecs() -> dict[str, EntryPoint]:
    """Return the installed codecs by name; none is imported."""
    found = sorted(entry_points(GROUP), key=lambda entry: entry.name)
    return {entry.name: entry for entry in found}


def load_codec(name: str | None = None) -> tuple[str, Codec]:
    """Load the codec *name*, or by default the first one installed.

    Raises:
        CheckpointError: it is not installed, or cannot be loaded.
    """
    installed = codecs()
    if not installed or (name is not None and name not in installed):
        what = "no checkpoint codec" if name is None else f"the codec {name!r} not"
        raise CheckpointError(
            f"{what} installed, so checkpoints can be neither written nor read; "
            "pip install hookbus-checkpoint-saver"
        )
    chosen = installed[name or next(iter(installed))]
    try:
        return chosen.name, cast("Codec", chosen.load()())
    except ImportError as error:
        raise CheckpointError(
            f"the checkpoint codec {chosen.name!r} ({chosen.value}) cannot be loaded: "
            f"{error}"
        ) from error
