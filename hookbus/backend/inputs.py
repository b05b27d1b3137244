"""Pulls values from inputs, and saves and restores their positions.

Checksums of some values show whether an input still gives its earlier values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import attrs

from hookbus.backend.own_state import own_state, taker_of
from hookbus.errors import (
    CheckpointError,
    GraphError,
    OutOfRangeError,
    StateRefused,
    blame,
)
from hookbus.library.base import Loader
from hookbus.library.checksums import Checksums, digest_of, is_fixed
from hookbus.library.lookup import library_of
from hookbus.logs import log
from hookbus.random_state import PROCESS, RandomGenerators, same

_PLAIN = Loader()
_UNKNOWN = object()
_MOST_DRAWS = 100
"""How many values of a pass may draw from the program's own generators, after the first."""


def length_of(iterable: Any) -> int | None:
    """Return how many values an iterable gives; None if it does not know that.

    It does not know that if its ``__len__`` raises, like that of a loader around a data set
    without a length.

    >>> length_of([1, 2]), length_of(iter([1, 2]))
    (2, None)
    """
    try:
        return int(iterable.__len__())
    except Exception:
        return None


@attrs.define(eq=False)
class _Given:
    """Counts the values that an iterator, which gives each value once, has given."""

    count: int = 0


_given: WeakKeyDictionary[Any, _Given] = WeakKeyDictionary()
"""The counts of iterators that passes go through, for the next pass or session."""


