"""Serves a custom loop as a backend: the reports of a step take the place of ops."""

from __future__ import annotations

import keyword
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from numbers import Number
from typing import Any

from hookbus.backend.base import read
from hookbus.backend.codegen import Run
from hookbus.backend.embedded import EmbeddedSession
from hookbus.backend.forks import ForkedInputs
from hookbus.backend.program import Program, is_live, plan
from hookbus.backend.protocol import Execution
from hookbus.backend.read_only import protected
from hookbus.errors import GraphError, UnfedPlaceholderError, UsageError, did_you_mean
from hookbus.graph.fetches import unite_feeds
from hookbus.graph.node import METRICS, REPORTED, Node, metrics_of, plain_name
from hookbus.graph.report_graph import REPORTED_SUMMARIES, ReportGraph
from hookbus.graph.summaries import SummaryKind, by_kind, scalars_of
from hookbus.graph.traversal import needed_by
from hookbus.graph.wraps import listed, wrapper
from hookbus.library.base import LiveValue, capture
from hookbus.library.roles import Role, matching
from hookbus.random_state import undisturbed

_MOST_KEPT = 1024
_NOTHING: dict[str, Any] = {}
_COLLECTED = frozenset({METRICS, REPORTED, REPORTED_SUMMARIES})
"""Nodes whose values are computed from the reports of a step."""


def _is_number(value: Any) -> bool:
    """Return whether a value is a number of Python or any library, without reading it."""
    return isinstance(value, Number) or getattr(value, "shape", None) == ()


class Reports(dict[str, Any]):
    """The values that one step reports, by name; a callable is called if a hook fetches it.

    It is a dict because every step makes and reads one. It holds the values that are known;
    looking up a name of :attr:`late`, or the metrics or summaries of the step, computes the
    value once.

    Whether a hook fetches it may depend on the flags of the run, so a callable must not
    change the training.

    Args:
        values: values by name, none of them callable.

    Attributes:
        aside: returns a block for a callable, which undoes its effects.
        increment: the number of global steps that the step counts.
        late: the callables that are reported, by name.
        passed: the names of the values that were passed through hooks.
    """

    __slots__ = ("__dict__", "aside")
    aside: Callable[[], AbstractContextManager[None]]
    # Few steps have any of these, so all others share what is usual.
    increment: int = 1
    late: dict[str, Callable[[], Any]] = _NOTHING
    passed: Collection[str] = ()
    _summaries: dict[str, tuple[SummaryKind, Any]] = _NOTHING
    _shown: dict[str, Any] = _NOTHING

    def add(self, values: Mapping[str, Any]) -> None:
        """Add values by name.

        Raises:
            UsageError: a name is reported twice in this step.
        """
        late = self.late
        for name, value in values.items():
            if name in self or name in late:
                self.check_new(name, "reported")
            if callable(value):
                late = self.late = {**late, plain_name(name): value}
            else:
                self[name if name.__class__ is str else plain_name(name)] = value

    def check_new(self, name: str, how: str) -> None:
        """Check that a value has no name that this step has already.

        Raises:
            UsageError: it has.
        """
        if name in self or name in self.late:
            raise UsageError(f"{name!r} is {how} twice in one step")

    def pass_through(self, values: Mapping[str, Any]) -> None:
        """Add values that have taken the feeds of hooks, and their wraps."""
        self.passed = {*self.passed, *values}
        self.update(values)

    def summarize(self, kind: SummaryKind, name: str, value: Any) -> None:
        """Add a summary, under the name that a viewer shows.

        Raises:
            UsageError: the name is not a non-empty str, or is used twice in this step.
        """
        name = plain_name(name) if isinstance(name, str) else name
        if not isinstance(name, str) or not name:
            raise UsageError(f"a summary's name is {name!r}; expected a non-empty str")
        if name in self._summaries:
            raise UsageError(f"{name!r} is summarized twice in one step")
        if self._summaries is _NOTHING:
            self._summaries, self._shown = {}, {}
        self._summaries[name] = kind, value

    def fed(self, feeds: Mapping[str, Any]) -> Reports:
        """Return these reports, with the feeds of hooks in place of reported values."""
        feeds = {name: value for name, value in feeds.items() if name not in self.passed}
        both = Reports({**self, **feeds})
        both.late = {name: late for name, late in self.late.items() if name not in feeds}
        both.aside, both.increment, both.passed = self.aside, self.increment, self.passed
        both._summaries, both._shown = self._summaries, self._shown
        return both

    def names(self) -> tuple[str, ...]:
        """Return the names that are reported or fed."""
        return (*self, *self.late)

    def __missing__(self, name: str) -> Any:
        if name == METRICS:
            metrics = {metric: self[metric] for metric in metrics_of(self.names())}
            shown = {scalar: self._show(scalar) for scalar in scalars_of(self._summaries)}
            return {**metrics, **shown}
        if name == REPORTED:
            return {**self[METRICS], **{n: v for n, v in self.items() if _is_number(v)}}
        if name == REPORTED_SUMMARIES:
            kinds = [(key, kind) for key, (kind, _) in self._summaries.items()]
            return by_kind((key, kind, self._show(key)) for key, kind in kinds)
        value = self[name] = self._called(self.late[name])
        return value

    def _show(self, name: str) -> Any:
        """Return the value of a summary; a function is called once, when it is needed."""
        if name not in self._shown:
            self._shown[name] = self._called(self._summaries[name][1])
        return self._shown[name]

    def _called(self, value: Any) -> Any:
        if not callable(value):
            return value
        with self.aside():
            return value()


