"""Runs one step: asks the hooks, executes once, and calls them with the results.

The caller and the hooks ask for fetches and feed values. Their union is a request. The plan
of a request is made once and serves every run with the same request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions, Session
from hookbus.bus.bus import Bus
from hookbus.bus.caller import Result
from hookbus.bus.schedule import Group, Schedule
from hookbus.bus.straight import StraightRun, compile_run
from hookbus.errors import (
    GraphError,
    NoValueYetError,
    PluginError,
    UnfedPlaceholderError,
    WriteConflictError,
    blame,
    repr_of,
)
from hookbus.graph.fetches import Leaf, Merge, merge, structure_of, unite_feeds
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.traversal import needs
from hookbus.hooks.context import Requests, SessionRunContext
from hookbus.hooks.coordinator import Coordinator
from hookbus.hooks.hook import Kind, SessionRunArgs
from hookbus.hooks.interrupts import call_interruptibly
from hookbus.hooks.signals import SignalWatch
from hookbus.logs import log

Missing = TypeVar("Missing", UnfedPlaceholderError, NoValueYetError)

CALLER = "the caller"
_DEFAULT_OPTIONS = RunOptions()
_NO_FEEDS: Mapping[str, Any] = {}
_MOST_PLANS = 1024
_MOST_COMPILED = 16
"""How often the hooks' part of a run is compiled if hooks keep asking for other things."""
_NAMES = frozenset({str, Node})
_NOTHING = (list,)
"""The key of a request for nothing, like that of a custom loop."""
_NO_METADATA = RunMetadata()
"""The record of all runs that are not traced: a backend leaves it empty."""


class RunRequest(tuple[Any, ...]):
    """The fetches of one run; equal ones share a plan.

    It is a tuple because every run makes, hashes and compares one: the caller's fetches, a
    pair (hook, fetches) for each hook that has some, and the names of the fed nodes.
    """

    __slots__ = ()
    fetches = property(itemgetter(0))
    hooks = property(itemgetter(1))
    feeds = property(itemgetter(2))


@attrs.frozen(eq=False)
class RunPlan:
    """How to serve a request.

    Attributes:
        program: the backend's own plan.
        split: takes all values and returns the caller's structure; None in a custom loop.
        hook_splits: the same for each hook with fetches, by name.
        places: the place among the values of each leaf that hooks fetch.
    """

    program: Any
    split: Callable[[Sequence[Any]], Any] | None
    hook_splits: dict[str, Callable[[Sequence[Any]], Any]]
    places: Mapping[Any, int]


@attrs.define(eq=False)
class Steady:
    """What is prepared for a run that repeats: same hooks, same fetches and feeds.

    Attributes:
        plan: how to serve it.
        request: what the caller and the hooks ask for.
        reported: the names that the step of a custom loop reports.
        answers: the requests of the hooks.
        hooks: the calls of the hooks; None until two runs in a row were the same.
        candidate: the plan of the run before, if that was another one.
        compiled: how often the calls were compiled.
    """

    plan: RunPlan | None = None
    request: RunRequest = attrs.field(factory=RunRequest)
    reported: tuple[str, ...] = ()
    answers: Sequence[Result] = ()
    hooks: StraightRun | None = None
    candidate: RunPlan | None = None
    compiled: int = 0

    def feeds_of(self, feed_dict: Mapping[Node | str, Any]) -> Mapping[str, Any]:
        """Return the caller's feeds, which are in the order of the request, by name."""
        return dict(zip(self.request.feeds, feed_dict.values(), strict=True))


@attrs.frozen(eq=False)
class Wanted:
    """What the hooks of a run fetch.

    Attributes:
        names: the names of the nodes.
        splits: takes the values of these nodes and returns a hook's own structure, for each
            hook with fetches, by its name.
    """

    names: list[str]
    splits: dict[str, Callable[[Sequence[Any]], Any]]


