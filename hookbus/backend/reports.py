"""Serves a custom loop as a backend: the reports of a step take the place of ops."""

from __future__ import annotations

import keyword
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import MappingProxyType
from typing import Any

from hookbus.backend.base import read
from hookbus.backend.codegen import CompiledProgram
from hookbus.backend.embedded import EmbeddedSession
from hookbus.backend.forks import ForkedInputs
from hookbus.backend.program import Program, is_live, plan
from hookbus.backend.protocol import Execution
from hookbus.backend.read_only import protected
from hookbus.errors import GraphError, UnfedPlaceholderError, UsageError, did_you_mean
from hookbus.graph.fetches import unite_feeds
from hookbus.graph.graph import Graph
from hookbus.graph.node import METRICS, SUMMARIES, Node, NodeKind, metrics_of, plain_name
from hookbus.graph.operation import Operation
from hookbus.graph.summaries import SummaryKind, by_kind, collecting, scalars_of
from hookbus.graph.traversal import needed_by
from hookbus.graph.wraps import listed, wrapper
from hookbus.library.base import LiveState, LiveValue, capture
from hookbus.random_state import undisturbed

_REPORTED_SUMMARIES = "hookbus.reported_summaries"
_COMPUTED = ("op", "input", "placeholder")
"""Kinds of nodes that a session computes or is fed; a custom loop has none of its own."""
_MOST_KEPT = 1024
_NOTHING: dict[str, Any] = {}
_COLLECTED = frozenset({METRICS, _REPORTED_SUMMARIES})
"""Nodes whose values are computed from the reports of a step."""


