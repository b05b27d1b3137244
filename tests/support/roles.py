"""Hooks for random comparisons: what they ask of a run, when, and what else they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import attrs

from hookbus import Due, HookOptions, RunOptions, SessionRunArgs, SessionRunHook, hookimpl
from hookbus.bus.registry import Registration
from tests.support.askers import Joined, terminate

Log: TypeAlias = list[Any]
"""All that hooks and the program see, in the order in which they see it."""


class Briefly:
    """Base class of data that shows only what is not usual about it."""

    def __repr__(self) -> str:
        told = [
            f"{field.name}={value!r}"
            for field in attrs.fields(type(self))
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{type(self).__name__}({', '.join(told)})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))  # for hypothesis


@attrs.frozen
class At:
    """The node of a name: a hook fetches it as an object of its graph."""

    name: str


class Pair(NamedTuple):
    """A structure that is neither a dict nor a list nor a plain tuple."""

    first: Any
    second: Any


@attrs.frozen(repr=False)
class Want(Briefly):
    """A hook's request for one run.

    Attributes:
        fetches: names, and :class:`At` for nodes, in any nesting; None for nothing.
        reduce: the reduction over the ranks.
        fed: the value that it feeds to ``x``; None for no feed.
        trace: the trace level that it asks for; None for no options.
        foreign: whether the request is of a class of another package.
    """

    fetches: Any = None
    reduce: Any = "none"
    fed: float | None = None
    trace: int | None = None
    foreign: bool = False

    def named(self, names: Sequence[str]) -> Want:
        """Return it with names for the numbers that its fetches have as names."""

        def leaf(part: str | At) -> str | At:
            name = part if isinstance(part, str) else part.name
            name = names[int(name) % len(names)]
            return name if isinstance(part, str) else At(name)

        return attrs.evolve(self, fetches=_mapped(self.fetches, leaf))

    def request(self, graph: Any) -> Any:
        """Return the request, made new."""
        fetches = _mapped(
            self.fetches,
            lambda leaf: graph.resolve(leaf.name) if isinstance(leaf, At) else leaf,
        )
        feeds = None if self.fed is None else {"x": self.fed}
        options = None if self.trace is None else RunOptions(self.trace)
        if self.foreign:
            return Foreign(fetches, feeds, options)
        return SessionRunArgs(fetches, feeds, options, reduce=self.reduce)


@attrs.define(eq=False)
class Foreign:
    """A request as another package makes it, without a reduction."""

    fetches: Any
    feed_dict: Mapping[str, float] | None
    options: RunOptions | None


def _mapped(fetches: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return fetches with other leaves, and with containers of their own."""
    if isinstance(fetches, dict):
        return {key: _mapped(part, leaf) for key, part in fetches.items()}
    if isinstance(fetches, Pair):
        return Pair(*(_mapped(part, leaf) for part in fetches))
    if isinstance(fetches, list | tuple):
        return type(fetches)(_mapped(part, leaf) for part in fetches)
    return fetches if fetches is None else leaf(fetches)


def _change(fetches: Any) -> bool:
    """Add a fetch of ``n`` to a container, in place; return whether there is one."""
    if isinstance(fetches, dict):
        if not any(map(_change, fetches.values())):
            fetches["more"] = "n"
        return True
    if isinstance(fetches, list):
        fetches.append("n")
        return True
    return isinstance(fetches, tuple) and any(map(_change, fetches))


def names_in(fetches: Any) -> set[str]:
    """Return the names that fetches have.

    >>> sorted(names_in({"a": "w", "b": [At("n")]}))
    ['n', 'w']
    """
    if isinstance(fetches, str):
        return {fetches}
    if isinstance(fetches, At):
        return {fetches.name}
    parts = fetches.values() if isinstance(fetches, dict) else fetches or ()
    return {name for part in parts for name in names_in(part)}


Turn: TypeAlias = Literal["always", "in turns", "sometimes", "once", "switches", "changes"]
"""When a hook asks for its first want, and when for its second one or nothing.

"once" asks for the second one at the hook's step only, "switches" from there on. "changes"
changes the fetches of a request that the hook has kept, in place, at its step.
"""


@attrs.frozen(repr=False)
class Role(Briefly):
    """One hook of a random program.

    Attributes:
        kind: its class, a key of :data:`KINDS`.
        wants: what it asks for.
        turn: when it asks for what.
        keeps: whether it returns one object again and again, and no new ones.
        act: what else it does, at its step.
        at: its step: the global step after the run in which it does that.
    """

    kind: str
    wants: tuple[Want, Want]
    turn: Turn = "always"
    keeps: bool = True
    act: str = "nothing"
    at: int = 5

    @property
    def saves(self) -> bool:
        """Whether what it does needs checkpoints."""
        return self.act.startswith(("rolls back", "saves", "keeps"))

    def want(self, step: int) -> Want | None:
        """Return its request for a run that begins at a global step; None for nothing."""
        first, second = self.wants
        here, after = step + 1 == self.at, step + 1 >= self.at
        if self.turn == "sometimes":
            return first if step % 3 == self.at % 3 else None
        if self.turn == "in turns":
            return self.wants[step % 2]
        if self.turn == "once":
            return second if here else first
        return second if self.turn == "switches" and after else first