class ReportSession(EmbeddedSession):
    """The backend session of a custom loop.

    Reading a name outside a step gives the value that was reported last.
    """

    graph: ReportGraph

    def __init__(self, graph: ReportGraph) -> None:
        super().__init__(graph)
        self.last: Reports = Reports()
        self._nothing = self.last
        self.last.aside = undisturbed
        self._takes_reports = graph.takes_reports
        self._live = graph.live_variables
        self._kept: dict[tuple[str, ...], list[LiveValue]] = {}
        self._release = capture(())
        self._captured: tuple[str, ...] | None = None
        self._wrapping: dict[frozenset[str], Program] = {}
        self._changes = ExitStack()

    def compile(
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
    ) -> Program:
        """Plan the fetches of hooks from a step's reports.

        Raises:
            UnfedPlaceholderError: the step does not report a fetched name, or no step has
                reported anything yet.
        """
        if self._takes_reports:
            feeds |= _COLLECTED
        try:
            return super().compile(fetches, feeds, host)
        except UnfedPlaceholderError as error:
            if not self._takes_reports:
                raise
            name = error.node
            if self.graph.is_held(name):
                return self.compile(fetches, feeds, host)
            raise UnfedPlaceholderError(self._unreported(name, feeds), name) from None

    def _unreported(self, name: str, feeds: frozenset[str]) -> str:
        tracked = self.graph.inside
        if self.last is self._nothing:
            near = did_you_mean(name, tracked)
            return (
                f"{name!r} is not reported yet: no step has ended; read it in after_run() "
                f"or after the first step{near}"
            )
        reported = sorted(feeds - _COLLECTED)
        near = did_you_mean(name, [*reported, *tracked])
        loop = self.graph.loop
        how = _reporting(name) if loop is None else f"have {loop} report it"
        return (
            f"{name!r} is not reported; the step reports "
            f"{', '.join(map(repr, reported)) or 'nothing'}"
            f"{f'{near} If not' if near else ''}: {how}"
        )

    def names(self, pattern: str = "*", role: Role | None = None) -> tuple[str, ...]:
        """Return the names of the graph, then those that the last step reported, sorted."""
        reports: dict[str, Role] = dict.fromkeys(sorted(self.last.names()), "report")
        return matching({**self.graph.roles, **reports}, pattern, role)

    def take_reports(self, reports: Any) -> None:
        """Take the reports of the step that has just ended."""
        self.last = reports

    def wrapped(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of a loop by name as the wraps of their names make them.

        Wraps are part of the training: the random numbers that they draw stay drawn.

        Raises:
            UnfedPlaceholderError: a wrap reads a value that only a later step reports, or
                takes other values together with these.
        """
        names = frozenset(values)
        program = self._wrapping.get(names)
        if program is None:
            program = self._wrapping[names] = self._plan_wraps(values)
        found = super().execute(Execution(program, values))
        return dict(zip(values, found, strict=True))

    def change_values(self) -> None:
        """Have wraps change values inside tracked objects, until the session is closed.

        Raises:
            GraphError: a value cannot be changed, or not together with others.
        """
        waiting = [n for n in self.graph.wraps if is_live(self.graph.resolve(n))]
        while waiting:
            group = self.graph.wrapped_together(waiting[0])
            waiting = [name for name in waiting if name not in group]
            self._changes.callback(self._change(group))

    def _change(self, group: Sequence[str]) -> Callable[[], None]:
        graph = self.graph
        who = wrapper(graph.resolve(graph.wraps[group[0]][0]).owner)
        parts: dict[str, Any] = {}
        moments: list[Any] = []
        for name in group:
            graph.check_wrap(graph.resolve(name), who)
            source = graph.resolve(name).source
            moments.append(getattr(source, "moment", None))
            parts[name] = getattr(source, "part", None)
        if any(moment is not moments[0] for moment in moments):
            raise GraphError(
                f"{who} wraps {listed(group)} together, which a step does not have at one "
                "time; wrap them one by one"
            )
        try:
            end: Callable[[], None] = moments[0].change(parts, self.wrapped)
        except GraphError as error:
            raise GraphError(f"{who} cannot wrap {listed(group)}: {error}") from None
        return end

    def _plan_wraps(self, names: Iterable[str]) -> Program:
        wraps, fed = self.graph.wraps, frozenset(names)
        for name in names:
            for wrap in wraps.get(name, ()):
                try:
                    plan(self.graph, [wrap], fed)
                except UnfedPlaceholderError as error:
                    raise self._unfit(name, wrap, error.node) from None
        return plan(self.graph, [wraps.get(name, (name,))[-1] for name in names], fed)

    def _unfit(self, name: str, wrap: str, missing: str) -> UnfedPlaceholderError:
        """Return the error that a wrap needs another value, which is not at hand."""
        who = wrapper(self.graph.resolve(wrap).owner)
        if missing in self.graph.wrapped_together(name):
            return UnfedPlaceholderError(
                f"{who} wraps {name!r} together with {missing!r}; pass both in one call of "
                "step.through()",
                missing,
            )
        return UnfedPlaceholderError(
            f"{who} wraps {name!r} and reads {missing!r}, which a step reports only after "
            "it got the value; read 'global_step', or what lives in a tracked object",
            missing,
        )

    def capture(self, fetches: Sequence[str]) -> bool:
        """Have tracked objects keep the values that hooks will ask for after the step.

        Returns:
            Whether one of them has to forget the value of an earlier step first.
        """
        key = tuple(fetches)
        kept = self._kept.get(key)
        if kept is None:
            needed = needed_by(self.graph, map(self.graph.resolve, fetches))
            kept = [node.source for node in needed if is_live(node)]
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = kept
        forgetting = [value.forget for value in kept if value.forget is not None]
        if key == self._captured:
            for forget in forgetting:
                forget()
        else:
            self._release()
            self._captured, self._release = key, capture(kept)
        return bool(forgetting)

    def variables(self) -> dict[str, Any]:
        """Return the value of each variable by name, ``global_step`` left out.

        Those of hooks, and the numbers and arrays inside tracked objects, under the names
        that ``veto_save`` has for them. A graph lists the variables of its objects.
        """
        found = super().variables()
        for state in self.graph.states.values():
            found.update(state.values())
        return found

    def snapshot(self) -> dict[str, Any]:
        """Return the variables that are saved by name; tracked objects save the others."""
        return super().variables()

    def fork(self, inputs: ForkedInputs = "copy") -> EmbeddedSession:
        """Return an independent session of a graph to which ops are added.

        Raises:
            UsageError: this is the session of a custom loop, or values are in objects of
                the program.
        """
        if self._takes_reports:
            raise UsageError(
                "session.fork(): the program computes the steps of a custom loop, so a "
                "fork could not run them; copy the model of the loop, for example with "
                "copy.deepcopy()"
            )
        return super().fork(inputs)

    def close(self) -> None:
        """Refuse further runs; the values stay readable."""
        self._changes.close()
        self._release()
        super().close()

    def execute(self, execution: Execution) -> Sequence[Any]:
        """Fetch from reports; undo the effects of the ops that hooks added."""
        if execution.program.pure or not self._takes_reports:
            return super().execute(execution)
        with self.last.aside():
            return super().execute(execution)

    def prepared(self, program: Program) -> Run | None:
        """Return a program that only computes as :class:`EmbeddedSession` does."""
        undoes = self._takes_reports and not program.pure
        return None if undoes else super().prepared(program)

    def _live_value(self, name: str) -> LiveValue | None:
        found = self._live.get(name)
        if found is not None or not self.graph.states or name in self._values:
            return found
        live = self.graph.live_value(name)
        return live if live is not None and live.put is not None else None

    def _write(self, values: Mapping[str, Any]) -> None:
        """Write values that are checked; those inside one object together."""
        rest = dict(values)
        for tracked, state in self.graph.states.items():
            inside = [name for name in rest if f"{name}.".startswith(f"{tracked}.")]
            found = {name: rest.pop(name) for name in inside if state.find(name)}
            if found:
                state.write(found)
        super()._write(rest)

    def run(self, fetches: Any, feed_dict: Mapping[Node | str, Any] | None = None) -> Any:
        """Read the values reported last, or values derived from them."""
        if not self._takes_reports:
            return super().run(fetches, feed_dict)
        given = unite_feeds([("run", feed_dict)], self.graph.resolve)
        fed = frozenset(given).union(self.last.names())
        return protected(read(self, fetches, ChainMap(given, self.last), fed))


def _reporting(name: str) -> str:
    """Return the call that reports a value, as Python code.

    >>> _reporting("loss"), _reporting("model.weight")
    ('step.report(loss=...)', "step.report(**{'model.weight': ...})")
    """
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"step.report({name}=...)" if plain else f"step.report(**{{{name!r}: ...}})"
