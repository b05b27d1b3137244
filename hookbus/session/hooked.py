"""How one run goes: ask the hooks, merge, execute once, split, tell the hooks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions, Session
from hookbus.bus.bus import Bus
from hookbus.errors import (
    FeedConflictError,
    GraphError,
    PluginError,
    UnfedPlaceholderError,
    blame,
)
from hookbus.graph.fetches import Merge, merge, structure_of, unite_feeds
from hookbus.graph.node import Node
from hookbus.hooks.context import Requests, RunServices, SessionRunContext
from hookbus.hooks.hook import Kind, SessionRunArgs

CALLER = "the caller"
_DEFAULT_OPTIONS = RunOptions()
_NO_FEEDS: Mapping[str, Any] = {}
_MOST_PLANS = 1024


@attrs.frozen(eq=False)
class Plan:
    """A request that was met before: what to execute, and who gets what.

    Attributes:
        program: the backend's own plan.
        split: takes the values and returns the caller's structure.
        hook_splits: the same for each hook with fetches, by name.
    """

    program: Any
    split: Callable[[Sequence[Any]], Any]
    hook_splits: dict[str, Callable[[Sequence[Any]], Any]]


PendingRun: TypeAlias = tuple[
    SessionRunContext, tuple[Hashable, ...], Mapping[str, Any], RunOptions
]
"""A run of which the first half is done: context, what is asked for, feeds, options."""


class HookedSession:
    """Runs a backend session on a bus.

    Args:
        bus: the hooks.
        session: the backend session.
        asks: where hooks' requests gather.
        last_step: tells the step at which the session is expected to end.
        hurry: says whether the session is to end, by a signal or by its coordinator.
    """

    def __init__(
        self,
        bus: Bus,
        session: Session,
        asks: Requests,
        last_step: Callable[[], int | None],
        hurry: Callable[[], bool],
    ) -> None:
        self.session = session
        self._bus = bus
        self._asks = asks
        self._desk = RunServices(
            session, asks, bus.turn, bus.emit, self._writable, last_step, hurry
        )
        self._plans: dict[Hashable, Plan] = {}
        self._same: list[tuple[str, Any]] = []
        self._same_fetches: Any = object()  # equal to no fetch
        self._same_key: tuple[Hashable, ...] = ()

    @property
    def step_before(self) -> int:
        """The global step at which the run of the moment, or the last one, began."""
        current = self._desk.current
        return self.session.global_step if current is None else current.global_step

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        options: RunOptions | None,
        metadata: RunMetadata | None,
        kind: Kind,
    ) -> tuple[Any, SessionRunContext]:
        """Do one run; return the caller's values and the context that hooks saw."""
        entered = self.enter(fetches, feed_dict, options, kind)
        return self.leave(entered, entered[2], metadata), entered[0]

    def enter(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        options: RunOptions | None,
        kind: Kind,
    ) -> PendingRun:
        """Do the first half of a run: ask the hooks and put together what is wanted."""
        context = SessionRunContext(
            self._desk, fetches, feed_dict, self.session.global_step, kind
        )
        self._asks.new_run()
        requests = self._bus.around_run(kind)[0].collect(context)
        if feed_dict is None and requests == self._same and fetches == self._same_fetches:
            return context, self._same_key, _NO_FEEDS, options or _DEFAULT_OPTIONS
        key, special, fixed = _key(fetches, requests)
        options = options or _DEFAULT_OPTIONS
        feeds: Mapping[str, Any] = _NO_FEEDS
        if special or feed_dict:
            options = _merged_options(options, requests)
            feeds = self._feeds(feed_dict, requests)
        elif fixed:
            # Nothing in it can change: the same objects will mean the same next time.
            self._same, self._same_fetches, self._same_key = requests, fetches, key
        return context, key, feeds, options

    def leave(
        self,
        entered: PendingRun,
        feeds: Mapping[str, Any],
        metadata: RunMetadata | None,
        advance: int = 0,
    ) -> Any:
        """Do the second half: execute, split, tell the hooks; return the caller's values.

        Args:
            entered: what :meth:`enter` returned.
            feeds: all that is fed, by name.
            metadata: filled with what the backend records.
            advance: what to add to the global step besides what train ops add.
        """
        context, key, _, options = entered
        session = self.session
        if metadata is None:
            metadata = RunMetadata()
        plan = self._plans.get((key, *feeds) if feeds else key)
        if plan is None:
            plan = self._make_plan(key, feeds)
        writes = self._asks.take_writes()
        values = session.execute(plan.program, feeds, writes, options, metadata)
        if advance:
            session.global_step += advance
            session.version += 1
        common = (options, metadata, session.global_step)
        after = self._bus.around_run(context.kind)[1]
        after.deliver(context, plan.hook_splits, values, common)
        return plan.split(values)

    def _feeds(
        self,
        feed_dict: Mapping[Node | str, Any] | None,
        requests: Sequence[tuple[str, SessionRunArgs]],
    ) -> Mapping[str, Any]:
        """Unite all feeds, by name."""
        hooks = [(name, request.feed_dict) for name, request in requests]
        parties = [(CALLER, feed_dict), *hooks]
        resolve = self.session.graph.resolve
        try:
            return unite_feeds(parties, resolve)
        except (GraphError, FeedConflictError) as error:
            _blame_feeder(error, parties, resolve)
            raise

    def _make_plan(self, key: tuple[Hashable, ...], feeds: Mapping[str, Any]) -> Plan:
        """Plan a request that is new, and remember it."""
        named = [CALLER, *map(str, key[1::2])]
        shapes = list(zip(named, [key[0], *key[2::2]], strict=True))
        fed = frozenset(feeds)
        merged = merge(shapes)
        graph = self.session.graph
        names = []
        for leaf in merged.leaves:
            try:
                names.append(graph.resolve(leaf, _parties(merged, leaf)).name)
            except GraphError as error:
                _blame_asker(error, merged, leaf)
                raise
        try:
            program = self.session.compile(names, fed)
        except UnfedPlaceholderError as error:
            raise _with_askers(error, merged, names, self.session, fed) from None
        splits = {
            name: split
            for (name, _), split in zip(shapes[1:], merged.splits[1:], strict=True)
        }
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        place = (key, *feeds) if feeds else key
        plan = self._plans[place] = Plan(program, merged.splits[0], splits)
        return plan

    def _writable(self, node: Node | str, value: Any) -> str:
        who = f"hook {self._bus.turn.name!r}"
        name = self.session.graph.variable_named(node, who)
        self.session.check(name, value, who)
        return name


