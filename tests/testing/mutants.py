"""Backends that break one rule each."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy as np

from hookbus import AbortedError, Graph, OutOfRangeError
from hookbus.backend import EmbeddedSession, RunOptions
from hookbus.errors import SessionClosedError, UnfedPlaceholderError
from hookbus.testing import BackendModel


@attrs.frozen
class Boxed:
    """A value that is not on the host."""

    value: Any

    def __float__(self):
        return float(self.value)


class ExcusedModel(BackendModel):
    """Declares the rule that its backend breaks."""

    exceptions: ClassVar = {"a_position_leads_back": "its inputs are streams"}

    def __init__(self):
        super().__init__(ShiftedGraph)


class MistakenModel(BackendModel):
    """Declares what is no rule."""

    exceptions: ClassVar = {"a_position_leads_bakc": "its inputs are streams"}


class _ChangedOps(EmbeddedSession):
    """Runs changed ops."""

    def compile(self, *request):
        program = super().compile(*request)
        calls = tuple(
            (attrs.evolve(call[0], call=self.changed(call[0])), *call[1:])
            for call in program.calls
        )
        return attrs.evolve(program, calls=calls)

    def changed(self, operation):
        raise NotImplementedError


class SiameseGraph(Graph):
    class backend(EmbeddedSession):
        def fork(self, inputs="copy"):
            other = super().fork(inputs)
            other._values = self._values
            return other


class HalfGraph(Graph):
    class backend(_ChangedOps):
        def changed(self, operation):
            def call(*values):
                returned = operation.call(*values)
                if operation.updates:
                    self.write(operation.unpack(returned)[0])
                return returned

            return call


class TwiceGraph(Graph):
    class backend(_ChangedOps):
        def changed(self, operation):
            def call(*values):
                operation.call(*values)
                return operation.call(*values)

            return call


class SharingGraph(Graph):
    class backend(EmbeddedSession):
        def write(self, values):
            super().write(values)
            self._values.update(values)


class LendingGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            values = super().execute(execution)
            self._values["w"].setflags(write=True)
            return values


class TakingOverGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            values, feeds = super().execute(execution), execution.feeds
            if "given" in feeds and execution.program.writers:
                self._values["w"] = feeds["given"]
            return values


class ShiftedGraph(Graph):
    class backend(EmbeddedSession):
        def seek(self, positions):
            super().seek(positions)
            for name in positions.keys() & self._inputs.keys():
                self._inputs[name].pull()


class OnwardGraph(Graph):
    class backend(EmbeddedSession):
        def seek(self, positions):
            if not self.pulled():
                super().seek(positions)


class LateGraph(Graph):
    class backend(EmbeddedSession):
        def compile(self, fetches, feeds, host=()):
            return super().compile(fetches, feeds, host), (*fetches, *host)

        def execute(self, execution):
            program, names = execution.program
            values = super().execute(attrs.evolve(execution, program=program))
            known = {**self._values, **execution.feeds}
            return [known.get(*pair) for pair in zip(names, values, strict=True)]


class OneByOneGraph(Graph):
    class backend(_ChangedOps):
        def changed(self, operation):
            def call(*values):
                returned = operation.call(*values)
                if len(operation.updates) > 1:  # as if the second one saw the first
                    return dict.fromkeys(returned, next(iter(returned.values())))
                return returned

            return call


class CountingGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            before = self.global_step
            values = super().execute(execution)
            self.global_step = before + (self.global_step > before)
            return values


class DeafGraph(Graph):
    class backend(EmbeddedSession):
        def compile(self, fetches, feeds, host=()):
            return super().compile(fetches, feeds - {"w"}, host)


class GreedyGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            for name in execution.feeds.keys() & self._inputs.keys():
                self._inputs[name].pull()
            return super().execute(execution)


class CallingGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            for name in execution.feeds:
                node = self.graph.resolve(name)
                if node.kind == "op":
                    node.source.call()
            return super().execute(execution)


class AnonymousGraph(Graph):
    class backend(EmbeddedSession):
        def compile(self, *request):
            try:
                return super().compile(*request)
            except UnfedPlaceholderError as error:
                raise UnfedPlaceholderError(str(error)) from None


class OverwritingGraph(Graph):
    class backend(EmbeddedSession):
        def _check_writers(self, *_): ...


class RemoteGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            return [Boxed(value) for value in super().execute(execution)]


class MovingGraph(Graph):
    class backend(EmbeddedSession):
        def compile(self, fetches, feeds, host=()):
            program = super().compile(fetches, feeds, host)
            kept = 0 if host else len(fetches)
            return program, kept

        def execute(self, execution):
            program, kept = execution.program
            values = super().execute(attrs.evolve(execution, program=program))
            return [*map(Boxed, values[:kept]), *values[kept:]]


class UncopiedGraph(Graph):
    class backend(EmbeddedSession):
        def __init__(self, graph):
            super().__init__(graph)
            self._values = {node.name: node.source for node in graph.variables}


class StillGraph(Graph):
    class backend(EmbeddedSession):
        version = property(lambda self: 0, lambda self, value: None)


class RestlessGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            self.version += 1
            return super().execute(execution)


class PermissiveGraph(Graph):
    class backend(EmbeddedSession):
        def check(self, *_): ...

        def _check_value(self, *_): ...


class FlatGraph(Graph):
    class backend(EmbeddedSession):
        def describe(self):
            found = super().describe()
            return {name: attrs.evolve(each, shape=()) for name, each in found.items()}


class StaleGraph(Graph):
    class backend(EmbeddedSession):
        _saved = None

        def snapshot(self):
            self._saved = self._saved or super().snapshot()
            return self._saved


class TakingGraph(Graph):
    class backend(EmbeddedSession):
        def _pull_all(self, names, recording=None):
            return [self._inputs[name].pull() for name in names]


class HopefulGraph(Graph):
    class backend(EmbeddedSession):
        def remaining(self):
            left = super().remaining()
            return left and left + 1


class ForgetfulGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            self._last.clear()
            return super().execute(execution)


class InventiveGraph(Graph):
    class backend(EmbeddedSession):
        def _last_output(self, name, op, key):
            return self._last.get(op, {}).get(key, 0.0)


class OpenGraph(Graph):
    class backend(EmbeddedSession):
        def close(self): ...


class SecretiveGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            return super().execute(attrs.evolve(execution, options=RunOptions()))


class MortalGraph(Graph):
    class backend(EmbeddedSession):
        def __init__(self, graph):
            super().__init__(graph)
            self.preemption_errors = (AbortedError,)


class RoundingGraph(Graph):
    class backend(EmbeddedSession):
        def write(self, values):
            super().write({name: np.float32(np.float16(v)) for name, v in values.items()})


class AbruptGraph(Graph):
    class backend(EmbeddedSession):
        def execute(self, execution):
            try:
                return super().execute(execution)
            except OutOfRangeError as error:
                raise SessionClosedError("the input has ended") from error


class PartialGraph(Graph):
    class backend(EmbeddedSession):
        def write(self, values):
            for name, value in values.items():
                super().write({name: value})


class UnreadGraph(Graph):
    class backend(EmbeddedSession):
        def write(self, values):
            self.version += 1


class OtherwiseGraph(Graph):
    class backend(EmbeddedSession):
        def seek(self, places): ...
