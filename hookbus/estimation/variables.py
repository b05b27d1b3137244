"""How the variables of a checkpoint are read, and how another model begins with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus.checkpoint.latest import latest_checkpoint
from hookbus.checkpoint.saving import read_checkpoint
from hookbus.errors import CheckpointError
from hookbus.graph import Graph
from hookbus.logs import log
from hookbus.scaffold import Scaffold
from hookbus.session import Session


def variables_at(source: str | Path) -> Mapping[str, Any]:
    """Return the variables of a checkpoint, or of the newest one in a directory.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    found = latest_checkpoint(source)
    path = found.path if found is not None else Path(source)
    if found is None and not (path / "manifest.json").is_file():
        raise CheckpointError(f"there is no checkpoint in {str(source)!r}")
    restored = read_checkpoint(path)
    variables: Mapping[str, Any] = restored.state["variables"]
    return {**variables, "global_step": restored.manifest.global_step}


def warm(graph: Graph, scaffold: Scaffold | None, source: str | Path) -> Scaffold:
    """Return a scaffold that gives variables their values in another checkpoint.

    It does so where nothing is restored, for the variables that both have.
    """
    before = None if scaffold is None else scaffold.init_fn
    values = variables_at(source)

    def begin(scaffold: Scaffold, session: Session) -> None:
        own = session.variables()
        known = {name: value for name, value in values.items() if name in own}
        session.write(known)
        log.info("warm start", source=str(source), variables=len(known))
        if before is not None:
            before(scaffold, session)

    return Scaffold(graph, init_fn=begin, copy_from_scaffold=scaffold)
