"""Forges checkpoints: others write what hookbus never would, and make the hashes right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from hookbus.checkpoint.manifest import _digest

Where = tuple[Any, ...]
"""The keys and indices that lead to a part of a JSON value."""


def forge_manifest(
    directory: Path, forge: Callable[[Path, dict[str, Any]], object]
) -> None:
    """Alter a checkpoint, and make its manifest right.

    Args:
        directory: the checkpoint.
        forge: takes the directory and the manifest without its hash, and changes both.
    """
    manifest = json.loads((directory / "manifest.json").read_text())
    del manifest["sha256"]
    forge(directory, manifest)
    text = json.dumps({**manifest, "sha256": _digest(manifest)})
    (directory / "manifest.json").write_text(text)


def store(name: str, content: bytes, directory: Path, manifest: dict[str, Any]) -> None:
    """Replace a file, and record its size and hash."""
    (directory / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][name] = {"bytes": len(content), "sha256": digest}


def forge_state(directory: Path, change: Callable[[Any], object]) -> None:
    """Alter the part of a checkpoint that is JSON; *change* changes what it gets."""

    def forge(_: Path, manifest: dict[str, Any]) -> None:
        tree = json.loads((directory / "state.json").read_text())
        change(tree)
        store("state.json", json.dumps(tree).encode(), directory, manifest)

    forge_manifest(directory, forge)


def places(tree: Any, where: Where = ()) -> Iterator[Where]:
    """Yield the way to each part of a JSON value; of a long list of numbers to some."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield (*where, key)
            yield from places(part, (*where, key))
    elif isinstance(tree, list):
        for number in range(len(tree)) if len(tree) < 99 else (0, 1, len(tree) - 1):
            yield (*where, number)
            yield from places(tree[number], (*where, number))


JUNK: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 700, 2**31, 2**63 - 1, 2**64, -(2**70), 0.5, 1e300),
    *("", "x", "0", "\ud800", [], [1], ["x"], [[]], {}, {"x": 1}, {"": {}}),
    {"$": "int", "hex": "0x" + "f" * 40},
    {"$": "float", "bits": "000000000000f87f"},
    {"$": "tuple", "items": [1, "x"]},
    {"$": "bytes", "hex": "00"},
    {"$": "dict", "pairs": [[0, 1], [None, 2]]},
)
"""Values in the place of a part: plain ones, and some that JSON alone lacks."""


def mutate(tree: Any, where: Where, draw: Random) -> str:
    """Change one part of a JSON value in one way; return what was done."""
    above = tree
    for key in where[:-1]:
        above = above[key]
    key, kind = where[-1], draw.randrange(5)
    if kind == 0:
        del above[key]
        return f"{where} is gone"
    if kind == 1 and isinstance(above, dict):
        above[f"{key}x"] = above.pop(key)
        return f"{where} has another name"
    if kind == 2 and isinstance(above[key], int):
        above[key] += draw.choice((-1, 1, 2, 1000))
        return f"{where} is now {above[key]}"
    if kind == 3:
        ways = [*places(tree)]
        other = tree
        for step in draw.choice(ways):
            other = other[step]
        above[key] = json.loads(json.dumps(other))
        return f"{where} is another part: {str(other)[:200]}"
    above[key] = draw.choice(JUNK)
    return f"{where} is now {above[key]!r}"


def mutate_state(directory: Path, where: Where, draw: Random) -> str:
    """Change one part of the JSON of a checkpoint; return what was done."""
    done: list[str] = []
    forge_state(directory, lambda tree: done.append(mutate(tree, where, draw)))
    return done[0]


def mutate_manifest(directory: Path, draw: Random) -> str:
    """Change one part of a manifest; return what was done."""
    done: list[str] = []

    def forge(_: Path, manifest: dict[str, Any]) -> None:
        done.append(mutate(manifest, draw.choice([*places(manifest)]), draw))

    forge_manifest(directory, forge)
    return done[0]


def check_outcome(train: Callable[[], str | int], last: int, done: str) -> None:
    """Demand that a run uses a forged checkpoint, or the one before, or says why not.

    Args:
        train: returns the step at which it began, or the message of an error that it may
            end with.
        last: the step of the checkpoint.
        done: what was done to it.
    """
    try:
        found = train()
    except BaseException as error:
        raise AssertionError(f"{done} ends with {error!r}") from error
    assert isinstance(found, str) or found in (last - 1, last), done
