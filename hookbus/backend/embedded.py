"""Runs a Graph in this process: the built-in backend."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from hookbus.backend.base import SessionBase, nothing_to_skip
from hookbus.backend.codegen import Run, compile_program, shape_of
from hookbus.backend.forks import ForkedInputs, fork_inputs
from hookbus.backend.inputs import Input
from hookbus.backend.program import Program, is_live, plan
from hookbus.backend.protocol import Execution
from hookbus.backend.recording import Recording
from hookbus.errors import (
    GraphError,
    NoValueYetError,
    OutOfRangeError,
    SessionClosedError,
    UsageError,
    WriteConflictError,
    add_note,
    blame,
    blaming_writers,
    text_of,
)
from hookbus.graph.graph import Graph
from hookbus.graph.operation import Operation
from hookbus.graph.traversal import inputs_of, loop_ops
from hookbus.library.base import LiveValue

_MOST_PROGRAMS = 1024
_NO_NUMBERS = (type(None), str, bytes, Mapping, list, tuple)

Other = TypeVar("Other", bound="EmbeddedSession")


class EmbeddedSession(SessionBase):
    """Runs a Graph in this process: each op is a plain function call.

    Reads see the values from before the run; updates are committed together after the
    last op. Committed arrays are read-only, so an op that changes its input in place
    raises an error. Values that live in objects outside the session have no such
    protection. An op may change them in place; a fetch then gets the value after the train
    ops of the run. A session recovers from an ``AbortedError`` and an ``UnavailableError``.

    Args:
        graph: the graph to run; its initial values are copied.

    >>> graph = Graph()
    >>> w = graph.variable("w", 1.0)
    >>> train = graph.train_op(lambda w: w + 1.0, name="train", updates="w")
    >>> session = EmbeddedSession(graph)
    >>> session.run(["w", "train"]), session.run("w")
    ([1.0, None], 2.0)
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.global_step: int = graph.global_step.source
        self.version: int = 0
        self._closed = False
        self._last: dict[str, Mapping[str, Any]] = {}
        self._compiled: dict[Program, Run | None] = {}
        self._values = {
            node.name: _copied(node.source) for node in graph.variables if not is_live(node)
        }
        self._live: Mapping[str, LiveValue] = {
            node.name: node.source for node in graph.variables if is_live(node)
        }
        self._inputs = {
            node.name: Input(node.name, node.source)
            for node in graph.nodes.values()
            if node.kind == "input"
        }

    @property
    def label(self) -> str:
        """The name ``embedded``."""
        return "embedded"

    @property
    def xp(self) -> Any:
        """The module ``numpy``."""
        return importlib.import_module("numpy")

    def compile(
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
    ) -> Program:
        """Plan a run: the slots to fill and the ops to call, in order.

        Raises:
            UnfedPlaceholderError: a needed placeholder is not fed.
            WriteConflictError: two ops of the run update one variable.
        """
        return plan(self.graph, fetches, feeds, host)

    def execute(self, execution: Execution) -> Sequence[Any]:
        """Run a program once, and commit its updates and those of hooks.

        Raises:
            OutOfRangeError: an input has ended; nothing is changed.
            NoValueYetError: the run reads an output of a train op that neither runs now nor
                ran before.
            WriteConflictError: a hook and an op of the run write one variable.
            SessionClosedError: the session is closed.
        """
        if not (execution.writes or execution.options.trace_level):
            program = execution.program
            run = self._compiled.get(program)
            if run is not None:
                return run(execution.feeds)
            self._compile_repeated(program)
        return self._execute(execution)

    def execute_without_update(self, execution: Execution) -> Sequence[Any]:
        """Run a program once and commit only what hooks give variables.

        Raises:
            UsageError: no train op runs.
        """
        if not any(operation.trains for operation, *_ in execution.program.calls):
            raise nothing_to_skip()
        return self._execute(execution, updates=False)

    def prepared(self, program: Program) -> Run | None:
        """Return the compiled form of a program; None before the program ran twice.

        The compiled form behaves like :meth:`execute` without writes or a record. This
        method is optional for a backend. A subclass with its own ``execute`` gets None,
        unless the subclass also defines this method.
        """
        both = {"execute", "prepared"}
        first = next(cls for cls in type(self).__mro__ if both & vars(cls).keys())
        return self._compiled.get(program) if "prepared" in vars(first) else None

    def _execute(self, execution: Execution, updates: bool = True) -> Sequence[Any]:
        """Run any program; this method defines the behaviour of compiled programs.

        *updates* is whether to commit the updates of train ops.
        """
        if self._closed:
            _refuse_closed()
        program: Program = execution.program
        feeds, writes, metadata = execution.feeds, execution.writes, execution.metadata
        if writes:
            self._check_writers(program, writes)
        recording: Recording | None = None
        if execution.options.trace_level > 0:
            recording = Recording(frozenset(feeds))
            metadata.ops, metadata.start = recording.ops, recording.start
            program = recording.recorded(program)
        slots = self._fill(program, feeds, recording)
        news = self._call(program, slots)
        if not updates:
            news.clear()
        if news or writes or program.trained:
            self._commit(program, slots, news, writes)
        if program.increment:
            self.global_step += program.increment
            self.version += 1
        if recording is not None:
            metadata.seconds = recording.seconds
        return program.pick_results(slots)

    def _call(self, program: Program, slots: list[Any]) -> dict[str, Any]:
        """Call the ops of a program; return the new values of variables."""
        news: dict[str, Any] = {}
        for operation, pick, own, outputs in program.calls:
            try:
                returned = operation.call(*pick(slots))
                if operation.trains or outputs:
                    updates, results = self._unpacked(operation, returned)
                    news.update(updates)
                    for key, slot in outputs:
                        slots[slot] = results[key]
                    returned = results if outputs else None
                slots[own] = returned
            except BaseException as error:
                _explain(error, operation)
                raise
        return news

    def check(self, name: str, value: Any, who: str) -> None:
        """Check that *who* can write a value.

        Raises:
            GraphError: the session has no such variable, the variable is a number or an
                array and the value is not, or the shapes differ.
        """
        if name not in self._values and self._live_value(name) is None:
            raise GraphError(f"{who} cannot write {name!r}: it is not a variable")
        self._check_value(name, value, who)

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables new values, each of the variable's shape.

        Raises:
            GraphError: a value cannot be written, as in :meth:`check`.
        """
        for name, value in values.items():
            self.check(name, value, "write()")
        self._write(values)
        self.version += 1

    def variables(self) -> dict[str, Any]:
        """Return the value of each variable by name, ``global_step`` left out."""
        return self._values | {name: value.get() for name, value in self._live.items()}

    def remaining(self) -> int | None:
        """Return how many steps of a loop are left until an input ends, if known."""
        trains = loop_ops(self.graph)
        feeding = inputs_of(self.graph, trains)
        known = [self._inputs[name].remaining() for name in feeding]
        runs = min((left for left in known if left is not None), default=None)
        steps = sum(node.source.increment for node in trains)
        return runs * steps if runs is not None and steps else None

    def fork(self, inputs: ForkedInputs = "copy") -> EmbeddedSession:
        """Return an independent session of the same graph with the current values.

        Raises:
            UsageError: variables are in objects outside the session.
            SessionClosedError: the session is closed.
        """
        if self._live:
            raise UsageError(
                "session.fork(): the values of "
                f"{', '.join(map(repr, self._live))} are in objects of the program, and "
                f"the backend {self.label!r} cannot copy these"
            )
        return self.fork_into(type(self)(self.graph), inputs)

    def fork_into(self, other: Other, inputs: ForkedInputs) -> Other:
        """Copy inputs and values of this session into *other*, a new session of its graph.

        For the ``fork`` of a subclass, which also copies the objects outside the session.
        """
        if self._closed:
            _refuse_closed()
        other._inputs = fork_inputs(self._inputs, inputs)
        other._values = {name: _copied(value) for name, value in self._values.items()}
        other._last = dict(self._last)
        other.global_step, other.version = self.global_step, self.version
        return other

    def close(self) -> None:
        """Refuse further runs; the values stay readable."""
        self._closed = True
        self._compiled.clear()

    def _fill(
        self, program: Program, feeds: Mapping[str, Any], recording: Recording | None
    ) -> list[Any]:
        slots: list[Any] = [None] * program.size
        values = self._values
        for slot, name in program.variables:
            slots[slot] = values[name]
        for slot, name in program.arrays:
            # A view: its shape and dtype can be set, which the variable's must not be.
            slots[slot] = values[name].view()
        for slot, name in program.feeds:
            slots[slot] = feeds[name]
        if program.step_slot is not None:
            slots[program.step_slot] = self.global_step
        if program.xp_slot is not None:
            slots[program.xp_slot] = self.xp
        for slot, name, op, key in program.last_outputs:
            slots[slot] = self._last_output(name, op, key)
        pulled = self._pull_all([name for _, name in program.inputs], recording)
        for (slot, _), value in zip(program.inputs, pulled, strict=True):
            slots[slot] = value
        return slots

    def _last_output(self, name: str, op: str, key: str) -> Any:
        if op not in self._last:
            raise NoValueYetError(
                f"{name!r} has no value yet: it is an output of train op {op!r}, which "
                "has not run in this session, and reading an output does not train; fetch "
                f"{op!r} as well, or compute {name!r} in its own op",
                name,
            )
        return self._last[op][key]

    def _compile_repeated(self, program: Program) -> None:
        """Compile a program when it is run for the second time."""
        if self._closed:
            return
        if program not in self._compiled:
            if len(self._compiled) >= _MOST_PROGRAMS:
                self._compiled.clear()
            self._compiled[program] = None
        elif not any(map(self._live_value, program.writers)):
            self._compiled[program] = compile_program(
                program,
                {
                    "session": self,
                    "variables": self._values,
                    "last": self._last,
                    "pull": self._pull_all,
                    "last_output": self._last_output,
                    "unpack": self._unpacked,
                    "check": self._check_value,
                    "explain": _explain,
                    "refuse": _refuse_closed,
                    "xp": self.xp if program.xp_slot is not None else None,
                },
            )

    def _pull_all(
        self, names: Sequence[str], recording: Recording | None = None
    ) -> list[Any]:
        """Pull from all inputs of a run, or from none if one has ended."""
        pulled: list[Any] = []
        for name in names:
            source = self._inputs[name]
            try:
                pulled.append(
                    source.pull() if recording is None else recording.pull(name, source)
                )
            except OutOfRangeError:
                for other, value in zip(names, pulled, strict=False):
                    self._inputs[other].put_back(value)
                raise
        return pulled

    def _unpacked(
        self, operation: Operation, returned: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an op's updates, which are checked, and its outputs."""
        news, results = operation.unpack(returned)
        for name, value in news.items():
            self._check_value(name, value, f"op {operation.name!r}")
        return dict(news), dict(results)

    def _commit(
        self,
        program: Program,
        slots: list[Any],
        updates: dict[str, Any],
        writes: Mapping[str, tuple[str, Any]],
    ) -> None:
        if updates or writes:
            self.version += 1
        for name, (who, value) in writes.items():
            self.check(name, value, repr(who))
        if writes:
            with blaming_writers(writes):
                self._write({name: value for name, (_, value) in writes.items()})
        for name in updates:
            if self._live_value(name) is not None:
                self._write({name: updates[name]})
                continue
            # Other code that holds the array, or a view of it, could change the variable.
            shared = _references(updates, name) > _SOLE
            value = updates[name]
            if shared or getattr(value, "base", None) is not None:
                value = copy.deepcopy(value)
            self._values[name] = _frozen(value)
        for slot, op in program.trained:
            self._last[op] = slots[slot]

    def _write(self, values: Mapping[str, Any]) -> None:
        """Write values that are checked."""
        for name, value in values.items():
            live = self._live_value(name)
            if live is None:
                self._values[name] = _copied(value)
            else:
                assert live.put is not None
                live.put(value)

    def _live_value(self, name: str) -> LiveValue | None:
        """Return a variable that lives in an object outside the session."""
        return self._live.get(name)

    def _check_writers(
        self, program: Program, writes: Mapping[str, tuple[str, Any]]
    ) -> None:
        for name in writes.keys() & program.writers.keys():
            op = self.graph.resolve(program.writers[name])
            raise WriteConflictError(
                f"variable {name!r} is written by two parties in one run: "
                f"{writes[name][0]!r} and op {op.label}"
            )

    def _check_value(self, name: str, value: Any, who: str) -> None:
        live = self._live_value(name)
        old = self._values[name] if live is None else live.get()
        if type(value) is not type(old) and isinstance(value, _NO_NUMBERS):
            raise GraphError(
                f"{who} writes a {type(value).__name__} into variable {name!r}, which has "
                f"the type {type(old).__name__}"
            )
        if getattr(old, "shape", ()) != getattr(value, "shape", ()):
            raise GraphError(
                f"variable {name!r} has the shape {shape_of(old)} and cannot take the "
                f"shape {shape_of(value)} from {who}"
            )


def _refuse_closed() -> NoReturn:
    raise SessionClosedError("the backend session is closed")


def _explain(error: BaseException, operation: Operation) -> None:
    blame(error, f"op {operation.name!r}", f"raised in op {operation.name!r}")
    if isinstance(error, ValueError) and "read-only" in text_of(error):
        add_note(
            error,
            f"op {operation.name!r} changes an input in place, and the values "
            "that an op reads are read-only; compute a new array and return it",
        )


def _copied(value: Any) -> Any:
    """Return a copy that is a variable's alone."""
    return _frozen(copy.deepcopy(value))


def _frozen(value: Any) -> Any:
    """Make an array read-only, so that a change in place raises an error."""
    protect: Callable[..., None] | None = getattr(value, "setflags", None)
    if protect is not None:
        protect(write=False)
    return value


def _references(values: dict[str, Any], name: str) -> int:
    return sys.getrefcount(values[name])


_SOLE = _references({"x": object()}, "x")
"""The count of :func:`_references` for a value that only the dict holds."""
