"""Tells how DataLoaders draw random numbers, and how they are led to a position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from hookbus import UsageError
from hookbus.backend import Loader, RandomSource
from hookbus_torch.generators import source_of
from hookbus_torch.reading import Reading, keeps_nothing

_MOST_LEVELS = 4
"""The most levels of samplers inside samplers: a sampler may even contain itself."""
_SAMPLERS = (
    "torch.utils.data.",
    "torchdata.stateful_dataloader.",
    "accelerate.data_loader",
)
"""The modules of samplers that draw as PyTorch's do."""
_FINISHED = "_iterator_finished"
"""The key with which a StatefulDataLoader notes the end of a pass in its state."""


def check_no_loader(name: str, thing: Any) -> None:
    """Refuse to track a loader without a state.

    Raises:
        UsageError: it is one.
    """
    if isinstance(thing, DataLoader) and not _has_state(thing):
        raise UsageError(
            f"cannot track {name!r}: a DataLoader has no state; iterate over it with "
            "session.iterate(loader), and checkpoints hold the position"
        )


def _has_state(loader: Any) -> bool:
    """Return whether a loader has a state; one that accelerate prepares may have none."""
    try:
        return bool(loader.state_dict())
    except AttributeError:
        return False


def loader(iterable: Any) -> Loader | None:
    """Return how to restore the position of a DataLoader; None for any other iterable.

    A loader with its own generator seeds its shuffle from that generator, another one
    from PyTorch's: once when the iteration begins, and once for the first batch. So do
    PyTorch's own samplers. Another sampler may draw at any time, and with workers it does
    so ahead of the steps. Without workers, this process makes the batches; the numbers that
    it draws for a batch matter only for that batch, unless the dataset iterates, or the
    loader reads ahead of the steps.

    A loader that accelerate prepares has the one that it iterates over inside, and counts
    the passes; its order depends on the count. Workers that stay for the next pass spare it
    the draw of their seed.
    """
    if not isinstance(iterable, DataLoader):
        return None
    # type() and not the class that a loader of accelerate shows
    inner: Any = vars(iterable).get("base_dataloader", iterable)
    samplers = dict(_samplers(iterable))
    found: dict[int, tuple[str, torch.Generator]] = {}
    for name, owner in {"": iterable, **samplers}.items():
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found.setdefault(id(generator), (f"{name}.generator".lstrip("."), generator))
    sources = {name: source_of(generator) for name, generator in found.values()}
    if inner is not iterable and isinstance(getattr(iterable, "iteration", None), int):
        sources["iteration"] = _iteration(iterable)
    is_plain = type(inner)._get_iterator is DataLoader._get_iterator
    is_plain &= type(inner).__iter__ is DataLoader.__iter__
    reading = Reading(inner)
    if is_plain and inner.persistent_workers:
        sources["workers"] = _workers(reading)
    iterates = isinstance(inner.dataset, IterableDataset)
    looks_ahead = type(iterable).__iter__ is not DataLoader.__iter__
    of_pytorch = all(map(_is_of_pytorch, samplers.values()))
    here = inner.num_workers == 0
    leaves_out = is_plain and of_pytorch and not iterates and _gives_each(iterable, inner)
    leaves_out = leaves_out and keeps_nothing(
        (inner.dataset, inner.collate_fn, inner.worker_init_fn)
    )
    return Loader(
        sources,
        draws_between=(here and (iterates or looks_ahead)) or not of_pytorch,
        begin_pass=_setting_epoch(samplers.values()),
        batch_size=_batch_size(inner),
        leave_out=reading.leave_out if leaves_out else None,
        drew=reading.drew,
        within_pass=_within_pass,
    )


def _gives_each(iterable: Any, inner: Any) -> bool:
    """Return whether a loader gives one value for each batch of the loader inside it."""
    if iterable is inner:
        return True
    skips = getattr(iterable, "skip_batches", 0)
    return type(iterable).__name__ == "DataLoaderShard" and not skips


def _batch_size(loader: DataLoader[Any]) -> int | None:
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def _within_pass(state: Any) -> Any:
    """Return a state of a loader without a note that its pass has ended.

    A loader that accelerate prepares looks one batch ahead, and notes it too early.
    """
    noted = isinstance(state, Mapping) and _FINISHED in state
    return {**state, _FINISHED: False} if noted else state


def _iteration(loader: Any) -> RandomSource:
    """Return the number of the pass that a loader of accelerate counts, as a source."""

    def restore(number: Any) -> None:
        if type(number) is not int:
            raise TypeError(f"{number!r} is not the number of a pass")
        loader.iteration = number

    return RandomSource(lambda: loader.iteration, restore, lambda: loader.iteration)


def _workers(reading: Reading) -> RandomSource:
    """Return whether a loader has workers of the pass before, as a source."""
    return RandomSource(
        lambda: reading.keeps_workers, reading.keep_workers, lambda: reading.keeps_workers
    )


def _setting_epoch(samplers: Iterable[Any]) -> Callable[[int], None] | None:
    """Return a function that gives the number of the pass to the samplers that need it.

    A sampler that gets its number from the program keeps that number.
    """
    distributed = [each for each in samplers if isinstance(each, DistributedSampler)]

    def begin_pass(number: int) -> None:
        for sampler in distributed:
            if sampler.epoch == _epochs.get(sampler, 0):
                sampler.set_epoch(number)
                _epochs[sampler] = number

    return begin_pass if distributed else None


_epochs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The number that each sampler last got here."""


def _samplers(owner: Any, path: str = "", level: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the samplers of a loader, and those inside of them, by their path."""
    for key in ("sampler", "batch_sampler"):
        sampler = getattr(owner, key, None)
        if sampler is not None and level < _MOST_LEVELS:
            name = f"{path}.{key}".lstrip(".")
            yield name, sampler
            yield from _samplers(sampler, name, level + 1)


def _is_of_pytorch(sampler: Any) -> bool:
    """Return whether a sampler draws as PyTorch's do: not one of a user's subclass."""
    return type(sampler).__module__.startswith(_SAMPLERS) or isinstance(
        sampler, range | list | tuple
    )
