"""Makes a PyTorch model a graph: its values are nodes, and a train op is eager code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.nn import Module

from hookbus import UsageError
from hookbus.backend import (
    EmbeddedSession,
    Execution,
    FleetingValues,
    ForkedInputs,
    LiveValue,
    Node,
    Operation,
    Program,
    ReportGraph,
    ReportSession,
    Tracked,
)
from hookbus_torch.forks import HeldState
from hookbus_torch.library import TorchLibrary
from hookbus_torch.modules import evaluating


class TorchGraph(ReportGraph):
    """A graph around a PyTorch model.

    The model's parameters, gradients and outputs and the optimizer's learning rate are
    nodes, under the same names as in a custom loop that tracks the objects, and checkpoints
    are the same. A train op is ordinary PyTorch code: it computes the loss, calls
    ``backward()`` and ``optimizer.step()``, and returns its outputs. The code changes the
    model in place. So a train op that raises may leave the model changed, and a run that
    fetches values of the model gets those from after the train ops.

    A run without a train op computes in evaluation mode and without gradients.

    A graph to which nothing is added serves a custom loop, with ``session.step()``.

    Args:
        model: the module, tracked as ``model``.
        optimizer: its optimizer, tracked as ``optimizer``.
        things: further objects to track, by name, like a scheduler.

    Raises:
        UsageError: an object cannot be tracked, or the objects do not fit each other.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> graph = TorchGraph(model, optimizer)
    >>> x = graph.placeholder("x")
    >>> @graph.train_op(outputs="loss")
    ... def train(x):
    ...     optimizer.zero_grad()
    ...     loss = model(x).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return {"loss": loss}
    >>> from hookbus import Config, MonitoredSession
    >>> quiet = Config(autoload=False, header=False)
    >>> with MonitoredSession(graph, config=quiet) as session:
    ...     norm, _ = session.run(["model:grad_norm", "train"], {"x": torch.ones(4, 2)})
    >>> norm.shape, "model.weight:grad" in graph.live
    (torch.Size([]), True)
    """

    backend = "hookbus_torch.graph:TorchSession"

    def __init__(
        self, model: Module | None = None, optimizer: Any = None, **things: Any
    ) -> None:
        super().__init__()
        self._objects: dict[str, Any] = {}
        self._tracked: dict[str, Tracked] = {}
        given = {"model": model, "optimizer": optimizer, **things}
        self.track(**{name: thing for name, thing in given.items() if thing is not None})

    @property
    def objects(self) -> Mapping[str, Any]:
        """The tracked objects by name."""
        return dict(self._objects)

    def track(self, **things: Any) -> None:
        """Add objects whose values are nodes, and whose states checkpoints hold.

        Raises:
            UsageError: an object cannot be tracked, or its name is already used.
        """
        for name in things.keys() & self._objects.keys():
            raise UsageError(f"{name!r} is already tracked; track each object once")
        library, both = TorchLibrary(), {**self._objects, **things}
        library.check(both)
        live: dict[str, LiveValue] = {}
        fleeting: dict[str, FleetingValues] = {}
        for name, thing in things.items():
            tracked = library.tracked(name, thing)
            if tracked is None:
                continue
            self._tracked[name] = tracked
            live |= {name + part: value for part, value in tracked.live().items()}
            if tracked.fleeting is not None:
                fleeting[name] = FleetingValues(name, tracked.fleeting)
        for tracked in self._tracked.values():
            if tracked.introduce is not None:
                tracked.introduce(both)
            if tracked.watch is not None:
                tracked.watch(both)
        self._objects = both
        self.hold(live, fleeting)

    def leaf(self, thing: Any) -> Node | None:
        """Return the node of a parameter or buffer of a tracked module, or None."""
        if not isinstance(thing, torch.Tensor):
            return None
        for name, each in self._objects.items():
            if each is thing:
                return self.resolve(name)
            parts = dict(_tensors_of(each)) if isinstance(each, Module) else {}
            if id(thing) in parts:
                return self.resolve(f"{name}.{parts[id(thing)]}")
        return None


class TorchSession(ReportSession):
    """Runs a :class:`TorchGraph`: eagerly, in place, on the devices of the model."""

    @property
    def xp(self) -> Any:
        """The module ``torch``."""
        return torch

    @property
    def label(self) -> str:
        """The version of PyTorch and the devices of the model."""
        modules = [each for each in self.graph.objects.values() if isinstance(each, Module)]
        devices = {str(p.device) for module in modules for p in module.parameters()}
        where = f" on {', '.join(sorted(devices))}" if devices else ""
        return f"PyTorch {torch.__version__}{where}"

    def compile(
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
    ) -> Program:
        """Plan a run, in which new values of variables have no history of gradients.

        Raises:
            UnfedPlaceholderError, WriteConflictError: as the embedded backend.
        """
        program = super().compile(fetches, feeds, host)
        calls = tuple((_without_history(call[0]), *call[1:]) for call in program.calls)
        return attrs.evolve(program, calls=calls)

    def fork(self, inputs: ForkedInputs = "copy") -> EmbeddedSession:
        """Return an independent session of the same graph with the current values.

        The fork holds copies of the state of all tracked objects: parameters, gradients,
        buffers, and the states of optimizers, schedulers and others. A run of the fork puts
        these copies into the objects, because ops name the objects, and takes them out
        again; so do not run a fork in another thread than the training. Other attributes of
        a module are not copied.

        Raises:
            UsageError: the graph serves a custom loop, or an object has no state.
        """
        if self._takes_reports:
            return super().fork(inputs)  # refuses
        return self.fork_into(ForkedTorchSession(self.graph), inputs)

    def execute(self, execution: Execution) -> Sequence[Any]:
        """Run a plan once; without a train op in evaluation mode."""
        with self._in_mode_of(execution.program):
            return super().execute(execution)

    def execute_without_update(self, execution: Execution) -> Sequence[Any]:
        """Run a plan once with a copy of the objects' state.

        Raises:
            UsageError: no train op runs, or the state of an object cannot be exchanged.
        """
        writes = execution.writes
        for name, (who, value) in writes.items():
            self.check(name, value, repr(who))
        held = HeldState(self.graph.objects)
        with self._in_mode_of(execution.program), held.in_place():
            values = super().execute_without_update(attrs.evolve(execution, writes={}))
        if writes:
            self.write({name: value for name, (_, value) in writes.items()})
        return values

    @contextlib.contextmanager
    def _in_mode_of(self, program: Program) -> Iterator[None]:
        """Compute a run without a train op in evaluation mode."""
        with contextlib.ExitStack() as stack:
            if not any(_trains(call[0]) for call in program.calls):
                for thing in self.graph.objects.values():
                    if isinstance(thing, Module):
                        stack.enter_context(evaluating(thing))
            yield


class ForkedTorchSession(TorchSession):
    """A fork, whose state is in the objects of the graph while it does something.

    Args:
        graph: the graph of the session that is forked.
    """

    def __init__(self, graph: ReportGraph) -> None:
        super().__init__(graph)
        self._held = HeldState(graph.objects)

    def execute(self, execution: Execution) -> Sequence[Any]:
        """Run a plan once with the state of the fork."""
        with self._held.in_place():
            return super().execute(execution)

    def execute_without_update(self, execution: Execution) -> Sequence[Any]:
        """Run a plan once with a copy of the state of the fork."""
        with self._held.in_place():
            return super().execute_without_update(execution)

    def check(self, name: str, value: Any, who: str) -> None:
        """Check that a value can be written."""
        with self._held.in_place():
            super().check(name, value, who)

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables of the fork new values."""
        with self._held.in_place():
            super().write(values)

    def variables(self) -> dict[str, Any]:
        """Return the value of each variable of the fork by name."""
        with self._held.in_place():
            return super().variables()

    def fork(self, inputs: ForkedInputs = "copy") -> EmbeddedSession:
        """Return a fork of the fork."""
        with self._held.in_place():
            return super().fork(inputs)


def _trains(operation: Operation) -> bool:
    """Return whether a train op trains the model; one with updates gathers a metric."""
    return operation.trains and bool(operation.increment or not operation.updates)


def _without_history(operation: Operation) -> Operation:
    """Return an op whose new values of variables hold no step in memory."""
    if not operation.updates:
        return operation

    def call(*values: Any) -> Any:
        with torch.no_grad():
            return operation.call(*map(_detached, values))

    return attrs.evolve(operation, call=call)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tensors_of(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the identity and the name of each parameter and buffer."""
    for name, parameter in module.named_parameters():
        yield id(parameter), name
    for name, buffer in module.named_buffers():
        yield id(buffer), name
