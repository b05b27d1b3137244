"""Defines the interface of a backend, and its record of a run."""

from __future__ import annotations

import operator
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import attrs

from hookbus.errors import UsageError
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.library.roles import Role
from hookbus.validation import attribute_of


@attrs.frozen
class RunOptions:
    """Options of one run.

    Attributes:
        trace_level: 0 (default) traces nothing; a higher level fills the run's
            ``run_metadata``. ``RunOptions.FULL_TRACE`` traces everything. The highest level
            of all hooks applies. The embedded backend records the same at each level.
        native: further options in the backend's own form, those of each party that has
            some; the backend unites them.

    >>> RunOptions(trace_level=RunOptions.FULL_TRACE).trace_level > RunOptions().trace_level
    True
    """

    FULL_TRACE: ClassVar[int] = 3

    trace_level: int = 0
    native: tuple[Any, ...] = ()

    def merge(self, other: RunOptions | None) -> RunOptions:
        """Return the maximum of both trace levels, as TensorFlow does, and all else."""
        if other is None:
            return self
        if not (self.native or other.native):
            return self if other.trace_level <= self.trace_level else other
        level = max(self.trace_level, other.trace_level)
        return RunOptions(level, self.native + other.native)


class RunMetadata:
    """The record of one run; empty unless the run was traced.

    Hooks get it as ``run_values.run_metadata``; a caller passes its own to ``run``.

    Attributes:
        ops: each op and each value pulled from an input, in the order they ended.
        start: when the backend began, in seconds of ``time.perf_counter``.
        seconds: how long the run took.
        native: the backend's own record, if it makes one.

    >>> RunMetadata().ops  # of a run that was not traced
    ()
    """

    # Every run makes one; defaults in the class save it a Python call.
    ops: Sequence[OpRecord] = ()
    start: float = 0.0
    seconds: float = 0.0
    native: Any = None

    def __repr__(self) -> str:
        return f"RunMetadata(ops={self.ops}, start={self.start}, seconds={self.seconds})"


_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NO_OPTIONS = RunOptions()


@attrs.define(eq=False)
class Execution:
    """One execution: a plan, its feeds and writes, and how to record it.

    Read-only by contract, except for what *metadata* holds: a step may make one, and a
    frozen one would take three times as long to make.

    Attributes:
        program: the result of :meth:`Session.compile`.
        feeds: the value of each fed node, by name.
        writes: variable to the name of a hook and the value that it assigns.
        options: the parts of the run to record.
        metadata: the record to fill in if ``options.trace_level`` is above 0; its
            ``native`` is for the backend's own.
    """

    program: Any
    feeds: Mapping[str, Any] = _NOTHING
    writes: Mapping[str, tuple[str, Any]] = _NOTHING
    options: RunOptions = _NO_OPTIONS
    metadata: RunMetadata = attrs.field(factory=RunMetadata)