@attrs.define(eq=False)
class Stage:
    """The state that the hooks of one session share.

    Attributes:
        log: what they see, and what the program sees.
        asked: the names that they fetch in the step that is under way.
        compiles: whether the session may compile what repeats.
        bus, graph, rank: those of the session, once it has begun.
    """

    log: Log
    asked: set[str]
    compiles: bool
    bus: Any = None
    graph: Any = None
    rank: int = 0


@attrs.define(eq=False)
class Actor(SessionRunHook):
    """Plays a role, and notes what it sees.

    Attributes:
        role: the role.
        number: its number among the hooks of the session.
        stage: what it shares with the others.
    """

    role: Role
    number: int
    stage: Stage
    _kept: dict[int, Any] = attrs.field(factory=dict, init=False)
    _rollbacks: int = attrs.field(default=0, init=False)

    def note(self, event: str, *seen: Any) -> None:
        """Note an event of this hook."""
        self.stage.log.append(("hook", self.number, event, *seen))

    def before_run(self, run_context: Any) -> Any:
        step, role = run_context.global_step, self.role
        self.note("before", step)
        if step + 1 == role.at and role.act in BEFORE:
            answer = BEFORE[role.act](self, run_context)
            if answer is not None:
                return answer
        want = role.want(step)
        if want is None:
            return None
        self.stage.asked |= names_in(want.fetches)
        if not role.keeps:
            return want.request(self.stage.graph)
        if id(want) not in self._kept:
            self._kept[id(want)] = want.request(self.stage.graph)
        request = self._kept[id(want)]
        if role.turn == "changes" and step + 1 == role.at:
            _change(request.fetches)
        return request

    def after_run(self, run_context: Any, run_values: Any) -> Any:
        step, role = run_values.global_step, self.role
        seen = repr(run_values.results), run_values.skipped, run_values.options
        self.note("after", run_context.global_step, step, *seen)
        if isinstance(run_values.results, dict):
            run_values.results.clear()  # no other hook sees it
        if role.act == "fetches late":
            self.note("late", repr(run_context.session.run("w")))
        if step == role.at and role.act in AFTER:
            return AFTER[role.act](self, run_context)
        return None

    def fail(self) -> None:
        """Raise an error."""
        raise KeyError(self.number)

    def end_input(self) -> None:
        """Raise what the end of an input raises."""
        raise StopIteration

    def roll_back(self, run_context: Any, skip_inputs: bool = True) -> None:
        """Roll back, twice at most."""
        if self._rollbacks < 2:
            self._rollbacks += 1
            run_context.request_rollback("asked", skip_inputs=skip_inputs)

    def send(self, run_context: Any) -> None:
        """Send an event to other hooks."""
        run_context.emit("measured", values={"a": 1.0}, global_step=self.role.at)

    def join(self) -> None:
        """Register one more hook."""
        log = self.stage.log
        joined = Registration(f"joined-{len(log)}", Joined(log), "in the test")
        self.stage.bus.register(joined)


Act: TypeAlias = Callable[[Actor, Any], Any]
BEFORE: Mapping[str, Act] = {
    "raises before": lambda actor, _: actor.fail(),
    "answers before": lambda *_: "an answer",
    "assigns before": lambda actor, run: run.assign({"v": 10.0 + actor.number}),
    "joins before": lambda actor, _: actor.join(),
    "rolls back before": lambda actor, run: actor.roll_back(run),
    "signals before": lambda *_: terminate(),
    "skips": lambda _, run: run.skip_update(),
    "stops before": lambda _, run: run.request_stop("asked before"),
}
"""An action of a hook before a run, once."""
AFTER: Mapping[str, Act] = {
    "raises after": lambda actor, _: actor.fail(),
    "answers after": lambda *_: "an answer",
    "assigns": lambda actor, run: run.assign({"v": 1.0 + actor.number}),
    "ends input": lambda actor, _: actor.end_input(),
    "joins": lambda actor, _: actor.join(),
    "keeps": lambda _, run: run.request_save("asked", keep=True),
    "preempts": lambda _, run: run.request_stop("asked", kind="preempted"),
    "rolls back": lambda actor, run: actor.roll_back(run),
    "rolls back to the same inputs": lambda actor, run: actor.roll_back(run, False),
    "saves": lambda _, run: run.request_save("asked"),
    "sends": lambda actor, run: actor.send(run),
    "signals": lambda *_: terminate(),
    "stops": lambda _, run: run.request_stop("asked"),
    "stops one rank": lambda actor, run: (
        run.request_stop("asked") if actor.stage.rank == 1 else None
    ),
}
"""An action after a run, once."""
ACTS = (*BEFORE, *AFTER, "fetches late")
"""Actions of hooks besides requests; the last one in each run."""


