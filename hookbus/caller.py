"""Who is called for one event, in which order, and with whose results.

pluggy is the registry, this is the caller: what pluggy knows is compiled once into rows
of (plugin name, function), so that a step looks nothing up, results and errors are
attributed, and each hook can be handed values of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from hookbus.errors import blame, culprit_of
from hookbus.hook import SessionRunValues, Turn
from hookbus.session import RunMetadata, RunOptions

Result: TypeAlias = tuple[str, Any]
"""A plugin's name and what it answered."""


@attrs.frozen
class Implementation:
    """One plugin's function for one event.

    Attributes:
        plugin: the plugin's name.
        label: how messages call it, with its distribution.
        function: takes the arguments named in *parameters*, by position.
        parameters: the names of the event's arguments that it wants.
        wrapper: whether it is a generator that wraps the others.
        defaulted: the names of those that it wants and has defaults for.
    """

    plugin: str
    label: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    wrapper: bool = False
    defaulted: tuple[str, ...] = ()


def bind(
    implementation: Implementation, event_parameters: tuple[str, ...]
) -> Callable[..., Any]:
    """Adapt a function that wants some of the event's arguments to take all of them."""
    function, wanted = implementation.function, implementation.parameters
    if wanted == event_parameters:
        return function
    places = tuple(event_parameters.index(name) for name in wanted)
    if not implementation.defaulted:
        return lambda *args: function(*[args[place] for place in places])
    named = tuple((name, event_parameters.index(name)) for name in implementation.defaulted)
    return lambda *args: function(
        *[args[place] for place in places], **{name: args[place] for name, place in named}
    )


