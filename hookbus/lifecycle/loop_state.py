"""Holds the state of a custom loop: its open block, its last step, its inputs' names."""

from __future__ import annotations

import threading
from typing import Literal, TypeAlias

import attrs

from hookbus.errors import UsageError, did_you_mean
from hookbus.graph.graph import Graph
from hookbus.graph.wraps import wrapper
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.requests import RunRequests
from hookbus.logs import log

Block: TypeAlias = Literal["step", "evaluation"]
"""A block of a custom loop: the method of the session that makes it."""


@attrs.define(eq=False)
class LoopState:
    """The state of a custom loop.

    Attributes:
        block: the block that is entered; None between two blocks.
        last_context: the context of the last step, which takes the requests that hooks make
            between two steps.
        held: the requests of hooks that wait for the next pull.
        has_begun: whether the first step is prepared.
        has_warned: whether the loop was warned of a long body.
        is_cut_inside: whether the session has left the loop in the body of a value.
        input_names: the names that the loop gave to its inputs.
        thread: the number of the thread that opened the session.
    """

    block: Block | None = None
    last_context: SessionRunContext | None = None
    held: RunRequests = attrs.field(factory=RunRequests)
    has_begun: bool = False
    has_warned: bool = False
    is_cut_inside: bool = False
    input_names: set[str] = attrs.field(factory=set)
    thread: int = attrs.field(factory=threading.get_ident)

    @property
    def is_holding(self) -> bool:
        """Whether requests of hooks wait for the next pull."""
        held = self.held
        return bool(held.stop or held.save or held.rollback)

    def check_block(self, block: Block) -> None:
        """Raise UsageError if another block is open: blocks cannot be nested."""
        if self.block is not None:
            raise UsageError(
                f"{block}() inside {self.block}(): leave the {self.block} first"
            )

    def check_wraps(self, graph: Graph) -> None:
        """Warn of wraps that no input of the loop uses.

        Raises:
            GraphError: a wrap is for a value inside a tracked object.
        """
        names = self.input_names
        for name, wraps in graph.wraps.items():
            if name in names:
                continue
            owners = [graph.resolve(each).owner for each in wraps]
            graph.check_wrap(graph.resolve(name), wrapper(owners[0]))
            near = did_you_mean(name, names) or f"; use session.iterate(..., name={name!r})"
            log.warning(
                "a wrap has no effect",
                node=name,
                by=", ".join(owner or "the user" for owner in owners),
                why=f"no input of the loop has this name{near}",
            )
