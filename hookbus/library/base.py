"""Defines how a plugin teaches hookbus another library.

A library like PyTorch has values of its own (tensors on a device), random generators that
every program uses without naming them, and objects with a state (modules, optimizers). A
plugin teaches all of that to hookbus with one class, a :class:`Library`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from hookbus.errors import PluginError, Undo
from hookbus.library.roles import Role
from hookbus.peers.protocol import Peers

Faults: TypeAlias = Iterator[str]
"""Ways in which a saved state does not fit the object of today."""


def no_faults(_: Any) -> Faults:
    """Find no fault in a saved state."""
    return iter(())


@attrs.frozen(eq=False)
class RandomSource:
    """A random generator.

    Attributes:
        capture: returns its state, which a checkpoint can hold.
        restore: takes a state that *capture* returned.
        fork: returns the state of a separate stream that follows from the current state;
            the generator does not change.
    """

    capture: Callable[[], Any]
    restore: Callable[[Any], None]
    fork: Callable[[], Any]


class Moment(Protocol):
    """A place in a step of the program where values inside objects can be changed.

    Values with the same moment can be changed together.
    """

    def change(
        self, parts: Mapping[str, Any], fn: Callable[[dict[str, Any]], Mapping[str, Any]]
    ) -> Callable[[], None]:
        """Have the program compute with changed values from now on; return how to end that.

        Args:
            parts: the :attr:`LiveValue.part` of each value, by the value's name.
            fn: takes the values by name, and returns those to use instead; it may change
                them in place. It is called each time that the program comes to the place.

        Raises:
            GraphError: the objects that are tracked do not come to such a place.
        """


@attrs.frozen(eq=False)
class LiveValue:
    """A value that an object holds outside the session, like a parameter of a module.

    Attributes:
        get: returns the current value, or raises NoValueYetError before there is one.
        put: writes a new value into the object; None if hooks cannot assign it. It raises
            GraphError, before it changes anything, if the value does not fit.
        capture: prepares the object to keep the value in the coming step, for values that
            exist only while a step runs; returns a function that undoes the preparation.
            None if *get* always works.
        is_shared: whether reading it takes all processes of the training, as for a value
            of which each holds a part. Hooks cannot assign such a value.
        moment: where a step can change the value on its way, before it is used; None if
            it cannot.
        part: the moment's name for the value.
        role: its role in the training, by which ``names`` finds it; None for a value that
            neither ``names`` nor patterns find, like one of all parameters together.
        forget: forgets the value of an earlier step, for an object that is prepared for
            several steps and may not make the value in each; None if it makes it always.
    """

    get: Callable[[], Any]
    put: Callable[[Any], None] | None = None
    capture: Callable[[], Callable[[], None]] | None = None
    is_shared: bool = False
    moment: Moment | None = None
    part: Any = None
    role: Role | None = "state"
    forget: Callable[[], None] | None = None


class LiveState(Protocol):
    """The values inside an object that come and go, like the entries of a dict."""

    def find(self, name: str) -> LiveValue | None:
        """Return the value of a name; None if the object has no such value now."""

    def names(self) -> Sequence[str]:
        """Return the names of all values that the object has now; copy none."""

    def values(self) -> dict[str, Any]:
        """Return the values that hooks may assign, by name."""

    def write(self, values: Mapping[str, Any]) -> None:
        """Write values by name, together."""


@attrs.frozen(eq=False)
class FleetingValues:
    """Values inside an object that come and go, and that hooks cannot assign.

    Attributes:
        name: the name under which the object is tracked.
        get: returns those that the object has now, by the part of their name after *name*.
    """

    name: str
    get: Callable[[], Mapping[str, LiveValue]]

    def find(self, name: str) -> LiveValue | None:
        """Return the value of a name; None if the object has no such value now."""
        return self.get().get(name[len(self.name) :])

    def names(self) -> Sequence[str]:
        """Return the names of all values that the object has now."""
        return [f"{self.name}{part}" for part in self.get()]

    def values(self) -> dict[str, Any]:
        """Return nothing: hooks cannot assign these values."""
        return {}

    def write(self, values: Mapping[str, Any]) -> None:
        """Write nothing: hooks cannot assign these values."""


@attrs.frozen(eq=False)
class Beside:
    """Something that checkpoints hold of an object besides its state, unseen by hooks.

    Attributes:
        get: returns it, like a state; None if there is nothing to hold.
        put: takes what *get* returned from a checkpoint, and keeps no part of it. Called
            before the state is restored.
    """

    get: Callable[[], Any]
    put: Callable[[Any], None]


@attrs.frozen(eq=False)
class Tracked:
    """One tracked object.

    Attributes:
        get: returns the state to save.
        put: takes a state from a checkpoint and returns the value for the caller.
        value: the value for the caller if nothing is restored.
        faults: takes a state from a checkpoint and yields why it does not fit.
        source: the object as a random generator; None if it is not one.
        live: returns the values inside it that hooks can fetch or assign, by the part of
            their name after the object's name, like ``.fc1.weight``.
        write: writes numbers and arrays inside its state, each given with the keys that
            lead to it. Hooks can then fetch and assign all of them. None leaves it to
            *live*.
        evaluating: returns a context in which the object computes without any effect on
            the training, like a module in evaluation mode; None if it needs none.
        is_alike: whether all processes of the training run have the same state, like that
            of a model whose gradients they share. The chief saves it for all. False by
            default: each process saves its own.
        pending: work that is not finished, like gradients that no optimizer has used. Each
            process saves its own. *put* gets None if nothing was pending. A roll-back
            also restores it.
        modes: switches that the program sets between steps, like whether a module trains.
            All processes have the same. They come back when a program resumes. A roll-back
            leaves them as they are, because the program goes on from where it is.
        rewinds: how much of the state programs draw and count with. While a resumed program
            goes through its passes again, that part is as it was when the program was there
            for the first time. ``whole`` is for something like a generator. ``keys`` is for
            a tree in which whole numbers in arrays are keys and other numbers are counters.
            None restores the whole state at once.
        introduce: is called with all objects that the session tracks, by name, when some
            are added: before any state is compared or restored.
        watch: is called after *introduce*, with the same objects, if the session keeps
            states: begins to note what *pending* and *modes* need to know of each step.
        fleeting: returns values inside it that come and go, like the moments of an
            optimizer, as *live* does. Hooks can fetch them, and cannot assign them. For an
            object without *write*.
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    value: Any
    faults: Callable[[Any], Faults] = no_faults
    source: RandomSource | None = None
    live: Callable[[], Mapping[str, LiveValue]] = dict
    write: Callable[[Sequence[tuple[tuple[Any, ...], Any]]], None] | None = None
    evaluating: Callable[[], AbstractContextManager[Any]] | None = None
    is_alike: bool = False
    pending: Beside | None = None
    modes: Beside | None = None
    rewinds: Literal["whole", "keys"] | None = None
    introduce: Callable[[Mapping[str, Any]], None] | None = None
    watch: Callable[[Mapping[str, Any]], None] | None = None
    fleeting: Callable[[], Mapping[str, LiveValue]] | None = None


