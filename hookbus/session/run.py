"""Runs one step: asks the hooks, executes once, and calls them with the results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from hookbus.backend.codegen import CompiledProgram, Run, source_of
from hookbus.backend.protocol import RunMetadata, RunOptions, Session
from hookbus.bus.bus import Bus
from hookbus.bus.caller import Result
from hookbus.bus.plan import (
    MOST_PLANS,
    NAMES,
    Asked,
    Planner,
    RunPlan,
    RunRequest,
    Wanted,
    read_requests,
    reduced_splits,
    unite,
)
from hookbus.bus.schedule import Group, Schedules
from hookbus.bus.straight import (
    OTHER,
    Departure,
    Steady,
    StraightRun,
    Whole,
    compile_run,
    compile_whole,
)
from hookbus.errors import NoValueYetError, UsageError, blame, repr_of
from hookbus.graph.fetches import Split
from hookbus.graph.node import Node
from hookbus.graph.traversal import inputs_of
from hookbus.hooks.context import Requests, SessionRunContext, context_of
from hookbus.hooks.coordinator import Coordinator
from hookbus.hooks.hook_options import Kind
from hookbus.logs import log
from hookbus.peers.agreement import Agreement
from hookbus.peers.reduction import reductions_of
from hookbus.process.interrupts import call_interruptibly
from hookbus.process.signals import SignalWatch
from hookbus.swaps import swaps_of

NO_FETCHES: list[Any] = []
"""The caller's fetches in a step of a custom loop; nobody changes it."""
DEFAULT_OPTIONS = RunOptions()
NO_FEEDS: Mapping[str, Any] = {}
NO_WRITES: Mapping[str, tuple[str, Any]] = {}
_MOST_COMPILED = 16
"""How often the hooks' part of a run is compiled if hooks keep asking for other things."""
NO_METADATA = RunMetadata()
"""The record of all runs that are not traced: a backend leaves it empty."""


PendingRun: TypeAlias = tuple[
    SessionRunContext, Group, Mapping[str, Any], "Steady | None", "Asked | None"
]
"""A run between its halves.

The context that hooks see, the hooks that the run calls, the feeds by node, what is
prepared for the run, and what it does instead; None if it does what is prepared.
"""