@attrs.frozen(eq=False)
class Asked:
    """What a run does that is not prepared.

    Attributes:
        request: what the caller and the hooks ask for.
        answers: the requests of the hooks.
        options, metadata: how to run, and the backend's record of it.
    """

    request: RunRequest
    answers: Sequence[Result]
    options: RunOptions
    metadata: RunMetadata


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
        current_hook: names the hook that is being called.
        armed_for: the run that the backend is prepared for, in a custom loop.
    """

    def __init__(
        self,
        bus: Bus,
        requests: Requests,
        signals: SignalWatch,
        session: Session,
        remaining: Callable[[], int | None],
        epoch: Callable[[], int | None],
    ) -> None:
        self.session = session
        self.coord = Coordinator(clean_stop_exception_types=())
        self.requests = requests
        self.current_hook = bus.current
        self.emit = bus.emit
        self.epoch = epoch
        self._bus = bus
        self._signals = signals
        self._remaining = remaining
        self._schedules: dict[Kind, Schedule] = {}
        self._plans: dict[Hashable, RunPlan] = {}
        self._wanted: dict[Hashable, Wanted] = {}
        self.armed_for: Steady | None = None
        self._armed: Any = None
        self._takes_reports = session.graph.takes_reports
        self._steady: dict[Hashable, Steady] = {}

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        options: RunOptions | None,
        metadata: RunMetadata | None,
        kind: Kind,
    ) -> tuple[Any, SessionRunContext]:
        """Do one run; return the caller's values and the context that hooks saw."""
        pending = self.ask(fetches, feed_dict, options, metadata, kind)
        return self.execute(pending, pending[2]), pending[0]

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
        context = SessionRunContext(self, fetches, feed_dict, step, kind)
        schedule = self._schedules.get(kind)
        if schedule is None:
            schedule = self._schedules[kind] = Schedule(self._bus, kind)
        group = schedule.enter(step)
        steady = None
        if options is None and metadata is None:
            if fetches.__class__ is list and not (fetches or feed_dict):  # a custom loop
                steady = self._steady.get((group, _NOTHING))
            steady = steady or self._steady_for(group, fetches, feed_dict)
        if steady is None or steady.hooks is None:
            asked = group.before.collect(context)
        else:
            departure = steady.hooks.before(context)
            if departure is None:
                feeds = _NO_FEEDS if feed_dict is None else steady.feeds_of(feed_dict)
                return context, group, feeds, steady, None
            asked = group.before.resume((context,), departure)
        graph = self.session.graph
        request, special, fixed = _read_requests(fetches, asked, graph.leaf)
        options, united = options or _DEFAULT_OPTIONS, _NO_FEEDS
        if special or feed_dict:
            united, options = _unite(feed_dict, asked, options, graph)
            request = RunRequest((request.fetches, request.hooks, tuple(united)))
        if special or not fixed:
            steady = None
        differs = Asked(request, asked, options, metadata or RunMetadata())
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
        request = _request_of(pending)
        wanted = self._wanted.get(request)
        if wanted is None:
            if len(self._wanted) >= _MOST_PLANS:
                self._wanted.clear()
            merged = merge(request.hooks)
            names = [name for name, _ in request.hooks]
            splits = dict(zip(names, merged.splits, strict=True))
            wanted = self._wanted[request] = Wanted(self._names_of(merged), splits)
        return wanted

    def record(self, pending: PendingRun) -> tuple[RunOptions, RunMetadata]:
        """Return how to do a run, and what gets the record of it."""
        asked = pending[4]
        if asked is None:
            return _DEFAULT_OPTIONS, _NO_METADATA
        return asked.options, asked.metadata

    def deliver(self, pending: PendingRun, values: Sequence[Any]) -> None:
        """Do the second half of a run that another loop has executed.

        Args:
            pending: the result of :meth:`ask`.
            values: those of the nodes that hooks want, in the order of :meth:`wanted`.
        """
        context, group, *_ = pending
        writes = self.requests.take_writes()
        if writes:
            self.session.write({name: value for name, (_, value) in writes.items()})
        # As in execute(), which spells it out because each run passes there.
        step, schedule = self.session.global_step, self._schedules[context.kind]
        group = schedule.leave(group, context.global_step, step)
        common = (*self.record(pending), step)
        group.after.deliver(context, self.wanted(pending).splits, values, common)
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
        options, metadata = _DEFAULT_OPTIONS, _NO_METADATA
        hooks: StraightRun | None = None
        if steady is not None and asked is None and reported == steady.reported:
            plan, hooks = steady.plan, steady.hooks
            steady.candidate = None
        else:
            key = (_request_of(pending), reported)
            plan = self._plans.get(key) or self._plan(key, feeds)
            if asked is not None:
                options, metadata = asked.options, asked.metadata
        assert plan is not None
        writes = requests.take_writes() if requests.writes else requests.writes
        try:
            values = session.execute(plan.program, feeds, writes, options, metadata)
        except NoValueYetError as error:
            raise self._with_askers(error, _request_of(pending), frozenset(feeds)) from None
        if advance:
            session.global_step += advance
            session.version += 1
        step, schedule = session.global_step, self._schedules[context.kind]
        group = schedule.leave(entered, context.global_step, step)
        if hooks is not None and group is entered:
            hooks.after(context, values, options, metadata, step)
        else:
            common = (options, metadata, step)
            group.after.deliver(context, plan.hook_splits, values, common)
            if steady is not None:
                self._repeated(pending, plan, reported)
        if group.due:
            schedule.ask(group)
        return plan.split and plan.split(values)

    def cancel(self, pending: PendingRun) -> None:
        """Tell the hooks that the second half of a run does not come."""
        context = pending[0]
        self._bus.caller("cancelled", context.kind).collect(context)

    def settle(self) -> None:
        """Tell the hooks that wait how many runs have left them out."""
        for schedule in self._schedules.values():
            schedule.settle()

    def is_ending(self) -> bool:
        """Return whether a signal or the coordinator ends the session."""
        return self._signals.came() or self.coord.should_stop()

    def last_step(self) -> int | None:
        """Return the earliest end that a hook plans or an input has."""
        ends = self._bus.emit("planned_last_step")
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

    def _steady_for(
        self, group: Group, fetches: Any, feed_dict: Mapping[Node | str, Any] | None
    ) -> Steady | None:
        """Return what is prepared for a run; None if the caller's request is unusual."""
        key: Hashable = fetches
        if fetches.__class__ is not str:
            flat = fetches.__class__ is list or fetches.__class__ is tuple
            if not flat or not _NAMES.issuperset(map(type, fetches)):
                return None
            key = (fetches.__class__, *fetches)
        if feed_dict:
            if feed_dict.__class__ is not dict or not _NAMES.issuperset(
                map(type, feed_dict)
            ):
                return None
            key = (key, *feed_dict)
        steady = self._steady.get((group, key))
        if steady is None:
            if len(self._steady) >= _MOST_PLANS:
                self._steady.clear()
            steady = self._steady[group, key] = Steady()
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
        request = steady.request = _request_of(pending)
        steady.plan, steady.reported = plan, reported
        if asked is not None:
            steady.answers = asked.answers
        callers, shapes = (group.before, group.after), dict(request.hooks)
        steady.hooks = compile_run(
            *callers, steady.answers, shapes, plan.places, plan.hook_splits
        )

    def _plan(
        self, key: tuple[RunRequest, tuple[str, ...]], feeds: Mapping[str, Any]
    ) -> RunPlan:
        """Plan a request that is new, and keep the plan under a key."""
        request = key[0]
        own, fed = merge([(CALLER, request.fetches)]), frozenset(feeds)
        hooks = merge(request.hooks, len(own.leaves))
        fetches, host = self._names_of(own), self._names_of(hooks)
        try:
            program = self.session.compile(fetches, fed, host)
        except UnfedPlaceholderError as error:
            raise self._with_askers(error, request, fed) from None
        except WriteConflictError as error:
            self._blame_asker(error, request, fed)
            raise
        split = None if self._takes_reports else own.splits[0]
        names = [name for name, _ in request.hooks]
        hook_splits = dict(zip(names, hooks.splits, strict=True))
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        start = len(own.leaves)
        places = {leaf: place for place, leaf in enumerate(hooks.leaves, start)}
        plan = self._plans[key] = RunPlan(program, split, hook_splits, places)
        return plan

    def _names_of(self, merged: Merge) -> list[str]:
        """Return the name of each node that is fetched.

        Raises:
            GraphError: the graph has no such node.
        """
        names: list[str] = []
        for leaf in merged.leaves:
            askers = merged.askers[leaf]
            try:
                names.append(self.session.graph.resolve(leaf, ", ".join(askers)).name)
            except GraphError as error:
                _blame(error, next(iter(askers)))
                raise
        return names

    def _askers_of(self, request: RunRequest) -> dict[str, list[str]]:
        """Return who fetches each node, by its name."""
        merged = _merged(request)
        askers: dict[str, list[str]] = {}
        for name, leaf in zip(self._names_of(merged), merged.leaves, strict=True):
            askers.setdefault(name, []).extend(merged.askers[leaf])
        return askers

    def _with_askers(
        self, error: Missing, request: RunRequest, fed: frozenset[str]
    ) -> Missing:
        """Add the fetch that needs the missing value, and the party that asked for it."""
        graph = self.session.graph
        for name, askers in self._askers_of(request).items():
            if needs(graph, graph.resolve(name), error.node, fed):
                first = askers[0]
                without = (
                    f"; without that hook it runs as kind='aux', or with -p no:{first}"
                )
                found = type(error)(
                    f"{error}. {name!r} is fetched by {', '.join(askers)}"
                    f"{'' if first == CALLER else without}",
                    error.node,
                )
                _blame(found, first)
                return found
        return error

    def _blame_asker(
        self, error: WriteConflictError, request: RunRequest, fed: frozenset[str]
    ) -> None:
        """Blame the first hook without whose fetches the run has no conflict."""
        askers_of = self._askers_of(request)
        for hook, _ in request.hooks:
            rest = [name for name, askers in askers_of.items() if {*askers} != {hook}]
            with contextlib.suppress(GraphError, WriteConflictError):
                self.session.compile(rest, fed)
                _blame(error, hook)
                return


