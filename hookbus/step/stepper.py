"""Runs one step: asks the hooks, executes once, tells them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hookbus.backend.codegen import source_of
from hookbus.backend.protocol import Execution, RunMetadata, RunOptions, Session
from hookbus.bus.bus import Bus
from hookbus.bus.caller import Result
from hookbus.errors import NoValueYetError, UsageError
from hookbus.graph.traversal import inputs_of
from hookbus.hooks.context import RunServices, SessionRunContext
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.requests import Requests, RunRequests
from hookbus.logs import log
from hookbus.peers.agreement import Agreement
from hookbus.peers.reduction import reductions_of
from hookbus.step.executor import NO_WRITES, Executor, GivenExecutor, ReportExecutor
from hookbus.step.plan import MOST_PLANS, Planner, RunPlan, reduced_splits
from hookbus.step.request import (
    NO_FEEDS,
    blame_asker,
    collect_requests,
    key_of,
)
from hookbus.step.schedule import Schedules
from hookbus.step.specialize import specialize
from hookbus.step.trace import (
    MISS,
    DueSet,
    Execute,
    OpenStep,
    Trace,
    ask_nobody,
    tell_nobody,
)

_MOST_AGAIN = 16
"""The maximum number of times that the calls of one run are compiled again."""


class Stepper:
    """Runs the steps of one backend session, each in two halves.

    Only the stepper touches the position of schedules, the requests of a run, skips, and
    the global step of loops.

    Args:
        session: the backend session.
        services: the monitored session, as the contexts of its runs see it.
        bus: the hooks.
        agreement: the link to the other ranks; None if this process trains alone.
        is_driven: whether another loop computes the values of a graph.

    Attributes:
        schedules: choose the hooks of each run, by the kind of run.
        takes_reports: whether the steps are those of a custom loop, without a graph.
        requests: takes the requests of hooks.
        runs_graph: whether it computes the values of a graph itself.
        captured_for: the trace for which the backend keeps the values of a custom loop.
    """

    def __init__(
        self,
        session: Session,
        services: RunServices,
        bus: Bus,
        agreement: Agreement | None = None,
        is_driven: bool = False,
    ) -> None:
        self._session, self._bus, self._agreement = session, bus, agreement
        self._is_everywhere = None if agreement is None else bus.is_everywhere
        self.requests: Requests = services.requests
        self.schedules: Schedules = Schedules(bus, services, session)
        self._schedule = self.schedules[bus.kind]
        self._planner = planner = Planner(session, bus.costs, self._is_everywhere)
        is_measured = bus.costs is not None
        self.takes_reports: bool = session.graph.takes_reports
        self._executor: Executor
        if self.takes_reports:
            self._executor = ReportExecutor(session, planner, is_measured)
        elif is_driven:
            self._executor = GivenExecutor(session, planner, is_measured)
        else:
            self._executor = Executor(session, planner, is_measured)
        self.runs_graph: bool = type(self._executor) is Executor
        self.captured_for: Trace | None = None
        self._captured: Sequence[str] | None = None
        self._captures_anew = False
        self._last: OpenStep | None = None
        self._now = time.monotonic

    def open(
        self,
        fetches: Any,
        feeds: Any,
        options: RunOptions | None,
        metadata: RunMetadata | None,
        kind: Kind | None = None,
    ) -> OpenStep:
        """Do the first half of a step: ask the hooks, and unite the requests.

        Args:
            fetches: the fetches of the caller.
            feeds: the feeds of the caller.
            options: the caller's options for the step.
            metadata: gets the record of a traced run.
            kind: the purpose of the step, by default the session's.

        Raises:
            PluginError, GraphError: a request is invalid.
            FeedConflictError: two parties feed one node.
            BaseException: the error of a hook.
        """
        began = self._session.global_step
        schedule = self._schedule if kind is None else self.schedules[kind]
        position = schedule.position
        if (
            began == position.at
            and began < position.quiet_until
            and (position.alarm is None or self._now() < position.alarm)
        ):
            due = position.idle
        else:
            due = schedule.enter(began)
        trace = due.newest
        if feeds is None:
            feeds_alike = trace.fed is None
        elif feeds.__class__ is dict and len(feeds) == 1:
            feeds_alike = trace.fed_key in feeds
        else:
            feeds_alike = feeds.__class__ is dict and feeds.keys() == trace.fed
        if (
            fetches is not trace.fetch
            or not feeds_alike
            or options is not None
            or metadata is not None
        ):
            trace = due.find(fetches, feeds, options is None and metadata is None)
        self._last = step = trace.step
        step.began = began
        if not trace.needs_context:
            step.context, step.feeds = None, feeds
            return step
        # Spelled out, because every run comes here: a constructor would be slower.
        context = step.context = SessionRunContext()
        context._frame, context.global_step = due.frame, began
        context._fetches, context._feed_dict = fetches, feeds
        context._phase, context._asked = "asking", None
        answers = None if trace.ask is ask_nobody else trace.ask(context)
        context._phase = "asked"
        return step if answers is None else self._united(step, answers, options, metadata)

    def _united(
        self,
        step: OpenStep,
        answers: Sequence[Result],
        options: RunOptions | None,
        metadata: RunMetadata | None,
    ) -> OpenStep:
        """Return the open step for requests that its trace does not have."""
        context = self.context_of(step)
        reductions = reductions_of(answers, self._is_everywhere)
        unplanned, feeds = collect_requests(
            context.original_args,
            answers,
            self._session.graph,
            options,
            metadata,
            reductions,
        )
        key = None
        if options is None and metadata is None:
            key = key_of(context._fetches, context._feed_dict)
        step = OpenStep(step.trace, key, unplanned, feeds, step.began, context)
        self._last = step
        return step

    def close(self, step: OpenStep, given: Any) -> Any:
        """Do the second half of a step: execute it, and call the hooks with the results.

        Args:
            step: the open step.
            given: the feeds, reports or values that the executor needs.

        Returns:
            The values of the caller; None in a loop.

        Raises:
            NoValueYetError: the step lacks a value that is fetched.
            BaseException: the error of an op, of the backend or of a hook.
        """
        trace, context = step.trace, step.context
        values, skipped = MISS, None
        plan: Any = trace.plan
        try:
            if step.unplanned is None and (context is None or context._asked is None):
                values = trace.execute(given)
            if values is MISS:
                trace, plan, values, skipped = self._execute(step, given)
        except NoValueYetError as error:
            request = step.asked.request
            names = frozenset(request.feeds)
            raise self._planner.with_askers(error, request, names) from None
        after, began = self._session.global_step, step.began
        position, due = trace.due.position, None
        if (
            began < position.quiet_until
            and after - began == position.added
            and (position.alarm is None or self._now() < position.alarm)
        ):
            position.runs += 1
            position.at = after
        else:
            due = self.schedules[step.kind].leave(trace.due, began, after)
        tell = trace.tell
        if tell is None or (due is not None and due is not trace.due):
            self._deliver(step, due or trace.due, plan, values, skipped)
            if tell is None:
                self._note(step, plan, given)
        elif tell is not tell_nobody:
            tell(context, values, after)
        if due is not None and due.due:
            self.schedules[step.kind].ask(due)
        if trace.is_single:
            return values[0]
        split = plan.split
        return None if split is None else split(values)

    def _execute(
        self, step: OpenStep, given: Any
    ) -> tuple[Trace, RunPlan, Sequence[Any], str | None]:
        """Execute a step that differs from its trace, or that hooks have changed.

        Returns:
            The trace that fits the step, the plan, the values, and the hook that asked to
            skip the update, if any.
        """
        due, asked = step.trace.due, step.asked
        if self.runs_graph:
            given = self._feeds_by_name(step, given)
        plan = self._executor.plan(asked, given)
        requests = None if step.context is None else step.context._asked
        if requests is None:
            trace = self._known(step, plan)
            values = trace.execute(given)
            if values is not MISS:
                return trace, plan, values, None
            requests = RunRequests()
        writes = self.requests.take_writes(requests) if requests.writes else NO_WRITES
        skipped_by, requests.skip = requests.skip, None
        execution = Execution(plan.program, given, writes, asked.options, asked.metadata)
        try:
            values = self._executor.execute(plan, execution, skipped_by is not None)
        except UsageError as error:
            if skipped_by is not None:
                blame_asker(error, skipped_by)
            raise
        if self.takes_reports and step.kind == "train":
            self._session.global_step += given.increment
            self._session.version += 1
        return due.general, plan, values, skipped_by

    def _feeds_by_name(self, step: OpenStep, given: Any) -> Mapping[str, Any]:
        """Return the feeds of all parties, or of a repetition those of the caller."""
        if step.unplanned is not None:
            return step.feeds or NO_FEEDS
        names = step.trace.feed_names
        return {names[key]: value for key, value in given.items()} if given else NO_FEEDS

    def _known(self, step: OpenStep, plan: RunPlan) -> Trace:
        """Return another recorded trace that fits a step, or else the general trace."""
        due, found = step.trace.due, None
        if step.key is not None and step.asked.is_plain:
            found = due.recorded.get((step.key, plan))
        if found is None or found is step.trace:
            return due.general
        due.keep(found)
        return found

    def _deliver(
        self,
        step: OpenStep,
        due: DueSet,
        plan: RunPlan,
        values: Sequence[Any],
        skipped_by: str | None,
    ) -> None:
        """Call the hooks of a step that is not recorded, each with its own results."""
        asked, after = step.asked, self._session.global_step
        if skipped_by is not None:
            self.requests.effects.note_skipped(skipped_by, step.began)
            log.debug("update skipped", step=step.began, by=skipped_by)
        splits = plan.splits
        if asked.reductions:
            splits = reduced_splits(self._agreement, asked, plan, values, after)
        common = (asked.options, asked.metadata, after, skipped_by is not None)
        due.after.deliver(self.context_of(step), splits, values, common)

    def _note(self, step: OpenStep, plan: RunPlan, given: Any) -> None:
        """Record a step when it comes for the second time."""
        asked, due, key = step.asked, step.trace.due, step.key
        if key is None or not asked.is_plain or plan.still_fits is not None:
            return
        known = due.recorded.get((key, plan))
        if known is None and (key, plan) not in due.warm_plans:
            if len(due.warm_plans) >= MOST_PLANS:
                for kept in (due.warm_plans, due.recorded, due.traces):
                    kept.clear()
            due.warm_plans.add((key, plan))
            return
        if known is step.trace and step.unplanned is None:
            return
        again = 0 if known is None else known.respecialized + 1
        if again > _MOST_AGAIN or not (due.before.is_plain and due.after.is_plain):
            return
        ask, tell = specialize(due.before, due.after, asked, plan)
        own = self.context_of(step).original_args
        execute = self._executor.specialized(plan, given, step.kind == "train")
        reaches_nobody = ask is ask_nobody and tell is tell_nobody
        resolve = self._session.graph.resolve
        feed_names = {each: resolve(each).name for each in own.feed_dict or ()}
        trace = Trace(
            due,
            ask,
            tell,
            _named(execute, feed_names),
            plan,
            asked,
            self._executor.compiled(plan),
            own,
            feed_names,
            key,
            not (reaches_nobody and self.runs_graph),
            again,
        )
        due.recorded[key, plan] = trace
        due.keep(trace)

    def context_of(self, step: OpenStep) -> SessionRunContext:
        """Return the context of a step; make it if the step reaches no hook."""
        if step.context is None:
            own = step.trace.own
            assert own is not None
            feeds = step.feeds
            frame = step.trace.due.frame
            step.context = SessionRunContext.of(frame, own.fetches, feeds, step.began)
        return step.context

    def cancel(self, step: OpenStep) -> None:
        """Cancel a step before its second half, and tell the hooks."""
        context = self.context_of(step)
        self._bus.caller("cancelled", context.kind).collect(context)

    @contextlib.contextmanager
    def nested(self) -> Iterator[SessionRunContext | None]:
        """Run a step of an evaluation in a block, inside an event of the training.

        Yields:
            The context of the step around it, which takes requests; None without one.

        Raises:
            UsageError: the step around it evaluates itself.
        """
        outer, current = self._last, self._bus.current
        who, context = current.name, None if outer is None else outer.context
        if outer is None or context is None or context.is_over:
            context = None
        elif outer.kind == "eval":
            raise UsageError(
                "evaluation_run() inside a step of an evaluation: call it in another event"
            )
        try:
            yield context
        except BaseException:
            if self._last is not outer:
                self.abort()
            raise
        finally:
            self._last, self.captured_for, current.name = outer, None, who

    def abort(self) -> SessionRunContext | None:
        """Close the context of the failed step and return it; None without an open step."""
        context = None if self._last is None else self._last.context
        if context is None or context.is_over:
            return None
        context.close()
        return context

    def capture(self, step: OpenStep) -> None:
        """Have the backend keep the values that hooks fetch from a step of a loop.

        Some values exist only while the step runs.
        """
        wanted = self.wanted(step)
        if wanted != self._captured or self._captures_anew:
            self._captures_anew = bool(self._session.capture(wanted))
            self._captured = wanted
        is_usual = step.unplanned is None and not self._captures_anew
        self.captured_for = step.trace if is_usual else None

    def wanted(self, step: OpenStep) -> Sequence[str]:
        """Return the names of the nodes that hooks fetch in a step.

        Raises:
            GraphError: the graph has no such node.
            UsageError: a hook of one rank fetches a value that all ranks must read.
        """
        plan = step.trace.plan if step.unplanned is None else None
        return (plan or self._planner.wanted(step.asked.request)).names

    def inputs_of_last(self) -> dict[str, list[int]]:
        """Return the numbers of the values that the last run took, by input.

        Raises:
            UsageError: the backend pulls from inputs that are not in the graph.
        """
        graph, positions = self._session.graph, self._session.positions()
        ours = {n.name for n in graph.nodes.values() if n.kind == "input"}
        if not positions.keys() <= ours:
            raise UsageError(
                "the session cannot leave out values of "
                f"{', '.join(sorted(positions.keys() - ours))}, which is no input of the "
                "graph: call request_rollback(skip_inputs=False)"
            )
        assert self._last is not None
        request = self._last.asked.request
        taken = inputs_of(graph, self._planner.nodes_of(request)) - {*request.feeds}
        return {name: [positions[name]["pulled"] - 1] for name in taken}

    def flush_idle(self) -> None:
        """Tell the hooks that wait how many runs have left them out."""
        for schedule in self.schedules.values():
            schedule.flush_idle()

    @property
    def compiled_step(self) -> str | None:
        """The source of the compiled functions of a step; None before they exist.

        The step is of the session's kind, and no waiting hook is due in it. If every
        recorded step has a due hook, the source is that of such a step.
        """
        traces = self._schedule.traces
        if not traces:
            return None
        waiting = ", ".join(self._schedule.waiting) or "none"
        header = (
            "# Compiled after two steps that did the same. A step that does something "
            "else\n# is left to other code.\n"
            f"# Hooks that are left out until they are due: {waiting}\n"
        )
        functions: list[Any] = []
        for trace in traces:
            functions += [trace.ask, trace.program, trace.tell]
        shown = [each for each in functions if each not in (None, ask_nobody, tell_nobody)]
        return header + "\n".join(map(source_of, shown))


def _named(execute: Execute, names: Mapping[Any, str]) -> Execute:
    """Return a function that takes feeds under the caller's own keys, or by name.

    Args:
        execute: takes them by the name of the node.
        names: the name of the node of each key.
    """
    if all(key.__class__ is str and key == name for key, name in names.items()):
        return execute

    def named(given: Mapping[Any, Any]) -> Sequence[Any]:
        # A run that left another trace has them by name already.
        return execute({names.get(key, key): value for key, value in given.items()})

    return named
