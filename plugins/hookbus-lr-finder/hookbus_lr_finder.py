"""Finds a learning rate: raises it step by step, and looks where the loss falls."""

from __future__ import annotations

from pathlib import Path

import attrs
from attrs import field
from hookbus_lr_finder_sweep import Sweep

import hookbus
from hookbus import Graph, Session, SessionRunArgs, SessionRunHook, UsageError

_NAME, _RATES = "lr-finder", ("lr", "learning_rate")
_POSITIVE = hookbus.numeric(above=0)


@attrs.define(eq=False)
class LRFinderHook(SessionRunHook):
    """Tests growing learning rates, and writes a table and a picture of the losses.

    In a graph it tests them on a fork, before the training starts, which is not changed. A
    custom loop does the steps itself: the session ends behind them, and saves nothing.

    Args:
        min_lr: the first learning rate.
        max_lr: the last one.
        steps: how many are tested. It ends earlier when the loss is 4 times its lowest.
        loss: the node of the loss.
        train_op: the train op of a graph.
        variable: the learning rate; by default the only ``lr`` or ``learning_rate``.
        output_dir: where ``lr-finder.csv`` and ``lr-finder.svg`` go.

    Raises:
        UsageError: a setting is not valid, there is no such variable, or the backend cannot
            fork a session.
    """

    min_lr: float = field(default=1e-6, validator=_POSITIVE)
    max_lr: float = field(default=10.0, validator=_POSITIVE)
    steps: int = field(default=100, validator=hookbus.numeric(least=2, whole=True))
    loss: str = "loss"
    train_op: str = "train"
    variable: str | None = None
    output_dir: str = "."
    sweep: Sweep = field(init=False)
    _session: Session | None = field(default=None, init=False)
    _custom: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.sweep = Sweep(self.min_lr, self.max_lr, self.steps)
        if self.min_lr >= self.max_lr:
            raise UsageError(
                f"invalid min_lr={self.min_lr!r}. LRFinderHook expects less than max_lr."
            )

    def begin(self, graph: Graph) -> None:
        """Look the loss up."""
        graph.resolve(self.loss, f"the setting loss of {_NAME}")
        self.sweep.losses.clear()
        self._custom = graph.takes_reports

    def after_create_session(self, session: Session) -> None:
        """Test the rates on a fork, with the inputs from their start."""
        self._session = session
        if self._custom or session.global_step:
            return
        self.sweep.losses.clear()
        fork = session.fork("fresh")
        with hookbus.undisturbed():  # an op may draw numbers
            while not self.sweep.is_over:
                self._set_rate(fork)
                loss, _ = fork.run([self.loss, self.train_op])
                self.sweep.losses.append(float(loss))
        fork.close()
        self._report()

    def before_run(self) -> SessionRunArgs | None:
        """Give a custom loop its learning rate, and ask for the loss."""
        if not self._custom or self._session is None:
            return None
        self._set_rate(self._session)
        return SessionRunArgs(self.loss)

    def after_run(
        self, run_context: hookbus.SessionRunContext, run_values: hookbus.SessionRunValues
    ) -> None:
        """End a custom loop when its rates are tested."""
        if self._custom:
            self.sweep.losses.append(float(run_values.results))
            if self.sweep.is_over:
                self._report()
                run_context.request_stop("the learning rates are tested")

    @hookbus.hookimpl
    def before_save(self) -> str | None:
        """Refuse to save what a custom loop has trained with these rates."""
        return "it is a test of learning rates" if self._custom else None

    def _set_rate(self, session: Session) -> None:
        own, values = self.variable, session.variables()
        names = [n for n in values if (n == own if own else n.split(".")[-1] in _RATES)]
        if len(names) != 1:
            found = f"{' and '.join(names) or 'no variable'} can be the learning rate"
            raise UsageError(f"{_NAME}: {found}; name it with --{_NAME}-variable")
        session.write({names[0]: self.sweep.rates[len(self.sweep.losses)]})

    def _report(self) -> None:
        path, best = self.sweep.write(Path(self.output_dir)), self.sweep.best
        rate = None if best is None else float(f"{best:.2g}")
        tested = len(self.sweep.losses)
        hookbus.log.info("learning rates tested", tested=tested, lr=rate, picture=str(path))
