"""Has a DataLoader leave out batches without reading their items, where that is exact.

A loader gives its workers a sampler's indices. So an iterator whose sampler leaves out some
of them reads the rest only. It gives the same batches as before if reading an item changes
nothing on which later items depend. In this process, that is so for draws from the
generators of the process: each item draws for itself. In workers, each of which has such
generators of its own, a :class:`Watch` notes such draws. A data set that
holds its own generator is never left out.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import torch
from torch.utils.data import DataLoader

_STATEFUL = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    torch.Generator,
    Iterator,
)
_MOST_OBJECTS = 2000
"""The most objects inside a data set that are looked at; one with more is read again."""
_MOST_PARTS = 64
"""The most parts of one container that are looked at: most are lists of file names."""
_LEAVES = (str, bytes, int, float, complex, type(None), np.ndarray, torch.Tensor)


@attrs.define(eq=False)
class Indices:
    """Gives the indices of a sampler; its next iterator may leave out some.

    Args:
        inner: the sampler.
        begun: is called once, when the first index is taken.
        left_out: how many indices the next iterator leaves out after its first one.
        is_empty: whether the first iterator gives no index at all.
    """

    inner: Any
    begun: Callable[[], object] | None
    left_out: int = 0
    is_empty: bool = False

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers makes two iterators, and uses the second one.
        return self._chosen(iter(()) if self.is_empty else iter(self.inner))

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not yet there
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _chosen(self, indices: Iterator[Any]) -> Iterator[Any]:
        if self.begun is not None:
            # An iterator that stays must not hold its loader: both would live on.
            begun, self.begun = self.begun, None
            begun()
        left_out, self.left_out, self.is_empty = self.left_out, 0, False
        for number, index in enumerate(indices):
            if not 0 < number <= left_out:
                yield index


@attrs.define(eq=False)
class Watch:
    """Notes in the workers of a loader whether reading a batch draws random numbers.

    Args:
        collate_fn: that of the loader.
        worker_init_fn: that of the loader, or None.
    """

    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], object] | None
    _flag: torch.Tensor = attrs.field(init=False)
    _before: Any = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._flag = torch.zeros(1, dtype=torch.uint8).share_memory_()

    @property
    def drew(self) -> bool:
        """Whether a worker has drawn a number since its start."""
        return bool(self._flag[0])

    def start(self, worker_id: int) -> None:
        """Start a worker."""
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)
        self._before = _states()

    def collate(self, items: Any) -> Any:
        """Return the batch of some items, which a worker has read."""
        batch = self.collate_fn(items)
        if not self.drew and not _same(self._before, _states()):
            self._flag[0] = 1
        return batch


def _states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _same(one: Any, other: Any) -> bool:
    if one is None:
        return False
    (python, numpy, own), (python_now, numpy_now, own_now) = one, other
    return (
        python == python_now
        and numpy[2:] == numpy_now[2:]
        and np.array_equal(numpy[1], numpy_now[1])
        and torch.equal(own, own_now)
    )


@attrs.define(eq=False)
class Reading:
    """Prepares the iterators of one DataLoader.

    Args:
        loader: the loader, of PyTorch's own class.
    """

    loader: DataLoader[Any]
    _watch: Watch | None = attrs.field(default=None, init=False)

    def leave_out(self, count: int) -> int:
        """Prepare the next iterator to leave out batches after its first one.

        Each worker gets the batches that it would get otherwise.

        Args:
            count: how many it may leave out.

        Returns:
            How many it will leave out.
        """
        count -= count % max(1, self.loader.num_workers)
        kept = self.loader._iterator
        if kept is None:
            if count or self.loader.num_workers:
                self._prepare(left_out=count)
            return count
        self._watch = getattr(kept._collate_fn, "__self__", None)
        if not isinstance(kept._index_sampler, Indices):
            return 0
        kept._index_sampler.left_out = count
        return count

    def drew(self) -> bool:
        """Return whether a worker may have drawn numbers for batches of the iterator."""
        if not self.loader.num_workers:
            return False
        return not isinstance(self._watch, Watch) or self._watch.drew

    @property
    def keeps_workers(self) -> bool:
        """Whether the next pass goes on with the workers of the one before."""
        return self.loader._iterator is not None

    def keep_workers(self, keeps: bool) -> None:
        """Make the workers of the pass before, or forget them.

        A new pass with workers of another one draws no seed for them.
        """
        if not keeps:
            self.loader._iterator = None
        elif self.loader._iterator is None:
            own = self.loader.generator
            drawn = torch.default_generator if own is None else own
            before = drawn.get_state()
            self._prepare(is_empty=True)
            iter(self.loader)
            drawn.set_state(before)

    def _prepare(self, left_out: int = 0, is_empty: bool = False) -> None:
        """Have the next iterator use indices and workers of this module."""
        loader = self.loader
        settings = vars(loader)  # the loader itself refuses to change its sampler
        key = "sampler" if loader.batch_sampler is None else "batch_sampler"
        changed = {key: settings[key]}
        if loader.num_workers:
            changed |= {name: settings[name] for name in ("collate_fn", "worker_init_fn")}
            self._watch = watch = Watch(loader.collate_fn, loader.worker_init_fn)
            settings |= {"collate_fn": watch.collate, "worker_init_fn": watch.start}
        settings[key] = Indices(
            changed[key], lambda: settings.update(changed), left_out, is_empty
        )


def keeps_nothing(things: Iterable[Any]) -> bool:
    """Return whether objects hold no generator and no iterator, as far as can be seen.

    Their attributes count, what is inside these, and what their functions name.
    """
    waiting, seen = [*things], dict[int, Any]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _LEAVES):
            continue
        seen[id(thing)] = thing  # so that no other object gets its id
        if isinstance(thing, _STATEFUL) or len(seen) > _MOST_OBJECTS:
            return False
        waiting += _inside(thing)
    return True


def _inside(thing: Any) -> Iterator[Any]:
    """Yield the objects that another one holds, or that its functions name."""
    if isinstance(thing, types.ModuleType | type):
        return
    if isinstance(thing, Mapping):
        yield from list(thing.values())[:_MOST_PARTS]
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from list(thing)[:_MOST_PARTS]
    elif isinstance(thing, types.FunctionType):
        yield from _named_in(thing)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    else:
        yield from getattr(thing, "__dict__", {}).values()
        for base in type(thing).__mro__:
            if base.__module__.partition(".")[0] not in ("builtins", "torch", "typing"):
                names = vars(base).get("__slots__", ())
                yield from (getattr(thing, name, None) for name in (*names,))
                parts = vars(base).values()
                yield from (p for p in parts if isinstance(p, types.FunctionType))


def _named_in(function: types.FunctionType) -> Iterator[Any]:
    """Yield the defaults of a function, its outer variables, and the globals it names."""
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet there
            continue
    codes = [function.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