class Input:
    """One iterator of a session, made when its first value is needed.

    To restore a position, the input makes a new iterator and skips values, so the iterator
    must give the same values again. An iterator may draw from the generators when it is
    made or gives its first value, usually for a shuffle. The new iterator then draws from
    the same states, and so it does for later values, if only some of them draw, like those
    that begin another epoch. If many do, they are drawn from a stream of the input's own,
    which does not depend on the draws of the steps. Neither is needed if the library of the
    iterable knows that later draws do not matter.

    An iterator or iterable with ``state_dict`` and ``load_state_dict``, or with
    ``get_state`` and ``set_state``, keeps its own position, and draws from the generators
    like the program itself. It keeps none if the first of these methods raises, or returns
    nothing that a checkpoint can hold.

    Where a library can have an iterator leave out values without reading them, and reading
    them has drawn no number on which later values depend, the input does so to restore a
    position. It reads the first value in any case. It compares the checksums of the values
    that it reads again with those of the position, and reports the first difference.

    Args:
        name: the input's name, for messages.
        factory: returns the iterable.
        generators: captures and restores the generators.

    Attributes:
        pulled: how many values were pulled.
        ended: whether the iterator has ended.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], Iterable[Any]],
        generators: RandomGenerators = PROCESS,
    ) -> None:
        self._name = name
        self._factory = factory
        self._generators = generators
        self._reset({})

    def _reset(self, state: Mapping[str, Any]) -> None:
        """Forget the iterator, and note which states it draws from."""
        self._iterable: Any = None
        self._iterator: Iterator[Any] | None = None
        self._plain: Iterator[Any] | None = None
        self._loader = _PLAIN
        self._drawn_from: dict[str, Mapping[str, Any]] = dict(state.get("drawn_from", {}))
        self._stream: Mapping[str, Any] | None = None
        self._watches_draws = self._drew = False
        self._draws = 0
        self._length: int | None = None
        self._given: _Given | None = None
        self._given_before = self._jump = 0
        self._put_back: list[Any] = []
        self.pulled: int = 0
        self._keeper: str | None = None
        self.ended: bool = False
        self._started = False
        self._checksums = Checksums(state)
        self._next_noted = 1
        self._keeps_last = False
        self._last: Any = _UNKNOWN
        self._undrawn: Mapping[str, Any] | None = None
        self._left_out = frozenset(state.get("left_out", ()))

    def pull(self) -> Any:
        """Return the next value, except those that are left out.

        Raises:
            OutOfRangeError: the iterator has ended.
        """
        plain = self._plain
        if plain is None and self.pulled in self._left_out:
            self._pass_over_left_out()
        try:
            value = self._take() if plain is None else next(plain)
        except StopIteration:
            self.ended = True
            raise OutOfRangeError(
                f"input {self._name!r} has ended after {self.pulled} values"
            ) from None
        except Exception as error:
            blame(error, f"input {self._name!r}", f"raised by input {self._name!r}")
            raise
        self.pulled += 1
        if self._keeps_last:
            self._last = value
        if self.pulled == self._next_noted:
            self._note(value)
        return value

    def leave_out(self, numbers: Iterable[int]) -> None:
        """Give no value with one of these numbers, from 0, when it is the next one."""
        self._left_out |= {*numbers}
        self._plain = None

    def _pass_over_left_out(self) -> None:
        """Read the values that are left out and come next."""
        numbers, self._left_out = self._left_out, frozenset()
        try:
            while self.pulled in numbers:
                self.pull()
        finally:
            self._left_out, self._plain = numbers, None

    def _take(self) -> Any:
        """Return the next value; learn whether later ones need no more than ``next()``.

        Raises:
            StopIteration: the iterator has ended.
        """
        iterator = self._open({}) if self._iterator is None else self._iterator
        if self._put_back:
            return self._put_back.pop()
        if not self._started:
            value = self._start(iterator)
        elif self._stream is not None:
            value = self._draw_from_stream(iterator)
        elif self._watches_draws:
            value = self._draw(iterator)
        else:
            value = next(iterator)
            if self._given is None and not self._left_out:
                self._plain = iterator
        if self._given is not None:
            self._given.count += 1
        return value

    def _note(self, value: Any) -> None:
        """Take the checksum of a value, and compare it with the one before a restart."""
        self._keeps_last = is_fixed(value)
        self._last = value if self._keeps_last else _UNKNOWN
        if self._checksums.note(self.pulled, value) and not self._draws_others():
            log.warning(
                "the input gives other values than before the restart",
                input=self._name,
                value=self.pulled,
                why="it draws from a generator that hookbus does not know, or its data has "
                "changed; session.track() saves a generator",
            )
            self._checksums.forget()
        self._next_noted = self._checksums.next_after(self.pulled)

    def _draws_others(self) -> bool:
        """Return whether the values that are read again may have other numbers.

        That is so if the input draws them from the generators of the program, where only
        the later values depend on them: it finds these as before the restart.
        """
        if self._undrawn is None or self._watches_draws:
            return False
        return not same(self._undrawn, self._generators.capture())

    def _move_on(self, pulled: int) -> None:
        """Count values that are not read again."""
        self.pulled, self._last = pulled, _UNKNOWN
        self._next_noted = self._checksums.next_after(pulled)

    def put_back(self, value: Any) -> None:
        """Take back the last value, because the run that needs it does not happen."""
        self._put_back.append(value)
        self._plain = None
        self.pulled -= 1
        self._last = _UNKNOWN

    def length(self) -> int | None:
        """Return how many values the iterable gives; None if it does not know that."""
        if self._iterable is None:
            self._make_iterable()
        return self._length

    def loader_states(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the states on which a loader's order depends: at the start, and now."""
        return self._drawn_from.get("loader", {}), _capture(self._loader)

    def continue_loader(self, known: Mapping[str, Any]) -> None:
        """Have a loader begin as the last pass over it has ended, in the program before.

        A loader goes on only if it is as the first one was when its first pass began, and
        if the program before did not make a new one for each pass.

        Args:
            known: the states of the loader: ``first`` when its first pass began, ``start``
                when the last one did, ``end`` when that one ended; and ``is_only``, whether
                there was one pass.
        """
        if self._iterable is None:
            self._make_iterable()
        first, start = known["first"], known["start"]
        is_made_anew = not known["is_only"] and same(start, first)
        if same(_capture(self._loader), first) and not is_made_anew:
            _restore(self._loader, known["end"])

    def remaining(self) -> int | None:
        """Return how many values are left, if the iterable in use has a length."""
        if self._length is None:
            return None
        ahead = [n for n in self._left_out if self.pulled <= n < self._length]
        return max(0, self._length - self.pulled - len(ahead))

    def can_go_back(self, state: Mapping[str, Any]) -> bool:
        """Return whether it can give the values after an earlier position once more.

        An iterator gives each value once, unless it keeps its own position.
        """
        if self._keeper == "iterable":
            return "iterable" in state
        return "iterator" in state or not hasattr(self._iterable, "__next__")

    def go_back(self, state: Mapping[str, Any], left_out: Iterable[int]) -> None:
        """Move to an earlier position, and leave out these values as well.

        Raises:
            CheckpointError: the input ends before the position.
        """
        numbers = self._left_out.union(left_out)
        self.load_state_dict(state)
        self.leave_out(numbers)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        return self.state_at(self.pulled)

    def state_at(self, pulled: int) -> dict[str, Any]:
        """Return the position after *pulled* values, the last one or one before it."""
        sizes = {"length": self._length, "batch_size": self._loader.batch_size}
        state: dict[str, Any] = {"pulled": pulled}
        state |= {name: size for name, size in sizes.items() if size is not None}
        if pulled == self.pulled:
            state |= self._kept_state()
        if self._loader.leave_out is not None:
            state["drew"] = self._drew or self._loader.drew()
        if self._given_before:
            state["given_before"] = self._given_before
        drawn_from = {
            when: states
            for when, states in self._drawn_from.items()
            if not when.isdecimal() or int(when) < pulled
        }
        if drawn_from:
            state["drawn_from"] = drawn_from
        if self._keeper is None:
            is_last = pulled == self.pulled and self._last is not _UNKNOWN
            last = digest_of(self._last) if is_last and is_fixed(self._last) else None
            state |= self._checksums.state(pulled, last)
        ahead = sorted(number for number in self._left_out if number >= pulled)
        if ahead:
            state["left_out"] = ahead
        return state

    def state_at_end(self) -> dict[str, Any]:
        """Return the position of an input that has ended: where its next pass starts.

        It also has the state that a longer iterable needs to continue after it.
        """
        state = self.state_at(self.pulled)
        state["sources"] = _capture(self._loader)
        if self._keeper == "iterable":
            own = self._own_state("iterable")
            if own is not None:
                state["iterable"] = own
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to a position: through the iterator's own state, or by skipping values.

        Skipping values may advance the generators.

        Raises:
            CheckpointError: the input ends before the position, has passed it, or does not
                take its own state.
        """
        self._reset(state)
        if not state["pulled"] and "iterable" not in state:
            return  # the iterator is made when it is needed, as in a new session
        if "iterable" in state:
            self._make_iterable()
        moved = self._takes_over(self._iterable, state, "iterable")
        try:
            iterator = self._open(state)
        except Exception as error:
            if moved and not isinstance(error, CheckpointError):
                raise self._refused(error) from error
            raise
        if moved or self._takes_over(iterator, state, "iterator"):
            self._move_on(state["pulled"])
            self._started = True
            self._restore_sources(iterator, state.get("sources", {}))
            return
        if self._given is not None:
            self._go_on(self._given, iterator, state)
        try:
            self._read_again(state["pulled"])
        except OutOfRangeError as error:
            raise self._too_short(state, str(self.pulled)) from error

    def _read_again(self, pulled: int) -> None:
        """Read values up to a position, except those that a loader leaves out.

        Raises:
            OutOfRangeError: the input ends before.
        """
        if self.pulled < pulled and not self._started:
            self.pull()
        if self._jump:
            self._move_on(self.pulled + self._jump)
        if self._checksums.compares:
            self._undrawn = self._generators.capture()
        while self.pulled < pulled:
            self.pull()

    def load_state_at_end(self, state: Mapping[str, Any]) -> None:
        """Move to the end, and pull nothing."""
        self._reset({})
        self._make_iterable()
        _restore(self._loader, state.get("sources", {}))
        self._takes_over(self._iterable, state, "iterable")
        self._iterator, self.pulled = iter(()), state["pulled"]
        self._started = self.ended = True

    def _open(self, state: Mapping[str, Any]) -> Iterator[Any]:
        """Make the iterator; *state* is the position to which it is to move, or empty."""
        self._iterator = self._replayed("open", lambda: self._make(state))
        if self._own_state("iterator") is not None:
            self._keeper = "iterator"
        elif self._iterator is not self._iterable:
            self._keeper = "iterable" if self._own_state("iterable") is not None else None
        return self._iterator

    def _kept_state(self) -> dict[str, Any]:
        """Return the part of a position that the iterator or the iterable keeps."""
        keeper = self._keeper
        own = None if keeper is None else self._own_state(keeper)
        if keeper is None or own is None:
            return {}
        state = {keeper: self._loader.within_pass(own)}
        return state | ({"sources": _capture(self._loader)} if self._loader.sources else {})

    def _own_state(self, keeper: str) -> Any:
        """Return the state that the iterator or the iterable keeps; None without one."""
        own = own_state(getattr(self, f"_{keeper}"))
        if own.is_fault or (own.why and keeper == self._keeper):
            log.warning(
                "the input keeps no position of its own",
                input=self._name,
                why=own.why,
                effect="a resumed session reads its values again, up to the position",
            )
        if own.why and keeper == self._keeper:
            self._keeper = None
        return own.value

    def _takes_over(self, thing: Any, state: Mapping[str, Any], key: str) -> bool:
        """Give a thing its own part of a position; return whether it takes one over."""
        take = taker_of(thing) if key in state else None
        if take is None:
            return False
        try:
            take(state[key])
        except Exception as error:
            raise self._refused(error) from error
        return True

    def _restore_sources(self, iterator: Iterator[Any], sources: Mapping[str, Any]) -> None:
        """Restore the generators of a loader that has taken over a state.

        This draws other numbers than a pass does that begins. Older checkpoints have none.
        """
        if inspect.isgenerator(iterator):
            self._iterator = self._restored_late(iterator, sources)
        else:
            _restore(self._loader, sources)

    def _restored_late(
        self, iterator: Iterator[Any], sources: Mapping[str, Any]
    ) -> Iterator[Any]:
        """Yield the values of an iterator that takes over its state for the first one."""
        for value in iterator:
            _restore(self._loader, sources)
            yield value
            break
        yield from iterator

    def _refused(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"input {self._name!r} does not take the state that it has in the checkpoint "
            f"({type(error).__name__}: {error}); give the same input with the same "
            "settings as before, or start in another directory"
        )

    def _too_short(self, state: Mapping[str, Any], ends: str) -> CheckpointError:
        """Return the error of an input that ends before its position."""
        once = hasattr(self._iterable, "__next__") and self._given is None
        hint = (
            f"; it is a {type(self._iterable).__name__}, which gives each value once, and "
            "may have given some before"
        )
        return CheckpointError(
            f"the checkpoint is at value {state['pulled']} of input {self._name!r}, which "
            f"now ends after {ends}{hint if once else ''}; give it the same data as "
            "before, or start in another directory"
        )

    def _go_on(
        self, given: _Given, iterator: Iterator[Any], state: Mapping[str, Any]
    ) -> None:
        """Move an iterator that gives each value once to the beginning of the pass.

        A new one gives the values of the passes before once more. One of this process may
        stand in the pass already.

        Raises:
            CheckpointError: it ends before, or has passed the position.
        """
        before = state.get("given_before", 0)
        if given.count > before + state["pulled"]:
            raise CheckpointError(
                f"the checkpoint is at value {before + state['pulled']} of input "
                f"{self._name!r}, a {type(iterator).__name__} that has given "
                f"{given.count} values, each of them once; make a new one for each session"
            )
        while given.count < before:
            try:
                next(iterator)
            except StopIteration as error:
                ends = f"{given.count} of the values before"
                raise self._too_short(state, ends) from error
            given.count += 1
        self._given_before = before
        self._move_on(given.count - before)
        self._started = self.pulled > 0

    def _compare_size(self, state: Mapping[str, Any]) -> None:
        """Report that the input has another length or batch size than in a position.

        A range, like that of ``session.epochs``, may be longer than before.

        Raises:
            CheckpointError: it ends before the position.
        """
        before, now = state.get("length"), self._length
        size_before, size = state.get("batch_size"), self._loader.batch_size
        longer = None not in (before, now) and before != now
        larger = None not in (size_before, size) and size_before != size
        if not longer and not larger:
            return
        why = [f"gives {now} values, and gave {before} in the checkpoint"] if longer else []
        if larger:
            why += [f"has the batch size {size}, and had {size_before} in the checkpoint"]
        elif size is None or size_before is None:
            why += ["has another batch size or another data set"]
        else:
            why += ["has another data set"]
        cause = f"it {'; it '.join(why)}"
        if longer and now < state["pulled"]:
            raise self._too_short(state, f"{now}: {cause}")
        if isinstance(self._iterable, range):
            return  # its first values are the same, whatever its length
        self._checksums.forget()  # this is why the values are others
        log.warning(
            "the input has another size than in the checkpoint",
            input=self._name,
            why=cause,
            effect="the rest of this pass may repeat examples, or leave some out",
        )

    def _make(self, state: Mapping[str, Any]) -> Iterator[Any]:
        if self._iterable is None:
            self._make_iterable()
        if state:
            self._compare_size(state)
        drawn_from = self._drawn_from.get("loader")
        if drawn_from is not None:
            _restore(self._loader, drawn_from)
        elif self._loader.sources:
            self._drawn_from["loader"] = _capture(self._loader)
        if self._loader.leave_out is not None:
            exact = state.get("drew") is False
            self._jump = self._loader.leave_out(max(0, state["pulled"] - 1) if exact else 0)
        try:
            return iter(self._iterable)
        except TypeError as error:
            raise GraphError(
                f"input {self._name!r}: its function returned "
                f"{type(self._iterable).__name__}, which cannot be iterated over"
            ) from error

    def _make_iterable(self) -> None:
        self._iterable = iterable = self._factory()
        self._length = length_of(iterable)
        library = library_of(iterable)
        self._loader = (library and library.loader(iterable)) or _PLAIN
        self._given = _given_by(iterable)
        self._given_before = 0 if self._given is None else self._given.count

    def _start(self, iterator: Iterator[Any]) -> Any:
        value = self._replayed("start", lambda: next(iterator))
        self._started = True
        draws = not self._drawn_from.keys().isdisjoint(("open", "start"))
        alone = self._loader.draws_between and self._keeper is None
        self._watches_draws = draws and alone
        return value

    def _draw(self, iterator: Iterator[Any]) -> Any:
        """Pull a value from the program's generators; note from where, if it draws."""
        key = str(self.pulled)
        value, draws = self._replayed(key, lambda: next(iterator)), key in self._drawn_from
        if draws:
            self._drew = True
            self._draws += 1
            if self._draws > _MOST_DRAWS:
                self._stream = self._generators.fork()
        return value

    def _draw_from_stream(self, iterator: Iterator[Any]) -> Any:
        """Pull a value while the generators give the input's own stream."""
        outside, before = self._generators.capture(), self._stream
        assert before is not None
        self._generators.restore(before)
        try:
            return next(iterator)
        finally:
            self._stream = self._generators.capture()
            if self._loader.leave_out is not None and not self._drew:
                self._drew = not same(before, self._stream)
            self._generators.restore(outside)

    def _replayed(self, when: str, do: Callable[[], Any]) -> Any:
        """Call *do*, which may draw numbers, with the generators as they were before."""
        known = self._drawn_from.get(when)
        if known is not None:
            self._generators.restore(known)
            return do()
        # Later values are drawn between steps, which draw from what is tracked as well.
        begins = when in ("open", "start")
        capture = self._generators.capture_all if begins else self._generators.capture
        before = capture()
        result = do()
        if not same(before, capture()):
            self._drawn_from[when] = before
        return result


def _given_by(iterable: Any) -> _Given | None:
    """Return the count of an iterator that gives each value once; None for another one.

    It is also None if it is not known, because code outside of hookbus pulls values.
    """
    if not hasattr(iterable, "__next__"):
        return None
    is_used = inspect.isgenerator(iterable) and (
        inspect.getgeneratorstate(iterable) != inspect.GEN_CREATED
    )
    try:
        return _given.get(iterable) if is_used else _given.setdefault(iterable, _Given())
    except TypeError:  # no weak reference leads to it
        return None


def _capture(loader: Loader) -> dict[str, Any]:
    return {name: source.capture() for name, source in loader.sources.items()}


def _restore(loader: Loader, states: Mapping[str, Any]) -> None:
    for name in loader.sources.keys() & states.keys():
        with StateRefused(f"the random generator {name!r} of a loader"):
            loader.sources[name].restore(states[name])