def _unite(
    feed_dict: Mapping[Node | str, Any] | None,
    asked: Sequence[tuple[str, Any]],
    options: RunOptions,
    graph: Graph,
) -> tuple[Mapping[str, Any], RunOptions]:
    """Return the feeds of the caller and of all hooks, and their options."""
    for _, wanted in asked:
        options = options.merge(wanted.options)
    parties = [(CALLER, feed_dict), *((name, w.feed_dict) for name, w in asked)]
    return unite_feeds(parties, graph.resolve, _blame), options


def _request_of(pending: PendingRun) -> RunRequest:
    """Return what the caller and the hooks ask for in a run."""
    *_, steady, asked = pending
    if asked is not None:
        return asked.request
    assert steady is not None
    return steady.request


def _merged(request: RunRequest) -> Merge:
    """Return the fetches of the caller and of all hooks as one."""
    return merge([(CALLER, request.fetches), *request.hooks])


def _read_requests(
    fetches: Any, asked: Sequence[tuple[str, Any]], leaf: Leaf
) -> tuple[RunRequest, bool, bool]:
    """Return the request without feeds, whether it is special, and whether it is fixed.

    A special request has feeds, options, or a foreign type. In a fixed one all hooks fetch
    names, nodes and dicts of these, so that a change of them can be seen.
    """
    wanted = fetches if fetches.__class__ is str else structure_of(fetches, leaf)
    hooks: list[tuple[str, Hashable]] = []
    special, fixed = False, True
    for name, request in asked:
        if request.__class__ is not SessionRunArgs:
            special = _check_request(name, request)
        elif request.feed_dict or request.options is not None:
            special = True
        own = request.fetches
        if own.__class__ is str or own.__class__ is Node:
            hooks.append((name, own))
        elif own is not None:
            flat = own.__class__ is dict and _NAMES.issuperset(map(type, own.values()))
            fixed = fixed and flat
            try:
                hooks.append((name, structure_of(own, leaf)))
            except GraphError as error:
                _blame(error, name)
                raise
    return RunRequest((wanted, tuple(hooks), ())), special, fixed


def _check_request(name: str, request: Any) -> bool:
    """Accept any object with the three attributes, as TF does."""
    if all(hasattr(request, part) for part in ("fetches", "feed_dict", "options")):
        return True
    error = PluginError(
        f"plugin {name!r}: before_run() returned {request!r}; return "
        "SessionRunArgs(...) or None"
    )
    blame(error, name, f"raised because of plugin {name!r} in before_run()")
    raise error


def _blame(error: BaseException, who: str) -> None:
    if who != CALLER:
        blame(error, who, f"plugin {who!r} asked for it in before_run()")
