"""Finds a learning rate: raises it step by step, and looks where the loss falls."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import attrs
from attrs import field

import hookbus
from hookbus import Bus, Graph, Session, SessionRunArgs, SessionRunHook, UsageError
from hookbus.evaluating import undisturbed
from hookbus.validation import numeric
from hookbus_lr_finder.sweep import NAME, Sweep

_POSITIVE = numeric(above=0)


@attrs.define(eq=False)
class LRFinderHook(SessionRunHook):
    """Tests growing learning rates, and writes a table and a picture of the losses.

    It emits ``file_written`` with the picture, which trackers send to their servers.

    In a graph it tests them on a fork, before the training starts, which is not changed. A
    custom loop does the steps itself: the session ends after them, and saves nothing. If
    several ranks run it, they test the rates on the mean of their losses.

    Args:
        min_lr: the first learning rate.
        max_lr: the last one.
        steps: how many are tested; fewer if the loss diverges, or the input ends.
        loss: the node of the loss.
        train_op: the train op of a graph.
        variable: the learning rate; by default the only ``lr`` or ``learning_rate``.
        output_dir: where ``lr-finder.csv`` and ``lr-finder.svg`` go; by default beside the
            checkpoints, or without any in the current directory.

    Raises:
        UsageError: a setting is not valid, there is no such variable, the loss is not a
            number, or the session cannot do the steps of a test by itself.

    >>> hook = LRFinderHook(min_lr=1e-5, max_lr=1.0, steps=50, variable="learning_rate")
    >>> hook.steps, hook.loss, hook.train_op
    (50, 'loss', 'train')
    """

    min_lr: float = field(default=1e-6, validator=_POSITIVE)
    max_lr: float = field(default=10.0, validator=_POSITIVE)
    steps: int = field(default=100, validator=numeric(least=2, whole=True))
    loss: str = "loss"
    train_op: str = "train"
    variable: str | None = None
    output_dir: str | None = None
    sweep: Sweep = field(init=False)
    _session: Session | None = field(default=None, init=False)
    _checkpoints: hookbus.Checkpoints | None = field(default=None, init=False)
    _custom: bool = field(default=False, init=False)
    _is_chief: bool = field(default=True, init=False)
    _variable: str | None = field(default=None, init=False)
    _bus: Bus | None = field(default=None, init=False)
    _picture: Path | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.sweep = Sweep(self.min_lr, self.max_lr, self.steps)
        if self.min_lr >= self.max_lr:
            raise UsageError(
                f"invalid min_lr={self.min_lr!r}. LRFinderHook expects less than max_lr."
            )

    @hookbus.hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus, which tells other hooks of the picture."""
        self._bus = bus

    def begin(self, graph: Graph, checkpoints: hookbus.Checkpoints, rank: int) -> None:
        """Look the loss up."""
        graph.resolve(self.loss, f"the setting loss of {NAME}")
        self.sweep.losses.clear()
        self._custom, self._checkpoints = graph.takes_reports, checkpoints
        self._picture = None
        self._is_chief = rank == 0

    def after_create_session(self, session: Session) -> None:
        """Test the rates on a fork, with the inputs from their start."""
        self._session, self._variable = session, None
        if self._custom or session.global_step:
            return
        self.sweep.losses.clear()
        # An op may draw numbers.
        with closing(session.fork("fresh")) as fork, undisturbed():
            self.sweep.test(fork, self._rate_in(fork), self.loss, self.train_op)
        self._report()

    @hookbus.hookimpl
    def before_training(self, session: Session) -> None:
        """Announce the picture of a graph's test, now that all hooks have started."""
        self._announce(session)

    def before_run(self) -> SessionRunArgs | None:
        """Give a custom loop its learning rate, and ask for the loss."""
        if self._custom and self._session is not None and not self.sweep.is_over:
            name = self._rate_in(self._session)
            now = self._session.variables()[name]  # with a rate for each group, perhaps
            self._session.write({name: now * 0.0 + self.sweep.next_rate})
        return SessionRunArgs(self.loss, reduce="mean") if self._custom else None

    def after_run(
        self, run_context: hookbus.SessionRunContext, run_values: hookbus.SessionRunValues
    ) -> None:
        """End a custom loop when its rates are tested."""
        if not self._custom or self.sweep.is_over:  # several ranks end some steps later
            return
        self.sweep.take(run_values.results, self.loss)
        if self.sweep.is_over:
            run_context.request_stop("the learning rates are tested")

    @hookbus.hookimpl
    def veto_save(self) -> str | None:
        """Refuse to save a model that a custom loop has trained with these rates."""
        return "it is a test of learning rates" if self._custom else None

    def end(self, session: Session) -> None:
        """Report the rates that a custom loop has tested; it may have ended early."""
        if self._custom:
            self._report()
            self._announce(session)

    def _rate_in(self, session: Session) -> str:
        if self._variable is None:
            self._variable = hookbus.learning_rate_variable(session, self.variable, NAME)
        return self._variable

    def _report(self) -> None:
        if not self._is_chief:
            return
        beside = None if self._checkpoints is None else self._checkpoints.directory
        why = "the loop ended" if self._custom else "the input ended"
        self._picture = self.sweep.report(Path(self.output_dir or beside or "."), why)

    def _announce(self, session: Session) -> None:
        path, self._picture = self._picture, None
        if path is not None and self._bus is not None:
            self._bus.emit("file_written", path=path, global_step=session.global_step)
