"""Carries a session in an Engine: follows its events, and ends with its run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
from ignite.engine import Engine, Events, State
from ignite.handlers import Checkpoint
from torch.optim import Optimizer

from hookbus import (
    CheckpointError,
    Config,
    DrivenSession,
    TrainerAdapter,
    UsageError,
    log,
)
from hookbus_ignite.outputs import Output, mean, without_graph

_NOT_COMPUTED = (
    Events.ITERATION_STARTED,
    Events.EXCEPTION_RAISED,  # a handler may keep the error, and the next epoch begins
    Events.EPOCH_COMPLETED,
)
"""The newest events of an engine that has no output of the iteration."""
_NO_STATE: Mapping[str, Any] = MappingProxyType({})


@attrs.frozen(eq=False)
class Parts:
    """The parts around an engine that trains; ``attach`` checks them.

    Attributes:
        tracked: the objects that hooks see, by name.
        evaluators: the engines that evaluate, by the names of their evaluations.
        output: names the values of the engine's output.
        evaluator_output: names those of the evaluators.
        checkpoint: writes a checkpoint; None if the training has none for hooks.
        accumulates: the number of iterations that make one update.
        params: the hyperparameters to record.
    """

    tracked: Mapping[str, Any]
    evaluators: Mapping[str, Engine]
    output: Output
    evaluator_output: Output
    checkpoint: Checkpoint | Callable[[Engine], Any] | None
    accumulates: int
    params: Mapping[str, Any]


class EngineBus(TrainerAdapter):
    """Runs hooks of hookbus in an Engine of Ignite; :func:`attach` returns it.

    A session begins with each ``engine.run()``, and ends when that returns or raises. A
    step is an iteration in which a tracked optimizer has made an update. With no optimizer,
    it is each iteration.

    An object of this class goes into the checkpoints of the engine, next to the engine
    itself: ``Checkpoint({"trainer": engine, "model": model, "bus": bus}, folder)``.
    """

    trainer_name = "Ignite's Engine"
    distribution = "hookbus-ignite"
    package = "pytorch-ignite"
    instead = MappingProxyType(
        {
            "skip": "use gradient_accumulation_steps= of create_supervised_trainer()",
            "feed": "change engine.state.batch in a handler of Events.ITERATION_STARTED",
            "rollback": "train in a loop with session.iterate()",
        }
    )
    saves = True

    def __init__(
        self,
        engine: Engine,
        parts: Parts,
        hooks: Iterable[Any] | None = None,
        *,
        config: Config | None = None,
        summary_dir: str | Path | None = None,
    ) -> None:
        super().__init__(hooks, config=config, summary_dir=summary_dir)
        self._engine, self._parts = engine, parts
        self._run_engine = engine.run
        writer = parts.checkpoint
        self._writer = writer if isinstance(writer, Checkpoint) else None
        self._kept: Mapping[str, Any] = _NO_STATE
        self._is_loaded = self._is_interrupted = False
        self._error: BaseException | None = None
        self._forget()
        self._updates: dict[str, int] = {}
        self._last: list[tuple[Engine, Any, Any]] = []
        for name, thing in parts.tracked.items():
            if isinstance(thing, Optimizer):
                self._updates[name] = 0
                thing.register_step_post_hook(partial(self._count, name))
        self._connect()
        # The engine tells nobody of the end of its run: a handler of EXCEPTION_RAISED would
        # keep the error, and handlers of COMPLETED may follow, which still train or save.
        vars(engine)["run"] = self._run

    def state_dict(self) -> dict[str, Any]:
        """Return the state of hooks: numbers and a text, for a checkpoint of the engine.

        It is the state after the newest iteration. In one that only accumulates gradients,
        it is the state after ``before_run``. Without a session, it is the state that was
        loaded, or that at the end of the last run.

        Raises:
            CheckpointError: the state of a hook cannot be saved.
        """
        if self._live is not None:
            with self._noting():
                self._take_computed()
                self._take_epoch()
        packed = self.packed_state()
        if packed is None:
            return dict(self._kept)
        assert self.session is not None
        step = self.session.global_step
        return {"iteration": self._engine.state.iteration, "step": step, "hooks": packed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the state of hooks from a checkpoint for the next run.

        Load that of the engine from the same checkpoint.

        Raises:
            UsageError: the engine runs.
            CheckpointError: this is no such state.
        """
        if self.is_open:
            raise UsageError(
                "load_state_dict() of the bus while the engine runs; load it before"
            )
        kinds = {"iteration": int, "step": int, "hooks": str}
        fits = isinstance(state, Mapping) and (not state or state.keys() == kinds.keys())
        if not fits or not all(isinstance(state[n], kinds[n]) for n in state):
            raise CheckpointError(
                "this is no state of hooks from a bus of hookbus-ignite: load what its "
                "state_dict() returned"
            )
        self._kept, self._is_loaded = dict(state), bool(state)

    def metrics(self) -> Mapping[str, Any]:
        """Return the metrics of the engine."""
        found: Mapping[str, Any] = self._engine.state.metrics
        return found

    def save(self) -> None:
        """Have the checkpoint written after the other handlers of the current event.

        Raises:
            UsageError: ``attach`` got nothing that writes one.
        """
        if self._parts.checkpoint is not None:
            self._is_save_due = True
            if not self.is_open:  # the session ends, and no event follows
                self._write()
        elif self.stop is None or self.stop.kind == "stopped":
            raise UsageError(
                "a hook asked for a checkpoint, and attach() got none: give it "
                "checkpoint=handler, a Checkpoint of Ignite or a function that writes one"
            )
        else:
            log.warning(
                "no checkpoint is written after the signal",
                why="attach() got no checkpoint=",
            )

    def _connect(self) -> None:
        """Add the handlers; those that have to be last are added again for each run."""
        engine = self._engine
        engine.add_event_handler(Events.STARTED, self._on_started)
        engine.add_event_handler(Events.EPOCH_STARTED, self._on_epoch_started)
        engine.add_event_handler(Events.ITERATION_STARTED, self._on_iteration_started)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._on_iteration_completed)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._on_epoch_completed)
        engine.add_event_handler(Events.INTERRUPT, self._on_interrupt)
        self._last = [
            (engine, Events.GET_BATCH_STARTED, self._on_next_batch),
            (engine, Events.ITERATION_COMPLETED, self._on_iteration_over),
            (engine, Events.EPOCH_COMPLETED, self._on_epoch_over),
        ]
        for name, evaluator in self._parts.evaluators.items():
            evaluator.add_event_handler(
                Events.STARTED, partial(self._on_evaluation_started, name)
            )
            self._last += [
                (evaluator, Events.ITERATION_COMPLETED, self._on_evaluation_step),
                (evaluator, Events.EPOCH_COMPLETED, self._on_evaluation_over),
                (evaluator, Events.COMPLETED, partial(self._on_evaluated, name)),
            ]
        for of, event, handler in self._last:
            of.add_event_handler(event, handler)

    def _run(self, *args: Any, **settings: Any) -> State:
        """Run the engine, as its method ``run``, with a session around that."""
        given = signature(self._run_engine).bind(*args, **settings).arguments
        if self._was_complete(given.get("max_epochs"), given.get("max_iters")):
            return self._engine.state
        for of, event, handler in self._last:
            of.remove_event_handler(handler, event)
            of.add_event_handler(event, handler)
        try:
            if self._is_interrupted:
                self._resume()
            state = self._run_engine(*args, **settings)
            if self._error is not None:  # a handler of EXCEPTION_RAISED has kept it
                raise self._error
            self._settle()
        except BaseException as error:
            self._error = None
            self.fail(error)
            raise
        self.end()
        return state

    def _was_complete(self, max_epochs: int | None, max_iters: int | None) -> bool:
        """Return whether the engine was loaded at its end; it would train anew."""
        state, end = self._engine.state, None
        epochs = max_epochs or state.max_epochs
        if max_iters or getattr(state, "max_iters", None):
            end = max_iters or state.max_iters
        elif epochs and state.epoch_length:
            end = epochs * state.epoch_length
        if not self._is_loaded or end is None or state.iteration < end:
            return False
        log.info(
            "the training was complete when it was saved: nothing is run",
            iteration=state.iteration,
            to_go_on="run the engine with a larger max_epochs or max_iters",
        )
        return True

    def _begin(self) -> None:
        """Begin a session at the iteration of the engine."""
        state, kept, is_loaded = self._engine.state, self._kept, self._is_loaded
        self._kept, self._is_loaded = _NO_STATE, False
        here = state.iteration
        if kept and kept["iteration"] != here:
            if is_loaded:
                raise CheckpointError(
                    f"the state of hooks is that of iteration {kept['iteration']}, and the "
                    f"engine is at iteration {here}: load both from one checkpoint"
                )
            kept = _NO_STATE  # the engine trains anew
        of_each = self._parts.accumulates
        step = kept["step"] if kept else here // of_each
        last = getattr(state, "max_iters", None)
        if last is None and state.max_epochs and state.epoch_length:
            last = state.max_epochs * state.epoch_length
        goes_on = self.start(
            self._parts.tracked,
            global_step=step,
            last_step=None if last is None else step + last // of_each - here // of_each,
            state=kept["hooks"] if kept else None,
            params=self._parts.params,
        )
        if not goes_on:
            self._engine.terminate()

    def _forget(self) -> None:
        """Forget what is known of the run before."""
        self._batches: list[Mapping[str, Any]] = []
        self._computes = self._is_save_due = self._has_stepped = False
        self._epoch: int | None = None
        self._is_epoch_over = False
        self._told: tuple[str | Path | None, int] = None, 0

    def _resume(self) -> None:
        """Begin a session for the rest of a run that was interrupted."""
        self._is_interrupted = False
        epoch = self._engine.state.epoch - 1
        self._begin()
        if self.session is not None:
            self._epoch = epoch
            self.session.epoch_began(epoch)

    def _settle(self) -> None:
        """Do what is left when the run is over, and keep the state of hooks."""
        if not self.is_open:
            return
        if not self._is_interrupted:
            self.step_is_left()
        self._serve()
        with contextlib.suppress(CheckpointError):  # nobody has asked for it so far
            self._kept = self.state_dict()

    def _on_started(self) -> None:
        with self._noting():
            self._forget()
            self._updates = dict.fromkeys(self._updates, 0)
            if self._writer is not None:
                self._told = self._writer.last_checkpoint, 0
            self._begin()

    def _on_epoch_started(self, engine: Engine) -> None:
        if (session := self._live) is not None:
            self._epoch, self._is_epoch_over = engine.state.epoch - 1, False
            session.epoch_began(self._epoch)

    def _on_iteration_started(self, engine: Engine) -> None:
        """Begin a step, unless one is open; a stop comes before it."""
        session = self._live
        if session is None or session.stop is not None:
            engine.terminate()
            return
        self._computes = True
        try:  # as _noting() does, which takes longer, and this runs in each iteration
            self.step_begins()
        except BaseException as error:
            self._error = error
            raise

    def _take_computed(self) -> None:
        """End the step, if the engine has computed an update since it began.

        Handlers that come before that of the bus may need it, to evaluate or to save.
        """
        if self._engine.last_event_name not in _NOT_COMPUTED:
            self._on_iteration_completed()

    def _on_iteration_completed(self) -> None:
        """Take what the engine has computed; end the step if there was an update."""
        if not self._computes:
            return
        self._computes = False
        try:  # as above
            values = self._parts.output.values(self._engine.state.output)
            updates = max(self._updates.values(), default=1)
            if not updates:
                self._batches.append(without_graph(values))
                return
            for name in self._updates:
                self._updates[name] = 0
            if self._batches:
                values, self._batches = mean([*self._batches, values]), []
            self._has_stepped = True
            self.step_ended(values, updates)
        except BaseException as error:
            self._error = error
            raise

    def _on_iteration_over(self, engine: Engine) -> None:
        """Save and stop, at the end of an epoch only after its own handlers."""
        state = engine.state
        length = state.epoch_length
        self._serve(waits=bool(length) and state.iteration % length == 0)

    def _on_epoch_completed(self) -> None:
        self._is_epoch_over = True

    def _on_epoch_over(self) -> None:
        with self._noting():
            self._is_epoch_over = True
            self._take_epoch()
            if self._live is not None and self._updates and not self._has_stepped:
                self._has_stepped = True
                log.warning(
                    "the tracked optimizer has made no update, and no hook sees a step",
                    why="give attach() the optimizer that the process function uses",
                )
        self._serve()

    def _take_epoch(self) -> None:
        """Tell hooks that the epoch has ended, once."""
        at_end = self._engine.last_event_name == Events.EPOCH_COMPLETED
        if self._epoch is None or not (at_end or self._is_epoch_over):
            return
        epoch, self._epoch, self._computes = self._epoch, None, False
        if (session := self._live) is not None:
            self.step_is_left()
            session.epoch_ended(epoch)

    def _on_interrupt(self) -> None:
        self._is_interrupted = True

    def _on_next_batch(self) -> None:
        """Do what has waited in vain: the epoch has ended earlier than was planned."""
        self._serve()

    def _on_evaluation_started(self, name: str) -> None:
        if (session := self._live) is not None:
            with self._noting():
                self._take_computed()
                self._on_evaluation_over()  # of one that was left by an error
                session.evaluation_began(name)

    def _on_evaluation_step(self, evaluator: Engine) -> None:
        if (session := self._live) is not None:
            with self._noting():
                values = self._parts.evaluator_output.values(evaluator.state.output)
                session.evaluation_step(values)

    def _on_evaluation_over(self) -> None:
        """Give back what hooks have swapped, so that handlers save the model itself."""
        if (session := self._live) is not None:
            with self._noting():
                session.evaluation_ended({})

    def _on_evaluated(self, name: str, evaluator: Engine) -> None:
        if (session := self._live) is not None:
            with self._noting():
                session.evaluation_ended(evaluator.state.metrics, name)

    def _serve(self, waits: bool = False) -> None:
        """Report a new checkpoint, write one that is due, and have the engine stop."""
        if self._error is not None:
            self._engine.terminate()
            return
        if self.running is None:
            return
        try:  # as above
            if self._writer is not None and self._writer.last_checkpoint != self._told[0]:
                self._tell(self._writer.last_checkpoint)
            if waits:
                return
            stop = self.stop
            if self._is_save_due and self._request is None:
                self._write()
                stop = stop or self.stop
            if stop is not None:
                self._engine.terminate()
        except BaseException as error:
            self._error = error
            raise

    def _write(self) -> None:
        """Write the checkpoint that is due."""
        self._is_save_due = False
        checkpoint = self._parts.checkpoint
        assert checkpoint is not None
        written = checkpoint(self._engine)
        self._tell(written if self._writer is None else self._writer.last_checkpoint)

    def _tell(self, path: str | Path | None) -> None:
        """Tell hooks of a checkpoint, once; within a step they have to wait."""
        told = path, self._engine.state.iteration
        if path is None or told == self._told or self._request is not None:
            return
        if (session := self.running) is not None:
            self._told = told
            session.saved(path)

    def _count(self, name: str, *_: Any) -> None:
        """Count an update of an optimizer."""
        self._updates[name] += 1

    @property
    def _live(self) -> DrivenSession | None:
        """The session, if it is open and nothing in it has failed."""
        return self.running if self._error is None else None

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Note an error of the session, which leaves ``run()`` whatever handlers do."""
        try:
            yield
        except BaseException as error:
            self._error = error
            raise
