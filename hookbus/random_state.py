"""Captures and restores random generators, and undoes the draws of a block."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import attrs

from hookbus.errors import StateRefused, Undo
from hookbus.library.base import Beside, RandomSource
from hookbus.library.lookup import libraries, on_host
from hookbus.logs import log
from hookbus.validation import backend_of


def python_source(generator: Any) -> RandomSource:
    """Return the source of a ``random.Random``, or of the module ``random``."""

    def fork() -> Any:
        copied = random.Random()
        copied.setstate(generator.getstate())
        return random.Random(copied.getrandbits(64)).getstate()

    return RandomSource(generator.getstate, generator.setstate, fork)


def numpy_source(generator: Any, bits: Callable[[], Any]) -> RandomSource:
    """Return the source of a ``RandomState`` of NumPy, or of the module ``numpy.random``.

    *bits* returns its bit generator.
    """

    def fork() -> Any:
        before = generator.get_state(legacy=False)
        words = generator.randint(2**32, size=4, dtype="uint32")
        generator.set_state(before)
        state = type(bits())([int(word) for word in words]).state
        return {**state, "has_gauss": 0, "gauss": 0.0}

    return RandomSource(
        lambda: generator.get_state(legacy=False), generator.set_state, fork
    )


@functools.cache
def _numpy() -> RandomSource:
    generator = sys.modules["numpy"].random
    return numpy_source(generator, generator.get_bit_generator)


_PYTHON = python_source(random)


def sources() -> dict[str, RandomSource]:
    """Return the generators that programs use without naming them, by name.

    These are Python's, NumPy's if NumPy is loaded, and those of the libraries that the
    program has imported and a plugin knows.
    """
    found = {"python": _PYTHON}
    if sys.modules.get("numpy") is not None:
        found["numpy"] = _numpy()
    for library in libraries().values():
        found.update(library.random_sources())
    return found


@attrs.frozen(eq=False)
class RandomGenerators:
    """All random generators that something may draw from, as one.

    Attributes:
        sources: returns them by name; more may be there later.
        beside: returns, by name, the other things with which a program draws and counts
            with, like keys in what it tracks. A name is in one of the two.
    """

    sources: Callable[[], Mapping[str, RandomSource]] = sources
    beside: Callable[[], Mapping[str, Beside]] = dict

    def capture(self) -> dict[str, Any]:
        """Return the states of the generators by name."""
        return {name: source.capture() for name, source in self.sources().items()}

    def capture_all(self) -> dict[str, Any]:
        """Return these states, and those of the program's other draws and counts."""
        parts = {name: part.get() for name, part in self.beside().items()}
        return {**self.capture(), **{n: each for n, each in parts.items() if each}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`capture` or :meth:`capture_all` returned.

        A state of a generator that is not here is left alone.

        Raises:
            CheckpointError: a generator does not take its state.
        """
        restores = {name: source.restore for name, source in self.sources().items()}
        restores |= {name: part.put for name, part in self.beside().items()}
        for name, put in restores.items():
            if name in state:
                with StateRefused(f"the random generator {name!r}"):
                    put(state[name])

    def fork(self) -> dict[str, Any]:
        """Return states of separate streams that follow from the current states.

        Each follows from its own generator, because a program may seed only one of them.
        """
        return {name: source.fork() for name, source in self.sources().items()}


@attrs.define(eq=False)
class RestoredGenerators:
    """Restores the generators of a process, also those of libraries imported later."""

    _awaited: Mapping[str, Any] = attrs.field(factory=dict)

    def restore(self, states: Mapping[str, Any]) -> None:
        """Restore the generators that are here by now."""
        restore(states)
        here = sources()
        self._awaited = {name: state for name, state in states.items() if name not in here}

    def restore_rest(self) -> None:
        """Restore the generators of libraries that were imported since; report others."""
        if not self._awaited:
            return
        self.restore(self._awaited)
        for name in self._awaited:
            log.warning(
                "a random generator of the checkpoint is not restored",
                generator=name,
                why="the program has not imported its library, or no plugin here knows it",
            )


_NUMBERS = frozenset({int, float})

PROCESS = RandomGenerators()
"""The generators of the process."""

capture: Callable[[], dict[str, Any]] = PROCESS.capture
restore: Callable[[Mapping[str, Any]], None] = PROCESS.restore


def same(one: Any, other: Any) -> bool:
    """Return whether two captured states are equal, including arrays within them."""
    if one is other:
        return True
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple) and not _NUMBERS.issuperset(map(type, one)):
        alike = type(one) is type(other) and len(one) == len(other)
        return alike and all(map(same, one, other))
    arrays = [value for value in (one, other) if hasattr(value, "dtype")]
    if len(arrays) == 2:
        one, other = (value.tobytes() for value in on_host(arrays))
    elif arrays:  # an array compares itself with each part of another value
        plain = other if arrays[0] is one else one
        if not isinstance(plain, int | float) or getattr(arrays[0], "shape", ()) != ():
            return False
    return bool(one == other)


class HasInputs(Protocol):
    """The part of a backend session that moves its inputs back."""

    def positions(self) -> dict[str, Any]:
        """Return the position of each input, by name."""

    def seek(self, positions: Mapping[str, Any]) -> None:
        """Move the named inputs to positions."""


class HasBackendInputs(Protocol):
    """A session with hooks, whose backend session has inputs."""

    @property
    def backend_session(self) -> HasInputs:
        """The backend session."""


def undisturbed(
    session: HasInputs | HasBackendInputs | None = None,
) -> AbstractContextManager[None]:
    """Restore random generators and inputs after a block.

    Restores the process's random generators (Python's, and if they were loaded before,
    NumPy's and those of libraries with a plugin) and the positions of a session's inputs.
    So an evaluation in the middle of training may draw numbers and pull values without any
    effect on it. An input is restored as after a kill: its function is called
    again, and values are skipped or its iterator gets its position. Variables, and
    generators that the program has created itself, are not restored.

    Args:
        session: the backend session whose inputs are restored, as hooks have it, or a
            monitored session. None restores no input.

    Raises:
        ArgumentTypeError: it is no session.

    >>> import random
    >>> random.seed(1)
    >>> with undisturbed():
    ...     first = random.random()
    >>> random.random() == first
    True
    """
    generators = capture()
    # A copy: an iterator may return the very state that it goes on changing.
    given = None if session is None else backend_of(session, "undisturbed")
    positions = {} if given is None else copy.deepcopy(given.positions())

    def undo() -> None:
        try:
            if given is not None:
                _seek(given, positions)
        finally:
            restore(generators)  # last: an input may draw on its way back

    return Undo(undo)


@attrs.define(eq=False)
class RandomStream:
    """A stream of random numbers for several blocks, apart from that of the program.

    The first block begins where the process's generators are. Each further one continues
    where the block before it ended, and after each block the process's generators are as
    they were before.

    >>> import random
    >>> random.seed(1)
    >>> expected = [random.random() for _ in range(2)]
    >>> random.seed(1)
    >>> stream, drawn = RandomStream(), []
    >>> for _ in range(2):
    ...     with stream.drawing():
    ...         drawn.append(random.random())
    >>> drawn == expected, random.random() == expected[0]
    (True, True)
    """

    _states: Mapping[str, Any] = attrs.field(factory=dict, init=False)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Return a block whose random numbers come from this stream."""
        with undisturbed():
            restore(self._states)
            yield
            self._states = capture()


def _seek(session: HasInputs, positions: Mapping[str, Any]) -> None:
    """Move back the inputs that were pulled from; others keep their iterator."""
    current = session.positions()
    moved = {
        name: position
        for name, position in positions.items()
        if not same(current[name], position)
    }
    if moved:
        session.seek(moved)