class ReportGraph(Graph):
    """The graph of a custom loop: any name may turn out to be reported.

    It starts empty. A hook may add nodes derived from names that the loop reports. Values
    inside the objects that the loop tracks are also nodes. A report with the name of such a
    node takes precedence.

    A subclass may know objects from the start. If ops are added to it, it is a graph like
    any other.
    """

    backend: str | Callable[[Any], Any] = "hookbus.backend.reports:ReportSession"

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()
        self.live: dict[str, LiveValue] = {}
        self.live_variables: dict[str, LiveValue] = {}
        self.states: dict[str, LiveState] = {}
        self._held: dict[str, Any] = {}

    @property
    def unsaved(self) -> frozenset[str]:
        """The variables that checkpoints hold only as parts of tracked objects, or not."""
        return super().unsaved | self.live_variables.keys()

    @property
    def tracked(self) -> Mapping[str, Any]:
        """The objects of the graph, and those that a custom loop tracks, by name."""
        return {**self.objects, **self._held}

    @property
    def takes_reports(self) -> bool:
        """Whether a custom loop computes the steps: only hooks have added nodes to it."""
        return not any(
            node.kind in _COMPUTED
            and node.owner is None
            and name not in self._reported
            and getattr(node.source, "wraps", None) is None
            for name, node in self.nodes.items()
        )

    def resolve(self, node: Node | str, asker: str = "") -> Node:
        """Return a node by its name; a new name becomes a node that a step may report."""
        if isinstance(node, Node) and node.graph is self:
            node = node.name  # what it stands for may have been tracked since
        if isinstance(node, str):
            name = plain_name(node)
            live = None if name in self else self.live_value(name)
            if name not in self and (live is not None or self.takes_reports):
                self._reported.add(name)
                return self._note(name, _kind_of(live), live)
        return super().resolve(node, asker)

    def check_wrap(self, node: Node, who: str) -> None:
        """Check that *who* can wrap a node.

        Raises:
            GraphError: its value lives in an object, which the code of the loop reads.
        """
        live = self.live_value(node.name)
        if live is not None and (live.moment is None or live.is_shared):
            why = (
                "each rank of the training holds a part of it"
                if live.is_shared
                else "it lives in an object, and the code of the training reads it there"
            )
            raise GraphError(
                f"{who} cannot wrap {node.name!r}: {why}; wrap an input, what the loop "
                "passes through step.through(), or a value that is made in the step, like "
                "a gradient"
            )
        super().check_wrap(node, who)

    def wired(self, operation: Operation) -> Operation:
        """Return an op as a run calls it.

        In a custom loop, a wrap applies where the value comes from. A report of that name
        has the wrapped value already, and so has an object of the program.
        """
        return operation if self.takes_reports else self._wraps.wired(operation, self.live)

    def fetched(self, name: str) -> str:
        """Return the name of the node whose value a fetch of a node gets."""
        is_changed = self.takes_reports or name in self.live
        return name if is_changed else super().fetched(name)

    def wrapped_together(self, name: str) -> tuple[str, ...]:
        """Return the nodes whose wrapped values depend on each other, with one of them."""
        found, waiting = {name}, [name]
        while waiting:
            more = self._wraps.together_with(waiting.pop()) - found
            found |= more
            waiting += more
        return tuple(node for node in self.wraps if node in found)

    def hold(
        self,
        values: Mapping[str, LiveValue],
        states: Mapping[str, LiveState] = MappingProxyType({}),
        things: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Make values inside tracked objects known as nodes, by name.

        Hooks may have named such a node before the loop tracks the object.

        Args:
            values: those that the objects always have.
            states: the objects whose values come and go, by their own name.
            things: the objects by their own name.
        """
        self._held.update(things)
        self.live.update(values)
        self.states.update(states)
        variables = {name: live for name, live in values.items() if live.put is not None}
        self.live_variables.update(variables)
        for name in [*self.nodes]:
            self.is_held(name)

    def live_value(self, name: str) -> LiveValue | None:
        """Return a value inside a tracked object; None if there is no such value now."""
        if name in self.live:
            return self.live[name]
        for tracked, state in self.states.items():
            if name == tracked or name.startswith(f"{tracked}."):
                found = state.find(name)
                if found is not None:
                    return found
        return None

    def variable_named(self, node: Node | str, asker: str) -> str:
        """Return the name of a variable that *asker* may write.

        Raises:
            GraphError: no tracked object has it, or it cannot be written.
        """
        name = self.resolve(node, asker).name
        live = self.live.get(name)
        if live is not None and live.is_shared:
            raise GraphError(
                f"{asker} writes {name!r}, which cannot be assigned: each rank of the "
                "training holds a part of it"
            )
        is_report = self.takes_reports and self.resolve(name).kind == "placeholder"
        if is_report and not self.is_held(name):
            states = (each for state in self.states.values() for each in state.values())
            near = did_you_mean(name, [*self.live_variables, *states])
            raise GraphError(
                f"{asker} writes {name!r}, which is not a variable; the variables of a "
                "custom loop are the numbers and arrays inside the objects that it "
                f"tracks{near}"
            )
        return super().variable_named(name, asker)

    def is_held(self, name: str) -> bool:
        """Return whether a node that a step may report is inside a tracked object by now.

        It is no placeholder any more then.
        """
        node = self.nodes[name]
        live = self.live_value(name) if node.kind == "placeholder" else None
        if live is not None:
            self._note(name, _kind_of(live), live, node.owner)
        return live is not None

    @property
    def metrics(self) -> Node | None:
        """The node that hooks watch by default.

        Its value is a dict of the reported ``loss`` and ``accuracy`` and the scalars among
        the step's summaries.
        """
        return self.resolve(METRICS) if self.takes_reports else super().metrics

    @property
    def summaries(self) -> Node | None:
        """The node with the summaries of a step, and those that hooks have declared.

        Its value is a dict, kind to name to value.
        """
        if not self.takes_reports:
            return super().summaries
        self._check_finalized()
        if SUMMARIES in self:
            return self.resolve(SUMMARIES)
        self._reported.add(SUMMARIES)
        reported = self.resolve(_REPORTED_SUMMARIES).name
        return self._note(SUMMARIES, "op", collecting(self._declared, (reported,)))

    def _names(self) -> Iterable[str]:
        return [*self.nodes, *self.inside]

    @property
    def changeable(self) -> list[str]:
        """The names of the values inside tracked objects that a step can change."""
        return [name for name, live in self.live.items() if live.moment is not None]

    @property
    def inside(self) -> list[str]:
        """Return the names of the values inside tracked objects."""
        states = (name for state in self.states.values() for name in state.values())
        return [*self.live, *states]


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
        for name, value in values.items():
            if name in self or (self.late and name in self.late):
                self.check_new(name, "reported")
            if callable(value):
                self.late = {**self.late, plain_name(name): value}
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
        if name == _REPORTED_SUMMARIES:
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
        self.last = self._nothing = Reports()
        self.last.aside = undisturbed
        self._takes_reports = graph.takes_reports
        self._live = graph.live_variables
        self._kept: dict[tuple[str, ...], list[LiveValue]] = {}
        self._release = capture(())
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
        return (
            f"{name!r} is not reported; the step reports "
            f"{', '.join(map(repr, reported)) or 'nothing'}"
            f"{f'{near} If not' if near else ''}: {_reporting(name)}"
        )

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

    def capture(self, fetches: Sequence[str]) -> None:
        """Have tracked objects keep the values that hooks will ask for after the step."""
        self._release()
        kept = self._kept.get(tuple(fetches))
        if kept is None:
            needed = needed_by(self.graph, map(self.graph.resolve, fetches))
            kept = [node.source for node in needed if is_live(node)]
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[tuple(fetches)] = kept
        self._release = capture(kept)

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
                "fork could not run them; copy what the loop trains, for example with "
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

    def prepared(self, program: Program) -> CompiledProgram | None:
        """Return a program that only computes as :class:`EmbeddedSession` does."""
        undoes = self._takes_reports and not program.pure
        return None if undoes else super().prepared(program)

    def _live_value(self, name: str) -> LiveValue | None:
        found = self._live.get(name)
        return found if found is not None or not self.graph.states else self._found(name)

    def _found(self, name: str) -> LiveValue | None:
        live = None if name in self._values else self.graph.live_value(name)
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


def _kind_of(live: LiveValue | None) -> NodeKind:
    """Return the kind of the node for a name that a loop reports, or for a live value."""
    if live is None:
        return "placeholder"
    return "native" if live.put is None else "variable"


def _reporting(name: str) -> str:
    """Return the call that reports a value, as Python code.

    >>> _reporting("loss"), _reporting("model.weight")
    ('step.report(loss=...)', "step.report(**{'model.weight': ...})")
    """
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"step.report({name}=...)" if plain else f"step.report(**{{{name!r}: ...}})"
