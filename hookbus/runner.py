"""How one run goes: ask the hooks, merge, execute once, split, tell the hooks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs

from hookbus.bus import Bus
from hookbus.errors import FeedConflictError, PluginError, UnfedPlaceholderError
from hookbus.fetches import Merge, merge, shape_of
from hookbus.graph import Node
from hookbus.hook import (
    Asks,
    Kind,
    RunOptions,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
)
from hookbus.session import RunMetadata, Session

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
    hook_splits: tuple[tuple[str, Callable[[Sequence[Any]], Any]], ...]


class Runner:
    """Runs a backend session on a bus.

    Args:
        bus: the hooks.
        session: the backend session.
        asks: where hooks' requests gather.
        last_step: tells the step at which the session is expected to end.
    """

    def __init__(
        self,
        bus: Bus,
        session: Session,
        asks: Asks,
        last_step: Callable[[], int | None],
    ) -> None:
        self.session = session
        self._bus = bus
        self._asks = asks
        self._last_step = last_step
        self._plans: dict[Hashable, Plan] = {}

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        options: RunOptions | None,
        metadata: RunMetadata | None,
        kind: Kind,
    ) -> tuple[Any, SessionRunContext]:
        """Do one run; return the caller's values and the context that hooks saw."""
        session, bus, asks = self.session, self._bus, self._asks
        context = SessionRunContext(
            SessionRunArgs(fetches, feed_dict),
            session,
            session.global_step,
            kind,
            self._last_step,
            asks,
            bus.turn,
            bus.emit,
            self._writable,
        )
        asks.new_run()
        requests = bus.caller("before_run", kind).collect(context)
        options = options or _DEFAULT_OPTIONS
        if requests:
            options = self._check(requests, options)
        metadata = RunMetadata() if metadata is None else metadata
        feeds = self._feeds(feed_dict, requests)
        plan = self._plan(fetches, feeds, requests)
        values = session.execute(plan.program, feeds, asks.take_writes(), options, metadata)
        step = session.global_step
        own = {
            name: SessionRunValues(split(values), options, metadata, step)
            for name, split in plan.hook_splits
        }
        bus.caller("after_run", kind).deliver(
            context, own, SessionRunValues(None, options, metadata, step)
        )
        return plan.split(values), context

    def _check(
        self, requests: Sequence[tuple[str, Any]], options: RunOptions
    ) -> RunOptions:
        """Refuse answers that are no request; merge the options of those that are."""
        for name, request in requests:
            if request.__class__ is not SessionRunArgs and not _is_request(request):
                raise PluginError(
                    f"plugin {name!r}: before_run() returned {request!r}; return "
                    "SessionRunArgs(...) or None"
                )
            if request.options is not None:
                options = options.merge(request.options)
        return options

    def _feeds(
        self,
        feed_dict: Mapping[Node | str, Any] | None,
        requests: Sequence[tuple[str, SessionRunArgs]],
    ) -> Mapping[str, Any]:
        """Unite all feeds, by name."""
        parties = [(name, request.feed_dict) for name, request in requests]
        given = [(who, feeds) for who, feeds in ((CALLER, feed_dict), *parties) if feeds]
        if not given:
            return _NO_FEEDS
        resolve = self.session.graph.resolve
        united: dict[str, Any] = {}
        owners: dict[str, str] = {}
        for who, feeds in given:
            for key, value in feeds.items():
                name = resolve(key, f"the feeds of {who}").name
                if name in united:
                    raise FeedConflictError(
                        f"Same tensor is fed by two parties: {name!r} by {owners[name]} "
                        f"and {who}; leave it to one of them"
                    )
                united[name] = value
                owners[name] = who
        return united

    def _plan(
        self,
        fetches: Any,
        feeds: Mapping[str, Any],
        requests: Sequence[tuple[str, SessionRunArgs]],
    ) -> Plan:
        shapes: list[tuple[str, Hashable]] = [
            (CALLER, fetches if fetches.__class__ is str else shape_of(fetches))
        ]
        for name, request in requests:
            wanted = request.fetches
            if wanted is not None:
                shape = wanted if wanted.__class__ is str else shape_of(wanted)
                shapes.append((name, shape))
        key = (*shapes, *feeds)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(shapes, frozenset(feeds))
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _make_plan(
        self, shapes: Sequence[tuple[str, Hashable]], fed: frozenset[str]
    ) -> Plan:
        merged = merge(shapes)
        graph = self.session.graph
        names = [graph.resolve(leaf, _parties(merged, leaf)).name for leaf in merged.leaves]
        try:
            program = self.session.compile(names, fed)
        except UnfedPlaceholderError as error:
            raise _with_askers(error, merged, names, self.session, fed) from None
        named = tuple(
            (name, split)
            for (name, _), split in zip(shapes[1:], merged.splits[1:], strict=True)
        )
        return Plan(program, merged.splits[0], named)

    def _writable(self, node: Node | str) -> str:
        return self.session.graph.variable_named(node, self._bus.turn.name)


def _is_request(request: Any) -> bool:
    """Accept foreign requests too, as TF does: anything with the three attributes."""
    return all(hasattr(request, name) for name in ("fetches", "feed_dict", "options"))


def _parties(merged: Merge, leaf: Any) -> str:
    return ", ".join(dict.fromkeys(merged.askers[leaf]))


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
            return UnfedPlaceholderError(
                f"{error}. {name!r} is fetched by {_parties(merged, leaf)}"
            )
    return error
