"""Computes the values of a step: in a graph, from reports, or from another loop.

The executor is the only difference between a run of a graph, the block of a custom loop,
and a step that another loop drives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookbus.backend.codegen import Run
from hookbus.backend.protocol import Execution, Session
from hookbus.backend.reports import Reports
from hookbus.errors import UsageError
from hookbus.library.lookup import on_host
from hookbus.step.plan import Planner, RunPlan
from hookbus.step.request import DEFAULT_OPTIONS, NO_FEEDS, NO_METADATA, Unplanned
from hookbus.step.trace import MISS, Execute

NO_WRITES: Mapping[str, tuple[str, Any]] = {}


class Executor:
    """Runs the graph of a backend session.

    Args:
        session: the backend session.
        planner: plans its runs.
        is_measured: whether each execution is timed for the budget of hooks.
    """

    def __init__(self, session: Session, planner: Planner, is_measured: bool) -> None:
        self.session: Session = session
        self.planner: Planner = planner
        self._is_measured = is_measured

    def plan(self, asked: Unplanned, given: Any) -> RunPlan:
        """Return the plan that serves a step.

        Args:
            asked: the requests of the caller and the hooks.
            given: the feeds by node; in a loop the reports, or the values by name.

        Raises:
            UsageError, GraphError, WriteConflictError: it cannot be served.
        """
        return self.planner.plan(asked.request, given)

    def execute(self, plan: RunPlan, execution: Execution, skips: bool) -> Sequence[Any]:
        """Execute a plan once; *skips* leaves out the update of what the step trains."""
        execute = self.session.execute_without_update if skips else plan.execute
        assert execute is not None
        return execute(execution)

    def specialized(self, plan: RunPlan, given: Any, trains: bool) -> Execute:  # noqa: ARG002
        """Return the function that executes repetitions of a step.

        They have no writes, skips, options and metadata.

        Args:
            plan: the plan of the step.
            given: as for :meth:`plan`; a repetition may be given something else.
            trains: whether the step counts global steps.
        """
        run = self.compiled(plan)
        if run is not None:
            return run
        execute, made = plan.execute, plan.program
        assert execute is not None
        rest = NO_WRITES, DEFAULT_OPTIONS, NO_METADATA
        return lambda feeds: execute(
            Execution(made, NO_FEEDS if feeds is None else feeds, *rest)
        )

    def compiled(self, plan: RunPlan) -> Run | None:
        """Return the program of a plan in compiled form, if the backend has it."""
        prepare = getattr(self.session, "prepared", None)
        if prepare is None or self._is_measured:
            return None
        compiled: Run | None = prepare(plan.program)
        return compiled


class ReportExecutor(Executor):
    """Takes the reports of a block, and computes the values that hooks derive from them.

    A step of the kind ``train`` counts its global steps even if its update is skipped: the
    loop alone can leave the update out.
    """

    def plan(self, asked: Unplanned, given: Any) -> RunPlan:
        """Take the reports, and return the plan of a step that reports these names."""
        self.session.take_reports(given)
        return self.planner.plan(asked.request, given, given.names())

    def execute(self, plan: RunPlan, execution: Execution, skips: bool) -> Sequence[Any]:  # noqa: ARG002
        """Read the values that hooks fetch from the reports."""
        return super().execute(plan, execution, skips=False)

    def specialized(self, plan: RunPlan, given: Any, trains: bool) -> Execute:
        """Return the function that does so for steps that report the same names."""
        run = super().specialized(plan, given, trains)
        session, names = self.session, frozenset(given.names())
        take_reports, reads = session.take_reports, bool(plan.names)

        def take(reports: Reports) -> Sequence[Any]:
            late = reports.late
            if reports.keys() != names and (not late or names != {*reports, *late}):
                return MISS  # type: ignore[no-any-return]
            take_reports(reports)
            values = run(reports) if reads else ()
            if trains:
                session.global_step += reports.increment
                session.version += 1
            return values

        return take


class GivenExecutor(Executor):
    """Takes the values that another loop has computed with a graph."""

    def plan(self, asked: Unplanned, given: Any) -> RunPlan:  # noqa: ARG002
        """Return the plan that gives each hook its own of the values."""
        return self.planner.wanted(asked.request)

    def execute(self, plan: RunPlan, execution: Execution, skips: bool) -> Sequence[Any]:  # noqa: ARG002
        """Commit the assignments of hooks, and return the values that hooks fetch."""
        values: Sequence[Any] = _picked(plan, execution.feeds)
        if execution.writes:
            writes = execution.writes.items()
            self.session.write({name: value for name, (_, value) in writes})
        return values

    def specialized(self, plan: RunPlan, given: Any, trains: bool) -> Execute:  # noqa: ARG002
        """Return the function that picks the values that hooks fetch."""
        return lambda values: _picked(plan, values)


def _picked(plan: RunPlan, values: Mapping[str, Any]) -> Any:
    return on_host(tuple([values[name] for name in plan.names]))


def check_given(names: Sequence[str], given: Mapping[str, Any]) -> None:
    """Check that another loop gives all values that hooks fetch.

    Raises:
        UsageError: one is missing.
    """
    for name in names:
        if name not in given:
            raise UsageError(
                f"after_step() lacks the value of {name!r}, which a hook fetches; give one "
                "for each of the fetches that before_step() returned"
            )
