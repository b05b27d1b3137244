"""Agrees with the other ranks on what a session does: each rank asks, all act at one step.

Each rank tells at the end of a step what it wants, and reads at the end of the next one
what all wanted: the exchange takes place while the program goes on, and a request takes
effect one step later. If steps are short, the ranks exchange every few steps, because each
exchange wakes threads that compete with the training. At a boundary that every rank can
compute, like the last step or a step with a scheduled checkpoint, they wait for each other,
and a request takes effect at once.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from hookbus.errors import PeerFailedError, PeersDisagreeError, add_note, text_of
from hookbus.peers.protocol import CHIEF, Peers

_ASKS, _SIGNAL, _EVERY, _AT_END, _NOT_AT_END, _AT_ONCE, _LATER, _STEP, _MINUS = range(9)
"""The places of what ranks tell. The greatest of a pair of opposites are both extremes."""


_PERIOD, _MOST_STEPS = 0.05, 16
"""The seconds between two exchanges if steps are short, and the most steps."""


@attrs.define(eq=False)
class Agreement:
    """The part of one rank in what all ranks do.

    Attributes:
        peers: the link to the others.
        asked: what hooks of this rank have asked for, by kind, and the ranks have not
            agreed on yet: plain data.
        is_over: whether the ranks do not wait for each other any more.
        where: where this rank is in the training, for the message if another is elsewhere.
    """

    peers: Peers
    asked: dict[str, Any] = attrs.field(factory=dict)
    is_over: bool = False
    where: str = "begins"
    _is_exchanging: bool = False
    _every: int = 1
    _steps: int = 0
    _since: float = attrs.field(factory=time.monotonic)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes and shows what there is once."""
        return self.peers.rank == CHIEF

    def meet(
        self, step: int, signal: int, *, now: bool, at_end: bool = False
    ) -> tuple[Mapping[int, Mapping[str, Any]], int]:
        """Tell the others what this rank wants; return what all want, once they know.

        Args:
            step: the global step.
            signal: the number of the signal that came; 0 for none.
            now: whether all ranks are at a boundary, and wait for each other.
            at_end: whether the session of this rank ends.

        Returns:
            What each rank has asked for, by rank, and the signal; nothing and 0 if the
            ranks act on nothing in this step.

        Raises:
            PeersDisagreeError: the ranks are at different places of the training.
        """
        self.where = f"{'ended' if at_end else 'went on'} after step {step}"
        self._steps += 1
        every = []
        with self._explaining():
            if self._is_exchanging:
                every.append(self.peers.agreed())
            self._is_exchanging = not now and self._steps >= self._every
            if now or self._is_exchanging:
                ends = at_end, not at_end, now, not now, step, -step
                flags = [bool(self.asked), signal, self._next_period(), *ends]
                every.append(self.peers.agree(flags, now))
        every = [found for found in every if found]
        for found in every:
            self._check(found, at_end)
            self._every = found[_EVERY]
        asked: Mapping[int, Mapping[str, Any]] = {}
        if any(found[_ASKS] for found in every):
            asked = {n: a for n, a in enumerate(self.gather(self.asked)) if a}
            self.asked = {}
        return asked, max((found[_SIGNAL] for found in every), default=0)

    def gather(self, data: Any = None) -> list[Any]:
        """Return the data of all ranks, by rank; all ranks do it together.

        Raises:
            PeerFailedError: another rank is gone.
        """
        with self._explaining():
            return self.peers.gather(data)

    def broadcast(self, data: Any = None) -> Any:
        """Return the chief's data; all ranks do it together.

        Raises:
            PeerFailedError: another rank is gone.
        """
        with self._explaining():
            return self.peers.broadcast(data)

    def same(self, what: str, data: Any) -> None:
        """Check that all ranks have the same data.

        Raises:
            PeersDisagreeError: they differ.
        """
        every = self.gather(data)
        if any(each != every[0] for each in every):
            raise PeersDisagreeError(f"the ranks differ in {what}: {_spelled(every)}")

    def fail(self, why: str) -> None:
        """Leave word for the others that this rank ends, and why."""
        if not self.is_over:
            self.is_over = True
            self.peers.fail(why)

    def close(self) -> None:
        """Release the link, at the end of the session."""
        self.is_over = True
        self.peers.close()

    def explained(self, error: BaseException) -> BaseException:
        """Return the error of another rank, if that has caused the error of this one."""
        if self.is_over or isinstance(error, PeerFailedError | PeersDisagreeError):
            return error
        if not self.peers.is_broken(error):
            return error
        word = self.peers.word(self.where)
        found: BaseException
        told = "; ".join(f"rank {rank}: {why}" for rank, why in word.failed.items())
        silent = ", ".join(map(str, word.silent))
        if told:
            found = PeerFailedError(f"another process of the training has failed. {told}")
        elif silent:
            found = PeerFailedError(
                f"no answer from rank {silent} of {self.peers.size}: its process was "
                "killed, cannot be reached, or does something else. The checkpoints hold "
                "the last step that all ranks have saved"
            )
        else:
            places = {**word.alive, self.peers.rank: self.where}
            if len({*places.values()}) == 1:
                return error  # a collective of the program has failed by itself
            where = "; ".join(f"rank {n} {places[n]}" for n in sorted(places))
            found = PeersDisagreeError(
                f"the ranks wait for each other at different places: {where}. Give each "
                "rank as many batches, and call collectives on all of them"
            )
        found.__cause__ = error
        add_note(found, f"this is rank {self.peers.rank}, which got: {text_of(error)}")
        return found

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn an error of the link into that of the rank that has caused it."""
        try:
            yield
        except Exception as error:
            explained = self.explained(error)
            if explained is error:
                raise
            raise explained from error

    def _next_period(self) -> int:
        """Return after how many steps to exchange again, by the time that they take."""
        now = time.monotonic()
        step = (now - self._since) / self._steps
        self._since, self._steps = now, 0
        return min(_MOST_STEPS, math.ceil(_PERIOD / max(step, 1e-6)))

    def _check(self, found: Sequence[int], at_end: bool) -> None:
        steps = -found[_MINUS], found[_STEP]
        if found[_AT_END] and found[_NOT_AT_END]:
            where = "this rank" if at_end else "another rank"
            what = f"{where} has ended at step {steps[0]}, and others go on"
        elif steps[0] != steps[1]:
            what = f"some are at step {steps[0]}, others at {steps[1]}"
        elif found[_AT_ONCE] and found[_LATER]:
            what = f"at step {steps[0]} a hook is due on some ranks only"
        else:
            return
        raise PeersDisagreeError(
            f"the ranks are at different places of the training: {what}. Give each rank as "
            "many batches, and the same hooks"
        )


def _spelled(every: Sequence[Any]) -> str:
    """Return the different data with the ranks that have it."""
    groups: dict[str, list[int]] = {}
    for rank, each in enumerate(every):
        groups.setdefault(repr(each), []).append(rank)
    return "; ".join(
        f"{data} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        for data, ranks in groups.items()
    )
