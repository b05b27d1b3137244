"""Links the processes of ``torch.distributed``, in its own control group."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import attrs
import torch
from torch import distributed as dist

from hookbus.backend import Reduction, Word

_SECONDS_FOR_WORD = 10.0
"""The time that a rank waits for messages of the others after an error."""
_POLL = 0.05
_BROKEN = ("gloo", "nccl", "connection closed by peer", "timed out", "process group")
"""Words in the errors of a collective whose class does not show where they are from."""


def current() -> TorchPeers | None:
    """Return the link of the program's process group; None if it has none."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return TorchPeers()


@attrs.define(eq=False)
class TorchPeers:
    """The link between the ranks of the program's process group, for one session.

    The first call that waits for the others makes the control group. A session releases it
    at its end: PyTorch aborts a process that exits with a group.
    """

    rank: int = attrs.field(factory=dist.get_rank, init=False)
    size: int = attrs.field(factory=dist.get_world_size, init=False)
    _group: Any = attrs.field(default=None, init=False)
    _exchange: tuple[Any, torch.Tensor] | None = attrs.field(default=None, init=False)

    def agree(self, flags: Sequence[int], now: bool) -> Sequence[int]:
        """Exchange flags; return the greatest of each, if it is to wait."""
        mine = torch.tensor(flags, dtype=torch.int64)
        work = dist.all_reduce(mine, dist.ReduceOp.MAX, self._control(), async_op=True)
        self._exchange = work, mine
        return self.agreed() if now else ()

    def agreed(self) -> Sequence[int]:
        """Wait for the exchange that has begun last, and return its result."""
        assert self._exchange is not None
        work, flags = self._exchange
        work.wait()
        found: list[int] = flags.tolist()
        return found

    def broadcast(self, data: Any) -> Any:
        """Return the chief's data."""
        return self.gather(data if self.rank == 0 else None)[0]

    def gather(self, data: Any) -> list[Any]:
        """Return the data of all ranks."""
        content = json.dumps(data).encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(content)]), group=self._control())
        longest = max(int(size) for size in sizes)
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine, group=self._control())
        return [
            json.loads(part[: int(size)].numpy().tobytes())
            for part, size in zip(every, sizes, strict=True)
        ]

    def reduce(self, values: Sequence[float], how: Sequence[Reduction]) -> list[float]:
        """Return each of the values over all ranks, in one collective."""
        mine = torch.tensor(values, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine, group=self._control())
        whole = torch.stack(every)
        kinds = {"mean": whole.mean(0), "sum": whole.sum(0), "max": whole.amax(0)}
        found = {kind: reduced.tolist() for kind, reduced in kinds.items()}
        return [found[kind][place] for place, kind in enumerate(how)]

    def fail(self, why: str) -> None:
        """Leave a message in the store of the process group, which needs no other rank."""
        with contextlib.suppress(Exception):
            self._store().set(f"left {self.rank}", why)

    def close(self) -> None:
        """Destroy the control group."""
        group, self._group, self._exchange = self._group, None, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)

    def is_broken(self, error: BaseException) -> bool:
        """Return whether an error is one of ``torch.distributed``."""
        if isinstance(error, dist.DistError):
            return True
        text = str(error).lower()
        return isinstance(error, RuntimeError) and any(word in text for word in _BROKEN)

    def word(self, here: str) -> Word:
        """Tell in the store where this rank is, and read what others have left there."""
        silent = set(range(self.size)) - {self.rank}
        failed: dict[int, str] = {}
        alive: dict[int, str] = {}
        with contextlib.suppress(Exception):  # it may be on the host of a rank that is gone
            store, end = self._store(), time.monotonic() + _SECONDS_FOR_WORD
            store.set(f"alive {self.rank}", here)
            while silent and time.monotonic() < end:
                for rank in [*silent]:
                    for what, left in (("left", failed), ("alive", alive)):
                        if store.check([f"{what} {rank}"]):
                            left[rank] = store.get(f"{what} {rank}").decode()
                            silent.discard(rank)
                            break
                if failed:  # the others end because of these
                    silent.clear()
                time.sleep(_POLL)
        return Word(failed, sorted(silent), alive)

    def _control(self) -> Any:
        """Return the control group, which disturbs no collective of the program."""
        if self._group is None:
            store = self._store()
            for key in (f"left {self.rank}", f"alive {self.rank}"):
                store.delete_key(key)  # of an earlier session
            limit = _time_limit(dist.group.WORLD)
            self._group = dist.new_group(backend="gloo", timeout=limit)  # needs no device
        return self._group

    def _store(self) -> Any:
        store = dist.distributed_c10d._get_default_store()
        return dist.PrefixStore("hookbus", store)


def _time_limit(world: Any) -> timedelta:
    """Return how long the program lets its own collectives wait."""
    for device in ("cpu", "cuda"):
        with contextlib.suppress(RuntimeError, AttributeError):
            limit: timedelta = world._get_backend(torch.device(device)).options._timeout
            return limit
    usual: timedelta = dist.constants.default_pg_timeout
    return usual
