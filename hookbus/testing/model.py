"""Defines the tiny model of the tests: its values and errors in each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import attrs

from hookbus.errors import END_OF_INPUT, UsageError
from hookbus.graph.graph import Graph
from hookbus.library.base import LoopModel
from hookbus.library.lookup import library_named
from hookbus.session.monitored import MonitoredSession

BATCHES = 2
"""The number of batches of an evaluation."""
GRAPH = "graph"
"""The backend of sessions that need no library: a graph, or a custom loop of numbers."""
_STRIKE = "suite_strike"


@attrs.define(eq=False)
class Script:
    """The script of the steps in one call of ``run_steps``.

    Attributes:
        values: node to its value in each step; the last one stays.
        variables: the variables' initial values; in a custom loop, their current values.
        errors: the number of a step, from 1 on, to the error that it raises once.
        session: the session of the steps; None before it is open.
        first: the global step before the first step.
        cancelled: the numbers of the steps that a custom loop cancels once, before it
            does them.
        trains: whether the steps train; others are counted in *done*.
        evaluates: whether an evaluation of two batches follows each step.
        done: the number of steps that are done, if they do not train.
        model: the model of a library that a custom loop trains as well, or None.
    """

    values: Mapping[str, Sequence[Any]]
    variables: dict[str, Any]
    errors: dict[int, BaseException]
    session: MonitoredSession | None = None
    first: int = 0
    cancelled: set[int] = attrs.field(factory=set)
    trains: bool = True
    evaluates: bool = False
    done: int = 0
    model: LoopModel | None = None

    @classmethod
    def of(
        cls,
        values: Mapping[str, Sequence[Any]] | None,
        variables: Mapping[str, Any] | None,
        errors: Mapping[int, BaseException] | None,
        steps: int | None,
        cancelled: Iterable[int] = (),
        *,
        trains: bool = True,
        evaluates: bool = False,
    ) -> tuple[Script, int]:
        """Return a script and its number of steps.

        Raises:
            UsageError: a node has no value, or the number of a step is below 1.
        """
        lengths = [len(sequence) for sequence in (values or {}).values()]
        if values is not None and not all(lengths):
            raise UsageError("values: each node needs at least one value, for one step")
        if errors and min(errors) < 1:
            raise UsageError(f"errors: steps are counted from 1, not {min(errors)}")
        steps = max(lengths, default=10) if steps is None else steps
        given = falling(steps) if values is None else values
        start = {"w": 0.0, **(variables or {})}
        script = cls(given, start, dict(errors or {}), cancelled=set(cancelled))
        script.trains, script.evaluates = trains, evaluates and trains
        return script, steps

    @property
    def names(self) -> list[str]:
        """The names of the variables and the values."""
        return [*self.variables, *self.values]

    def value(self, name: str, global_step: int) -> Any:
        """Return the value of a node in the step that begins at *global_step*."""
        sequence = self.values[name]
        return sequence[min(self._before(global_step), len(sequence) - 1)]

    def strike(self, global_step: int) -> None:
        """Raise the error of the step that begins at *global_step*, if it has one."""
        error = self.errors.pop(self._before(global_step) + 1, None)
        if error is not None:
            raise error

    def graph(self, make: Callable[[], Graph] = Graph) -> Graph:
        """Return the model as a graph: ``train`` adds the input ``x`` to ``w``."""
        graph = make()
        for name, value in self.variables.items():
            graph.variable(name, value)
        graph.input("x", self._numbers)
        for name in self.values:
            graph.op(partial(self.value, name), name=name)

        @graph.train_op(updates="w")
        def train(w: Any, x: float, global_step: int) -> Any:
            self.strike(global_step)
            return w + x

        if not self.trains:
            graph.op(self.strike, name=_STRIKE)
        return graph

    def run_graph(self, session: MonitoredSession, steps: int) -> None:
        """Train the graph."""
        self.session, self.first = session, session.global_step
        while session.global_step < self.first + steps and not session.should_stop():
            session.run("train")

    def use_graph(self, session: MonitoredSession, steps: int) -> None:
        """Compute the nodes of the graph in some steps that do not train."""
        self.session, names = session, [_STRIKE, "x", *self.names]
        while self.done < steps and not session.should_stop():
            session.run(names)
            self.done += 1

    def run_custom_loop(self, session: MonitoredSession, steps: int) -> None:
        """Train in a custom loop."""
        self.session, self.first = session, session.global_step
        for name in self.variables:
            functions = self.variables.__getitem__, self.variables.__setitem__
            session.track(**{name: tuple(partial(fn, name) for fn in functions)})
        if self.model is not None:
            session.track(**self.model.objects)
        numbers = session.iterate(count(1.0), name="x")
        while self._before(session.global_step) < steps:
            x = next(numbers, None)
            if x is None:  # a hook asked to stop
                return
            with session.step() as step:
                began = session.global_step
                number = self._before(began) + 1
                if number in self.cancelled:
                    self.cancelled.remove(number)
                    step.cancel()
                    continue
                self.strike(began)
                if self.trains:
                    self.variables["w"] = self.variables["w"] + x
                values = {name: self.value(name, began) for name in self.values}
                step.report(
                    **{**self.variables, **values, **self._computed(x, self.trains)}
                )
            self.done += not self.trains
            if self.evaluates:
                with session.evaluation("val") as evaluation:
                    for _ in range(BATCHES):
                        with evaluation.step() as batch:
                            computed = self._computed(x, trains=False)
                            batch.report(**{**self.variables, **values, **computed})

    def _computed(self, x: float, trains: bool) -> Mapping[str, Any]:
        """Return the values that the model of a library has in a step."""
        if self.model is None:
            return {}
        return self.model.train(x) if trains else self.model.evaluate(x)

    def _before(self, global_step: int) -> int:
        """Return how many steps of this call lie before *global_step*."""
        if self.session is None or not self.trains:
            return self.done
        return max(0, global_step - self.first)

    def _numbers(self) -> Iterator[float]:
        """Yield 1.0, 2.0, and so on, until the input ends."""
        for number in count(1.0):
            step = 0 if self.session is None else self._before(self.session.global_step) + 1
            if isinstance(self.errors.get(step), END_OF_INPUT):
                del self.errors[step]
                return
            yield number


def loop_model(backend: str) -> LoopModel | None:
    """Return a new model of a library, by the library's name; None for the graph.

    Raises:
        UsageError: no plugin here has a model of that name.
    """
    if backend == GRAPH:
        return None
    try:
        model = library_named(backend).loop_model()
    except UsageError:
        model = None
    if model is None:
        raise UsageError(
            f"no plugin here has a model of {backend!r} to test hooks with; expected "
            f"{GRAPH}, or the name of a library whose plugin has one, like torch with "
            "hookbus-torch installed"
        )
    return model


def falling(steps: int) -> dict[str, list[float]]:
    """Return a falling loss and a rising accuracy, as of a model that learns.

    >>> falling(2)
    {'loss': [1.0, 0.5], 'accuracy': [0.0, 0.5]}
    """
    loss = [1 / number for number in range(1, max(1, steps) + 1)]
    return {"loss": loss, "accuracy": [1 - value for value in loss]}
