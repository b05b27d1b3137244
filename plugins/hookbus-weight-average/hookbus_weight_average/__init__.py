"""Averages the weights during training, and has evaluations use the averages."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import (
    CheckpointError,
    Due,
    Session,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.evaluating import swapped
from hookbus.validation import numeric


def _up_to_one(hook: Any, field: attrs.Attribute[Any], value: Any) -> None:
    numeric(least=0)(hook, field, value)
    if value is not None and value >= 1:
        raise UsageError(f"invalid {field.name}={value}; expected a number below 1")


def _is_number(value: Any) -> bool:
    """Return whether a value is a number or an array, of any library."""
    return isinstance(value, int | float | complex) or hasattr(value, "dtype")


@attrs.define(eq=False)
class WeightAverageHook(SessionRunHook):
    """Keeps averages of variables, and swaps them in for each evaluation.

    The training does not see them. Evaluations are those that emit ``evaluating``. The
    averages of weights with fewer bits than float32 are kept in float32, and evaluations
    see them in the dtype of the weights.

    Args:
        decay: the share of the average that each update keeps, at least 0 and below 1: an
            exponential moving average (EMA). None weights all updates equally, as in
            stochastic weight averaging (SWA; Izmailov et al., 2018).
        start_step: the global step after which the averages begin.
        every_n_steps: global steps between two updates.
        variables: the names of the variables to average; by default all arrays of floating
            point.

    Raises:
        UsageError: a number is out of range, or there is no variable of a given name.

    >>> hook = WeightAverageHook(decay=None, start_step=1000, every_n_steps=100)
    >>> hook.decay is None, hook.start_step
    (True, 1000)
    """

    decay: float | None = attrs.field(default=0.999, validator=_up_to_one)
    start_step: int = attrs.field(default=0, validator=numeric(least=0))
    every_n_steps: int = attrs.field(default=1, validator=numeric(above=0))
    variables: Sequence[str] = ()
    averages: dict[str, Any] = attrs.field(factory=dict, init=False)
    _updates: int = attrs.field(default=0, init=False)
    _first: int | None = attrs.field(default=None, init=False)

    def begin(self) -> None:
        """Forget the averages of an earlier session."""
        self.averages, self._updates, self._first = {}, 0, None

    @hookbus.hookimpl
    def next_due(self, global_step: int) -> Due:
        """Wait for the next update."""
        if self._first is None:
            self._first = global_step
        done = self._periods(global_step)
        return Due(step=self.start_step + (done + 1) * self.every_n_steps)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Update the averages with the values after the step."""
        before, now = run_context.global_step, run_values.global_step
        if self._periods(now) > self._periods(before):
            self._update(run_context.session)

    @hookbus.hookimpl(wrapper=True)
    def evaluating(self, session: Session) -> Iterator[None]:
        """Evaluate with the averages."""
        here = session.variables() if self.averages else {}
        shown = {name: value for name, value in self.averages.items() if name in here}
        for name, average in shown.items():
            _check_shape(name, average, here[name])
            shown[name] = _in_dtype_of(here[name], average)
        with swapped(session, shown):
            yield

    @hookbus.hookimpl
    def finished(self, session: Session, outcome: hookbus.Outcome) -> None:
        """Warn if the session was over before the first update."""
        has_trained = self._first is not None and session.global_step > self._first
        if has_trained and not self._updates and not hookbus.resumes(outcome.kind):
            given = {"start_step": self.start_step, "every_n_steps": self.every_n_steps}
            hookbus.log.warning("no average was made", by="weight-average", **given)

    state_form: ClassVar[Any] = {"updates": int, "averages": {str: _is_number}}

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the number of updates."""
        return {"updates": self._updates, "averages": dict(self.averages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the averages of the checkpoint."""
        self._updates, self.averages = state["updates"], dict(state["averages"])

    def _periods(self, step: int) -> int:
        """Return how many updates are due up to a global step."""
        return max(step - self.start_step, 0) // self.every_n_steps

    def _update(self, session: Session) -> None:
        values, done = session.variables(), self._updates
        names = self.variables or [n for n, value in values.items() if _is_weight(value)]
        for name in names:
            if name not in values:
                raise UsageError(
                    f"weight-average: there is no variable {name!r}; the variables are "
                    f"{', '.join(map(repr, values)) or 'none'}"
                )
            value, average = values[name], self.averages.get(name)
            if average is None:
                self.averages[name] = copy.deepcopy(_widened(value))
                continue
            _check_shape(name, average, value)
            move = getattr(average, "to", None)  # a tensor of a checkpoint is on the host
            average = average if move is None else move(value.device)
            # Older checkpoints have averages of 16 bits.
            average, value = _widened(average), _widened(value)
            if self.decay is None:
                self.averages[name] = average + (value - average) / (done + 1)
            else:
                self.averages[name] = average * self.decay + value * (1 - self.decay)
        self._updates = done + 1


def _check_shape(name: str, average: Any, value: Any) -> None:
    """Refuse an average of a checkpoint that cannot be one of a variable.

    Raises:
        CheckpointError: its shape is another one.
    """
    shapes = [tuple(getattr(each, "shape", ())) for each in (average, value)]
    if shapes[0] != shapes[1]:
        raise CheckpointError(
            f"weight-average: the average of {name!r} in the checkpoint has the shape "
            f"{shapes[0]}, and the variable has {shapes[1]}; give another checkpoint_dir"
        )


def _is_narrow(value: Any) -> bool:
    """Return whether a value is of floating point with fewer bits than float32."""
    dtype = getattr(value, "dtype", None)
    return "float" in str(dtype) and getattr(dtype, "itemsize", 4) < 4


def _widened(value: Any) -> Any:
    """Return a value as float32 if it has fewer bits: in these an average never moves."""
    if not _is_narrow(value):
        return value
    return value.float() if hasattr(value, "float") else value.astype("float32")


def _in_dtype_of(value: Any, average: Any) -> Any:
    """Return an average in the dtype of its variable."""
    if not _is_narrow(value) or not hasattr(average, "dtype"):
        return average
    move = average.to if hasattr(average, "to") else average.astype
    return move(value.dtype)


def _is_weight(value: Any) -> bool:
    """Return whether a value is an array of floating point, of any library."""
    kind, shape = str(getattr(value, "dtype", "")), getattr(value, "shape", ())
    return "float" in kind and len(shape) > 0
