"""Runs a TFGraph: one call of TensorFlow for each run, and then the ops in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from hookbus import GraphError, UsageError
from hookbus.backend import (
    PREEMPTION_ERRORS,
    EmbeddedSession,
    Execution,
    ForkedInputs,
    Program,
    RunMetadata,
    SessionBase,
    ValueRecord,
)
from hookbus.errors import SessionClosedError, UnfedPlaceholderError, WriteConflictError
from hookbus_tensorflow import ops
from hookbus_tensorflow.context import TFContext, traced
from hookbus_tensorflow.errors import explained, meaningful
from hookbus_tensorflow.graph import Element, TFGraph
from hookbus_tensorflow.iterators import Iterators
from hookbus_tensorflow.native import assign, opened, start_queues


@attrs.frozen(eq=False)
class TFProgram:
    """A plan for one set of fetches with one set of feeds.

    Attributes:
        call: runs TensorFlow with the values of *fed*; None if nothing is fetched there.
        fed: the names of the nodes that TensorFlow is fed.
        names: the names of the nodes whose values *call* returns.
        steps: how many further values it returns: the global step after each op that
            changes the step.
        rereads: whether the global step must be read after the run.
        effects: the effects of the run.
        python: the ops in Python that read the values; None without any.
        python_names: the names of the nodes that it computes.
        results: the names of all fetches, in order; None if they are *names*.
    """

    call: Callable[..., Any] | None
    fed: tuple[str, ...]
    names: tuple[str, ...]
    steps: int
    rereads: bool
    effects: ops.Effects
    python: Program | None
    python_names: tuple[str, ...]
    results: tuple[str, ...] | None


class TFSession(SessionBase):
    """Runs a :class:`TFGraph` in a ``tf.compat.v1.Session``.

    TensorFlow orders reads and writes of variables as the graph says; so a variable that is
    fetched together with a train op has the value from before or after it. ``global_step``
    is the number of steps before the run.

    Args:
        graph: the graph; it is finalized if it is not yet.
        foreign: the ``tf.compat.v1.Session`` to use, which its owner initializes and
            closes; by default a new one.

    Attributes:
        tf_session: the ``tf.compat.v1.Session``.
    """

    graph: TFGraph

    preemption_errors: tuple[type[Exception], ...] = (
        *PREEMPTION_ERRORS,
        tf.errors.AbortedError,
        tf.errors.UnavailableError,
    )

    def __init__(self, graph: TFGraph, foreign: Any = None) -> None:
        if foreign is None and not graph.tf_graph.finalized:
            graph.finalize()
        self.graph = graph
        self.version = 0
        self._python = EmbeddedSession(graph.python)
        self._variables = {**graph.tf_variables}
        self._steps_after = graph.steps_after()
        self._effects = ops.EffectFinder(self._variables, self._steps_after.keys())
        self._closed = False
        self._own = self._ready = False
        self._context: TFContext | None = None
        with meaningful():
            self.tf_session = opened(graph, self.ran) if foreign is None else foreign
        self._iterators = Iterators(graph.tf_graph, self._fetch)
        self._queues = start_queues(self.tf_session) if foreign is None else None
        self._step = self._read_step()
        self._ready = True

    @property
    def label(self) -> str:
        """The version of TensorFlow and the master of its session."""
        where = f" on {self.graph.master}" if self.graph.master else ""
        return f"TensorFlow {tf.__version__}{where}"

    @property
    def xp(self) -> Any:
        """The module ``numpy``: ops of hooks compute with values on the host."""
        return np

    @property
    def global_step(self) -> int:
        """The number of steps that are done; setting it sets TensorFlow's variable."""
        return self._step

    @global_step.setter
    def global_step(self, step: int) -> None:
        if step != self._step:
            self._load([(self.graph.step_variable, step)])
            self._step = step

    def compile(
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
    ) -> TFProgram:
        """Plan a run; all values arrive on the host.

        Raises:
            UnfedPlaceholderError: the run needs a placeholder that is not fed.
            WriteConflictError: two ops of hooks update one variable.
            GraphError: an op of a hook updates a variable of TensorFlow.
        """
        graph, results = self.graph, (*fetches, *host)
        names = self._needed(results, feeds)
        python_names = tuple(
            name for name in dict.fromkeys(results) if graph.element(name) is None
        )
        python: Program | None = None
        if python_names:
            python = self._python.compile(python_names, feeds | {*names})
            for variable in python.writers.keys() & self._variables.keys():
                raise GraphError(
                    f"op {python.writers[variable]!r} updates {variable!r}, a variable of "
                    "TensorFlow, which only ops of TensorFlow update; hooks assign it "
                    "with run_context.assign()"
                )
        elements, given = graph.elements_of(names), graph.elements_of(sorted(feeds))
        fed_names = {part.name for each in given.values() for part in _tensors(each)}
        self._check_fed(elements, fed_names)
        parts = [part for element in elements.values() for part in element.parts]
        effects = self._effects.of(parts, fed_names)
        steps = [self._steps_after.get(op) for op in effects.steps]
        rereads = None in steps
        call: Callable[..., Any] | None = None
        if names:
            wanted = [element.thing for element in elements.values()]
            wanted += [] if rereads else steps
            fed = [element.thing for element in given.values()] or None
            call = self.tf_session.make_callable(wanted, fed, accept_options=True)
        return TFProgram(
            call,
            tuple(given),
            names,
            0 if rereads else len(steps),
            rereads,
            effects,
            python,
            python_names,
            None if results == names else results,
        )

    def execute(self, execution: Execution) -> Sequence[Any]:
        """Run a plan once.

        An error of TensorFlow leaves variables as the ops that had run left them.

        Raises:
            OutOfRangeError: an iterator, a queue or an input has ended.
            WriteConflictError: a hook and an op of the run write one variable.
            SessionClosedError: the session is closed.
        """
        if self._closed:
            raise SessionClosedError("the backend session is closed")
        program: TFProgram = execution.program
        writes = execution.writes
        if writes:
            self._check_writers(program, writes)
        values: Sequence[Any] = ()
        began = self._step
        if program.call is not None:
            values = self._call(program, execution)
        if program.python is not None or program.results is not None or writes:
            self._python.global_step = began
            values = self._finish(program, execution, values)
        return values

    def _call(self, program: TFProgram, execution: Execution) -> Sequence[Any]:
        """Let TensorFlow run; return the values of the program's names."""
        call, fed = program.call, [execution.feeds[name] for name in program.fed]
        options = execution.options
        assert call is not None
        self._own = True
        try:
            if options.trace_level or options.native:
                values = traced(call, fed, options, execution.metadata)
            else:
                values = call(*fed)
        except tf.errors.OpError as error:
            raise explained(error, self.graph.tf_graph) from None
        finally:
            self._own = False
        if program.effects.changes:
            self._changed(program.effects)
            if program.rereads:
                self._step = self._read_step()
            elif program.steps:
                count = len(program.names)
                self._step = int(max(values[count:]))
                values = values[:count]
        return values

    def _finish(
        self, program: TFProgram, execution: Execution, values: Sequence[Any]
    ) -> Sequence[Any]:
        """Call the ops in Python, commit the assignments of hooks; return all values."""
        found = dict(zip(program.names, values, strict=True))
        python, writes = self._python, execution.writes
        own = {name: each for name, each in writes.items() if name not in self._variables}
        if program.python is not None or own:
            plan = program.python or python.compile((), frozenset())
            before = python.version, python.global_step
            given, options = {**execution.feeds, **found}, execution.options
            record, metadata = RunMetadata(), execution.metadata
            computed = python.execute(Execution(plan, given, own, options, record))
            metadata.ops = [*metadata.ops, *record.ops]
            found.update(zip(program.python_names, computed, strict=True))
            self.version += python.version != before[0]
            self.global_step = self._step + python.global_step - before[1]
        rest = {name: value for name, (_, value) in writes.items() if name not in own}
        if rest:
            self.write(rest)
        return [found[name] for name in program.results or program.names]

    def check(self, name: str, value: Any, who: str) -> None:
        """Check that *who* can write a value.

        Raises:
            GraphError: the session has no such variable, or the value does not fit it.
        """
        variable = self._variables.get(name)
        if variable is None:
            self._python.check(name, value, who)
            return
        if not variable.shape.is_compatible_with(np.shape(value)):
            raise GraphError(
                f"variable {name!r} has the shape {_shape(variable)} and cannot take the "
                f"shape {np.shape(value)} from {who}"
            )

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables new values, each of the variable's shape.

        Raises:
            GraphError: a value cannot be written, as in :meth:`check`.
        """
        for name, value in values.items():
            self.check(name, value, "write()")
        ours = {name: value for name, value in values.items() if name in self._variables}
        self._load([(self._variables[name], value) for name, value in ours.items()])
        self._python.write({n: value for n, value in values.items() if n not in ours})

    def variables(self) -> dict[str, Any]:
        """Return the value of each variable by name, ``global_step`` left out."""
        values = self._fetch(self._variables) if self._variables else {}
        return {**values, **self._python.variables()}

    def describe(self) -> dict[str, ValueRecord]:
        """Return the dtype and shape of each variable by name; copy no value."""
        records = self._python.describe()
        for name, variable in self._variables.items():
            dtype, shape = variable.dtype.base_dtype, _shape(variable)
            size = int(np.prod(shape)) * dtype.size if None not in shape else 0
            records[name] = ValueRecord(name, dtype.name, shape, size)
        return records

    def snapshot(self) -> dict[str, Any]:
        """Return the value of each variable for a save, which reads it once."""
        return self.variables()

    def positions(self) -> dict[str, Any]:
        """Return how many values each iterator has given, and the positions of inputs."""
        return {**self._iterators.positions(), **self._python.positions()}

    def seek(self, positions: Mapping[str, Any]) -> None:
        """Skip values that iterators have given before; move inputs to their positions."""
        self._iterators.seek(positions)
        self._python.seek(positions)

    def leave_out(self, numbers: Mapping[str, Iterable[int]]) -> None:
        """Leave the values with these numbers out of the inputs of hooks from now on."""
        self._python.leave_out(numbers)

    def pulled(self) -> int:
        """Return how many values were pulled from inputs, those before a seek included."""
        return self._iterators.given() + self._python.pulled()

    def fork(self, inputs: ForkedInputs = "copy") -> TFSession:
        """Return an independent session of the same graph with the current values.

        The fork is a new session of TensorFlow, so the random numbers of its ops begin
        anew, and its iterators skip values to reach their positions.

        Raises:
            UsageError: a queue or another party's session belongs to it, which cannot be
                copied; or *inputs* is neither ``copy`` nor ``fresh``.
            SessionClosedError: the session is closed.
        """
        if self._closed:
            raise SessionClosedError("the backend session is closed")
        graph = self.graph
        queues = graph.tf_graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS)
        if queues or self._queues is None or graph.session_creator is not None:
            raise UsageError(
                "session.fork(): the backend 'TensorFlow' forks only sessions that hookbus "
                "creates, of graphs without queues; evaluate from a checkpoint instead"
            )
        python = self._python.fork(inputs)
        other = TFSession(graph)
        other._python = python
        other.write(self._fetch(self._variables) if self._variables else {})
        other.global_step, other.version = self.global_step, self.version
        if inputs == "copy":
            other._iterators.seek(self._iterators.positions())
        return other

    def close(self) -> None:
        """Refuse further runs, and close TensorFlow's session."""
        self._closed = True
        self._python.close()
        if self._queues is not None:
            self._queues.request_stop()
            self.tf_session.close()

    def context_of(self, run_context: Any) -> TFContext:
        """Return TensorFlow's context of a run, one for all hooks of TensorFlow."""
        if self._context is None or self._context.ours is not run_context:
            self._context = TFContext(run_context, self.tf_session)
        return self._context

    def ran(self, fetches: Any, fed: Any) -> None:
        """Take note of a run of ``tf_session`` that hooks or the program did themselves."""
        if self._own or self._closed or not self._ready:
            return
        graph = self.graph.tf_graph
        leaves = [
            graph.as_graph_element(leaf) if isinstance(leaf, str) else leaf
            for leaf in tf.nest.flatten(fetches, expand_composites=True)
        ]
        parts = [leaf.op if isinstance(leaf, tf.Variable) else leaf for leaf in leaves]
        parts = [part for part in parts if isinstance(part, (tf.Tensor, tf.Operation))]
        names = {key.name for key in fed or () if isinstance(key, tf.Tensor)}
        effects = self._effects.of(parts, names)
        if effects.changes or effects.starts:
            self._changed(effects)
            if effects.steps:
                self._step = self._read_step()

    def _needed(self, names: Sequence[str], feeds: frozenset[str]) -> tuple[str, ...]:
        """Return the nodes of TensorFlow that a request needs: its own, and Python's."""
        graph, waiting = self.graph, [*reversed(names)]
        found: dict[str, None] = {}
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if graph.element(name) is not None:
                if name not in feeds or name in names:
                    found[name] = None
            elif name not in feeds:
                waiting += reversed(graph.resolve(name).reads)
        return tuple(found)

    def _check_fed(self, elements: Mapping[str, Element], fed: set[str]) -> None:
        for name, element in elements.items():
            unfed = self.graph.placeholders_of(element.parts, fed)
            if unfed and unfed[0] == name:
                text = f"placeholder {name!r} is fetched but not fed; give it in feed_dict"
                raise UnfedPlaceholderError(text, name)
            if unfed:
                raise UnfedPlaceholderError(
                    f"placeholder {unfed[0]!r} is not fed, and {name!r} needs it; give it "
                    "in feed_dict",
                    unfed[0],
                )

    def _changed(self, effects: ops.Effects) -> None:
        """Take note of the effects of a run."""
        self.version += 1
        self._iterators.note(effects)

    def _check_writers(
        self, program: TFProgram, writes: Mapping[str, tuple[str, Any]]
    ) -> None:
        for name in writes.keys() & program.effects.writers.keys():
            raise WriteConflictError(
                f"variable {name!r} is written by two parties in one run: "
                f"{writes[name][0]!r} and op {program.effects.writers[name]!r}"
            )

    def _fetch(self, things: Any) -> Any:
        """Fetch a nesting of objects without any effect."""
        with self._quietly():
            return self.tf_session.run(things)

    def _read_step(self) -> int:
        return int(self._fetch([self.graph.step_variable])[0])

    def _load(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Write values of TensorFlow's variables."""
        with self._quietly():
            assign(self.tf_session, values)
        self.version += 1

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Run TensorFlow's session without taking note of it as of a foreign run."""
        before, self._own = self._own, True
        try:
            with meaningful():
                yield
        finally:
            self._own = before


def _tensors(element: Element) -> tuple[Any, ...]:
    if isinstance(element.thing, tf.Variable):
        return tuple(element.thing.op.outputs)
    return element.parts


def _shape(variable: Any) -> tuple[Any, ...]:
    return tuple(variable.shape.as_list()) if variable.shape.rank is not None else (None,)
