"""Which values are logged, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import (
    ArgumentTypeError,
    Graph,
    Node,
    OutOfRangeError,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UnfedPlaceholderError,
    UsageError,
)

_SETTING = "the setting tensors of logging-tensor"
_NOTHING = (
    "logging-tensor has nothing to log: there is neither 'loss' nor 'accuracy', nor a "
    "scalar among the summaries; name nodes with --logging-tensor NAME,NAME"
)


@attrs.define(eq=False)
class LoggingTensorHook(SessionRunHook):
    """Logs values of nodes at the first run, then every so many runs or seconds.

    Runs in which nothing is due compute none of them.

    Args:
        tensors: nodes or names; a mapping gives each a tag of its own. By default
            ``loss`` and ``accuracy``, those of them that there are, and the scalars that
            are declared as summaries.
        every_n_iter: runs between two reports, counted in this session.
        every_n_secs: seconds between two reports.
        at_end: report once more when the session ends, of values computed then; where
            the input has ended or a placeholder is needed, a warning says so.
        formatter: makes the text of a report of a dict from tag to value.

    Raises:
        UsageError: the periods contradict each other, or there is nothing to log.
    """

    exclusive_settings = (("every_n_iter", "every_n_secs"),)
    default_settings: ClassVar = {"every_n_iter": 100}

    tensors: Mapping[str, Node | str] | Sequence[Node | str] | Node | str = ()
    every_n_iter: int | None = attrs.field(default=None, validator=hookbus.numeric(above=0))
    every_n_secs: float | None = attrs.field(
        default=None, validator=hookbus.numeric(least=0)
    )
    at_end: bool = False
    formatter: Callable[[Mapping[str, Any]], str] | None = None
    _fetches: dict[str, str] | Node | None = attrs.field(default=None, init=False)
    _timer: SecondOrStepTimer | None = attrs.field(default=None, init=False)
    _runs: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        periods = (self.every_n_iter is not None) + (self.every_n_secs is not None)
        if periods > 1 or (periods == 0 and not self.at_end):
            raise UsageError(
                "either at_end and/or exactly one of every_n_iter and every_n_secs "
                "must be provided."
            )
        if self.formatter is not None and not callable(self.formatter):
            raise ArgumentTypeError(f"formatter is a function, not {self.formatter!r}.")
        if periods:
            self._timer = SecondOrStepTimer(self.every_n_secs, self.every_n_iter)

    def begin(self, graph: Graph) -> None:
        """Look the nodes up and start counting."""
        self._fetches = _tagged(self.tensors, graph) if self.tensors else graph.metrics
        if self._fetches is None:
            raise UsageError(_NOTHING)
        self._runs = 0
        if self._timer is not None:
            self._timer.reset()

    def before_run(self) -> SessionRunArgs | None:
        """Ask for the values when they are due."""
        timer = self._timer
        if timer is not None and timer.should_trigger_for_step(self._runs):
            return SessionRunArgs(self._fetches)
        return None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Log what was asked for."""
        if run_values.results is not None and self._timer is not None:
            seconds, _ = self._timer.update_last_triggered_step(self._runs)
            self._report(run_values.results, run_values.global_step, seconds)
            run_context.emit(
                "logged", values=run_values.results, global_step=run_values.global_step
            )
        self._runs += 1

    def end(self, session: hookbus.Session) -> None:
        """Log a last time, where that was asked for."""
        if not self.at_end:
            return
        try:
            with hookbus.undisturbed():  # an op may draw numbers
                values = session.run(self._fetches)
        except (OutOfRangeError, UnfedPlaceholderError) as error:
            hookbus.log.warning("nothing to log at the end", why=str(error))
        else:
            self._report(values, session.global_step, None)

    def state_dict(self) -> dict[str, Any]:
        """Return how many runs there were, and when they were logged."""
        timer = None if self._timer is None else self._timer.state_dict()
        return {"runs": self._runs, "timer": timer}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Go on counting where a session was cut short."""
        if self._timer is None or state["timer"] is None or self._runs:
            return  # a recovery does not undo what was logged
        if hookbus.was_cut_short(ended):
            self._runs = state["runs"]
            self._timer.load_state_dict(state["timer"], ended)

    def _report(self, values: Mapping[str, Any], step: int, seconds: float | None) -> None:
        if self.formatter is not None:
            hookbus.log.info(self.formatter(values))
            return
        extra = {} if seconds is None else {"secs": round(seconds, 3)}
        hookbus.log.info("logged", step=step, values=_readable(values), **extra)


def _tagged(
    tensors: Mapping[str, Node | str] | Sequence[Node | str] | Node | str, graph: Graph
) -> dict[str, str]:
    """Return tag to name: a mapping sorted by tag, a sequence as it is given."""
    if isinstance(tensors, str | Node):
        tensors = (tensors,)
    if isinstance(tensors, Mapping):
        pairs = sorted(tensors.items())
    else:
        pairs = [(n.name if isinstance(n, Node) else n, n) for n in tensors]
    return {tag: graph.resolve(node, _SETTING).name for tag, node in pairs}


def _readable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn array values into plain numbers and lists, so that each renderer can."""
    readable = {}
    for tag, value in values.items():
        plain = value.tolist() if hasattr(value, "tolist") else value
        readable[tag] = float(f"{plain:.6g}") if isinstance(plain, float) else plain
    return readable