class Waiting(Actor):
    """Is due every so many steps."""

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        return Due(global_step + self.role.at)

    @hookimpl
    def idled(self, runs: int) -> None:
        self.note("idled", runs)

    @hookimpl
    def measured(self, global_step: int) -> None:
        self.note("measured", global_step)

    @hookimpl
    def evaluated(self, metrics: Any, global_step: int) -> None:
        self.note("evaluated", dict(metrics), global_step)


class CountsRuns(Waiting):
    """Is due every so many runs."""

    @hookimpl
    def next_due(self) -> Due:
        return Due(runs=1 + self.role.at % 3)


class Timed(Waiting):
    """Is due after some time; each step takes a second."""

    @hookimpl
    def next_due(self) -> Due:
        return Due(time=time.monotonic() + 0.5 + self.role.at % 4)


class Eager(Waiting):
    """Is due in every run, and says so."""

    @hookimpl
    def next_due(self) -> Due:
        return Due(0)


class Wrapper(Actor):
    """Is called around all other hooks."""

    @hookimpl(wrapper=True, specname="after_run")
    def around(self) -> Generator[None, Any, Any]:
        self.note("outside")
        try:
            return (yield)
        finally:
            self.note("outside again")

    after_run = None


class Warned(Actor):
    """Has errors that do not end the session."""

    options = HookOptions(on_error="warn")


class Quarantined(Actor):
    """Is switched off after its first error."""

    options = HookOptions(on_error="quarantine:1")


class Auxiliary(Actor):
    """Also takes part in auxiliary runs."""

    options = HookOptions(kinds=("train", "aux"))


class Chief(Actor):
    """Takes part on the first rank only."""

    options = HookOptions(ranks="chief")


class Asks(Actor):
    """Asks, and does not look at the results."""

    after_run = None


class Looks(Actor):
    """Does not ask."""

    before_run = None


class Steps(Actor):
    """Takes the results and not the context."""

    def after_run(self, run_values: Any) -> None:
        self.note("after", run_values.global_step, repr(run_values.results))


KINDS: Mapping[str, type[Actor]] = {
    "plain": Actor,
    "waits for steps": Waiting,
    "waits for runs": CountsRuns,
    "waits for a time": Timed,
    "always due": Eager,
    "wrapper": Wrapper,
    "warned": Warned,
    "quarantined": Quarantined,
    "auxiliary": Auxiliary,
    "chief": Chief,
    "only asks": Asks,
    "only looks": Looks,
    "takes results": Steps,
}
"""The classes of hooks, by what sets them apart."""


def cast(roles: tuple[Role, ...], stage: Stage) -> list[Any]:
    """Return a hook for each role, and a witness."""
    actors = [KINDS[role.kind](role, n, stage) for n, role in enumerate(roles)]
    return [*actors, Witness(stage)]


@attrs.define(eq=False)
class Witness(SessionRunHook):
    """Notes what happens besides steps; it observes all calls if nothing is to compile."""

    stage: Stage

    def note(self, event: str, *seen: Any) -> None:
        """Note an event of the session."""
        self.stage.log.append(("session", event, *seen))

    @hookimpl
    def addhooks(self, bus: Any) -> None:
        self.stage.bus = bus
        if not self.stage.compiles:
            bus.observe(lambda call: None)

    def begin(self, graph: Any, kind: str, rank: int) -> None:
        self.stage.graph, self.stage.rank = graph, rank
        self.note("begin", kind, rank)

    def after_create_session(self, session: Any) -> None:
        self.note("created", session.global_step)

    before_run = after_run = None

    @hookimpl
    def cancelled(self, run_context: Any) -> None:
        self.note("cancelled", run_context.global_step)

    @hookimpl
    def epoch_ended(self, epoch: int, global_step: int) -> None:
        self.note("epoch ended", epoch, global_step)

    @hookimpl
    def after_save(self, global_step: int) -> None:
        self.note("saved", global_step)

    def end(self, session: Any, outcome: Any) -> None:
        self.note("end", outcome.kind, session.global_step)

    def on_exception(self, exception: BaseException, outcome: Any) -> None:
        self.note("exception", type(exception).__name__, outcome.kind)
