"""Adds up the costs of hooks, and has hooks above their budget run less often."""

from __future__ import annotations

import math
import operator
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import attrs

from hookbus.bus.observers import WrapperProxy
from hookbus.bus.registry import Registration
from hookbus.hooks.hook_options import options_of
from hookbus.library.lookup import device_memory
from hookbus.logs import log

_CALLS = 3
"""The runs of a hook over which its share is measured."""
_FIRST_LOOK, _SECOND_LOOK = 16, 128
"""The numbers of runs after which other hooks are looked at."""
_MOST_REQUESTS = 1024


@attrs.define(eq=False)
class Cost:
    """The cost of one hook.

    Attributes:
        seconds: the time of the hook's own calls, and of the session's work for the hook.
            The time of other hooks to which it sent events does not count.
        factor: the number by which the session multiplies the hook's wait between two runs.
        calls: the number of the hook's runs since its share was last measured.
        since: the hook's seconds, and the time, of that measurement; None before the first.
        looked: the hook's seconds when the session last compared all hooks.
        told: whether a warning about the hook was logged.
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
    """Adds up the costs of hooks, and has hooks above the budget run less often.

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
        self._costs: defaultdict[str, Cost] = defaultdict(Cost)
        self._inside = 0.0  # the seconds that the current call has spent in others
        self._executions: dict[Hashable, dict[frozenset[str], Executions]] = {}
        self._runs, self._next_look = 0, _FIRST_LOOK
        self._began = self._looked = time.perf_counter()

    def timed(self, plugin: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of which a hook is the cause, with its time added up."""
        cost, now = self._costs[plugin], time.perf_counter

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
        timed = self.timed(plugin, operator.call)
        return lambda *args: WrapperProxy(call(*args), timed, timed)

    def timed_run(
        self, run: Callable[..., Any], request: Hashable, hooks: Iterable[str]
    ) -> Callable[..., Any]:
        """Return a function that executes a request, with its time added up.

        The request may also be executed without the fetches of some hooks. The difference
        of the times is the cost of these hooks.

        Args:
            run: executes the request.
            request: the request without the fetches of hooks.
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
        cost, now = self._costs[plugin], time.monotonic()
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
        """Log the costs of hooks at the end of the session."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        # Times vary, so the extra time of a fetch may come out below 0.
        shares = {n: max(self._costs[n].seconds, 0.0) / seconds for n in self._members}
        most = sorted(shares, key=lambda name: -shares[name])[:3]
        log.info(
            "hook costs",
            share=_percent(sum(shares.values())),
            secs=round(seconds, 3),
            most=", ".join(f"{name} {_percent(shares[name])}" for name in most),
            budget=_percent(self._budget),
        )

    def _charge(
        self, mine: Executions, alike: Collection[Executions], seconds: float
    ) -> None:
        """Count an execution, and charge hooks for its extra time over one without them."""
        mine.counted += 1
        if mine.counted:
            mine.seconds += seconds
        if not mine.counted or len(alike) == 1:
            return
        others = [e for e in alike if e.askers < mine.askers and e.counted > 0]
        # On a device, the session waits for the values that a hook fetches. It would wait
        # later in any case, so the cost of the fetch cannot be measured.
        if others and not device_memory():
            other = max(others, key=lambda one: (len(one.askers), one.counted))
            longer = seconds - other.seconds / other.counted
            more = mine.askers - other.askers
            for plugin in more:
                self._costs[plugin].seconds += longer / len(more)

    def _measured(self, cost: Cost) -> tuple[float, float]:
        """Return the time between two runs of a hook at its own pace, and its share.

        The share is measured over several runs, and is 0 until the last of them. A share
        above the budget raises the hook's factor. The first run does not count, because the
        hook may open files in it.
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
            cost = self._costs[name]
            share, cost.looked = (cost.seconds - cost.looked) / passed, cost.seconds
            if share > self._budget and cost.since is None and not (first or cost.told):
                cost.told = True
                self._warn("it cannot run less often", name, share)
        self._looked, self._next_look = now, max(_SECOND_LOOK, 2 * self._runs)

    def _warn(self, what: str, plugin: str, share: float, **more: str) -> None:
        shares = {"share": _percent(share), "budget": _percent(self._budget)}
        log.warning(f"hook above its budget; {what}", plugin=plugin, **shares, **more)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
