"""Takes reports of a foreign loop between its steps: epochs, evaluations, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

from hookbus.backend.reports import ReportSession
from hookbus.errors import SessionClosedError, UsageError
from hookbus.hooks.context import SessionRunContext
from hookbus.lifecycle.requests import apply_between_steps
from hookbus.lifecycle.saves import note_saved
from hookbus.lifecycle.state import Phase, SessionState
from hookbus.logs import log_evaluation
from hookbus.loop.inputs import emit_between_steps
from hookbus.loop.step import Step
from hookbus.saving.contents import check_kept
from hookbus.step.backend_handle import BackendHandle
from hookbus.step.inside import check_evaluates
from hookbus.step.trace import OpenStep
from hookbus.validation import check_name, scalar_in


class TrainerEvents:
    """The methods of a driven session for what a trainer does between its steps.

    The session sets the attributes before its first event.
    """

    _state: SessionState
    _open: OpenStep | Step | None
    _evaluation: tuple[str | None, ExitStack] | None = None

    def epoch_began(self, epoch: int) -> None:
        """Note that an epoch begins: hooks see its number as ``run_context.epoch``.

        Args:
            epoch: its number, from 0.
        """
        self._check_created("epoch_began()")
        self._state.loop.epoch = epoch

    def epoch_ended(self, epoch: int) -> None:
        """Tell hooks that an epoch has ended, as ``epoch_ended``; serve their requests.

        Look at :attr:`stop` afterwards.

        Args:
            epoch: its number, from 0.

        Raises:
            UsageError: a step is open.
        """
        backend = self._check_created("epoch_ended()")
        self._check_between("epoch_ended()")
        state = self._state
        state.loop.epoch = epoch
        if not state.bus.caller("epoch_ended").reaches_nobody:
            emit_between_steps(state, "epoch_ended", session=backend.session, epoch=epoch)
        state.loop.epoch = None

    def evaluation_began(self, name: str | None = None) -> None:
        """Tell hooks that the loop evaluates the model, as ``evaluating``.

        This only tells: the loop itself puts modules into their modes, and takes care of
        random numbers. The clock of the training stands still until
        :meth:`evaluation_ended`. Hooks may swap values until then, like the averages of
        weights.

        Args:
            name: distinguishes several evaluations.

        Raises:
            UsageError: an evaluation is open, or the name has a slash.
            ArgumentTypeError: the name is not a str.
        """
        backend = self._check_created("evaluation_began()")
        check_name("the name of evaluation_began()", name)
        if self._evaluation is not None:
            raise UsageError(
                "evaluation_began() inside an evaluation: call evaluation_ended() first"
            )
        bus, around = self._state.bus, ExitStack()
        with around:
            around.enter_context(bus.clock.paused())
            session = backend.session
            around.enter_context(bus.around("evaluating", session=session, name=name))
            self._evaluation = name, around.pop_all()

    def evaluation_step(self, values: Mapping[str, Any]) -> None:
        """Show one batch of an evaluation to the hooks that see such steps.

        It counts no global step. In a step of the training that is open, nobody sees it.

        Args:
            values: the values of the batch by name, like its loss and its predictions. A
                function is called only if a hook asks for it.

        Raises:
            UsageError: a hook assigns a variable.
            UnfedPlaceholderError: a hook asks for a value that is not among them.
        """
        backend = self._check_created("evaluation_step()")
        if self._open is not None:
            return
        session = cast("ReportSession", backend.session)
        loop, last = self._state.loop, session.last
        between = loop.last_context
        try:
            with Step(self._state, "eval") as step:
                context = step.opened.context
                step.report(**values)
            assert context is not None
            check_evaluates(context)
        finally:
            # A request of hooks between two steps belongs to a step of the training.
            loop.last_context = between
            session.take_reports(last)

    def evaluation_ended(self, values: Mapping[str, Any], name: str | None = None) -> None:
        """Tell hooks how an evaluation ended, as ``evaluated``; serve their requests.

        Look at :attr:`stop` afterwards. If the loop has told no begin, this is an
        evaluation that hooks see only now. In a step that is open, hooks see its end, and
        their requests wait for the end of the step.

        Args:
            values: the metrics by name: numbers, or arrays with one. Other values are left
                out. Without any, hooks see no ``evaluated``.
            name: the name of the evaluation, if it was not told at its begin.
        """
        self._check_created("evaluation_ended()")
        if self._evaluation is not None and name is None:
            name = self._evaluation[0]
        self._leave_evaluation()
        check_name("the name of evaluation_ended()", name)
        found = {str(key): scalar_in(value) for key, value in values.items()}
        metrics = {key: number for key, number in found.items() if number is not None}
        if not metrics:
            return
        state, context = self._state, self._open_context
        log_evaluation(metrics, state.global_step, name)
        if context is None:
            emit_between_steps(state, "evaluated", metrics=metrics, name=name)
            return
        step, last = state.global_step, state.loop.last_context or context
        with nullcontext() if last is context else last.reopened():
            state.bus.emit("evaluated", metrics=metrics, name=name, global_step=step)
        if last is not context:
            state.requests.pass_on(last.asked, context.asked)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the session, for a checkpoint of the loop's own.

        That is the global step, the states and settings of hooks, their variables, and the
        hyperparameters: dicts with str keys, lists, numbers, strings, None, and arrays
        where hooks keep some. Waiting hooks are told of the steps without them first, so
        the state is that after the last step. Call it between two steps: in a step, it is
        the state after ``before_run``.

        Raises:
            CheckpointError: the state of a hook cannot be saved.
        """
        backend = self._check_saving("state_dict()")
        backend.stepper.flush_idle()
        return self._state.contents.kept(backend.session)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use a state from :meth:`state_dict`; before :meth:`created`, which applies it.

        The loop tells its own global step in ``created(global_step=...)``.

        Args:
            state: the state. Hooks that it lacks begin anew, and states of hooks that are
                not on are left out; the log names both.

        Raises:
            UsageError: the session was created before, or has a checkpoint directory of its
                own, from which it restores.
            CheckpointError: this is no such state.
        """
        self._check_begun("load_state_dict()")
        if self._state.backend is not None:
            raise UsageError("load_state_dict() after created(); call it before")
        if self._state.saver.checkpoints.directory is not None:
            raise UsageError(
                "load_state_dict() in a session with a checkpoint_dir, from which it "
                "restores: leave one of the two out"
            )
        check_kept(state)
        self._state.loop.handed = dict(state)

    def saved(self, path: str | Path) -> None:
        """Tell hooks that the loop has written a checkpoint, as ``after_save``.

        They may upload it, or stop the session: look at :attr:`stop` afterwards. The loop
        also announces the checkpoints that it writes without a request.

        Args:
            path: the file or directory of the checkpoint.

        Raises:
            UsageError: a step is open.
        """
        self._check_saving("saved()")
        self._check_between("saved()")
        state, context = self._state, self._state.loop.last_context
        note_saved(state, Path(path), context)
        is_open = state.phase is not Phase.CLOSED
        if is_open and state.requests.pending and not state.is_inside:
            apply_between_steps(state, context)

    def _leave_evaluation(self) -> None:
        """Leave an evaluation that the loop has left without its end."""
        if self._evaluation is not None:
            around, self._evaluation = self._evaluation[1], None
            around.close()

    @property
    def _open_context(self) -> SessionRunContext | None:
        """The context of the step that is open, or None."""
        opened, backend = self._open, self._state.backend
        if opened is None or backend is None:
            return None
        step = opened.opened if isinstance(opened, Step) else opened
        return backend.stepper.context_of(step)

    def _check_open(self, what: str) -> None:
        self._state.check_process()
        if self._state.phase is Phase.CLOSED:
            raise SessionClosedError(f"{what} after the end; create a new DrivenSession")

    def _check_begun(self, what: str) -> None:
        self._check_open(what)
        if self._state.phase is Phase.NEW:
            raise UsageError(f"{what} before begin(); call begin() first")

    def _check_created(self, what: str) -> BackendHandle:
        backend = self._state.backend
        if self._state.ready is None or backend is None:  # nearly never
            self._check_begun(what)
            if backend is None:
                raise UsageError(f"{what} before created(); call created() first")
        return backend

    def _check_saving(self, what: str) -> BackendHandle:
        """Check that a checkpoint may be written: also at the end, if a hook asks then."""
        state = self._state
        if state.phase is Phase.CLOSED and state.requests.stage != "over":
            assert state.backend is not None
            return state.backend
        return self._check_created(what)

    def _check_between(self, what: str) -> None:
        if self._open_context is not None:
            raise UsageError(f"{what} inside a step; call after_step() first")
