"""Logs values periodically."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs

import hookbus
from hookbus import (
    Due,
    Graph,
    Node,
    OutOfRangeError,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.errors import ArgumentTypeError, NoValueYetError, UnfedPlaceholderError
from hookbus.evaluating import undisturbed
from hookbus.validation import numeric

_SETTING = "the setting tensors of logging-tensor"
_MOST_NUMBERS = 16
"""The most numbers of an array, or parts of a list, that a line has one by one."""
_MOST_LEVELS = 8
_NOTHING = (
    "logging-tensor has nothing to log: the graph has neither 'loss' nor 'accuracy' nor a "
    "scalar summary; name nodes with --logging-tensor NAME,NAME"
)


@attrs.define(eq=False)
class LoggingTensorHook(SessionRunHook):
    """Logs values of nodes in the first run, then periodically.

    The other runs do not compute the values. Of an array with more than 16 numbers, a line
    has the shape, the dtype, and the least, mean and greatest finite number.

    Args:
        tensors: the nodes to log, by name; by default ``loss``, ``accuracy`` and the
            scalar summaries, if they exist. A pattern like ``model.*:grad_norm`` stands for
            all values that match it in a run. In code, also nodes, or a mapping from tag to
            node, name or pattern.
        every_n_iter: runs between two reports, counted in this session.
        every_n_secs: seconds between two reports.
        at_end: whether to report once more when the session ends, with values computed
            then. If the input has ended, or a placeholder is needed, a warning says so.
        formatter: a function that turns a dict from tag to value into the text of a report.
        reduce: the values to log in a training run of several processes: ``"none"`` for
            those of rank 0, ``"mean"``, ``"sum"`` or ``"max"`` of all ranks. A reduction
            needs *every_n_iter*, because the ranks must ask in the same runs.

    Raises:
        UsageError: the periods contradict each other, or there is nothing to log.

    >>> from hookbus.testing import run_steps
    >>> def show(values):
    ...     print(values)
    ...     return f"loss {values['loss']}"
    >>> hook = LoggingTensorHook("loss", every_n_iter=2, formatter=show)
    >>> _ = run_steps(hook, values={"loss": [0.5, 0.25, 0.125]})
    {'loss': 0.5}
    {'loss': 0.125}
    """

    options = hookbus.HookOptions(
        exclusive_settings=(("every_n_iter", "every_n_secs"),),
        default_settings={"every_n_iter": 100},
        ranks="chief",
        can_wait=True,
    )
    tensors: Mapping[str, Node | str] | Sequence[Node | str] | Node | str = ()
    every_n_iter: int | None = attrs.field(default=None, validator=numeric(above=0))
    every_n_secs: float | None = attrs.field(default=None, validator=numeric(least=0))
    at_end: bool = False
    formatter: Callable[[Mapping[str, Any]], str] | None = None
    reduce: Literal["none", "mean", "sum", "max"] = "none"
    _fetches: dict[str, str] | Node | None = attrs.field(default=None, init=False)
    _patterns: frozenset[str] = attrs.field(default=frozenset(), init=False)
    _request: SessionRunArgs = attrs.field(factory=SessionRunArgs, init=False)
    _timer: SecondOrStepTimer | None = attrs.field(default=None, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)
    _runs: int = attrs.field(default=0, init=False, on_setattr=attrs.setters.NO_OP)

    def __attrs_post_init__(self) -> None:
        periods = (self.every_n_iter is not None) + (self.every_n_secs is not None)
        if periods > 1 or (periods == 0 and not self.at_end):
            raise UsageError(
                "either at_end and/or exactly one of every_n_iter and every_n_secs "
                "must be provided."
            )
        if self.formatter is not None and not callable(self.formatter):
            raise ArgumentTypeError(
                f"formatter must be a function, not {self.formatter!r}."
            )
        if self.reduce != "none":
            if self.every_n_iter is None or self.at_end:
                raise UsageError(
                    f"reduce={self.reduce!r} needs every_n_iter, and not at_end: all ranks "
                    "ask in the same runs."
                )
            options = attrs.evolve(self.options, ranks="all", can_wait=False)
            self.options = options  # type: ignore[misc]  # of this hook, not of its class
        if periods:
            self._timer = SecondOrStepTimer(self.every_n_secs, self.every_n_iter)

    def begin(self, graph: Graph) -> None:
        """Look the nodes up and start counting."""
        self._fetches = _tagged(self.tensors, graph) if self.tensors else graph.metrics
        if self._fetches is None:
            raise UsageError(_NOTHING)
        tags = self._fetches if isinstance(self._fetches, dict) else {}
        self._patterns = frozenset(t for t, n in tags.items() if _is_pattern(n, graph))
        # All ranks reduce the same values, so none of them can go without one.
        skips = self._patterns and self.reduce == "none"
        self._request = SessionRunArgs(
            self._fetches, reduce=self.reduce, missing="skip" if skips else "error"
        )
        self._runs = 0
        if self._timer is not None:
            self._timer.reset()

    @hookbus.hookimpl
    def next_due(self) -> Due:
        """Wait for the next report; the timer counts runs, not global steps."""
        timer = self._timer
        if timer is None:
            return Due()
        due = timer.next_due()
        return due if due.step == math.inf else Due(runs=due.step - self._runs + 1)

    @hookbus.hookimpl
    def idled(self, runs: int) -> None:
        """Count the runs that left this hook out."""
        self._runs += runs

    def before_run(self) -> SessionRunArgs | None:
        """Ask for the values when they are due."""
        timer = self._timer
        if timer is not None and timer.should_trigger_for_step(self._runs):
            return self._request
        return None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Log the values if they are due."""
        if run_values.results is not None and self._timer is not None:
            seconds, _ = self._timer.update_last_triggered_step(self._runs)
            values = run_values.results
            if self._patterns:
                values = self._matched(values, run_context.session)
            if values:
                self._report(values, run_values.global_step, seconds)
                run_context.emit(
                    "logged", values=values, global_step=run_values.global_step
                )
            elif not self._patterns:
                self._warn(
                    "the steps report neither 'loss' nor 'accuracy'",
                    "name values with --logging-tensor NAME,NAME",
                )
        self._runs += 1

    def _warn(self, why: str, hint: str) -> None:
        """Warn, once, that there is nothing to log."""
        if not self._has_warned:
            self._has_warned = True
            hookbus.log.warning("nothing to log", why=why, hint=hint, by="logging-tensor")

    def _matched(
        self, values: Mapping[str, Any], session: hookbus.Session
    ) -> dict[str, Any]:
        """Return values by tag, with those that a pattern matches under their own names.

        Raises:
            GraphError: a value that is named does not exist; only patterns go without.
        """
        assert isinstance(self._fetches, dict)
        found: dict[str, Any] = {}
        for tag, name in self._fetches.items():
            if tag not in values:
                session.run(name)  # it tells why there is no value
            elif tag not in self._patterns or tag != name:
                found[tag] = values[tag]
            elif values[tag]:
                found.update(values[tag])
            else:
                self._warn(f"no value matches {name!r}", "see hookbus run --names")
        return found

    def end(self, session: hookbus.Session) -> None:
        """Log a last time, if ``at_end`` is set."""
        if not self.at_end:
            return
        try:
            with undisturbed():  # an op may draw numbers
                values = session.run(self._at_end(session))
        except (NoValueYetError, OutOfRangeError, UnfedPlaceholderError) as error:
            hookbus.log.warning("nothing to log at the end", why=str(error))
        else:
            self._report(values, session.global_step, None)

    def _at_end(self, session: hookbus.Session) -> dict[str, Any] | Node | None:
        """Return the fetches at the end: of a pattern, the values that are no inputs."""
        if not isinstance(self._fetches, dict):
            return self._fetches
        named: dict[str, Any] = {}
        for tag, name in self._fetches.items():
            inputs = session.names(name, "input")
            matched = {n: n for n in session.names(name) if n not in inputs}
            if tag not in self._patterns:
                named[tag] = name
            elif tag == name:
                named |= matched
            else:
                named[tag] = matched
        return named

    state_form: ClassVar[Any] = {
        "runs": int,
        "timer": (hookbus.SecondOrStepTimer.state_form, None),
    }

    def state_dict(self) -> dict[str, Any]:
        """Return the number of runs, and the time of the last report."""
        timer = None if self._timer is None else self._timer.state_dict()
        return {"runs": self._runs, "timer": timer}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Continue the count of a session that was cut short."""
        if self._timer is None or state["timer"] is None or self._runs:
            return  # a recovery does not undo what was logged
        if hookbus.resumes(ended):
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
    """Return tag to name: a mapping sorted by tag, a sequence in its order."""
    if isinstance(tensors, str | Node):
        tensors = (tensors,)
    if isinstance(tensors, Mapping):
        pairs = sorted(tensors.items())
    else:
        pairs = [(n.name if isinstance(n, Node) else n, n) for n in tensors]
    return {tag: _named(node, graph) for tag, node in pairs}


def _named(node: Node | str, graph: Graph) -> str:
    """Return the name of a node, or a pattern as it is."""
    if isinstance(node, str) and _is_pattern(node, graph):
        return node
    return graph.resolve(node, _SETTING).name


def _is_pattern(name: str, graph: Graph) -> bool:
    """Return whether a name is a pattern; no node has this very name then."""
    return name not in graph and any(special in name for special in "*?[")


def _readable(value: Any, level: int = 0) -> Any:
    """Return a value as numbers, lists and dicts, which every renderer can show.

    A big array or list becomes a dict that describes it.
    """
    if isinstance(value, Mapping) and level < _MOST_LEVELS:
        return {key: _readable(part, level + 1) for key, part in value.items()}
    if isinstance(value, list | tuple) and level < _MOST_LEVELS:
        if len(value) > _MOST_NUMBERS:
            return {"type": type(value).__name__, "length": len(value)}
        return [_readable(part, level + 1) for part in value]
    if math.prod(getattr(value, "shape", ())) > _MOST_NUMBERS:
        return _described(value)
    plain = value.tolist() if hasattr(value, "tolist") else value
    return float(f"{plain:.6g}") if isinstance(plain, float) else plain


def _described(array: Any) -> dict[str, Any]:
    """Return shape and dtype of an array, and the range and mean of its finite numbers."""
    described: dict[str, Any] = {"shape": [*array.shape], "dtype": str(array.dtype)}
    if not any(kind in described["dtype"] for kind in ("float", "int", "bool")):
        return described
    numbers = array.astype("float64")
    finite = numbers[abs(numbers) < math.inf]
    if finite.size:
        mean = (finite / finite.size).sum()  # the sum alone may be infinite
        found = {"min": finite.min(), "mean": mean, "max": finite.max()}
        described |= {name: float(f"{number:.6g}") for name, number in found.items()}
    if finite.size < numbers.size:
        described["not_finite"] = numbers.size - finite.size
    return described
