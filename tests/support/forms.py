"""Runs one random program in each of the forms that training has.

The forms are runs of a graph, the blocks of a custom loop, and the steps of a loop that
drives the session, with a graph and without. They train the same model on the same input,
and hooks see the same names. All of it is public behaviour: an observer of the hooks keeps
a session from compiling what repeats.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np

from hookbus import (
    DrivenSession,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    RunMetadata,
    RunOptions,
    Session,
    Step,
    StepRequest,
)
from hookbus.backend import Execution
from hookbus.errors import NoValueYetError
from tests.support.roles import Log
from tests.support.worlds import VALUES, Numpy, Program, World, graph_of

RUNS: dict[str, tuple[Any, ...]] = {
    "step": ("train",),
    "other": ("other",),
    "nodes": (["train", "loss"],),
    "tuple": (("loss", "train"),),
    "nested": ({"t": "train", "p": "pair"},),
    "read": ("loss",),
    "conflict": (["train", "other"],),
    "fed": ("train", {"x": 3.0}),
    "fed more": (["train", "pair"], {"x": 3.0, "w": np.ones(2)}),
    "feeds in another order": (["train", "pair"], {"w": np.ones(2), "x": 3.0}),
    "two fed": ("train", {"x": 3.0, "w": np.ones(2)}),
    "two fed in another order": ("train", {"w": np.ones(2), "x": 3.0}),
    "traced": ("train", None, RunOptions(1)),
    "recorded": ("train", None, None, RunMetadata()),
    "fails": ("train",),
    "lost": ("train",),
    "no gradient": ("train",),
    "unknown": ("nothing",),
}
"""The arguments of the runs of a graph."""


@attrs.define(eq=False)
class InGraph:
    """The runs of a graph."""

    world: World
    session: MonitoredSession
    graph: Graph

    @classmethod
    def run(cls, world: World, compiled: bool) -> None:
        """Run a program."""
        graph = graph_of(world)
        self = cls(world, world.session(graph, compiled), graph)
        with self.session:
            for event in world.program.events:
                if self.session.should_stop():
                    break
                world.do(event, self.act)
                world.note(self.session.global_step)
            if world.program.looks:
                left = self.session.run(["w", "v", "n", "i", "j"], kind="aux")
                world.note("left", repr(left))
        world.end(self.session)

    def act(self, event: str) -> None:
        """Do one run."""
        graph, run = self.graph, self.session.run
        if event == "aux":
            values = run("loss", kind="aux")
        elif event == "node":
            values = run(graph.resolve("train"))
        elif event == "other node":
            values = run([graph.resolve("other"), "loss"])
        elif event == "fed node":
            values = run("train", {graph.resolve("x"): 3.0})
        elif event == "step function":
            values = self.session.run_step_fn(_step_function)
        else:
            values = run(*RUNS[event])
        self.world.note(repr(values))


def _step_function(step_context: Any) -> Any:
    """Run with hooks, and without."""
    values = step_context.run_with_hooks("train")
    return values, step_context.session.run("n")


@attrs.define(eq=False)
class InBlocks:
    """The blocks of a custom loop."""

    world: World
    session: MonitoredSession
    model: Numpy = attrs.field(factory=Numpy)
    _values: Iterator[int] = attrs.field(factory=lambda: iter(()))
    _next: int | None = None

    @classmethod
    def run(cls, world: World, compiled: bool) -> None:
        """Run a program."""
        self = cls(world, world.session(None, compiled))
        with self.session:
            self.session.track(**self.model.parts, cell=world.cell)
            self._begin_pass()
            for event in world.program.events:
                if self.session.should_stop():
                    break
                world.do(event, self.act)
                world.note(self.session.global_step)
            world.note("left", repr(self.model.parts))
        world.end(self.session)

    def act(self, event: str) -> None:
        """Do one step, or what a loop does between two steps."""
        if event == "evaluation":
            with self.session.evaluation() as evaluation:
                evaluation.report(accuracy=self.session.global_step)
            return
        if event == "read":
            self.world.note(repr(self.session.run("loss")))
            return
        if event == "new pass":
            self._begin_pass()
        if self._next is not None:
            with self.session.step(kind="aux" if event == "aux" else None) as step:
                self.compute(step, event, self._next)
            # The pull ends what the loop does for a value: the session saves there.
            self._next = next(self._values, None)

    def _begin_pass(self) -> None:
        self._values = iter(self.session.iterate(VALUES))
        self._next = next(self._values, None)

    def compute(self, step: Step, event: str, i: int) -> None:
        """Do the inside of a step."""
        world, model = self.world, self.model
        world.note("fed", dict(step.feeds))
        x = step.feeds.get("x", 1.0 + world.rank)
        reported = model.reports(self.session.global_step, i, x, world.asked)
        step.report(**changed(reported, event, world.log))
        if event == "in two parts":
            step.report(more=1)
        if event == "summary":
            step.summary.scalar("shown", 1.0)
        world.check()
        if event == "cancelled":
            step.cancel()
        elif not step.skipped:
            model.update(i, x)


def changed(reported: dict[str, Any], event: str, log: Log) -> dict[str, Any]:
    """Return the reports of a step of a loop, as an event has them."""
    if event == "another order":
        return dict(reversed(reported.items()))
    if event == "more names":
        return {**reported, "more": 1}
    if event == "fewer names":
        return {name: value for name, value in reported.items() if name != "n"}
    if event == "late":
        loss = reported["loss"]
        return {**reported, "loss": lambda: (log.append("called"), loss)[1]}
    if event == "late but missing":
        return {**reported, "loss": _missing}
    return reported


def _missing() -> float:
    raise NoValueYetError("there is no loss", "loss")


@attrs.define(eq=False)
class Driven:
    """The steps of a loop that reports values to the session."""

    world: World
    session: DrivenSession
    model: Numpy = attrs.field(factory=Numpy)

    @classmethod
    def run(cls, world: World, compiled: bool) -> None:
        """Run a program."""
        self = cls(world, world.driven(None, compiled))
        with self.session:
            self.session.begin()
            self.session.created()
            self.session.track(**self.model.parts, cell=world.cell)
            drive(world, self.session, self.act)
            world.note("left", repr(self.model.parts))
        world.end(self.session)

    def act(self, event: str) -> None:
        """Do one step, or what a loop does between two steps."""
        session, world, model = self.session, self.world, self.model
        if event == "evaluation":
            with session.evaluation() as evaluation:
                evaluation.report(accuracy=session.global_step)
            return
        wanted = begin_step(world, session, event)
        i, x = session.global_step + 1, wanted.feeds.get("x", 1.0 + world.rank)
        try:
            reported = model.reports(session.global_step, i, x, world.asked)
            world.check()
        except Exception:
            session.cancel_step()
            raise
        if event == "cancelled":
            session.cancel_step()
            return
        if wanted.skipped_by is None:
            model.update(i, x)
        session.after_step(changed(reported, event, world.log))


def begin_step(
    world: World, session: DrivenSession, event: str, fetches: Any = ()
) -> StepRequest:
    """Begin a step of a driven session; return what hooks want, and note it."""
    wanted = session.before_step(fetches, kind="aux" if event == "aux" else None)
    world.note(wanted.fetches, dict(wanted.feeds), wanted.options, wanted.skipped_by)
    return wanted


def drive(world: World, session: DrivenSession, act: Callable[[str], None]) -> None:
    """Do the events of a driven session."""
    for event in world.program.events:
        if session.stop is not None:
            break
        world.do(event, act)
        world.note(session.global_step, repr(session.stop))


@attrs.define(eq=False)
class DrivenGraph:
    """The steps of a loop that runs a graph itself."""

    world: World
    session: DrivenSession
    graph: Graph
    engine: Session = attrs.field(init=False)

    @classmethod
    def run(cls, world: World, compiled: bool) -> None:
        """Run a program."""
        graph = graph_of(world)
        self = cls(world, world.driven(graph, compiled), graph)
        with self.session:
            self.session.begin()
            self.open()
            drive(world, self.session, self.act)
            if world.program.looks:
                left = self.engine.run(["w", "v", "n", "i", "j"])
                world.note("left", repr(left))
        world.end(self.session)

    def open(self) -> None:
        """Create a backend session."""
        self.engine = EmbeddedSession(self.graph)
        self.session.created(self.engine)

    def act(self, event: str) -> None:
        """Do one step."""
        session = self.session
        fetches = ["loss", self.graph.resolve("train")] if event == "own fetches" else ()
        wanted = begin_step(self.world, session, event, fetches)
        if event == "lost":
            self.open()
            return
        own = "loss" if event == "aux" else RUNS.get(event, ("train",))[0]
        try:
            values = self.values(wanted, own)
        except Exception:
            session.cancel_step()
            raise
        if event == "cancelled":
            session.cancel_step()
            return
        if event == "lacks a value":
            values = dict([*values.items()][1:])
        session.after_step(values)

    def values(self, wanted: StepRequest, own: Any) -> dict[str, Any]:
        """Run the engine, as the request of hooks has it; return what they fetch."""
        names = [own] if isinstance(own, str) else [*own]
        if isinstance(own, dict):
            names = [*own.values()]
        engine, feeds = self.engine, wanted.feeds
        program = engine.compile(names, frozenset(feeds), wanted.fetches)
        run = engine.execute
        if wanted.skipped_by is not None:
            run = engine.execute_without_update
        values = run(Execution(program, feeds, {}, wanted.options, wanted.metadata))
        return dict(zip(wanted.fetches, values[len(names) :], strict=True))


Form: TypeAlias = Callable[[World, bool], None]
FORMS: dict[str, Form] = {
    "graph": InGraph.run,
    "blocks": InBlocks.run,
    "driven": Driven.run,
    "driven graph": DrivenGraph.run,
}


def play(
    form: str, program: Program, place: Path, compiled: bool, rank: int = 0
) -> tuple[Log, str | None]:
    """Run a program; return what was seen, and what the session has compiled.

    A program that has "restart" among its events is run by several sessions, each of which
    goes on where the one before has saved.

    Args:
        form: the form, a key of :data:`FORMS`.
        program: the program.
        place: an empty directory, in which it may save.
        compiled: whether the session may compile what repeats.
        rank: the number of this process.
    """
    log: Log = []
    found: str | None = None
    for events in split(program.events, "restart"):
        part = attrs.evolve(program, events=events)
        world = World(part, place if program.saves else None, rank, log)
        try:
            FORMS[form](world, compiled)
        except (Exception, SystemExit) as error:
            log.append(("left by", *world.told(error)))
        found = found or world.compiled
    return log, found


def split(events: Iterable[str], separator: str) -> Iterator[tuple[str, ...]]:
    """Yield the parts of a list between separators.

    >>> [*split(["a", "b", ";", "c"], ";")]
    [('a', 'b'), ('c',)]
    """
    for is_separator, part in itertools.groupby(events, lambda event: event == separator):
        if not is_separator:
            yield tuple(part)


def hooks_view(log: Sequence[Any]) -> list[Any]:
    """Return the calls that hooks have seen, and the end of the session."""
    return [entry for entry in log if entry[0] in ("hook", "session", "joined", "outcome")]
