"""The loop's session: emits the events, acts on what hooks asked for, ends properly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

from hookbus import ending, nesting
from hookbus.bus import Bus, Member
from hookbus.checkpoint import randomness
from hookbus.checkpoint.saving import Checkpoints, Keeper, load_hooks, stateful
from hookbus.config import Config, SessionRecord
from hookbus.coordinator import Coordinator
from hookbus.errors import (
    END_OF_INPUT,
    RunAfterStopError,
    SessionClosedError,
    UsageError,
)
from hookbus.graph import Graph, Node
from hookbus.hook import Asks, Kind, Outcome, SessionRunContext
from hookbus.loading import members
from hookbus.logs import log
from hookbus.operation import Operation
from hookbus.runner import Runner
from hookbus.session import EmbeddedSession, RunMetadata, RunOptions, Session


@attrs.frozen(eq=False)
class ChiefSessionCreator:
    """Makes the backend session of the process that initializes and restores.

    Args:
        graph: what to run.
        checkpoint_dir: where to restore from, if there is anything.
    """

    graph: Graph
    checkpoint_dir: str | Path | None = None

    def create_session(self) -> Session:
        """Make a backend session with initial values."""
        return EmbeddedSession(self.graph)


class MonitoredSession:
    """A session whose runs reach hooks.

    Making one calls every hook's ``begin``, finalizes the graph, creates and restores the
    backend session and calls ``after_create_session``; leaving its block calls ``end`` or
    ``on_exception``, exactly one of them for each hook that began.

    Args:
        graph: what to run; by default an empty one.
        session_creator: makes the backend session, by default a
            :class:`ChiefSessionCreator` without a checkpoint directory.
        hooks: hook objects, called after all plugins, in this order.
        stop_grace_period_secs: how long to wait at the end for the threads that hooks
            registered with the coordinator.
        config: which plugins are on; by default the process's.
        kind: what the session is for.

    Raises:
        UsageError: arguments, flags or settings that do not fit.
        PluginError: a plugin that is on does not load, or a hook does not fit.
        CheckpointError: the checkpoints cannot be read, or not be written.

    >>> graph = Graph()
    >>> w = graph.variable("w", 1.0)
    >>> @graph.train_op(updates="w")
    ... def double(w):
    ...     return w * 2
    >>> with MonitoredSession(graph) as session:
    ...     [session.run(["w", "double"])[0] for _ in range(3)]
    [1.0, 2.0, 4.0]
    >>> session.outcome.kind
    'completed'
    """

    def __init__(
        self,
        graph: Graph | None = None,
        session_creator: ChiefSessionCreator | None = None,
        hooks: Sequence[Any] | None = None,
        stop_grace_period_secs: float = 120.0,
        *,
        config: Config | None = None,
        kind: Kind = "train",
    ) -> None:
        config = config or nesting.config_here()
        creator = session_creator or ChiefSessionCreator(graph or Graph())
        if graph is not None and creator.graph is not graph:
            raise UsageError(
                "the session is given one graph, and its session_creator another; name it "
                "in one place"
            )
        taking_part = members(config, kind, tuple(hooks or ()))
        self._setup(creator, taking_part, kind, config, stop_grace_period_secs)

    def _setup(
        self,
        creator: ChiefSessionCreator,
        taking_part: Sequence[Member],
        kind: Kind,
        config: Config,
        grace: float,
    ) -> None:
        self.kind = kind
        self.outcome: Outcome | None = None
        self._creator = creator
        self._config = config
        self._grace = grace
        self._graph: Graph | None = creator.graph
        self._bus = Bus(kind)
        for member in taking_part:
            self._bus.register(member)
        self._asks = Asks()
        self._stop: tuple[str, str] | None = None
        self._input_end: BaseException | None = None
        self._closed = False
        self._begun: set[str] = set()
        self._coord = Coordinator(clean_stop_exception_types=())
        self._session: Session | None = None
        given = creator.checkpoint_dir
        self._checkpoints = Checkpoints(
            Path(given) if given else None, self._asks, self._bus.turn
        )
        self._keeper = Keeper(self._checkpoints, _versions(taking_part))
        self._mark = creator.graph.mark()
        self._first_step = 0
        self._runner: Runner | None = None
        self._opened = False
        nesting.enter(self._bus.turn)
        try:
            self._open(creator)
            self._opened = True
        except BaseException as error:
            self._finish(error)
            raise

    @property
    def graph(self) -> Graph | None:
        """The graph; None after close, as in TF."""
        return self._graph

    @property
    def global_step(self) -> int:
        """The global step after the last run; readable after close."""
        return self._session.global_step if self._session is not None else 0

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        kind: Kind | None = None,
    ) -> Any:
        """Run part of the graph once, hooks before and after it.

        What hooks asked for is done before it returns: variables are written, a
        checkpoint is saved, a stop takes effect.

        Args:
            fetches: a node, its name, or any nesting of these.
            feed_dict: node or name to value.
            options: how to run.
            run_metadata: filled with what the backend records.
            kind: what the run is for, by default what the session is for; an ``aux`` run
                reaches only hooks that declare it, and is allowed after a stop.

        Returns:
            The values in the structure of *fetches*.

        Raises:
            OutOfRangeError: an input has ended.
            RunAfterStopError: a hook asked to stop before.
            SessionClosedError: the session is closed.
        """
        if self._closed or self._runner is None:
            raise SessionClosedError("run() on a session that is closed; make a new one")
        if self._stop is not None and kind != "aux":
            raise RunAfterStopError(
                "Run called even after should_stop requested: "
                f"{self._stop[0]} stopped the session ({self._stop[1]}); loop on "
                "while not session.should_stop()"
            )
        values, context = self._runner.run(
            fetches, feed_dict, options, run_metadata, kind or self.kind
        )
        asks = self._asks
        if asks.save is not None or asks.stop is not None or asks.writes:
            self._act(context)
        return values

    def loop(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Node | str, Any] | None = None,
    ) -> Iterator[Any]:
        """Train until somebody stops or the input ends; yield each run's values.

        Each turn is one run of all the graph's train ops, together with *fetches*. The
        generator just ends; the block goes on behind it.
        """
        graph = self._graph
        nodes = graph.nodes.values() if graph is not None else ()
        train_ops = [n.name for n in nodes if n.kind == "op" and _trains(n)]
        request = train_ops if fetches is None else (fetches, train_ops)
        while not self.should_stop():
            try:
                values = self.run(request, feed_dict)
            except END_OF_INPUT as error:
                self._end_input(error)
                return
            yield None if fetches is None else values[0]

    def should_stop(self) -> bool:
        """Say whether to leave the loop: closed, stopped, or at the end of input."""
        return (
            self._stop is not None
            or self._closed
            or self._input_end is not None
            or self._coord.should_stop()
        )

    def close(self) -> None:
        """End the session as at the end of its block, with nothing raised.

        Raises:
            SessionClosedError: it is closed already.
        """
        if self._closed:
            raise SessionClosedError("Session is already closed.")
        self._finish(None)

    def __enter__(self) -> MonitoredSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._closed and error is None:
            raise SessionClosedError("Session is already closed.")
        if not self._closed:
            self._finish(error)
        return isinstance(error, END_OF_INPUT)

    def _open(self, creator: ChiefSessionCreator) -> None:
        """Go through the events up to the first run."""
        graph = creator.graph
        self._bus.check_order()
        self._begin(graph)
        graph.finalize()
        self._keeper.prepare()
        session = self._session = creator.create_session()
        hooks = self._stateful()
        restored = self._keeper.restore(session, strict=self.kind == "train")
        if restored is not None:
            load_hooks(hooks, restored)
        self._first_step = session.global_step
        self._runner = Runner(self._bus, session, self._asks, self._last_step)
        self._bus.caller("after_create_session").collect(session, self._coord)
        if restored is not None and self.kind == "train":
            # Last of all: whatever drew numbers before must not matter.
            randomness.restore(restored.state.get("random", {}))
        self._act(None)

    def _begin(self, graph: Graph) -> None:
        """Call all ``begin``s; a hook without one has begun when its turn is over."""
        caller = self._bus.caller("begin")
        silent = set(self._bus.members) - {name for name, _ in caller.rows}
        try:
            caller.start((graph, self._checkpoints), self._begun)
        except BaseException:
            order = list(self._bus.members)
            reached = max(map(order.index, self._begun), default=-1)
            self._begun.update(silent.intersection(order[: reached + 1]))
            raise
        self._begun.update(silent)

    def _act(self, context: SessionRunContext | None) -> None:
        """Do what hooks asked for; the one place for it."""
        asks, session = self._asks, self._session
        assert session is not None
        writes = asks.take_writes()
        if writes:
            session.write({name: value for name, (_, value) in writes.items()})
            for name, (who, _) in writes.items():
                log.debug("variable assigned", variable=name, by=who)
        if asks.save is not None:
            (who, why), asks.save = asks.save, None
            self._save(session, who, why, context)
        if asks.stop is not None and self._stop is None:
            self._stop = asks.stop
            self._keeper.hold_position(session)

    def _save(
        self, session: Session, who: str, why: str, context: SessionRunContext | None
    ) -> None:
        """Write a checkpoint, unless it is safe already or a hook refuses."""
        step = session.global_step
        if self._keeper.last_step == step:
            return
        if self._checkpoints.enabled_by is None:
            log.info("a checkpoint was asked for, and no saver is on", by=who, why=why)
            return
        refusals = self._bus.caller("before_save").collect(
            session, session.variables(), step, context
        )
        if refusals:
            refuser, reason = refusals[0]
            log.warning("checkpoint refused", step=step, by=refuser, why=reason)
            return
        self._bus.caller("saving").collect(session, step)
        path = self._keeper.write(session, self._stateful(), who, why)
        answers = self._bus.caller("after_save").collect(session, step, path)
        if answers and context is not None:
            self._asks.request_stop(answers[0][0], str(answers[0][1]))

    def _finish(self, error: BaseException | None) -> None:
        """End the session: tell every hook that began, save, close, write it down."""
        self._closed = True
        # A session that was never made has not ended well, whatever kept it from it.
        clean = self._opened and ending.is_clean(error)
        if clean and isinstance(error, END_OF_INPUT):
            self._end_input(error)
        elif self._session is not None:
            self._keeper.hold_position(self._session)
        self.outcome = outcome = (
            ending.well(self._stop, self._input_end, self.global_step)
            if clean
            else ending.badly(error, self.global_step)
        )
        failures: list[BaseException] = []
        try:
            if clean:
                failures += self._tell("end", outcome)
                failures += self._last_save(outcome)
                failures += self._tell("finished", outcome)
            elif error is not None:
                self._tell_exception(error, outcome)
        finally:
            failures += self._give_up()
            self._write_down(outcome)
        if clean and len(failures) == 1:
            raise failures[0]
        if clean and failures:
            raise BaseExceptionGroup("several hooks failed at the end", failures)
        for other in failures:
            log.error("an error at the end", error=repr(other))

    def _end_input(self, error: BaseException) -> None:
        ending.warn_about_input_end(error)
        self._input_end = error
        if self._session is not None:
            self._keeper.hold_position(self._session)

    def _tell(self, event: str, outcome: Outcome) -> list[BaseException]:
        caller = self._bus.caller(event)
        failures = caller.finish((self._session, outcome), self._begun)
        return [error for _, error in failures]

    def _tell_exception(self, error: BaseException, outcome: Outcome) -> None:
        caller = self._bus.caller("on_exception")
        arguments = (self._session, error, outcome)
        for name, other in caller.finish(arguments, self._begun):
            log.error("a hook failed in on_exception", hook=name, error=repr(other))
            error.add_note(f"hookbus: on_exception() of {name!r} failed: {other!r}")

    def _last_save(self, outcome: Outcome) -> list[BaseException]:
        """Save the state that all ``end``s left, and note that the session ended."""
        session, saver = self._session, self._checkpoints.enabled_by
        if saver is None or session is None:
            return []
        try:
            self._save(session, saver, f"end: {outcome.kind}", None)
            moved = session.global_step != self._first_step
            if moved or outcome.kind == "end_of_input":
                self._keeper.mark_ended(session.global_step, outcome.kind)
        except BaseException as error:
            return [error]
        return []

    def _give_up(self) -> list[BaseException]:
        """Stop the threads, close the backend, open the graph again."""
        failures: list[BaseException] = []
        self._coord.request_stop()
        try:
            self._coord.join(stop_grace_period_secs=self._grace, ignore_live_threads=True)
        except BaseException as error:
            failures.append(error)
        if self._session is not None:
            self._session.close()
        self._creator.graph.rewind(self._mark)
        self._graph = self._runner = None
        return failures

    def _write_down(self, outcome: Outcome) -> None:
        nesting.leave(self._bus.turn)
        opened = self._opened
        self._config.records.append(SessionRecord(self._first_step, outcome, opened))
        if self._checkpoints.directory is not None:
            ending.write(outcome, self._checkpoints.directory)
        where = self._keeper.last_path
        extra = {"checkpoint": str(where)} if where is not None else {}
        log.info("session ended", **attrs.asdict(outcome), **extra)

    def _last_step(self) -> int | None:
        """Return the earliest end that a hook plans or an input has."""
        assert self._session is not None
        caller = self._bus.caller("planned_last_step")
        ends = [answer for _, answer in caller.collect()]
        left = self._session.remaining()
        if left is not None:
            ends.append(self._session.global_step + left)
        return min(ends, default=None)

    def _stateful(self) -> dict[str, Any]:
        plugins = {name: m.plugin for name, m in self._bus.members.items()}
        return stateful(plugins)


def _trains(node: Node) -> bool:
    return isinstance(node.source, Operation) and node.source.trains


def _versions(taking_part: Sequence[Member]) -> dict[str, str]:
    """Return what takes part, for the manifest of a checkpoint."""
    shipped = (member.distribution for member in taking_part)
    plugins = dict(entry.rsplit(" ", 1) for entry in shipped if entry)
    return {"hookbus": version("hookbus"), "backend": "embedded", **plugins}
