"""Compares the variables of a checkpoint with those of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus.backend.protocol import Session, ValueRecord
from hookbus.errors import CheckpointMismatchError, GraphError
from hookbus.graph.node import owned_by
from hookbus.logs import log
from hookbus.tracked.leaves import leaves


def leave_out(
    values: Mapping[str, Any],
    others: Mapping[str, Any],
    owners: Mapping[str, str],
    event: str,
) -> dict[str, Any]:
    """Leave out the variables of hooks that are not among the others, and log them.

    A hook may be switched on or off between two sessions. Only the variables of the user
    decide whether a checkpoint fits a graph.
    """
    alone = {name: owners[name] for name in owners if name in values and name not in others}
    for hook in dict.fromkeys(alone.values()):
        log.info(event, hook=hook, variables=[n for n, who in alone.items() if who == hook])
    return {name: value for name, value in values.items() if name not in alone}


def compare(
    session: Session,
    here: Mapping[str, ValueRecord],
    saved: Mapping[str, Any],
    owners: Mapping[str, str],
    path: Path,
) -> None:
    """Refuse a checkpoint of another graph.

    Raises:
        CheckpointMismatchError: it has other variables, or other shapes or types.
    """
    faults = [f"{name!r} is only in the graph" for name in here if name not in saved]
    faults += [f"{name!r} is only in the checkpoint" for name in saved if name not in here]
    for name in here.keys() & saved.keys():
        try:
            session.check(name, saved[name], "the checkpoint")
        except GraphError as error:
            ours, theirs = _form(here[name]), _form(ValueRecord.of(name, saved[name]))
            whose = owned_by(owners.get(name))
            fault = (
                f"{name!r}{whose} has {ours} in the graph and {theirs} in the checkpoint"
            )
            # If these are alike, the values differ inside, and the backend says where.
            faults.append(fault if ours != theirs else f"{error}{whose}")
    if faults:
        raise CheckpointMismatchError(
            f"{path} was written by another graph: {'; '.join(sorted(faults))}. "
            "Give this graph another checkpoint_dir"
        )


def report_dtypes(
    session: Session, here: Mapping[str, ValueRecord], saved: Mapping[str, Any]
) -> None:
    """Warn of arrays whose saved values have another dtype than their initial values.

    Training may have changed the dtype, so this is not an error.
    """
    firsts = dict(here)
    if not all(record.is_array for record in here.values()):
        firsts |= _inside(session.snapshot())  # for trees alone, because it may copy
    for name, now in _inside(saved).items():
        first = firsts.get(name)
        if first and first.is_array and now.is_array and first.type != now.type:
            log.warning(
                "restored with another dtype",
                variable=name,
                graph=first.type,
                saved=now.type,
            )


def _inside(values: Mapping[str, Any]) -> dict[str, ValueRecord]:
    """Describe each number and array in values by its path, as :func:`leaves` has it."""
    parts = (part for name, value in values.items() for part in leaves(name, value))
    return {name: ValueRecord.of(name, part) for name, part in parts}


def _form(value: ValueRecord) -> str:
    return f"the shape {value.shape}" if value.is_array else f"the type {value.type}"
