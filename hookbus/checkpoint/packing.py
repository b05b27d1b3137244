"""Packs a state into one text, for a place in the checkpoint of another loop."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus.checkpoint.codec import DEFAULT, load_codec
from hookbus.checkpoint.files import CheckpointFiles
from hookbus.checkpoint.manifest import is_file_name
from hookbus.errors import CheckpointError

_FORM = "hookbus state 1"


def pack(state: Mapping[str, Any]) -> str:
    """Return a state as JSON: the files that a codec writes for it, each with its hash.

    Raises:
        CheckpointError: a value cannot be written, or no codec is installed.

    >>> import numpy as np
    >>> unpack(pack({"best": 0.5, "weights": np.ones(2)}))
    {'best': 0.5, 'weights': array([1., 1.])}
    """
    with tempfile.TemporaryDirectory(prefix="hookbus-") as folder:
        files = CheckpointFiles(folder)
        load_codec().write(state, files)
        found = {each: (Path(folder) / each).read_bytes() for each in files.records}
    packed = {each: base64.b64encode(data).decode() for each, data in found.items()}
    hashes = {each: record.sha256 for each, record in files.records.items()}
    return json.dumps({"form": _FORM, "codec": DEFAULT, "files": packed, "sha256": hashes})


def unpack(text: str) -> dict[str, Any]:
    """Return the state from :func:`pack`.

    Raises:
        CheckpointError: this is no such text, or it has changed.
    """
    try:
        packed = json.loads(text)
        if packed["form"] != _FORM or not all(map(is_file_name, packed["files"])):
            raise ValueError("it has another form")
        files = {n: base64.b64decode(d, validate=True) for n, d in packed["files"].items()}
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != packed["sha256"][name]:
                raise ValueError(f"{name} has changed since it was written")
        codec = load_codec(packed["codec"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"the state of hooks in the checkpoint cannot be read: {error}"
        ) from None
    with tempfile.TemporaryDirectory(prefix="hookbus-") as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        return codec.read(Path(folder))
