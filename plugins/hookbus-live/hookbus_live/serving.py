"""Does what the page asks, in the thread of the training, through a hook's own requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar

import attrs

from hookbus import Checkpoints, Session, SessionRequests, SessionRunContext, log
from hookbus.errors import HookbusError, summary_of, text_of
from hookbus_live.requests import (
    Asked,
    Assign,
    Follow,
    Hold,
    Inbox,
    RefusedError,
    Save,
    Shape,
    Stop,
)

_WHY = "asked for on the page"
_RATES = ("lr", "learning_rate")
_MOST_GROUPS = 64
MOST_VARIABLES = 200
"""The most scalar variables that the page lists."""


@attrs.frozen
class Schedule:
    """A way of a variable from one value to another.

    Attributes:
        start: the global step at which it begins.
        steps: how many steps it takes.
        first: the value at the start.
        to: the value at the end.
        shape: how it goes there.
    """

    start: int
    steps: int
    first: float
    to: float
    shape: Shape

    def at(self, step: int) -> float:
        """Return the value after a step.

        >>> Schedule(10, 4, 1.0, 0.0, "cosine").at(12)
        0.5
        """
        done = min(max((step - self.start) / self.steps, 0.0), 1.0)
        if self.shape == "exponential":
            return float(self.first * (self.to / self.first) ** done)
        if self.shape == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.first * (1 - done) + self.to * done

    def is_over(self, step: int) -> bool:
        """Return whether the variable has its last value."""
        return step >= self.start + self.steps

    def __str__(self) -> str:
        end = self.start + self.steps
        return f"{self.first:g} to {self.to:g}, step {self.start} to {end}, {self.shape}"


@attrs.define(eq=False)
class Servant:
    """Serves the requests of a page, each with the result or with the reason against it.

    Attributes:
        inbox: the requests.
        who: the name of the plugin.
        checkpoints: whether and where the session saves.
        requests: takes requests of the session, and tells what becomes of them.
        ranks: how many processes train together.
        schedules: the schedules, by variable.
        stop_after_epoch: the request to stop when the epoch ends, or None.
    """

    inbox: Inbox
    who: str
    checkpoints: Checkpoints
    requests: SessionRequests
    ranks: int = 1
    schedules: dict[str, Schedule] = attrs.field(factory=dict)
    stop_after_epoch: Stop | None = None

    schedule_form: ClassVar[Any] = {
        str: {"start": int, "steps": int, "first": float, "to": float, "shape": str}
    }

    @property
    def wants_each_run(self) -> bool:
        """Whether it has something to do in each run."""
        return bool(self.schedules) or self.stop_after_epoch is not None

    def serve(self, run: SessionRunContext, step: int) -> None:
        """Do what is asked for, and what the schedules want.

        Args:
            run: the context of the run that has just ended.
            step: the global step.
        """
        for asked in self.inbox.take():
            try:
                result = self._do(asked, run, step)
            except HookbusError as error:
                self._refuse(asked, text_of(error))
            except Exception as error:  # of a backend; the page hears of it
                self._refuse(asked, summary_of(error))
            else:
                log.info(
                    "asked on the page", what=str(asked.action), step=step, by=self.who
                )
                if result is not None:
                    asked.future.set_result(result)
        for name, schedule in [*self.schedules.items()]:
            self._assign(run, name, schedule.at(step))
            if schedule.is_over(step):
                del self.schedules[name]

    def _refuse(self, asked: Asked, why: str) -> None:
        log.warning(
            "a request of the page was refused",
            what=str(asked.action),
            why=why,
            by=self.who,
        )
        asked.future.set_exception(RefusedError(why))

    def _do(self, asked: Asked, run: SessionRunContext, step: int) -> str | None:
        """Do it, and return how in words; None if the request is answered later."""
        action = asked.action
        if isinstance(action, Save):
            self._save(asked, action)
            return None
        if isinstance(action, Stop):
            return self._stop(action, run, step)
        self._check_variable(action.name, run.session)
        if isinstance(action, Hold):
            if self.schedules.pop(action.name, None) is None:
                raise RefusedError(f"{action.name} has no schedule of this page")
            return f"ended at step {step}"
        if isinstance(action, Assign):
            if action.name in self.schedules:
                raise RefusedError(f"{action.name} has a schedule; end it first")
            self._assign(run, action.name, action.value)
            return f"set after step {step}"
        return self._follow(action, run, step)

    def _save(self, asked: Asked, action: Save) -> None:
        checkpoints = self.checkpoints
        if checkpoints.enabled_by is None and checkpoints.written_by is None:
            raise RefusedError(
                "no plugin saves checkpoints: give the session checkpoint_dir, or "
                "hookbus run --checkpoint-dir DIR -p checkpoint-saver; the trainer of "
                "another package has to save them itself"
            )
        saved = self.requests.request_save(_WHY, keep=action.keep)
        saved.add_done_callback(partial(self._answer_save, asked))

    def _answer_save(self, asked: Asked, saved: Future[int]) -> None:
        error = saved.exception()
        if error is None:
            asked.future.set_result(f"a checkpoint of step {saved.result()} is saved")
        else:
            self._refuse(asked, text_of(error))

    def _stop(self, action: Stop, run: SessionRunContext, step: int) -> str:
        if not action.after_epoch:
            run.request_stop(_reason(action))
            return f"stopping after step {step}"
        if run.epoch is None:
            raise RefusedError(
                "the training has no epochs that hookbus knows: it does not call "
                "session.iterate or session.enumerate"
            )
        self.stop_after_epoch = action
        return f"stopping when epoch {run.epoch} ends"

    def _follow(self, action: Follow, run: SessionRunContext, step: int) -> str:
        first = _number_of(run.session.variables()[action.name])
        if action.shape == "exponential" and (first <= 0 or action.to <= 0):
            raise RefusedError("an exponential schedule needs values above 0 at both ends")
        schedule = Schedule(step, action.steps, first, action.to, action.shape)
        self._assign(run, action.name, schedule.at(step))  # it may be refused
        self.schedules[action.name] = schedule
        return str(schedule)

    def _check_variable(self, name: str, session: Session) -> None:
        if self.ranks > 1:
            raise RefusedError(
                f"{self.ranks} processes train together, and only the first one has this "
                "page: it cannot change a variable"
            )
        if name not in scalars_of(session):
            raise RefusedError(f"there is no scalar variable {name!r}")

    def _assign(self, run: SessionRunContext, name: str, value: float) -> None:
        now = run.session.variables()[name]
        if getattr(now, "shape", ()):  # one number for each group of an optimizer
            run.assign({name: now * 0.0 + value})
        else:
            is_whole = isinstance(now, int) or _kind_of(now) in "iu"
            if is_whole and value != int(value):
                raise RefusedError(f"{name} is a whole number")
            run.assign({name: int(value) if is_whole else value})

    def epoch_ended(self, run: SessionRunContext | None) -> None:
        """Stop if that was asked for.

        Args:
            run: the context of the last run.
        """
        action, self.stop_after_epoch = self.stop_after_epoch, None
        if action is not None and run is not None:
            run.request_stop(_reason(action))

    def state_dict(self) -> dict[str, Any]:
        """Return the schedules."""
        return {name: attrs.asdict(each) for name, each in self.schedules.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the schedules of a checkpoint."""
        self.schedules = {name: Schedule(**each) for name, each in state.items()}


def scalars_of(session: Session) -> list[str]:
    """Return the names of the variables that are one number, the learning rates first."""
    found = [
        name
        for name, record in session.describe().items()
        if record.shape == () or (is_rate(name) and record.shape < (_MOST_GROUPS,))
    ]
    return sorted(found, key=lambda name: (not is_rate(name), name))


def is_rate(name: str) -> bool:
    """Return whether a variable is named as learning rates are."""
    return name.rpartition(".")[2] in _RATES


def _reason(action: Stop) -> str:
    return f"{_WHY}: {action.why}" if action.why else _WHY


def _kind_of(value: Any) -> str:
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    return kind if isinstance(kind, str) else "f"


def _number_of(value: Any) -> float:
    """Return a number, or the first of those for each group of an optimizer."""
    return float(value.ravel()[0] if getattr(value, "shape", ()) else value)
