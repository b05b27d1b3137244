"""Computes the values of a step in a graph or from reports, or takes those of a loop.

The executor is the only difference between a run of a graph, the block of a custom loop,
and a step that another loop drives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hookbus.backend.codegen import CompiledProgram
from hookbus.backend.protocol import Session
from hookbus.backend.reports import Reports
from hookbus.errors import UsageError
from hookbus.library import on_host
from hookbus.step.plan import Planner, RunPlan
from hookbus.step.request import DEFAULT_OPTIONS, NO_METADATA
from hookbus.step.trace import MISS, Execute, OpenStep

Writes = Mapping[str, tuple[str, Any]]
NO_WRITES: Writes = {}


class Executor(Protocol):
    """Computes the values of a step from the caller's feeds, reports or values."""

    def plan(self, step: OpenStep, given: Any) -> RunPlan:
        """Return the plan that serves a step.

        Raises:
            UsageError, GraphError, WriteConflictError: the step cannot be served.
        """

    def execute(
        self,
        step: OpenStep,
        plan: RunPlan,
        given: Any,
        writes: Writes = NO_WRITES,
        skips: bool = False,
    ) -> Sequence[Any]:
        """Execute a plan; commit *writes*; return the values.

        Args:
            step: the step, with its options and metadata.
            plan: the plan of the step.
            given: the feeds of a graph, the reports of a block, or the values of another
                loop by name.
            writes: the variables that hooks assign.
            skips: whether to leave out the step's update of the model.
        """

    def specialized(
        self, step: OpenStep, plan: RunPlan, given: Any
    ) -> tuple[Execute, CompiledProgram | None]:
        """Return a function that executes repetitions of a step, and its program.

        The function is for steps without writes, skips, options and metadata. The program
        is the plan's compiled one, or None.
        """


class GraphExecutor:
    """Runs the graph of a backend session.

    Args:
        session: the backend session.
        planner: plans its runs.
        is_measured: whether each execution is timed for the budget of hooks.
    """

    def __init__(self, session: Session, planner: Planner, is_measured: bool) -> None:
        self._session, self._planner = session, planner
        self._is_measured = is_measured

    def plan(self, step: OpenStep, given: Any) -> RunPlan:
        """Return the plan for the fetches and feeds of all parties."""
        return self._planner.plan(step.asked.request, given)

    def execute(
        self,
        step: OpenStep,
        plan: RunPlan,
        given: Any,
        writes: Writes = NO_WRITES,
        skips: bool = False,
    ) -> Sequence[Any]:
        """Run the graph once."""
        if given and step.unplanned is None:  # the caller's own keys
            given = dict(zip(step.asked.request.feeds, given.values(), strict=True))
        execute = self._session.execute_without_update if skips else plan.execute
        return self._run(execute, step, plan, given, writes)

    def _run(
        self,
        execute: Callable[..., Sequence[Any]] | None,
        step: OpenStep,
        plan: RunPlan,
        given: Mapping[str, Any],
        writes: Writes,
    ) -> Sequence[Any]:
        assert execute is not None
        asked = step.asked
        return execute(plan.program, given, writes, asked.options, asked.metadata)

    def specialized(
        self,
        step: OpenStep,
        plan: RunPlan,
        given: Any,
    ) -> tuple[Execute, CompiledProgram | None]:
        """Return a function that runs the graph, with feeds under the caller's own keys."""
        assert step.context is not None
        run, program = self.runner(plan)
        keys = step.context.original_args.feed_dict or ()
        names = dict(zip(keys, step.asked.request.feeds, strict=True))
        if all(key.__class__ is str and key == name for key, name in names.items()):
            return run, program

        def renamed(feeds: Mapping[Any, Any]) -> Sequence[Any]:
            return run({names[key]: value for key, value in feeds.items()})

        return renamed, program

    def runner(self, plan: RunPlan) -> tuple[Execute, CompiledProgram | None]:
        """Return a function that executes a plan, and the compiled program, if any."""
        execute, prepare = plan.execute, getattr(self._session, "prepared", None)
        assert execute is not None
        compiled: CompiledProgram | None = None
        if prepare is not None and not self._is_measured:
            compiled = prepare(plan.program)
        if compiled is not None:
            return compiled.run, compiled
        program, options, metadata = plan.program, DEFAULT_OPTIONS, NO_METADATA
        return lambda feeds: execute(program, feeds, NO_WRITES, options, metadata), None


class ReportExecutor(GraphExecutor):
    """Takes the reports of a block, and computes the nodes that hooks derive from them.

    Each ``train`` step counts as one global step, even if a hook asks to skip its update.
    Only the loop itself can leave the update out.
    """

    def plan(self, step: OpenStep, given: Any) -> RunPlan:
        """Take the reports, and return the plan for the fetches of hooks."""
        self._session.take_reports(given)
        return self._planner.plan(step.asked.request, given, given.names())

    def execute(
        self,
        step: OpenStep,
        plan: RunPlan,
        given: Any,
        writes: Writes = NO_WRITES,
        skips: bool = False,
    ) -> Sequence[Any]:
        """Compute the fetches of hooks from the reports, and count the step."""
        values = self._run(plan.execute, step, plan, given, writes)
        if step.kind == "train":
            self._session.global_step += 1
            self._session.version += 1
        return values

    def specialized(
        self, step: OpenStep, plan: RunPlan, given: Any
    ) -> tuple[Execute, CompiledProgram | None]:
        """Return a function for later steps; it misses if they report other names."""
        session, (run, program) = self._session, self.runner(plan)
        names, trains = frozenset(given.names()), step.kind == "train"
        count, take_reports = len(names), session.take_reports

        def take(reports: Reports) -> Sequence[Any]:
            late = reports.late
            known = len(reports) + len(late) == count and names.issuperset(reports)
            if not known or (late and not names.issuperset(late)):
                return MISS  # type: ignore[no-any-return]
            take_reports(reports)
            values = run(reports)
            if trains:
                session.global_step += 1
                session.version += 1
            return values

        return take, program


class GivenExecutor:
    """Takes the values that another loop has computed with a graph.

    Args:
        session: reads and writes the variables of the loop.
        planner: finds the names of the nodes that hooks fetch.
    """

    def __init__(self, session: Session, planner: Planner) -> None:
        self._session, self._planner = session, planner

    def plan(self, step: OpenStep, given: Any) -> RunPlan:
        """Return the plan that gives each hook its own values."""
        return self._planner.wanted(step.asked.request)

    def execute(
        self,
        step: OpenStep,
        plan: RunPlan,
        given: Any,
        writes: Writes = NO_WRITES,
        skips: bool = False,
    ) -> Sequence[Any]:
        """Commit the assignments of hooks, and return the values that hooks fetch."""
        values: Sequence[Any] = on_host(tuple(given[name] for name in plan.names))
        if writes:
            self._session.write({name: value for name, (_, value) in writes.items()})
        return values

    def specialized(
        self,
        step: OpenStep,
        plan: RunPlan,
        given: Any,
    ) -> tuple[Execute, CompiledProgram | None]:
        """Return a function that picks the values that hooks fetch."""
        names = plan.names
        return lambda values: on_host(tuple([values[name] for name in names])), None


def check_given(names: Sequence[str], given: Any) -> None:
    """Check that another loop gives all values that hooks fetch.

    Raises:
        UsageError: a value is missing.
    """
    for name in names:
        if name not in given:
            raise UsageError(
                f"after_step() lacks the value of {name!r}, which a hook fetches; give one "
                "for each of the fetches that before_step() returned"
            )
