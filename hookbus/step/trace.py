"""Records a run that repeats, with functions that ask, execute and tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from hookbus.backend.codegen import Run
from hookbus.bus.caller import Caller, Result
from hookbus.hooks.context import RunFrame, SessionRunContext
from hookbus.hooks.hook import SessionRunArgs
from hookbus.hooks.hook_options import Kind
from hookbus.step.plan import RunPlan
from hookbus.step.request import NO_FEEDS, NO_FETCHES, Unplanned, is_name, key_of

Execute: TypeAlias = Callable[[Any], Sequence[Any]]
"""Takes the feeds, reports or values of a step; returns the values of its plan, or MISS."""

Ask: TypeAlias = Callable[[SessionRunContext], Sequence[Result] | None]
"""Calls ``before_run``; returns None if every hook repeats its recorded request."""

Tell: TypeAlias = Callable[..., None]
"""Takes the context, the values, and the step after the run; calls ``after_run``."""

MISS: Any = object()
"""Returned by a prepared function if the run does not repeat the recorded one."""


def miss(_given: Any) -> Any:
    """Return MISS: a general trace has no prepared function."""
    return MISS


def ask_nobody(_context: SessionRunContext) -> None:
    """Take the place of the calls of ``before_run``, in a trace without such hooks."""


def tell_nobody(*_: Any) -> None:
    """Call no hook, in a trace whose hooks have no ``after_run``."""


@attrs.define(eq=False)
class OpenStep:
    """A step between its two halves.

    A session has one open step at a time, so all repetitions of a trace share one object.

    Attributes:
        trace: the recorded repetition, or the general trace.
        key: the key of the run's trace; None for a run that is never recorded.
        unplanned: the requests of the run; None if they equal those in the trace.
        feeds: the values that the caller and the hooks feed, by node. In a repetition only
            the caller feeds, and the keys are the caller's own.
        began: the global step before the run.
        context: the run as hooks see it; None if it reaches no hook.
    """

    trace: Trace
    key: Hashable = None
    unplanned: Unplanned | None = None
    feeds: Any = NO_FEEDS
    began: int = 0
    context: SessionRunContext | None = None

    @property
    def asked(self) -> Unplanned:
        """The requests of the caller and the hooks."""
        asked = self.unplanned or self.trace.recorded
        assert asked is not None
        return asked

    @property
    def is_usual(self) -> bool:
        """Whether the step repeats its trace, and hooks have asked for nothing else."""
        context = self.context
        return self.unplanned is None and (context is None or context._asked is None)

    @property
    def skipped_by(self) -> str | None:
        """The hook that asks the step to skip its update, if any."""
        asked = None if self.context is None else self.context._asked
        return None if asked is None else asked.skip

    @property
    def kind(self) -> Kind:
        """The purpose of the step."""
        return self.trace.due.frame.kind


@attrs.frozen(eq=False)
class Trace:
    """A recorded run, with prepared functions for its repetitions.

    A repetition calls the recorded hooks, has equal requests, and feeds the recorded nodes.
    Three guards detect any other run. The schedule knows the hooks that are due. The key
    stands for the fetches and feeds of the caller. *ask* compares the requests of hooks.

    Attributes:
        due: the hooks that the run calls.
        ask: takes the run's context and calls ``before_run``. Returns None if every hook
            repeats its recorded request, and otherwise the requests of all hooks. It is
            :func:`ask_nobody` if no hook has the event.
        tell: takes the context, the values, and the step after the run; calls
            ``after_run``. It is :func:`tell_nobody` if no hook has the event, and None in a
            general trace.
        execute: takes the feeds, reports or values of the run; returns the values of the
            plan, or MISS if it cannot serve the run. A general trace always misses.
        plan: the plan of the request; None in a general trace.
        recorded: the requests of the caller and the hooks; None in a general trace.
        program: the compiled program of the plan, if the backend has it.
        own: the fetches and feeds of the caller in the recorded run. The trace keeps the
            keys of the feeds alive, because its own key has their identities.
        feed_names: the name of the node of each key of these feeds.
        key: the key of the trace.
        needs_context: whether the run has a context. Only a run of a graph that reaches no
            hook has none.
        respecialized: how often the calls of hooks were compiled again, because a hook
            made its request in another form.
        step: the open step that all repetitions share.
        fetch: the fetches of the caller if they are a name, a node or NO_FETCHES, which no
            code changes; otherwise MISS. A run with this very object needs no key.
        listed: the fetches of the caller, if it feeds nothing and fetches a list of names
            and nodes; empty for anything else.
        fed: the keys of the caller's feeds; None without feeds.
        fed_key: the key of the caller's feed; MISS for zero or several feeds.
        is_single: whether the caller fetches one name or node, and so gets the first value.
    """

    due: DueSet
    ask: Ask
    tell: Tell | None = None
    execute: Execute = miss
    plan: RunPlan | None = None
    recorded: Unplanned | None = None
    program: Run | None = None
    own: SessionRunArgs | None = None
    feed_names: Mapping[Any, str] = attrs.field(factory=dict)
    key: Hashable = None
    needs_context: bool = True
    respecialized: int = 0
    step: OpenStep = attrs.field(init=False)
    fetch: Any = attrs.field(init=False)
    listed: list[Any] = attrs.field(init=False)
    fed: Any = attrs.field(init=False)
    fed_key: Any = attrs.field(init=False)
    is_single: bool = attrs.field(init=False)

    @step.default
    def _make_step(self) -> OpenStep:
        return OpenStep(self, self.key)

    @fetch.default
    def _find_fetch(self) -> Any:
        fetches = MISS if self.own is None else self.own.fetches
        return fetches if is_name(fetches) or fetches is NO_FETCHES else MISS

    @listed.default
    def _find_listed(self) -> list[Any]:
        if self.own is None or self.own.feed_dict or self.own.fetches.__class__ is not list:
            return []
        return [*self.own.fetches] if all(map(is_name, self.own.fetches)) else []

    @fed.default
    def _find_fed(self) -> Any:
        feeds = None if self.own is None else self.own.feed_dict
        return dict.fromkeys(feeds).keys() if feeds else None

    @fed_key.default
    def _find_fed_key(self) -> Any:
        return next(iter(self.fed)) if self.fed and len(self.fed) == 1 else MISS

    @is_single.default
    def _find_single(self) -> bool:
        splits = self.plan is not None and self.plan.split is not None
        return splits and is_name(self.fetch)


@attrs.define(eq=False)
class Position:
    """The progress of runs of one kind, and the next point at which a hook is due.

    A run is quiet if it begins where the last one ended, below :attr:`quiet_until` and
    before :attr:`alarm`. A quiet run calls the hooks of :attr:`idle`, before and after it.

    Attributes:
        at: the global step after the last run; None before the first one.
        added: the number of global steps in the last run that added any.
        runs: the number of runs.
        quiet_until: the first global step at which a run is not quiet.
        alarm: the time of ``time.monotonic()`` at which a hook is due; None for never.
        idle: the hooks that a run calls if no hook is due; set before the first run.
    """

    at: int | None = None
    added: int = 0
    runs: int = 0
    quiet_until: float = -math.inf
    alarm: float | None = None
    idle: DueSet = attrs.field(init=False)


@attrs.define(eq=False)
class DueSet:
    """The hooks that one run calls.

    Attributes:
        position: the progress of all runs of this kind.
        frame: the frame that all runs of this kind share.
        due: the names of the due hooks, of those that say when they are due.
        before, after: call ``before_run`` and ``after_run`` of all hooks of the run.
        next_due, idled: call these events of the hooks in *due*.
        traces: the newest trace of runs that call these hooks, by
            :func:`hookbus.step.request.key_of`.
        recorded: all traces, by key and plan.
        warm_plans: keys and plans of runs that came once and are not recorded.
        general: the trace of all runs that are not recorded.
        newest: the trace that was found last.
    """

    position: Position
    frame: RunFrame
    due: frozenset[str]
    before: Caller
    after: Caller
    next_due: Caller
    idled: Caller
    traces: dict[Hashable, Trace] = attrs.field(factory=dict)
    recorded: dict[tuple[Hashable, RunPlan], Trace] = attrs.field(factory=dict)
    warm_plans: set[tuple[Hashable, RunPlan]] = attrs.field(factory=set)
    general: Trace = attrs.field(init=False)
    newest: Trace = attrs.field(init=False)

    @general.default
    def _make_general(self) -> Trace:
        return Trace(self, self.before.collect)

    @newest.default
    def _begin_with_general(self) -> Trace:
        return self.general

    def find(self, fetches: Any, feeds: Any, is_usual: bool) -> Trace:
        """Return the trace of a run with these fetches and feeds of the caller.

        *is_usual* is whether the caller gives neither options nor metadata.
        """
        if not is_usual:
            return self.general
        newest = self.newest
        if fetches.__class__ is list and not feeds and newest.listed:
            try:
                if fetches == newest.listed:
                    return newest
            except Exception:  # a tensor may refuse to be compared
                pass
        found = self.traces.get(key_of(fetches, feeds), self.general)
        self.newest = found
        return found

    def keep(self, trace: Trace) -> None:
        """Have later runs find a trace under its key."""
        self.traces[trace.key] = self.newest = trace
