"""Agrees with the other ranks on requests: each rank asks, and all act at one step.

Each rank sends its requests at the end of a step, and reads those of all ranks at the end
of the next one: the exchange takes place while the program goes on, and a request takes
effect one step later. If steps are short, the ranks exchange every few steps, because each
exchange wakes threads that compete with the training.

At a boundary the ranks wait for each other, and a request takes effect at once. A boundary
is a step that a hook of any rank has chosen, like the last step or one with a scheduled
checkpoint. The ranks tell each other the next boundary, so all of them know it even if
their hooks have chosen different steps.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs

from hookbus.errors import (
    PeerFailedError,
    PeersDisagreeError,
    add_note,
    summary_of,
    text_of,
)
from hookbus.peers.protocol import CHIEF, Peers, Reduction

_PERIOD, _MOST_STEPS = 0.05, 16
"""The seconds between two exchanges if steps are short, and the most steps."""
_WRITTEN = 2
NEVER = 2**62
"""The next boundary of a rank none of whose hooks has chosen a step."""


_ALIKE = (
    ": give it HookOptions(ranks='all'), and let it decide by what all ranks have alike, "
    "for example by a fetch with reduce='mean'"
)


@attrs.frozen
class Status:
    """The numbers that a rank tells the others.

    Attributes:
        step: the global step.
        boundary: the global step of the next boundary that this rank knows.
        place: the number of its place in :data:`_PLACES`.
        asks: whether its hooks have asked for something.
        signal: the number of the signal that came; 0 for none.
        every: after how many steps to exchange again.
        skipped: the number of updates that hooks have skipped.
        skipped_at: the sum of the global steps at which they have.
        assigned: the number of values that hooks have assigned.
        digests: the sum of the checksums of these values.
        writing: 1 while a thread of this rank writes a checkpoint, 2 when it has written
            it, 0 if none is under way.
    """

    step: int
    boundary: int = NEVER
    place: int = 0
    asks: int = 0
    signal: int = 0
    every: int = 0
    skipped: int = 0
    skipped_at: int = 0
    assigned: int = 0
    digests: int = 0
    writing: int = 0

    def flags(self) -> list[int]:
        """Return the numbers, and their opposites: the greatest of both are extremes."""
        numbers = attrs.astuple(self)
        return [*numbers, *(-number for number in numbers)]


@attrs.frozen
class MinMax:
    """The greatest and the least of each number that the ranks have sent."""

    most: Status
    least: Status

    @classmethod
    def of(cls, flags: Sequence[int]) -> MinMax:
        """Return the extremes in the greatest of the flags of all ranks."""
        half = len(flags) // 2
        return cls(Status(*flags[:half]), Status(*(-flag for flag in flags[half:])))


Place: TypeAlias = Literal["in a pass", "at the end of a pass", "at its end"]
"""The places in its program at which a rank exchanges."""
_PLACES: tuple[Place, ...] = get_args(Place)
_GOES_ON: Mapping[Place, str] = {
    "in a pass": "went on",
    "at the end of a pass": "had no further value",
    "at its end": "ended",
}


@attrs.define(eq=False)
class Agreement:
    """The part of one rank in the requests of all ranks.

    Attributes:
        peers: the link to the others.
        asked: the requests of this rank's hooks, by kind, on which the ranks still have to
            agree: plain data.
        is_over: whether the ranks do not wait for each other any more.
        all_written: whether each rank has written its part of the checkpoint under way.
        where: where this rank is in the training, for the message if another is elsewhere.
    """

    peers: Peers
    asked: dict[str, Any] = attrs.field(factory=dict)
    is_over: bool = False
    all_written: bool = False
    where: str = "begins"
    _boundary: int = 0
    _is_exchanging: bool = False
    _every: int = 1
    _steps: int = 0
    _since: float = attrs.field(factory=time.monotonic)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes and shows all that exists once."""
        return self.peers.rank == CHIEF

    def exchange(
        self, status: Status, place: Place = "in a pass", *, now: bool = False
    ) -> tuple[Mapping[int, Mapping[str, Any]], int]:
        """Send the requests of this rank; return those of all ranks, once they are known.

        Args:
            status: the numbers of this rank, without those that this object adds.
            place: the place of the rank in its program.
            now: whether all ranks wait for each other here, and not only at a boundary.

        Returns:
            The requests of each rank, by rank, and the signal; nothing and 0 if the ranks
            act on nothing in this step.

        Raises:
            PeersDisagreeError: the ranks are at different places of the training, or their
                hooks have acted on some ranks only.
            PeerFailedError: another rank is gone.
        """
        self.where = f"{_GOES_ON[place]} after step {status.step}"
        self._steps += not now
        every: list[MinMax] = []
        with self._explaining():
            if self._is_exchanging:
                every.append(self._read(self.peers.agreed()))
            now |= status.step >= self._boundary
            self._is_exchanging = not now and self._steps >= self._every
            if now or self._is_exchanging:
                status = attrs.evolve(
                    status,
                    place=_PLACES.index(place),
                    asks=bool(self.asked),
                    every=self._next_period(),
                )
                flags = self.peers.agree(status.flags(), now)
                if now:
                    every.append(self._read(flags))
        asked: Mapping[int, Mapping[str, Any]] = {}
        if any(found.most.asks for found in every):
            asked = {n: a for n, a in enumerate(self.gather(self.asked)) if a}
            self.asked = {}
        return asked, max((found.most.signal for found in every), default=0)

    def gather(self, data: Any = None) -> list[Any]:
        """Return the data of all ranks, by rank; all ranks do it together.

        Raises:
            PeerFailedError: another rank is gone.
        """
        with self._explaining():
            return self.peers.gather(data)

    def broadcast(self, data: Any) -> Any:
        """Return the chief's data; all ranks do it together.

        Raises:
            PeerFailedError: another rank is gone.
        """
        with self._explaining():
            return self.peers.broadcast(data)

    def reduce(self, values: Sequence[float], how: Sequence[Reduction]) -> list[float]:
        """Return each value over all ranks; all ranks do it together.

        Raises:
            PeerFailedError: another rank is gone.
            PeersDisagreeError: another rank does something else.
        """
        with self._explaining():
            return self.peers.reduce(values, how)

    def same(self, data: Mapping[str, Any]) -> None:
        """Check that all ranks have equal data; the keys name it in the message.

        Raises:
            PeersDisagreeError: they differ.
        """
        every = self.gather(data)
        for what in {name: None for each in every for name in each}:
            each = [data.get(what) for data in every]
            if any(other != each[0] for other in each):
                raise PeersDisagreeError(f"the ranks differ in {what}: {_spelled(each)}")

    def fail(self, error: BaseException) -> None:
        """Leave the others a message that this rank ends, and why.

        If another rank has caused it, the others hear of it from that rank.
        """
        if not self.is_over:
            self.is_over = True
            if not isinstance(error, PeerFailedError | PeersDisagreeError):
                self.peers.fail(summary_of(error))

    def close(self) -> None:
        """Release the link, at the end of the session."""
        self.is_over = True
        self.peers.close()

    def explained(self, error: BaseException, *, of_link: bool = False) -> BaseException:
        """Return the error of another rank, if that has caused the error of this one.

        Args:
            error: the error of this rank.
            of_link: whether an exchange of this object has raised it, and not the program.
        """
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
            where = "; ".join(f"rank {n} {places[n]}" for n in sorted(places))
            if len({*places.values()}) > 1:
                found = PeersDisagreeError(
                    f"the ranks wait for each other at different places: {where}. Give "
                    "each rank as many batches, and call collectives on all of them"
                )
            elif of_link:
                found = PeerFailedError(
                    "all ranks are there, but they did not reach each other in time: "
                    "the machines or the network are too slow for the time limit of the "
                    "process group. Give it a longer one"
                )
            else:
                return error  # a collective of the program has failed by itself
        found.__cause__ = error
        add_note(found, f"this is rank {self.peers.rank}, which got: {text_of(error)}")
        return found

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn an error of the link into that of the rank that has caused it."""
        try:
            yield
        except Exception as error:
            explained = self.explained(error, of_link=True)
            if explained is error:
                raise
            raise explained from error

    def _next_period(self) -> int:
        """Return after how many steps to exchange again, by the time that they take."""
        if not self._steps:  # they have met in this step already
            return self._every
        now = time.monotonic()
        step = (now - self._since) / self._steps
        self._since, self._steps = now, 0
        return min(_MOST_STEPS, math.ceil(_PERIOD / max(step, 1e-6)))

    def _read(self, flags: Sequence[int]) -> MinMax:
        """Take over the numbers of all ranks.

        Raises:
            PeersDisagreeError: they are at different places, or have done different things.
        """
        found = MinMax.of(flags)
        most, least = found.most, found.least
        self._every, self._boundary = most.every, least.boundary
        self.all_written = least.writing == _WRITTEN
        if most.step != least.step:
            what = f"some are at step {least.step}, others at {most.step}"
        elif most.place != least.place:
            first, last = _PLACES[least.place], _PLACES[most.place]
            what = f"after step {most.step} some are {last}, others {first}"
        elif most.skipped != least.skipped:
            raise _alone("skipped", "updates", least.skipped, most.skipped, most.step)
        elif most.assigned != least.assigned:
            raise _alone("assigned", "values", least.assigned, most.assigned, most.step)
        elif most.skipped_at != least.skipped_at:
            raise PeersDisagreeError(
                "the ranks differ in the steps in which hooks have skipped updates until "
                f"step {most.step}, so their models drift apart. A hook must do that on "
                f"all ranks{_ALIKE}"
            )
        elif most.digests != least.digests:
            raise PeersDisagreeError(
                "the ranks differ in the values that hooks have assigned until step "
                f"{most.step}, so their models drift apart. A hook must assign the same on "
                f"all ranks{_ALIKE}. With --log-level debug each rank logs which variables "
                "its hooks assign"
            )
        else:
            return found
        raise PeersDisagreeError(
            f"the ranks are at different places of the training: {what}. Give each rank as "
            "many batches, and the same hooks"
        )


def _alone(did: str, what: str, least: int, most: int, step: int) -> PeersDisagreeError:
    """Return the error for actions of hooks on some ranks only."""
    return PeersDisagreeError(
        f"the ranks differ in how often hooks have {did} {what} until step {step}: {least} "
        f"on some, {most} on others, so their models drift apart. A hook must do that on "
        f"all ranks{_ALIKE}"
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