@attrs.frozen(eq=False)
class Loader:
    """How an iterable draws random numbers, and how it is led to a position.

    Attributes:
        sources: generators of its own, by name; a resumed session rewinds them. Anything
            else on which its order depends may be one as well.
        draws_between: whether the values that it gives after the first one depend on
            numbers that it draws, in this process, while it goes on, like a shuffle buffer.
            It then gets its own stream, which does not depend on the steps. False if
            it draws at most for the value at hand, or nothing.
        begin_pass: is called with the number of a pass of ``session.iterate``, from 0,
            before it begins, for a loader whose order depends on it; None for any other.
        batch_size: how many examples a batch has; None if that is not known. A session
            reports a change of it.
        leave_out: prepares the next iterator; it is called before each one is made. It
            takes how many values that iterator may leave out after its first one, without
            reading them, and returns how many it will. None reads all of them.
        drew: returns whether reading values has drawn numbers, elsewhere than in this
            process, on which later values depend.
        within_pass: takes the state that the iterable returns in the middle of a pass;
            returns it as it leads back there. Some say after the last value that the pass
            has ended.
    """

    sources: Mapping[str, RandomSource] = attrs.field(factory=dict)
    draws_between: bool = True
    begin_pass: Callable[[int], None] | None = None
    batch_size: int | None = None
    leave_out: Callable[[int], int] | None = None
    drew: Callable[[], bool] = bool
    within_pass: Callable[[Any], Any] = lambda state: state