def _key(
    fetches: Any, requests: Sequence[tuple[str, Any]]
) -> tuple[tuple[Hashable, ...], bool, bool]:
    """Say what is asked for, so that equal requests meet the same plan.

    Returns:
        The shape of the caller's fetches, then name and shape for each hook with some;
        whether there is more to a request: feeds, options, or that it is none of ours;
        and whether all fetches are mere names, which nobody can change later.
    """
    fixed = fetches.__class__ is str
    key: list[Hashable] = [fetches if fixed else structure_of(fetches)]
    special = False
    for name, request in requests:
        if request.__class__ is not SessionRunArgs:
            special = _check_request(name, request)
        elif request.feed_dict or request.options is not None:
            special = True
        wanted = request.fetches
        if wanted.__class__ is str:
            key.append(name)
            key.append(wanted)
        elif wanted is not None:
            fixed = False
            key.append(name)
            key.append(_shape_for(name, wanted))
    return tuple(key), special, fixed


def _shape_for(name: str, wanted: Any) -> Hashable:
    try:
        return structure_of(wanted)
    except GraphError as error:
        _blame(error, name)
        raise


def _merged_options(options: RunOptions, requests: Sequence[tuple[str, Any]]) -> RunOptions:
    for _, request in requests:
        options = options.merge(request.options)
    return options


def _check_request(name: str, request: Any) -> bool:
    """Accept foreign requests too, as TF does: anything with the three attributes."""
    if all(hasattr(request, part) for part in ("fetches", "feed_dict", "options")):
        return True
    error = PluginError(
        f"plugin {name!r}: before_run() returned {request!r}; return "
        "SessionRunArgs(...) or None"
    )
    blame(error, name, f"raised because of plugin {name!r} in before_run()")
    raise error


def _parties(merged: Merge, leaf: Any) -> str:
    return ", ".join(merged.askers[leaf])


def _without(merged: Merge, leaf: Any) -> str:
    """Say how a run that its caller could do goes on without the hook that asked."""
    asker = next(iter(merged.askers[leaf]))
    if asker == CALLER:
        return ""
    return f"; without that hook it runs as kind='aux', or with -p no:{asker}"


def _blame_asker(error: BaseException, merged: Merge, leaf: Any) -> None:
    _blame(error, next(iter(merged.askers[leaf])))


def _blame_feeder(
    error: BaseException,
    parties: Sequence[tuple[str, Mapping[Node | str, Any] | None]],
    resolve: Callable[[Node | str, str], Node],
) -> None:
    """Find the party with whose feeds it went wrong."""
    for last, (who, _) in enumerate(parties):
        try:
            unite_feeds(parties[: last + 1], resolve)
        except type(error):
            _blame(error, who)
            return


def _blame(error: BaseException, who: str) -> None:
    if who != CALLER:
        blame(error, who, f"plugin {who!r} asked for it in before_run()")


def _with_askers(
    error: UnfedPlaceholderError,
    merged: Merge,
    names: Sequence[str],
    session: Session,
    fed: frozenset[str],
) -> UnfedPlaceholderError:
    """Find which fetch needs the placeholder, and say who asked for that fetch."""
    for leaf, name in zip(merged.leaves, names, strict=True):
        try:
            session.compile([name], fed)
        except UnfedPlaceholderError:
            found = UnfedPlaceholderError(
                f"{error}. {name!r} is fetched by {_parties(merged, leaf)}"
                f"{_without(merged, leaf)}",
                error.node,
            )
            _blame_asker(found, merged, leaf)
            return found
    return error
