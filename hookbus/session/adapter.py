"""Provides the base of adapters, which carry a session in the trainer of a package."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Self

from hookbus.checkpoint.packing import pack, unpack
from hookbus.config.config import Config
from hookbus.errors import ArgumentTypeError, TrainingError, UsageError
from hookbus.graph.node import METRICS, REPORTED
from hookbus.graph.report_graph import ReportGraph
from hookbus.hooks.hook import HookObject
from hookbus.hooks.outcome import NOBODY, Outcome, StopReason, is_swallowed
from hookbus.hooks.requests import ForeignLoop, Served
from hookbus.logs import log
from hookbus.plugin.requirements import check_in_range
from hookbus.session.driven import DrivenSession, StepRequest
from hookbus.session.foreign import LEFT_OPEN
from hookbus.validation import plain_params

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class TrainerAdapter:
    """Carries a session in the trainer of another package.

    A subclass connects one trainer, usually as a callback of it. It calls :meth:`start`
    when the training begins, :meth:`step_begins` and :meth:`step_ended` around each step of
    the optimizer, the methods of :attr:`session` for epochs and evaluations, and
    :meth:`end` or :meth:`fail`. Errors that these methods raise are for the trainer: they
    have to leave its loop.

    Used as a block, the adapter ends the session of a trainer that tells nobody of errors.

    Args:
        hooks: hook objects, called after all plugins, in this order.
        config: which plugins are on; by default the process's.
        summary_dir: the directory for summaries; it switches on summary-saver and
            step-counter.

    Attributes:
        session: the session of the newest training; None before the first one.

    Raises:
        UsageError: the installed version of the trainer is out of range.

    >>> class EpochAdapter(TrainerAdapter):
    ...     trainer_name = "a loop of epochs"
    >>> quiet = Config(autoload=False, header=False)
    >>> with EpochAdapter(config=quiet) as adapter:
    ...     if adapter.start({"model": {"w": 0.0}}, last_step=2):
    ...         for _ in range(2):
    ...             adapter.step_begins()
    ...             adapter.step_ended({"loss": 0.5})
    ...         adapter.end()
    >>> adapter.outcome.kind, adapter.outcome.step
    ('completed', 2)
    """

    trainer_name: ClassVar[str] = "the trainer"
    """The name of the trainer, for messages."""
    distribution: ClassVar[str] = ""
    """The distribution of the adapter, whose requirements name versions of the trainer."""
    package: ClassVar[str] = ""
    """The distribution of the trainer."""
    instead: ClassVar[Mapping[Served, str]] = MappingProxyType({})
    """Advice for the user, by a request that the trainer does not serve."""
    saves: bool = False
    """Whether the trainer writes a checkpoint when :meth:`save` is called."""

    def __init__(
        self,
        hooks: Iterable[HookObject] | None = None,
        *,
        config: Config | None = None,
        summary_dir: str | Path | None = None,
    ) -> None:
        if self.distribution:
            check_in_range(self.distribution, self.package)
        self._arguments = tuple(hooks or ()), config, summary_dir
        self.session: DrivenSession | None = None
        self._request: StepRequest | None = None
        self._known: StepRequest | None = None
        self._asks_more = self._has_warned = False
        self._stop: StopReason | None = None

    @property
    def outcome(self) -> Outcome | None:
        """How the newest training ended; None before its end."""
        return None if self.session is None else self.session.outcome

    @property
    def running(self) -> DrivenSession | None:
        """The session as long as it is open; None before its begin and after its end."""
        session = self.session
        return session if session is not None and session.outcome is None else None

    @property
    def is_open(self) -> bool:
        """Whether a session is open."""
        return self.running is not None

    @property
    def stop(self) -> StopReason | None:
        """Why the training should end, or None."""
        return None if self.session is None else self.session.stop

    def save(self) -> None:
        """Have the trainer write a checkpoint, now or soon; then call ``session.saved()``.

        It is called for hooks, and after a signal, if :attr:`saves` is true.
        """

    def metrics(self) -> Mapping[str, Any]:
        """Return the values that the trainer has logged by now, by name.

        It is called at the end of a step in which a hook asks for more than
        :meth:`step_ended` gets.
        """
        return _NOTHING

    def start(
        self,
        tracked: Mapping[str, Any],
        *,
        global_step: int = 0,
        last_step: int | None = None,
        state: str | None = None,
        params: Mapping[str, Any] = _NOTHING,
        resumes: bool = True,
    ) -> bool:
        """Begin a session; return whether there is something to train.

        If there is not, a hook has stopped the training: it must do no step.

        Args:
            tracked: the model, the optimizers and whatever else hooks may read and change,
                by the names that their parts get.
            global_step: the number of steps that were done before.
            last_step: the step at which the trainer will end, if that is known.
            state: what :meth:`packed_state` returned for the checkpoint from which the
                trainer resumes. Without it hooks begin anew.
            params: hyperparameters to record; values that are not plain are left out.
            resumes: whether earlier steps come from a checkpoint of the trainer. Without
                one, there is no state of hooks to miss.

        Raises:
            UsageError: a hook needs what the trainer does not do, or changes values that it
                does not pass through hooks.
            CheckpointError: this is no such state.
        """
        left = self.running
        if left is not None:
            left.failed(TrainingError(LEFT_OPEN))
        hooks, config, summary_dir = self._arguments
        session = self.session = DrivenSession(
            hooks=hooks,
            config=config,
            save=_weakly(self.save) if self.saves else None,
            loop=self.trainer_name,
            instead=self.instead,
            summary_dir=summary_dir,
        )
        self._request = self._known = self._stop = None
        self._has_warned = False
        try:
            session.begin(last_step)
            if state is not None:
                session.load_state_dict(unpack(state))
            elif global_step and resumes:
                log.warning(
                    "the checkpoint of the trainer has no state of hooks",
                    step=global_step,
                    why="it was written without this adapter; the hooks begin anew",
                )
            session.created(global_step=global_step)
            session.track(**tracked)
            self._check_wraps(session)
            plain = _plain(params)
            if plain:
                session.record(plain)
        except BaseException as error:
            session.failed(error)
            raise
        self._stop = session.stop
        return self._stop is None

    def packed_state(self) -> str | None:
        """Return the state of hooks as a text, for a checkpoint of the trainer's own.

        None without a session. Call it between two steps.

        Raises:
            CheckpointError: the state of a hook cannot be saved.
        """
        session = self.running
        return None if session is None else pack(session.state_dict())

    def step_begins(self) -> None:
        """Begin a step, unless one is open: several batches may make one update."""
        if self._request is not None:
            return
        if self._stop is not None:
            self._warn_of_stop(self._stop)
            return
        assert self.session is not None
        self._request = self.session.before_step()

    def step_ended(
        self, values: Mapping[str, Any], increment: int = 1
    ) -> StopReason | None:
        """End the step, whose update is done; return why the training should end, or None.

        Args:
            values: its values by name. A function is called only if a hook asks for it.
            increment: the number of updates that the trainer has done in it.
        """
        request, self._request = self._request, None
        if request is None:
            return self._stop
        assert self.session is not None
        if request is not self._known:
            self._known = request
            self._asks_more = self._lacks(request.fetches, values)
        if self._asks_more:
            values = {**self.metrics(), **values}
        self._stop = self.session.after_step(values, increment=increment)
        return self._stop

    def step_is_left(self) -> None:
        """Forget the step that has begun: there was no update, so it does not count."""
        if self._request is not None and self.session is not None:
            self._request = None
            self.session.cancel_step()

    def end(self) -> None:
        """End the session, because the trainer has come to its end.

        Raises:
            KeyboardInterrupt, SystemExit: a signal ended the training.
            BaseException: the error of a hook's ``end``.
        """
        session = self.running
        if session is not None:
            self._request = None
            session.end()

    def fail(self, error: BaseException) -> Outcome | None:
        """End the session because of an error, which the trainer raises further.

        Args:
            error: the error that ends the training.

        Raises:
            KeyboardInterrupt, SystemExit: a signal ended the training.
        """
        session = self.running
        if session is None:
            return None
        self._request = None
        return session.failed(error)

    def check_alone(self, others: Iterable[Any]) -> None:
        """Check that a trainer has one adapter.

        Args:
            others: the callbacks of the trainer, with this one.

        Raises:
            UsageError: it has two.
        """
        if any(isinstance(each, type(self)) and each is not self for each in others):
            raise UsageError(
                f"{self.trainer_name} has two callbacks of {self.distribution}: give it "
                "one, with all hooks"
            )

    def _lacks(self, names: Collection[str], values: Mapping[str, Any]) -> bool:
        """Return whether hooks ask for values that are neither given nor tracked."""
        assert self.session is not None
        graph = self.session.graph
        assert isinstance(graph, ReportGraph)
        reported = (
            n
            for n in names
            if n in (METRICS, REPORTED) or graph.nodes[n].kind == "placeholder"
        )
        return any(n not in values and not graph.is_held(n) for n in reported)

    def _check_wraps(self, session: DrivenSession) -> None:
        """Refuse hooks that change values which the trainer does not pass through them.

        Raises:
            UsageError: there is one.
        """
        graph = session.graph
        assert isinstance(graph, ReportGraph)
        for name, wraps in graph.wraps.items():
            if graph.live_value(name) is None:
                who = graph.nodes[wraps[0]].owner or NOBODY
                ForeignLoop(name=self.trainer_name, instead=self.instead).check(
                    "feed", who, f"changes {name!r}"
                )

    def _warn_of_stop(self, stop: StopReason) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the trainer goes on after a stop, and no hook sees that",
                by=stop.who,
                why=stop.why,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            self.end()
            return False
        return is_swallowed(error, self.fail(error))


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function for a method that does not keep its object.

    An adapter that a trainer drops takes its session along, which then ends as failed.
    """
    found = weakref.WeakMethod(method)

    def call() -> None:
        bound = found()
        if bound is not None:
            bound()

    return call


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some hyperparameters that can be recorded."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        with contextlib.suppress(ArgumentTypeError):
            found |= plain_params({name: value})
    return found