class HookedSession:
    """One backend session on the bus, from its creation to its end.

    Attributes:
        session: the backend session.
        coord: stops and joins the threads that hooks registered.
        requests: collects the requests of hooks.
        bus: the hooks.
        current_hook: names the hook that is being called.
        armed_for: the run that the backend is prepared for, in a custom loop.
        schedules: decide which hooks a run calls, by its kind.
        whole: does a run of a graph like the last one, of the session's kind.
    """

    def __init__(
        self,
        bus: Bus,
        requests: Requests,
        signals: SignalWatch,
        session: Session,
        remaining: Callable[[], int | None],
        epoch: Callable[[], int | None],
        agreement: Agreement | None = None,
    ) -> None:
        self.session = session
        self._agreement = agreement
        self.coord = Coordinator(clean_stop_exception_types=())
        self.requests = requests
        self.current_hook = bus.current
        self.emit = bus.emit
        swaps_of(session).asker = bus.current.spelled
        self.epoch = epoch
        self.bus = bus
        self._signals = signals
        self._remaining = remaining
        self.schedules = Schedules(bus)
        everywhere = None if agreement is None else bus.is_everywhere
        self._planner = Planner(session, bus.costs, everywhere)
        self.armed_for: Steady | None = None
        self._armed: Any = None
        self._steady: dict[Hashable, Steady] = {}
        self._steady_version = -1
        self.whole: Whole = _for_no_run
        self._last: PendingRun | None = None
        self._whole_request = RunRequest()

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        options: RunOptions | None,
        metadata: RunMetadata | None,
        kind: Kind,
    ) -> Any:
        """Do a whole run of a graph; return the caller's values."""
        pending = self._last = self.ask(fetches, feed_dict, options, metadata, kind)
        values = self.execute(pending, pending[2])
        steady = pending[3]
        if self._agreement is not None or kind != self.bus.kind:
            return values  # the ranks meet after each run
        if steady is not None and steady.hooks is not None:
            if steady.whole is None and pending[1] is self.schedules[kind].idle:
                steady.whole = self._compiled(pending, steady)
            if steady.whole is not None:
                self.whole, self._whole_request = steady.whole, steady.request
        return values

    def numbers_of(self, context: SessionRunContext | None) -> dict[str, list[int]]:
        """Return the numbers of the values that the last run took, by input.

        *context* is that of the run; None if it was not compiled.

        Raises:
            UsageError: the backend pulls from inputs in a way of its own.
        """
        last = self._last
        request = self._whole_request
        if last is not None and (context is None or last[0] is context):
            request = _request_of(last)
        graph, positions = self.session.graph, self.session.positions()
        ours = {n.name for n in graph.nodes.values() if n.kind == "input"}
        if not positions.keys() <= ours:
            raise UsageError(
                "the session cannot leave out values of "
                f"{', '.join(sorted(positions.keys() - ours))}, which is no input of the "
                "graph: call request_rollback(skip_inputs=False)"
            )
        taken = inputs_of(graph, self._planner.nodes_of(request)) - {*request.feeds}
        return {name: [positions[name]["pulled"] - 1] for name in taken}

    def last_context(
        self, fetches: Any, feed_dict: Mapping[Node | str, Any] | None, kind: Kind
    ) -> SessionRunContext:
        """Return the context of the last run; one that calls no hook makes none."""
        began = self.session.global_step - self.schedules[kind].added
        return self.requests.run or context_of(self, fetches, feed_dict, began, kind)

    def ask(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        options: RunOptions | None,
        metadata: RunMetadata | None,
        kind: Kind,
    ) -> PendingRun:
        """Do the first half of a run: ask the hooks and unite the requests."""
        step = self.session.global_step
        context = context_of(self, fetches, feed_dict, step, kind)
        group = self.schedules[kind].enter(step)
        steady = None
        if options is None and metadata is None:
            given: Any = feed_dict or NO_FEEDS
            if fetches is NO_FETCHES and given is NO_FEEDS:
                steady = self._steady.get(group) or self._new_steady(group, given)
            elif given.__class__ is dict:
                key = fetches if fetches.__class__ is str else _key_of(fetches)
                if key is not None:
                    key = (group, key, *map(id, given))
                    steady = self._steady.get(key) or self._new_steady(key, given)
        if steady is None or steady.hooks is None:
            asked = group.before.collect(context)
        else:
            before = steady.hooks.before
            departure = None if before is None else before(context)
            if departure is None:
                self.requests.asking = None
                if steady.renames:  # the keys are in the order of the request
                    given = dict(zip(steady.request.feeds, given.values(), strict=True))
                return context, group, given, steady, None
            asked = group.before.resume((context,), departure)
        return self._unite(context, group, steady, asked, options, metadata)

    def go_on(
        self,
        context: SessionRunContext,
        group: Group,
        steady: Steady,
        departure: Departure,
    ) -> PendingRun:
        """Ask the other hooks of a run in which one asks for something else."""
        asked = group.before.resume((context,), departure)
        return self._unite(context, group, steady, asked)

    def _unite(
        self,
        context: SessionRunContext,
        group: Group,
        steady: Steady | None,
        asked: Sequence[Result],
        options: RunOptions | None = None,
        metadata: RunMetadata | None = None,
    ) -> PendingRun:
        """Unite requests that are not prepared; all hooks have made theirs."""
        self.requests.asking = None
        graph, own = self.session.graph, context.original_args
        request, special, fixed = read_requests(own.fetches, asked, graph.leaf)
        several = self._agreement is not None
        reductions = reductions_of(asked, self.bus.is_everywhere) if several else {}
        options, united = options or DEFAULT_OPTIONS, NO_FEEDS
        if special or own.feed_dict:
            united, options = unite(own.feed_dict, asked, options, graph)
            request = RunRequest((request.fetches, request.hooks, tuple(united)))
        if special or reductions or not fixed:
            steady = None
        metadata = metadata or RunMetadata()
        differs = Asked(request, asked, options, metadata, reductions)
        return context, group, united, steady, differs

    def arm(self, pending: PendingRun) -> None:
        """Prepare the backend for a step of a custom loop, which will execute *pending*."""
        *_, steady, asked = pending
        self.armed_for = steady if asked is None else None
        wanted = self.wanted(pending).names
        if wanted != self._armed:
            self.session.arm(wanted)
            self._armed = wanted

    def wanted(self, pending: PendingRun) -> Wanted:
        """Return what the hooks of a run fetch."""
        return self._planner.wanted(_request_of(pending))

    def record(self, pending: PendingRun) -> tuple[RunOptions, RunMetadata]:
        """Return how to do a run, and what gets the record of it."""
        asked = pending[4]
        if asked is None:
            return DEFAULT_OPTIONS, NO_METADATA
        return asked.options, asked.metadata

    def deliver(self, pending: PendingRun, values: Sequence[Any]) -> None:
        """Do the second half of a run that another loop has executed.

        Args:
            pending: the result of :meth:`ask`.
            values: those of the nodes that hooks want, in the order of :meth:`wanted`.
        """
        context, group, *_ = pending
        skipped = self.requests.take_skip()
        writes = self.requests.take_writes()
        if writes:
            self.session.write({name: value for name, (_, value) in writes.items()})
        # As in execute(), which spells it out because each run passes there.
        step, schedule = self.session.global_step, self.schedules[context.kind]
        group = schedule.leave(group, context.global_step, step)
        common = (*self.record(pending), step, self._count_skip(skipped, context))
        wanted = self.wanted(pending)
        splits = self._splits(pending[4], wanted, values)
        group.after.deliver(context, splits, values, common)
        if group.due:
            schedule.ask(group)

    def execute(
        self,
        pending: PendingRun,
        feeds: Mapping[str, Any],
        advance: int = 0,
        reported: tuple[str, ...] = (),
    ) -> Any:
        """Do the second half: execute, call the hooks, return the caller's values.

        Args:
            pending: the result of :meth:`ask`.
            feeds: the value of each fed node, by name.
            advance: what to add to the global step besides what train ops add.
            reported: the names among the feeds that are known only now: what a step of a
                custom loop reports.
        """
        context, entered, _, steady, asked = pending
        session, requests = self.session, self.requests
        options, metadata = DEFAULT_OPTIONS, NO_METADATA
        hooks: StraightRun | None = None
        if steady is not None and asked is None and reported == steady.reported:
            plan, hooks = steady.plan, steady.hooks
            steady.candidate = None
        else:
            plan = self._planner.plan(_request_of(pending), feeds, reported)
            if asked is not None:
                options, metadata = asked.options, asked.metadata
        assert plan is not None
        skipped = requests.skip and requests.take_skip()
        writes = requests.take_writes() if requests.writes else requests.writes
        given = plan.program, feeds, writes, options, metadata
        try:
            if skipped is None or session.graph.takes_reports:
                values = plan.execute(*given)
            else:
                values = self._execute_without_update(skipped, *given)
        except NoValueYetError as error:
            raise self.explained(error, _request_of(pending)) from None
        if advance:
            session.global_step += advance
            session.version += 1
        step, schedule = session.global_step, self.schedules[context.kind]
        group = schedule.leave(entered, context.global_step, step)
        if hooks is not None and group is entered and skipped is None:
            if hooks.after is not None:
                hooks.after(context, values, options, metadata, step)
        else:
            common = (options, metadata, step, self._count_skip(skipped, context))
            splits = self._splits(asked, plan, values)
            group.after.deliver(context, splits, values, common)
            if steady is not None:
                self._repeated(pending, plan, reported)
        if group.due:
            schedule.ask(group)
        return plan.split and plan.split(values)

    def _splits(
        self, asked: Asked | None, plan: RunPlan | Wanted, values: Sequence[Any]
    ) -> Mapping[str, Split]:
        """Return what gives each hook its values, some of them reduced over the ranks."""
        if asked is None or not asked.reductions:
            return plan.splits
        assert self._agreement is not None
        step = self.session.global_step
        return reduced_splits(self._agreement, asked, plan, values, step)

    def tell(self, pending: PendingRun, plan: RunPlan, values: Sequence[Any]) -> None:
        """Call the hooks after a step that was as prepared, if other hooks are due."""
        context, entered, *_ = pending
        step, schedule = self.session.global_step, self.schedules[context.kind]
        group = schedule.leave(entered, context.global_step, step)
        common = (DEFAULT_OPTIONS, NO_METADATA, step, False)
        group.after.deliver(context, plan.splits, values, common)
        if group.due:
            schedule.ask(group)

    def _count_skip(self, who: str | None, context: SessionRunContext) -> bool:
        """Return whether a hook had this run, which has not failed, skip its update."""
        if who is None:
            return False
        self.requests.skips[who] += 1
        log.debug("update skipped", step=context.global_step, by=who)
        return True

    def _execute_without_update(self, who: str, *given: Any) -> Sequence[Any]:
        """Execute a run that a hook has skip its update."""
        try:
            return self.session.execute_without_update(*given)
        except UsageError as error:
            blame(error, who, f"plugin {who!r} asked for it in before_run()")
            raise

    def explained(self, error: NoValueYetError, request: RunRequest) -> NoValueYetError:
        """Add to an error who asked for the missing value."""
        return self._planner.with_askers(error, request, frozenset(request.feeds))

    def prepared(self, plan: RunPlan) -> CompiledProgram | None:
        """Return the program of a plan in a form for runs without writes or a record."""
        prepare = getattr(self.session, "prepared", None)
        measures = self.bus.costs is not None  # by plan.execute()
        return None if prepare is None or measures else prepare(plan.program)

    def runner(self, plan: RunPlan) -> Run:
        """Return what executes a plan without writes and without a record."""
        execute, program, prepared = plan.execute, plan.program, self.prepared(plan)
        if prepared is not None:
            return prepared.run
        return lambda feeds: execute(
            program, feeds, NO_WRITES, DEFAULT_OPTIONS, NO_METADATA
        )

    def _compiled(self, pending: PendingRun, steady: Steady) -> Whole:
        """Compile further runs of a graph like one in which nobody was due."""
        (context, group, *_), plan = pending, steady.plan
        assert plan is not None
        names = {
            "NO_FEEDS": NO_FEEDS,
            "metadata": NO_METADATA,
            "options": DEFAULT_OPTIONS,
            "backend": self,
            "bus": self.bus,
            "group": group,
            "requests": self.requests,
            "run": self.runner(plan),
            "schedule": self.schedules[context.kind],
            "session": self.session,
        }
        return compile_whole(context, steady, self.prepared(plan), names)

    @property
    def compiled_step(self) -> str | None:
        """The source of the functions that do a step that repeats; None before they exist.

        Of a custom loop, or if a hook is due in each run of a graph, it is what hooks and
        their fetches add to the step.
        """
        schedule = self.schedules.get(self.bus.kind)
        if schedule is None or schedule.at is None:
            return None
        functions: list[Any] = [self.whole]
        if self.whole is _for_no_run:
            idle = self._steady.get(schedule.idle)
            ready = [s for s in (idle, *self._steady.values()) if s is not None and s.hooks]
            if not ready:
                return None
            hooks, plan = ready[0].hooks, ready[0].plan
            assert hooks is not None
            assert plan is not None
            prepared = self.prepared(plan)
            execute = None if prepared is None else prepared.run
            functions = [hooks.before, execute, hooks.after]
        waiting = ", ".join(schedule.waiting) or "none"
        header = (
            "# Compiled after two steps in a row that did the same. A step that does "
            "something else\n# is left to other code.\n"
            f"# Hooks that are left out until they are due: {waiting}\n"
        )
        return header + "\n".join(map(source_of, filter(None, functions)))

    def cancel(self, pending: PendingRun) -> None:
        """Tell the hooks that the second half of a run does not come."""
        context = pending[0]
        self.bus.caller("cancelled", context.kind).collect(context)

    def settle(self) -> None:
        """Tell the hooks that wait how many runs have left them out."""
        for schedule in self.schedules.values():
            schedule.settle()

    def is_ending(self) -> bool:
        """Return whether a signal or the coordinator ends the session."""
        return self._signals.came() or self.coord.should_stop()

    def last_step(self) -> int | None:
        """Return the earliest end that a hook plans or an input has."""
        ends = self.bus.emit("planned_last_step")
        left = self._remaining()
        if left is not None:
            ends.append(self.session.global_step + left)
        return min(ends, default=None)

    def writable(self, node: Node | str, value: Any) -> str:
        """Return the name of a variable that the current hook may set to *value*.

        Raises:
            GraphError: it may not.
        """
        who = f"hook {self.current_hook.name!r}"
        name = self.session.graph.variable_named(node, who)
        self.session.check(name, value, who)
        return name

    def preemption(self, error: BaseException) -> BaseException | None:
        """Return the preemption that caused an error of this session, or None.

        If a thread met it first, the coordinator holds it.
        """
        for candidate in (error, self.coord.exception):
            if isinstance(candidate, self.session.preemption_errors):
                return candidate
        return None

    def close(self, grace: float) -> BaseException | None:
        """Stop the threads and close the backend.

        Returns:
            The error of a thread, or a KeyboardInterrupt that cut a wait short, or None.
        """
        error: BaseException | None = None
        self.coord.request_stop()
        try:
            self.coord.join(stop_grace_period_secs=grace, ignore_live_threads=True)
        except BaseException as reported:
            error = reported
        try:
            call_interruptibly(self.session.close)
        except KeyboardInterrupt as interrupt:
            error = interrupt
        except Exception as failed:  # it is not used again, and must not stop its successor
            log.warning("cannot close the backend session", why=repr_of(failed))
        return error

    def _new_steady(self, key: Hashable, feeds: Mapping[Any, Any]) -> Steady:
        """Return an empty preparation, for runs with this key and these very feed keys."""
        if self._steady_version != self.bus.version or len(self._steady) >= MOST_PLANS:
            self._steady.clear()  # no run has the hooks of an older version any more
            self._steady_version = self.bus.version
        steady = self._steady[key] = Steady(tuple(feeds))
        return steady

    def _repeated(
        self, pending: PendingRun, plan: RunPlan, reported: tuple[str, ...]
    ) -> None:
        """Prepare for further runs like this one, if it is like the one before."""
        _, group, _, steady, asked = pending
        assert steady is not None
        if plan is not steady.candidate:
            steady.candidate = plan
            return
        plain = group.before.is_plain and group.after.is_plain
        if not plain or steady.compiled == _MOST_COMPILED:
            return
        steady.compiled += 1
        steady.whole = None
        request = steady.request = _request_of(pending)
        steady.plan, steady.reported = plan, reported
        steady.renames = any(type(key) is not str for key in steady.keys) or (
            steady.keys != request.feeds
        )
        if asked is not None:
            steady.answers = asked.answers
        callers, shapes = (group.before, group.after), dict(request.hooks)
        steady.hooks = compile_run(
            *callers, steady.answers, shapes, plan.places, plan.splits
        )


def _for_no_run(_fetches: Any, _feeds: Any) -> Any:
    return OTHER


def _key_of(fetches: Any) -> Hashable:
    """Return what distinguishes the caller's fetches; None if they are unusual."""
    if fetches.__class__ is not list and fetches.__class__ is not tuple:
        return None
    return (fetches.__class__, *fetches) if NAMES.issuperset(map(type, fetches)) else None


def _request_of(pending: PendingRun) -> RunRequest:
    """Return what the caller and the hooks ask for in a run."""
    *_, steady, asked = pending
    if asked is not None:
        return asked.request
    assert steady is not None
    return steady.request