class Caller:
    """All implementations of one event, compiled; thrown away when plugins change.

    Args:
        event: the event's name.
        parameters: its arguments, in the order in which calls pass them.
        implementations: in calling order.
        turn: told whose turn it is.
        first_result: stop at the first answer that is not None.
    """

    __slots__ = ("_first", "_labels", "_turn", "_wrappers", "event", "rows")

    def __init__(
        self,
        event: str,
        parameters: tuple[str, ...],
        implementations: Sequence[Implementation],
        turn: Turn,
        first_result: bool = False,
    ) -> None:
        self.event = event
        bound = [(i.plugin, bind(i, parameters), i.wrapper) for i in implementations]
        self.rows = tuple((name, call) for name, call, wraps in bound if not wraps)
        self._wrappers = tuple((name, call) for name, call, wraps in bound if wraps)
        self._labels = {i.plugin: i.label for i in implementations}
        self._turn = turn
        self._first = first_result

    def collect(self, *args: Any) -> list[Result]:
        """Call all with *args*; return the answers that are not None, in order."""
        if self._wrappers:
            results: list[Result] = self._wrapped(args, lambda: self._collect(args))
            return results
        return self._collect(args)

    def deliver(
        self,
        context: Any,
        splits: Mapping[str, Callable[[Any], Any]],
        values: Any,
        common: tuple[RunOptions, RunMetadata, int],
    ) -> None:
        """Call each with *context* and a SessionRunValues of its own.

        Args:
            context: that of the run.
            splits: by plugin, what takes its results out of *values*.
            values: what was fetched for all.
            common: what else is in every SessionRunValues.
        """
        if not self._wrappers:
            self._deliver(context, splits, values, common)
            return
        for_wrappers = [
            (name, call, (context, _own(splits.get(name), values, common)))
            for name, call in self._wrappers
        ]
        self._around(for_wrappers, lambda: self._deliver(context, splits, values, common))

    def start(self, args: tuple[Any, ...], started: set[str]) -> None:
        """Call all, as :meth:`collect` does; *started* gets each name before its call."""

        def inner() -> None:
            for name, call in self.rows:
                started.add(name)
                self._guarded(name, call, args)

        started.update(name for name, _ in self._wrappers)
        self._wrapped(args, inner)

    def finish(
        self, args: tuple[Any, ...], only: Container[str]
    ) -> list[tuple[str, BaseException]]:
        """Call those named in *only* though some raise; return who raised what."""
        failures: list[tuple[str, BaseException]] = []
        reached: list[bool] = []

        def inner() -> list[Any]:
            reached.append(True)
            for name, call in self.rows:
                if name in only:
                    try:
                        self._guarded(name, call, args)
                    except BaseException as error:
                        failures.append((name, error))
            return []

        wrappers = [(n, call, args) for n, call in self._wrappers if n in only]
        try:
            self._around(wrappers, inner)
        except BaseException as error:
            failures.append((culprit_of(error, self._turn) or self.event, error))
            if not reached:  # a wrapper that fails must not keep the hooks from this
                inner()
        return failures

    def _guarded(self, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        turn, before = self._turn, self._turn.name
        turn.name = name
        try:
            return call(*args)
        except BaseException as error:
            self._blame(error, name)
            raise
        finally:
            turn.name = before

    def _collect(self, args: tuple[Any, ...]) -> list[Result]:
        turn, before = self._turn, self._turn.name
        results: list[Result] = []
        try:
            for name, call in self.rows:
                turn.name = name
                answer = call(*args)
                if answer is not None:
                    results.append((name, answer))
                    if self._first:
                        break
        except BaseException as error:
            self._blame(error, turn.name)
            raise
        finally:
            turn.name = before
        return results

    def _deliver(
        self,
        context: Any,
        splits: Mapping[str, Callable[[Any], Any]],
        values: Any,
        common: tuple[RunOptions, RunMetadata, int],
    ) -> None:
        turn, before = self._turn, self._turn.name
        get = splits.get
        options, metadata, step = common
        try:
            for name, call in self.rows:
                turn.name = name
                split = get(name)
                results = None if split is None else split(values)
                call(context, SessionRunValues(results, options, metadata, step))
        except BaseException as error:
            self._blame(error, turn.name)
            raise
        finally:
            turn.name = before

    def _blame(self, error: BaseException, name: str) -> None:
        label = self._labels.get(name, repr(name))
        blame(error, name, f"raised by plugin {label} in {self.event}()", self._turn)

    def _wrapped(self, args: tuple[Any, ...], inner: Callable[[], Any]) -> Any:
        return self._around([(n, call, args) for n, call in self._wrappers], inner)

    def _around(
        self,
        wrappers: Sequence[tuple[str, Callable[..., Any], tuple[Any, ...]]],
        inner: Callable[[], Any],
    ) -> Any:
        """Run *inner* inside the wrappers, as pluggy does with new-style ones."""
        opened: list[tuple[str, Generator[None, Any, Any]]] = []
        result: Any = None
        failure: BaseException | None = None
        try:
            for name, call, args in wrappers:
                opened.append((name, self._open(name, call, args)))
            result = inner()
        except BaseException as error:
            failure = error
        for name, wrapper in reversed(opened):
            ended, result, failure = self._unwind(name, wrapper, result, failure)
            if not ended:
                raise RuntimeError(self._fault(name, "has second yield"))
        if failure is not None:
            raise failure
        return result

    def _open(
        self, name: str, call: Callable[..., Any], args: tuple[Any, ...]
    ) -> Generator[None, Any, Any]:
        wrapper: Generator[None, Any, Any] = self._guarded(name, call, args)
        try:
            self._guarded(name, next, (wrapper,))
        except StopIteration:
            raise RuntimeError(self._fault(name, "did not yield")) from None
        return wrapper

    def _unwind(
        self,
        name: str,
        wrapper: Generator[None, Any, Any],
        result: Any,
        failure: BaseException | None,
    ) -> tuple[bool, Any, BaseException | None]:
        """Let a wrapper see how it went; return whether it ended, and how it goes on."""
        turn, before = self._turn, self._turn.name
        turn.name = name
        try:
            if failure is None:
                wrapper.send(result)
            else:
                wrapper.throw(failure)
            wrapper.close()
        except StopIteration as stop:
            return True, stop.value, None
        except RuntimeError as error:
            # Python turns a StopIteration that leaves a generator into a RuntimeError
            # (pluggy#544); here it is the end of input on its way through.
            if isinstance(failure, StopIteration) and error.__cause__ is failure:
                wrapper.close()
                return True, result, failure
            self._blame(error, name)
            return True, result, error
        except BaseException as error:
            self._blame(error, name)
            return True, result, error
        finally:
            turn.name = before
        return False, result, failure

    def _fault(self, name: str, what: str) -> str:
        return (
            f"the wrapper of plugin {self._labels[name]} for {self.event}() {what}; "
            "a wrapper yields exactly once"
        )


def _own(
    split: Callable[[Any], Any] | None,
    values: Any,
    common: tuple[RunOptions, RunMetadata, int],
) -> SessionRunValues:
    return SessionRunValues(None if split is None else split(values), *common)
