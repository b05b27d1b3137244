"""Goes back to the newest checkpoint after a NaN or a spike of the loss."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import (
    Graph,
    Node,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.backend import on_host
from hookbus.validation import number_in, numeric


@attrs.define(eq=False)
class SpikeRollbackHook(SessionRunHook):
    """Asks to roll back and to leave out the batch, if the loss is NaN or far too high.

    It refuses checkpoints of weights that hold NaN, to which a session could go back.

    Args:
        loss_tensor: the node of the loss, or its name.
        factor: a loss so many times as high as the median of the last ones is a spike. If
            the median is not above 0, only NaN and infinity count.
        window: the number of losses in the median.
        warmup: the number of losses before the first spike.

    Raises:
        UsageError: there is no such node, or the window is smaller than the warm-up.

    >>> hook = SpikeRollbackHook("loss", factor=10.0, window=20, warmup=5)
    >>> hook.factor, hook.window
    (10.0, 20)
    """

    options = hookbus.HookOptions(main_setting="loss_tensor", rolls_back=True)

    loss_tensor: Node | str = "loss"
    factor: float = attrs.field(default=5.0, validator=numeric(above=1))
    window: int = attrs.field(default=50, validator=numeric(least=1, whole=True))
    warmup: int = attrs.field(default=10, validator=numeric(least=1, whole=True))
    _losses: deque[float] = attrs.field(init=False)
    _request: SessionRunArgs = attrs.field(factory=SessionRunArgs, init=False)
    _watched: hookbus.Watched = attrs.field(default=hookbus.Watched("loss"), init=False)

    def __attrs_post_init__(self) -> None:
        if self.warmup > self.window:
            raise UsageError(
                f"a window of {self.window} losses never has the {self.warmup} of the "
                "warm-up; make it larger."
            )
        self._losses = deque(maxlen=self.window)

    def begin(self, graph: Graph) -> None:
        """Look the loss up."""
        self._losses.clear()
        node = graph.resolve(self.loss_tensor, "the setting loss_tensor of spike-rollback")
        self._request = SessionRunArgs(node.name)
        self._watched = hookbus.Watched(node.name)

    def before_run(self) -> SessionRunArgs:
        """Ask for the loss."""
        return self._request

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to roll back if the loss of a training step is bad; else remember it."""
        if run_values.global_step == run_context.global_step:
            return  # an evaluation of the program's own
        loss = number_in(run_values.results)
        if loss is None:
            raise UsageError(
                f"spike-rollback watches one number, and {self.loss_tensor!r} is not one"
            )
        fault = self._fault_of(loss)
        if fault is None:
            self._losses.append(loss)
        else:
            run_context.request_rollback(f"the loss {fault}")

    def _fault_of(self, loss: float) -> str | None:
        if not math.isfinite(loss):
            return f"is {loss}"
        if len(self._losses) < self.warmup:
            return None
        median = statistics.median(self._losses)
        if not 0 < median * self.factor < loss:
            return None
        return f"of {loss:.6g} is more than {self.factor:g} x the median {median:.6g}"

    @hookbus.hookimpl
    def veto_save(self, values: Mapping[str, Any]) -> str | None:
        """Refuse weights that hold NaN: the loss shows it one step too late."""
        for name, value in values.items():
            if _has_nan(value):
                return f"variable {name} holds NaN"
        return None

    state_form: ClassVar[Any] = {
        "losses": [float],
        "watched": (hookbus.Watched.state_form, None, ...),
    }

    def state_dict(self) -> dict[str, Any]:
        """Return the last losses, and the name of the loss."""
        return {"losses": [*self._losses], "watched": self._watched.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to these losses, unless they are those of another node."""
        self._losses.clear()
        if self._watched.fits(state.get("watched"), "spike-rollback"):
            self._losses.extend(state["losses"])


def _has_nan(value: Any) -> bool:
    """Return whether a value holds NaN, which alone differs from itself."""
    try:
        differs = value != value
    except (RuntimeError, TypeError, ValueError):
        # A library cannot compare all that it has, like sparse tensors; NumPy can.
        (array,) = on_host([value])
        differs = array != array
    return bool(getattr(differs, "any", lambda: differs)())
