"""Adds up what hooks cost, and has those above their budget run less often."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from hookbus.hooks.hook_options import options_of
from hookbus.library import device_memory
from hookbus.logs import log

if TYPE_CHECKING:
    from hookbus.bus.registry import Registration

_CALLS = 3
"""The runs of a hook over which its share is measured."""
_FIRST_LOOK, _SECOND_LOOK = 16, 128
"""The numbers of runs after which other hooks are looked at."""
_MOST_REQUESTS = 1024


@attrs.define(eq=False)
class Cost:
    """What one hook has cost.

    Attributes:
        seconds: the time of its own calls, without the hooks to which it sent events, and
            of what it had the session do.
        factor: how many times as long as it asks the session waits for its next run.
        calls: its runs since the last time that its share was measured.
        since: its seconds and the time then; None before the first time.
        looked: its seconds when all hooks were looked at.
        told: whether a warning about it was logged.
    """

    seconds: float = 0.0
    factor: int = 1
    calls: int = 0
    since: tuple[float, float] | None = None
    looked: float = 0.0
    told: bool = False


@attrs.define(eq=False)
class Executions:
    """How often the backend executed one request, and how long that took.

    The first time does not count: it may compile something.
    """

    askers: frozenset[str]
    counted: int = -1
    seconds: float = 0.0


class HookCosts:
    """Adds up what hooks cost, and has those that are above the budget run less often.

    Only hooks that declare ``can_wait`` and say when they are due run less often.

    Args:
        budget: the share of the time that each hook may take.
        members: the hooks of the session.

    Attributes:
        stretched: the names of the hooks that run less often.
    """

    def __init__(self, budget: float, members: Mapping[str, Registration]) -> None:
        self._budget = budget
        self.stretched: set[str] = set()
        self._members = members
        self._costs: dict[str, Cost] = {}
        self._inside = 0.0  # the seconds that the current call has spent in others
        self._executions: dict[Hashable, dict[frozenset[str], Executions]] = {}
        self._runs, self._next_look = 0, _FIRST_LOOK
        self._began = self._looked = time.perf_counter()

    def timed(self, plugin: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of which a hook is the cause, with its time added up."""
        cost, now = self._cost(plugin), time.perf_counter

        def timed(*args: Any) -> Any:
            outside, self._inside = self._inside, 0.0
            began = now()
            try:
                return call(*args)
            finally:
                seconds = now() - began
                cost.seconds += seconds - self._inside
                self._inside = outside + seconds

        return timed

    def timed_wrapper(self, plugin: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of a wrapper, with the time of its own parts added up."""
        return lambda *args: _TimedWrapper(
            call(*args), lambda part: self.timed(plugin, part)
        )

    def timed_run(
        self, run: Callable[..., Any], request: Hashable, hooks: Iterable[str]
    ) -> Callable[..., Any]:
        """Return what executes a request, with its time added up.

        What it takes longer than the same request without the fetches of some hooks is the
        cost of these hooks.

        Args:
            run: executes it.
            request: what is asked for, without the fetches of hooks.
            hooks: the hooks that fetch something.
        """
        if len(self._executions) >= _MOST_REQUESTS:
            self._executions.clear()
        alike, askers = self._executions.setdefault(request, {}), frozenset(hooks)
        mine, now = alike.setdefault(askers, Executions(askers)), time.perf_counter

        def timed(*args: Any) -> Any:
            began = now()
            values = run(*args)
            self._charge(mine, alike.values(), now() - began)
            self._runs += 1
            if self._runs == self._next_look:
                self._look()
            return values

        return timed

    def next_run(
        self, plugin: str, at: int, step: float, when: float
    ) -> tuple[float, float]:
        """Return the step and the time at which a hook gets its next run.

        Called after each of its runs.

        Args:
            plugin: the hook.
            at: the global step now.
            step: the global step from which on it is due.
            when: the time of ``time.monotonic()`` from which on it is due.
        """
        can_wait = options_of(self._members[plugin].plugin).can_wait
        if not can_wait or step <= at:  # it is due in any run
            return step, when
        cost, now = self._cost(plugin), time.monotonic()
        every, share = self._measured(cost)
        if share > self._budget:
            self.stretched.add(plugin)
        if cost.factor == 1:
            return step, when
        steps, seconds = (step - at) * cost.factor, max(when - now, every) * cost.factor
        if share > self._budget:
            interval = (
                f"{seconds:.3g} seconds" if steps == math.inf else f"{steps:.0f} steps"
            )
            self._warn("from now on it runs less often", plugin, share, interval=interval)
        return at + steps, now + seconds

    def report(self) -> None:
        """Log what the hooks have cost, at the end of the session."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        # What fetches take longer may come out below 0, as times vary.
        shares = {n: max(self._cost(n).seconds, 0.0) / seconds for n in self._members}
        most = sorted(shares, key=lambda name: -shares[name])[:3]
        log.info(
            "hook costs",
            share=_percent(sum(shares.values())),
            secs=round(seconds, 3),
            most=", ".join(f"{name} {_percent(shares[name])}" for name in most),
            budget=_percent(self._budget),
        )

    def _cost(self, plugin: str) -> Cost:
        return self._costs.setdefault(plugin, Cost())

    def _charge(
        self, mine: Executions, alike: Collection[Executions], seconds: float
    ) -> None:
        """Count an execution, and charge the hooks for what it took longer than another."""
        mine.counted += 1
        if mine.counted:
            mine.seconds += seconds
        if not mine.counted or len(alike) == 1:
            return
        others = [e for e in alike if e.askers < mine.askers and e.counted > 0]
        # On a device the values that a hook wants are waited for, as those of any step
        # would be later: nobody can tell what they cost.
        if others and not device_memory():
            other = max(others, key=lambda one: (len(one.askers), one.counted))
            longer, more = (
                seconds - other.seconds / other.counted,
                mine.askers - other.askers,
            )
            for plugin in more:
                self._cost(plugin).seconds += longer / len(more)

    def _measured(self, cost: Cost) -> tuple[float, float]:
        """Return the time between two runs of a hook, and its share, after enough runs.

        Its factor grows to what keeps its share below the budget. Until then the share is
        0, and after its first run, too, in which it may open files.
        """
        now = time.perf_counter()
        if cost.since is None:
            cost.since = cost.seconds, now
            return 0.0, 0.0
        cost.calls += 1
        spent, passed = cost.seconds - cost.since[0], max(now - cost.since[1], 1e-9)
        every = passed / cost.calls / cost.factor
        if cost.calls < _CALLS:
            return every, 0.0
        cost.since, cost.calls = (cost.seconds, now), 0
        share = spent / passed
        if share > self._budget:
            rest = max(passed - spent, 1e-9)
            times = spent * (1 - self._budget) / (self._budget * rest)
            cost.factor *= 2 ** max(1, math.ceil(math.log2(times)))
        return every, share

    def _look(self) -> None:
        """Warn of hooks above the budget that cannot run less often."""
        now = time.perf_counter()
        first, passed = self._runs == _FIRST_LOOK, max(now - self._looked, 1e-9)
        for name in self._members:
            cost = self._cost(name)
            share, cost.looked = (cost.seconds - cost.looked) / passed, cost.seconds
            if share > self._budget and cost.since is None and not (first or cost.told):
                cost.told = True
                self._warn("it cannot run less often", name, share)
        self._looked, self._next_look = now, max(_SECOND_LOOK, 2 * self._runs)

    def _warn(self, what: str, plugin: str, share: float, **more: str) -> None:
        shares = {"share": _percent(share), "budget": _percent(self._budget)}
        log.warning(f"hook above its budget; {what}", plugin=plugin, **shares, **more)


class _TimedWrapper:
    """Stands in for a wrapper and times its parts; no generator, as for observers."""

    def __init__(
        self,
        wrapper: Generator[None, Any, Any],
        timed: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._next = timed(wrapper.__next__)
        self.send, self.throw = timed(wrapper.send), timed(wrapper.throw)
        self.close = wrapper.close

    def __next__(self) -> None:
        self._next()


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
