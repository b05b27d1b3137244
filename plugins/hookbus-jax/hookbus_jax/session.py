"""Runs a JaxGraph: one compiled function for each request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import jax
import jax.numpy as jnp

from hookbus import GraphError, OpRecord, OutOfRangeError
from hookbus.backend import (
    Execution,
    ForkedInputs,
    Input,
    Program,
    RunMetadata,
    SessionBase,
    ValueRecord,
    fork_inputs,
    nothing_to_skip,
    plan,
)
from hookbus.errors import NoValueYetError, SessionClosedError, WriteConflictError
from hookbus_jax import values
from hookbus_jax.compiled import CompiledPart
from hookbus_jax.graph import JaxGraph
from hookbus_jax.parts import HostPart, Part, Slots, Updates, calls_of
from hookbus_jax.values import Form, form_of

_MOST_PLANS = 1024
"""The number of plans that are kept, so that a request is compiled once for all."""


@attrs.frozen(eq=False)
class Plan:
    """A run with its compiled functions.

    Attributes:
        program: the slots to fill before, and the updates after.
        variables: (slot, name) of the variables that are read.
        empty: the slots before they are filled.
        parts: the parts to run, in order.
        names: the node of each slot.
        fetched: the variables whose arrays the caller gets.
        donated: the variables whose memory a part may take.
    """

    program: Program
    variables: tuple[tuple[int, str], ...]
    empty: Slots
    parts: tuple[Part, ...]
    names: Mapping[int, str]
    fetched: frozenset[str]
    donated: tuple[str, ...]


class JaxSession(SessionBase):
    """Runs a :class:`~hookbus_jax.JaxGraph`.

    All ops of a request that JAX can trace are one compiled function. Ops with
    ``host=True`` run in Python, before or after it; if compiled ops read their values and
    they read those of other compiled ops, there is more than one such function.

    Values for hooks are copied to the host, and all copies start together. A value that
    only the caller fetches stays where it is, as a ``jax.Array``, which may still be
    computed when the run returns.

    Args:
        graph: the graph to run; its initial values are copied.
    """

    graph: JaxGraph

    def __init__(self, graph: JaxGraph) -> None:
        self.graph = graph
        self.global_step: int = graph.global_step.source
        self.version = 0
        self._closed = False
        self._last: dict[str, Mapping[str, Any]] = {}
        self._forms: dict[str, Form] = {}
        self._values: dict[str, Any] = {}
        for node in graph.variables:
            form = form_of(node.source, f"variable {node.name!r} is given")
            leaves = zip(jax.tree.leaves(node.source), form.dtypes, strict=True)
            self._forms[node.name] = form
            self._values[node.name] = form.tree.unflatten(
                [values.owned(leaf, dtype) for leaf, dtype in leaves]
            )
        self._shared: set[str] = set()
        self._plans: dict[Any, Plan] = {}
        self._inputs = {
            node.name: Input(node.name, node.source)
            for node in graph.nodes.values()
            if node.kind == "input"
        }

    @property
    def label(self) -> str:
        """The version of JAX and the kind of its devices."""
        return f"JAX {jax.__version__} on {jax.default_backend()}"

    @property
    def xp(self) -> Any:
        """The module ``jax.numpy``."""
        return jnp

    def compile(
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
    ) -> Plan:
        """Plan a run; XLA compiles it when it runs first, and for each new shape.

        Raises:
            UnfedPlaceholderError: a needed placeholder is not fed.
            WriteConflictError: two ops of the run update one variable.
        """
        request = (*fetches,), feeds, (*host,)
        if request not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[request] = self._planned(*request)
        return self._plans[request]

    def _planned(
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str]
    ) -> Plan:
        program = plan(self.graph, fetches, feeds, host)
        variables = (*program.variables, *program.arrays)
        leaves = (*variables, *program.feeds, *program.inputs)
        names = dict(leaves) | {slot: name for slot, name, _, _ in program.last_outputs}
        if program.step_slot is not None:
            names[program.step_slot] = self.graph.global_step.name
        for operation, _, own, outputs in program.calls:
            names[own] = operation.name
            nodes = dict(operation.outputs)
            names.update((slot, nodes[key]) for key, slot in outputs)
        results = {names.get(slot) for slot in program.results}
        fetched = frozenset(name for _, name in variables if name in results)
        replaced = {name for _, name in variables} & program.writers.keys()
        donated = frozenset(replaced - fetched if self.graph.donate else ())
        parts = self._parts(program, names, donated)
        empty: Slots = [None] * program.size
        if program.xp_slot is not None:
            empty[program.xp_slot] = jnp
        return Plan(
            program, variables, empty, parts, names, fetched, tuple(sorted(donated))
        )

    def execute(self, execution: Execution) -> Sequence[Any]:
        """Run a plan once and commit its new values and those of hooks.

        Raises:
            OutOfRangeError: an input has ended; nothing is changed.
            NoValueYetError: the run reads an output of a train op that neither runs in it
                nor ran before.
            WriteConflictError: a hook and an op of the run write one variable.
            GraphError: a value does not fit its variable.
            SessionClosedError: the session is closed.
        """
        if self._closed:
            raise SessionClosedError("the backend session is closed")
        made: Plan = execution.program
        updates = self._writing(made, execution.writes)
        slots = self._run(made, execution, updates)
        self._commit(made, slots, updates)
        return made.program.pick_results(slots)

    def execute_without_update(self, execution: Execution) -> Sequence[Any]:
        """Run a plan once and commit only what hooks give variables.

        Raises:
            UsageError: no train op runs.
        """
        if self._closed:
            raise SessionClosedError("the backend session is closed")
        made: Plan = execution.program
        if not any(operation.trains for operation, *_ in made.program.calls):
            raise nothing_to_skip()
        updates = self._writing(made, execution.writes)
        self._shared.update(made.donated)  # their values are needed after the run
        slots = self._run(made, execution, {})
        self._commit(made, slots, updates)
        return made.program.pick_results(slots)

    def _writing(self, program: Plan, writes: Mapping[str, tuple[str, Any]]) -> Updates:
        """Return the assignments of hooks, as arrays of this session."""
        if writes:
            self._check_writers(program.program, writes)
        items = writes.items()
        return {name: self._taken(name, value, repr(who)) for name, (who, value) in items}

    def _run(self, program: Plan, execution: Execution, updates: Updates) -> Slots:
        """Run all parts, which add new values to *updates*; return all values."""
        if execution.options.trace_level > 0:
            return self._traced(program, execution.feeds, updates, execution.metadata)
        slots = self._filled(program, execution.feeds)
        for part in program.parts:
            part.run(slots, updates)
        return slots

    def check(self, name: str, value: Any, who: str) -> None:
        """Check that *who* can write a value.

        Raises:
            GraphError: the session has no such variable, or the value has another
                structure, shape, or kind of numbers.
        """
        if name not in self._forms:
            raise GraphError(f"{who} cannot write {name!r}: it is not a variable")
        self._forms[name].leaves(value, name, who)

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables new values, which are copied to where the old ones are.

        Raises:
            GraphError: a value cannot be written, as in :meth:`check`.
        """
        self._values |= {n: self._taken(n, value, "write()") for n, value in values.items()}
        self._shared.difference_update(values)
        self.version += 1

    def variables(self) -> dict[str, Any]:
        """Return the value of each variable by name, ``global_step`` left out."""
        self._shared.update(self._values)
        return dict(self._values)

    def describe(self) -> dict[str, ValueRecord]:
        """Return the dtype and shape of each variable by name; copy no value."""
        return {name: ValueRecord.of(name, v) for name, v in self._values.items()}

    def snapshot(self) -> dict[str, Any]:
        """Return the value of each variable for a save, which reads it once."""
        return {name: self._forms[name].saved(v) for name, v in self._values.items()}

    def remaining(self) -> int | None:
        """Return how many steps of a loop are left until an input ends, if known."""
        nodes = self.graph.nodes.values()
        fed = frozenset(node.name for node in nodes if node.kind == "placeholder")
        trains = [node for node in nodes if node.kind == "op" and node.source.in_loop]
        steps = sum(node.source.increment for node in trains)
        feeding = {
            name for node in trains for _, name in plan(self.graph, [node.name], fed).inputs
        }
        left = [self._inputs[name].remaining() for name in feeding]
        runs = min((each for each in left if each is not None), default=None)
        return runs * steps if runs is not None and steps else None

    def fork(self, inputs: ForkedInputs = "copy") -> JaxSession:
        """Return an independent session of the same graph with the current values.

        Raises:
            UsageError: *inputs* is neither ``copy`` nor ``fresh``.
            SessionClosedError: the session is closed.
        """
        if self._closed:
            raise SessionClosedError("the backend session is closed")
        other = type(self)(self.graph)
        other._inputs = fork_inputs(self._inputs, inputs)
        other.write(self._values)  # copies, because a run may take the memory of its own
        other._last = dict(self._last)
        other.global_step, other.version = self.global_step, self.version
        return other

    def close(self) -> None:
        """Refuse further runs; the values stay readable."""
        self._closed = True

    def _taken(self, name: str, value: Any, who: str) -> Any:
        """Return a value as arrays of this session, where those of today are."""
        self.check(name, value, who)
        form = self._forms[name]
        leaves, old = form.leaves(value, name, who), jax.tree.leaves(self._values[name])
        parts = zip(leaves, form.dtypes, old, strict=True)
        return form.tree.unflatten([values.owned(*part) for part in parts])

    def _parts(
        self, program: Program, names: Mapping[int, str], donated: frozenset[str]
    ) -> tuple[Part, ...]:
        """Return the parts of a plan; only the last one may donate."""
        wanted = {slot for slot, _ in program.trained} | {*program.results}
        parts: list[Part] = []
        for on_the_host, calls in reversed(calls_of(program, self.graph.host_ops)):
            part: Part
            if on_the_host:
                part = HostPart(calls, self._forms)
            else:
                taken = frozenset() if parts else donated
                part = CompiledPart(calls, program, names, self._forms, wanted, taken)
            wanted.update(part.reads)
            parts.insert(0, part)
        return tuple(parts)

    def _filled(
        self,
        program: Plan,
        feeds: Mapping[str, Any],
        records: list[OpRecord] | None = None,
    ) -> Slots:
        """Return the slots with all values that no op computes; record the pulls."""
        made, known = program.program, self._values
        slots = program.empty.copy()
        for slot, name in program.variables:
            slots[slot] = known[name]
        for slot, name in made.feeds:
            slots[slot] = feeds[name]
        if made.step_slot is not None:
            slots[made.step_slot] = self.global_step
        if made.last_outputs:
            self._fill_last(made, slots)
        if made.inputs:
            self._pull(made, slots, records)
        if program.donated:
            self._keep_shared(program, slots)
        return slots

    def _commit(self, program: Plan, slots: Slots, updates: Updates) -> None:
        made = program.program
        if updates:
            self.version += 1
            self._values.update(updates)
            if self._shared:
                self._shared.difference_update(updates)
        for slot, op in made.trained:
            self._last[op] = slots[slot]
        if made.increment:
            self.global_step += made.increment
            self.version += 1
        if program.fetched:
            self._shared |= program.fetched - updates.keys()

    def _fill_last(self, made: Program, slots: Slots) -> None:
        for slot, name, op, key in made.last_outputs:
            if op not in self._last:
                raise NoValueYetError(
                    f"{name!r} has no value yet: it is an output of train op {op!r}, which "
                    "has not run in this session, and reading an output does not train; "
                    f"fetch {op!r} as well, or compute {name!r} in its own op",
                    name,
                )
            slots[slot] = self._last[op][key]

    def _pull(self, made: Program, slots: Slots, records: list[OpRecord] | None) -> None:
        """Pull from all inputs of a run, or from none if one has ended."""
        pulled: list[tuple[Input, Any]] = []
        for slot, name in made.inputs:
            source, started = self._inputs[name], time.perf_counter()
            try:
                slots[slot] = source.pull()
            except OutOfRangeError:
                for other, value in pulled:
                    other.put_back(value)
                raise
            pulled.append((source, slots[slot]))
            if records is not None:
                seconds, given = time.perf_counter() - started, slots[slot]
                value = ValueRecord.of(name, given)
                records.append(OpRecord(name, "input", started, seconds, (), (value,)))

    def _keep_shared(self, program: Plan, slots: Slots) -> None:
        """Copy the variables to be donated that someone else may hold."""
        if self._shared.isdisjoint(program.donated):
            return
        slot_of = {name: slot for slot, name in program.variables}
        for name in self._shared.intersection(program.donated):
            slot = slot_of[name]
            slots[slot] = jax.tree.map(lambda leaf: leaf.copy(), slots[slot])

    def _traced(
        self,
        program: Plan,
        feeds: Mapping[str, Any],
        updates: Updates,
        metadata: RunMetadata,
    ) -> Slots:
        """Run all parts, each until its values are there, and record them."""
        started, records = time.perf_counter(), list[OpRecord]()
        metadata.ops, metadata.start = records, started
        slots = self._filled(program, feeds, records)

        def described(numbers: Sequence[int]) -> tuple[ValueRecord, ...]:
            return tuple(
                ValueRecord.of(program.names[slot], slots[slot])
                for slot in numbers
                if slot in program.names
            )

        for part in program.parts:
            began, read, before = time.perf_counter(), described(part.reads), {*updates}
            part.run(slots, updates)
            new = {name: updates[name] for name in updates.keys() - before}
            jax.block_until_ready((list(new.values()), [slots[s] for s in part.gives]))
            written = tuple(ValueRecord.of(name, value) for name, value in new.items())
            seconds = time.perf_counter() - began
            parts = read, described(part.gives), written
            records.append(OpRecord(part.label, "op", began, seconds, *parts))
        metadata.seconds = time.perf_counter() - started
        return slots

    def _check_writers(self, made: Program, writes: Mapping[str, tuple[str, Any]]) -> None:
        for name in writes.keys() & made.writers.keys():
            op = self.graph.resolve(made.writers[name])
            raise WriteConflictError(
                f"variable {name!r} is written by two parties in one run: "
                f"{writes[name][0]!r} and op {op.label}"
            )
