"""Records a run that repeats: what it needs to ask, execute and tell, prepared once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import is_
from typing import Any, TypeAlias

import attrs

from hookbus.backend.codegen import CompiledProgram
from hookbus.bus.caller import Caller, Result
from hookbus.hooks.context import RunFrame, SessionRunContext
from hookbus.hooks.hook import SessionRunArgs
from hookbus.hooks.hook_options import Kind
from hookbus.step.plan import RunPlan
from hookbus.step.request import NO_FEEDS, NO_FETCHES, Unplanned, is_name, key_of

Execute: TypeAlias = Callable[[Any], Sequence[Any]]
"""Takes what the executor of a session gets for a step, and returns the values, or MISS."""

MISS: Any = object()
"""Returned by what is prepared for a repetition if this run is none."""


def miss(_given: Any) -> Any:
    """Execute nothing, in a general trace."""
    return MISS


def tell_nobody(*_: Any) -> None:
    """Take the place of what calls ``after_run``, in a trace without such hooks."""


@attrs.define(eq=False)
class OpenStep:
    """A step between its two halves.

    A session has one open step at a time, so each trace has one object for all of its
    repetitions.

    Attributes:
        trace: the recorded repetition, or the general trace.
        key: the key of the run's trace; None for a run that is never recorded.
        unplanned: what the run asks for; None if it asks for what the trace has recorded.
        feeds: the values that the caller and the hooks feed, by node; in a repetition those
            of the caller, by the caller's own keys.
        began: the global step before the run.
        context: the run as hooks see it; None if it reaches no hook.
    """

    trace: Trace
    key: Hashable = None
    unplanned: Unplanned | None = None
    feeds: Mapping[Any, Any] = NO_FEEDS
    began: int = 0
    context: SessionRunContext | None = None

    @property
    def asked(self) -> Unplanned:
        """What the caller and the hooks ask for."""
        asked = self.unplanned or self.trace.recorded
        assert asked is not None
        return asked

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
    """A run that repeats: the same hooks ask for the same, and the same is fed.

    Its guards are the schedule's, which tells that nobody else is due, the key under which
    it is found, and the answers of the hooks.

    Attributes:
        due: the hooks that the run calls.
        ask: takes the run's context and calls ``before_run``; returns None if each hook has
            asked for what is recorded, and otherwise the requests of all. None if no hook
            has the event.
        tell: takes the context, the values, options, metadata, and the step after the run;
            calls ``after_run``. It is :func:`tell_nobody` if no hook has the event, and
            None in a general trace.
        execute: takes what the executor is given; returns the values of the run, or MISS if
            something else is given, as always in a general trace.
        plan: how to serve the request; None in a general trace.
        recorded: what the caller and the hooks ask for; None in a general trace.
        program: the program of the plan in compiled form, if the backend has it.
        own: the fetches and feeds of the caller in the run that was recorded. The keys of
            its feeds stay alive with the trace, which is found by their identities.
        key: the key of the trace.
        needs_context: whether the run has a context. Only a run of a graph that reaches no
            hook has none.
        respecialized: how often the calls of the hooks were compiled again, because hooks
            asked for the same in other requests.
        step: the open step of the repetitions.
        fetch: what the caller fetches, if it is one object that nobody can change: a name
            or a node. Another run that fetches this very object fetches the same.
        listed: the fetches of the caller, if it feeds nothing and fetches a list or tuple
            of names and nodes; empty for anything else.
        fed: the keys of the caller's feeds; None for none.
        is_single: whether the caller gets the first value.
    """

    due: DueSet
    ask: Callable[[SessionRunContext], Sequence[Result] | None] | None
    tell: Callable[..., None] | None = None
    execute: Execute = miss
    plan: RunPlan | None = None
    recorded: Unplanned | None = None
    program: CompiledProgram | None = None
    own: SessionRunArgs | None = None
    key: Hashable = None
    needs_context: bool = True
    respecialized: int = 0
    step: OpenStep = attrs.field(init=False)
    fetch: Any = attrs.field(init=False)
    listed: tuple[Any, ...] = attrs.field(init=False)
    fed: Any = attrs.field(init=False)
    is_single: bool = attrs.field(init=False)

    @step.default
    def _make_step(self) -> OpenStep:
        return OpenStep(self, self.key)

    @fetch.default
    def _find_fetch(self) -> Any:
        fetches = MISS if self.own is None else self.own.fetches
        return fetches if is_name(fetches) or fetches is NO_FETCHES else MISS

    @listed.default
    def _find_listed(self) -> tuple[Any, ...]:
        if self.own is None or self.own.feed_dict:
            return ()
        fetches = self.own.fetches
        is_plain = fetches.__class__ in (list, tuple) and all(map(is_name, fetches))
        return tuple(fetches) if is_plain else ()

    def lists(self, fetches: Any) -> bool:
        """Return whether other fetches list the very names and nodes of this trace."""
        listed = self.listed
        return (
            self.own is not None
            and fetches.__class__ is self.own.fetches.__class__
            and len(fetches) == len(listed)
            and all(map(is_, fetches, listed))
        )

    @fed.default
    def _find_fed(self) -> Any:
        feeds = None if self.own is None else self.own.feed_dict
        return dict.fromkeys(feeds).keys() if feeds else None

    @is_single.default
    def _find_single(self) -> bool:
        splits = self.plan is not None and self.plan.split is not None
        return splits and is_name(self.fetch)

    @classmethod
    def general(cls, due: DueSet) -> Trace:
        """Return the trace of runs that are not recorded: it asks every hook anew."""
        return cls(due, due.before.collect)


@attrs.define(eq=False)
class Position:
    """Where runs of one kind are, and until when no hook is due.

    A run is quiet if it begins where the last one ended, below :attr:`quiet_until` and
    before :attr:`alarm`. A quiet run calls :attr:`idle`, before and after.

    Attributes:
        at: the global step after the last run; None before the first one.
        added: the global steps that the last run added, of those that added some.
        runs: the number of runs.
        quiet_until: the first global step at which a run is not quiet.
        alarm: the time of ``time.monotonic()`` at which somebody is due; None for never.
        idle: the hooks that a run calls if no one is due; set before the first run.
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
        position: where runs of their kind are.
        frame: what the runs have in common with all runs of their kind.
        due: the names of those that choose when they are due.
        before, after: call ``before_run`` and ``after_run`` of all hooks of the run.
        next_due, idled: call these events of the hooks in *due*.
        traces: the newest trace of runs that call these hooks, by
            :func:`hookbus.step.request.key_of`.
        recorded: all traces, by key and plan.
        warm_plans: keys and plans of runs that came once and are not recorded.
        general: the trace of every other run.
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
        return Trace.general(self)

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
        if newest.listed and not feeds and newest.lists(fetches):
            return newest
        found = self.traces.get(key_of(fetches, feeds), self.general)
        self.newest = found
        return found

    def keep(self, trace: Trace) -> None:
        """Have later runs find a trace under its key."""
        self.traces[trace.key] = self.newest = trace