class Session(Protocol):
    """A running graph, as the loop and the hooks see it.

    Hooks get it as ``run_context.session``, and as an argument of events. They change
    variables with ``run_context.assign``, and with :meth:`write` in events outside a run.

    The loop compiles each distinct request once and executes it in each step. Only the
    session itself touches its values, because they may live on a device.

    A session is created with its finalized graph. It copies the initial values of variables
    (``node.source`` of each of ``graph.variables``), because a graph can serve several
    sessions. After a preemption, a new session of the graph takes over.
    """

    global_step: int
    """The number of steps that are done, an int on the host."""
    version: int
    """Changes with each change of a variable or of ``global_step``."""
    preemption_errors: tuple[type[Exception], ...]
    """The errors after which a new session may succeed where this one failed."""

    @property
    def graph(self) -> Graph:
        """The graph that it runs, of the class that the backend wants."""

    @property
    def label(self) -> str:
        """The backend, its version and its device, for logs and checkpoints."""

    @property
    def xp(self) -> Any:
        """The array namespace that ops get as ``xp``, like the module ``numpy``."""

    @property
    def shares_step(self) -> bool:
        """Whether other processes may also advance ``global_step``."""

    def names(self, pattern: str = "*", role: Role | None = None) -> tuple[str, ...]:
        """Return the names of values that hooks may fetch, as :meth:`Graph.names` does.

        In a custom loop those that the last step reported are among them.
        :class:`hookbus.backend.SessionBase` has this method.
        """

    def compile(
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
    ) -> Any:
        """Plan a run that fetches and feeds the named nodes.

        Args:
            fetches: the nodes that the caller wants; their values stay where they are.
            feeds: the nodes that are fed.
            host: the nodes that hooks want; their values arrive on the host, together. A
                node may be in both.

        Returns:
            A plan of any type, which only :meth:`execute` reads;
            :func:`hookbus.backend.plan` makes one.

        Raises:
            UnfedPlaceholderError: the run needs a placeholder that is not fed.
            WriteConflictError: two ops of the run update one variable.
        """

    def capture(self, fetches: Sequence[str]) -> bool | None:
        """Prepare for a step of a custom loop that hooks will ask for these nodes.

        Called before the step if its nodes are others than those of the step before. Some
        values exist only while a step runs, so the backend must begin to keep them. A
        backend that serves no custom loop has nothing to do.

        Returns:
            True to be called before each step with these nodes: a step that does not make
            a value must not have that of an earlier one.
        """

    def take_reports(self, reports: Mapping[str, Any]) -> None:
        """Take the reports of a step of a custom loop, by name; they are read at any time.

        Raises:
            UsageError: the backend serves no custom loop.
        """

    def execute(self, execution: Execution) -> Sequence[Any]:
        """Run a plan once, commit its updates and writes, and return the values.

        All reads see the values from before the run. Updates and writes are committed
        together when all ops have succeeded. Then ``global_step`` advances by the sum of
        the increments of the plan's train ops. An error changes neither the global step nor
        a variable, except for changes that ops make in place.

        An output of a train op that does not run has the value of the op's last run in this
        session.

        Returns:
            The values of the plan's *fetches*, then those of *host*.

        Raises:
            OutOfRangeError: an input has ended. The values that others have given for this
                run are put back.
            NoValueYetError: such a train op never ran. The error's ``node`` is the name of
                the output.
            WriteConflictError: a hook and an op of the run write one variable.
            GraphError: a value does not fit its variable.
            SessionClosedError: the session is closed.
        """

    def execute_without_update(self, execution: Execution) -> Sequence[Any]:
        """Run a plan like :meth:`execute`, but commit no updates of train ops.

        Everything else is as after any run: outputs have new values, inputs are used,
        ``global_step`` has advanced, and writes are committed.

        Raises:
            UsageError: no train op runs.
        """

    def run(self, fetches: Any, feed_dict: Mapping[Node | str, Any] | None = None) -> Any:
        """Run part of the graph without calling hooks.

        Args:
            fetches: a name, a node, an object that ``graph.leaf`` knows, or a nesting of
                these; :func:`hookbus.backend.structure_of` and
                :func:`hookbus.backend.merge` take it apart.
            feed_dict: node or name to value.

        Returns:
            The values in the same nesting, where they are.
        """

    def check(self, name: str, value: Any, who: str) -> None:
        """Check that a value can be written, by *who*, a hook or an op.

        Raises:
            GraphError: the session has no such variable, or the value does not fit it.
        """

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables new values, those of a checkpoint for example; all or none.

        Raises:
            GraphError: as :meth:`check`.
        """

    def variables(self) -> dict[str, Any]:
        """Return the value of each variable by name, ``global_step`` left out.

        The values are on the host, or belong to a library that a plugin knows.
        """

    def describe(self) -> dict[str, ValueRecord]:
        """Return the dtype and shape of each variable by name; copy no value."""

    def snapshot(self) -> dict[str, Any]:
        """Return the value of each variable for a save, which reads it once.

        The values are of the kinds of :meth:`variables`. Before the session runs again,
        they are written, or copied. An array that is read-only, and views none that can be
        written, is not copied. It has to stay as it is, because a thread may write it to
        the disk while the session goes on.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the backend besides variables, for a checkpoint; often empty.

        The state is a nesting of dicts with str keys, lists, numbers, strings, None and
        arrays.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of :meth:`state_dict`.

        Raises:
            CheckpointMismatchError: the state does not fit; nothing is changed.
        """

    def positions(self) -> dict[str, Any]:
        """Return the position of each input, by name, as :class:`Input` has it."""

    def seek(self, positions: Mapping[str, Any]) -> None:
        """Move the named inputs to positions; ignore names that the graph lacks."""

    def leave_out(self, numbers: Mapping[str, Iterable[int]]) -> None:
        """Give no value of an input that has one of these numbers any more.

        Numbers count from 0. Positions contain the left out numbers that are still to come.
        """

    def pulled(self) -> int:
        """Return how many values were pulled from inputs, those before a seek included."""

    def remaining(self) -> int | None:
        """Return how many steps of a loop are left until an input ends, if known."""

    def fork(self, inputs: Literal["copy", "fresh"] = "copy") -> Session:
        """Return an independent session of this graph with the current values.

        Neither session sees changes of the other one. Random generators stay as they are;
        runs of the fork draw from those of the process like any other run, so put them into
        a block of :func:`hookbus.evaluating.undisturbed` if they draw. Close the fork
        before the session that it was made from.

        This method is optional for a backend.

        Args:
            inputs: ``copy`` (default): its inputs begin where those of this session are;
                ``fresh``: at their beginning. :func:`hookbus.backend.fork_inputs` makes
                them. They have no effect on generators.

        Raises:
            UsageError: the backend cannot do it, or *inputs* is something else.
            SessionClosedError: the session is closed.
        """

    def close(self) -> None:
        """Refuse further runs, and release the resources of the session."""


def create_session(graph: Graph) -> Session:
    """Create a session of the backend that a graph names.

    Raises:
        UsageError: the backend cannot be imported.
    """
    backend: Any = graph.backend
    if isinstance(backend, str):
        try:
            backend = pkgutil.resolve_name(backend)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(
                f"the graph names the backend {backend!r}, which cannot be imported: "
                f"{error}"
            ) from error
    session: Session = backend(graph)
    return session


@attrs.frozen
class ValueRecord:
    """Describes the value of a node in one run, without holding it.

    Attributes:
        name: the node's name.
        type: the dtype of an array, like ``float32``, or the name of the value's class.
        shape: the shape of an array; ``()`` for anything else.
        nbytes: its size in bytes, if the value has that attribute.

    >>> ValueRecord.of("x", memoryview(b"abc"))
    ValueRecord(name='x', type='memoryview', shape=(3,), nbytes=3)
    """

    name: str
    type: str
    shape: tuple[int, ...] = ()
    nbytes: int | None = None

    @property
    def is_array(self) -> bool:
        """Whether the value is an array, or a number with a dtype."""
        return self.nbytes is not None

    @classmethod
    def of(cls, name: str, value: Any) -> ValueRecord:
        """Describe a value of any kind, whatever its attributes hold."""
        dtype, shape = attribute_of(value, "dtype"), attribute_of(value, "shape")
        return cls(
            name,
            type(value).__name__ if dtype is None else _spelled(dtype),
            _sizes(shape) if isinstance(shape, tuple) else (),
            _size(attribute_of(value, "nbytes")),
        )


@attrs.frozen
class OpRecord:
    """One op of a traced run, or one value pulled from an input.

    An op that raises an error is not recorded. Recording costs some microseconds for each
    op, and nothing in a run that is not traced.

    Attributes:
        name: the node's name.
        kind: ``op`` or ``input``.
        start: when it began, in seconds of ``time.perf_counter``.
        seconds: how long it took.
        inputs: the values that it read, each once.
        outputs: the values that it computed, for the readers of its nodes.
        updates: the new values of variables, committed at the end of the run.

    >>> record = OpRecord("loss", "op", start=12.5, seconds=0.25)
    >>> record.name, record.start + record.seconds
    ('loss', 12.75)
    """

    name: str
    kind: Literal["op", "input"]
    start: float
    seconds: float
    inputs: tuple[ValueRecord, ...] = ()
    outputs: tuple[ValueRecord, ...] = ()
    updates: tuple[ValueRecord, ...] = ()


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Return a shape as plain ints, or ``()`` if one of them is unknown."""
    sizes = [_size(size) for size in shape]
    return tuple(size for size in sizes if size is not None) if None not in sizes else ()


def _size(size: Any) -> int | None:
    try:
        return operator.index(size)
    except TypeError:
        return None


def _spelled(dtype: Any) -> str:
    try:
        return _spelling(dtype)
    except TypeError:  # it has no hash
        return str(dtype)


_spelling = lru_cache(str)  # NumPy takes longer to spell a dtype than to run a small op