@attrs.frozen(eq=False)
class Packed:
    """A value of a library in the form that codecs write.

    Attributes:
        dtype: the library's name of its dtype, like ``bfloat16``.
        shape: its shape.
        nbytes: the number of its bytes.
        data: returns its bytes on the host in C order and little-endian, without a copy
            where possible. A codec calls it right before it writes them, so only one value
            at a time is copied to the host.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Callable[[], memoryview]


class LoopModel(Protocol):
    """A small model of a library that a custom loop trains, to test hooks with.

    Each new one is equal, and making it draws from no generator that a program uses.

    Attributes:
        objects: the tracked objects by name, like ``model`` and ``optimizer``.

    >>> from hookbus.testing import run_steps
    >>> run_steps(steps=2, custom_loop=True).outcome.kind
    'completed'
    """

    objects: Mapping[str, Any]

    def train(self, x: float) -> Mapping[str, Any]:
        """Train for one step; return the reports of the step by name, like ``loss``.

        *x* is the value of the loop's input: 1, 2, 3 and so on.
        """

    def evaluate(self, x: float) -> Mapping[str, Any]:
        """Return the reports of a step that does not train; change nothing."""


class Library:
    """Teaches hookbus one library; the base class knows nothing.

    A distribution declares a subclass in the entry-point group ``hookbus.library``, under
    the name of the library's top-level module. It is called without arguments, once.

    A value or an object belongs to a library if one of its classes is defined there, so a
    user's own subclass of ``torch.nn.Module`` belongs to ``torch``.
    """

    def on_host(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return values of this library on the host, moved together, as NumPy arrays.

        The result does not change when the training goes on.
        """
        return values

    def changes(self, value: Any) -> int | None:  # noqa: ARG002 (for subclasses)
        """Return how often a value was changed in place; None if that is not known.

        The session compares it around calls of hooks, which must not change the values of
        the training.
        """
        return None

    def tracked(self, name: str, thing: Any) -> Tracked | None:
        """Return how to save and restore an object that is tracked as *name*.

        None treats it like any other object.

        Raises:
            UsageError: it cannot be tracked.
        """

    def parts(self, value: Any) -> Mapping[str, Any] | None:
        """Return the parts of a container that the library knows, one level, by name.

        Such a container cannot change, like a pytree of JAX, and its class may be one of
        any library. None for anything else. Parts that no checkpoint holds, like a function
        in a model, are left out.

        Raises:
            UsageError: two parts have one name.
        """

    def put_together(self, value: Any, parts: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Return a container like *value* with other parts.

        Args:
            value: a container that :meth:`parts` takes apart.
            parts: the new value of each part that :meth:`parts` returns.
        """
        raise PluginError(
            f"{type(self).__name__} takes containers apart, and does not put them together"
        )

    def is_immutable(self, value: Any) -> bool:  # noqa: ARG002 (for subclasses)
        """Return whether a value can never change, so that nobody needs a copy of it."""
        return False

    def copied(self, value: Any, before: Any = None) -> Any:  # noqa: ARG002 (for subclasses)
        """Return a copy of a value, which remains as it is when the training goes on.

        A codec packs the copy in another thread, while the program computes. A device may
        make it later, but before anything that the program asks of the device from now on.

        Args:
            value: a value that the library can pack.
            before: an earlier copy of the value, which is not used any more. If it is of
                the same form, its memory can be used again; None without one.
        """
        return copy.deepcopy(value)

    def await_copies(self) -> None:
        """Wait until all copies are made, in the thread that writes them."""

    def why_not_saved(self, value: Any) -> str | None:
        """Return why a value cannot be saved, like ``was deleted``; None if it can."""

    def joined(self, name: str, states: Sequence[Any]) -> Any:  # noqa: ARG002 (for subclasses)
        """Return the whole state of a tracked object for a program without a session.

        Args:
            name: the name of the object, for messages.
            states: its states in a checkpoint: one, or if each process has saved its own,
                one of each, by rank.

        Raises:
            UsageError: they cannot be joined.
        """
        return states[0]

    def check(self, tracked: Mapping[str, Any]) -> None:
        """Check that all objects that a session tracks, by name, fit each other.

        Raises:
            UsageError: they do not.
        """

    def as_hook(self, thing: Any) -> Any:
        """Return the hook that stands for a hook object of this library.

        Objects in ``hooks=`` are asked for whose class, or one of its bases, is defined in
        the library. The name and the switches are those of the object itself.
        """
        return thing

    def random_sources(self) -> Mapping[str, RandomSource]:
        """Return the generators that programs use without naming them, by name."""
        return {}

    def peers(self) -> Peers | None:
        """Return the link to the other processes of a training run; None without others.

        Each session of the run asks once, in all processes in the same order.
        """

    def device_memory(self) -> int | None:
        """Return the bytes that this process uses on devices; None if that is not known."""
        return None

    def loop_model(self) -> LoopModel | None:
        """Make a small model, with which authors test hooks; by default None."""

    def loader(self, iterable: Any) -> Loader | None:
        """Return how to restore an iterable's position; None treats it like any other."""

    def pack(self, value: Any) -> Packed | None:
        """Return a value in the form that codecs write; None if it is not a plain value.

        Raises:
            CheckpointError: it would not come back as it is.
        """

    def itemsize(self, dtype: str) -> int | None:  # noqa: ARG002 (for subclasses)
        """Return the bytes of an element of a dtype, as :meth:`pack` names it.

        None for any other text, which a checkpoint of somebody else may contain.
        """
        raise PluginError(
            f"{type(self).__name__} packs values without giving the sizes of its dtypes"
        )

    def unpack(self, packed: Packed) -> Any:  # noqa: ARG002 (for subclasses)
        """Return the value that :meth:`pack` packed, on the host.

        It may keep the bytes, which nothing else uses and which can be written. They are as
        many as the dtype and the shape need, which hookbus has checked.

        Raises:
            CheckpointError: :meth:`pack` never packs such a value.
        """
        raise PluginError(f"{type(self).__name__} packs values, and does not unpack them")

    def placed(self, value: Any, like: Any) -> Any:  # noqa: ARG002 (for subclasses)
        """Return a restored value where *like* is, the value that it replaces.

        A dict or list that a custom loop tracks gets the value.
        """
        return value


def capture(values: Iterable[LiveValue]) -> Callable[[], None]:
    """Have objects keep values that exist only during a step; return how to end that."""
    with contextlib.ExitStack() as stack:
        for value in values:
            if value.capture is not None:
                stack.callback(value.capture())
        return stack.pop_all().close


def capturing(fn: Callable[..., Any], values: Iterable[LiveValue]) -> Callable[..., Any]:
    """Return *fn* as a function during which objects keep these values, if any must."""
    kept = [value for value in values if value.capture is not None]
    if not kept:
        return fn

    def captured(*arguments: Any) -> Any:
        with Undo(capture(kept)):
            return fn(*arguments)

    return captured
