"""Who is called for one event, in which order, and with whose results.

pluggy is the registry, this is the caller: what pluggy knows is compiled once into rows
of (plugin name, function), so that a step looks nothing up, results and errors are
attributed, and each hook can be handed values of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions
from hookbus.bus.error_policy import ErrorGuard
from hookbus.bus.wrappers import are_answers, bad_return, bad_yield, is_own, is_passing_stop
from hookbus.errors import blame, culprit_of
from hookbus.hooks.context import CurrentHook
from hookbus.hooks.hook import SessionRunValues

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
        rank: ``tryfirst``, ``trylast`` or nothing.
        guard: holds back its errors; None lets them out.
    """

    plugin: str
    label: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    wrapper: bool = False
    defaulted: tuple[str, ...] = ()
    rank: str = ""
    guard: ErrorGuard | None = None

    @property
    def group(self) -> str:
        """Among whom it is called: its rank, apart for wrappers."""
        return f"wrapper {self.rank}".strip() if self.wrapper else self.rank


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
        answers: whether somebody wants answers; else a wrapper need not return them.
    """

    __slots__ = (
        "_answers",
        "_first",
        "_guards",
        "_labels",
        "_turn",
        "_wrappers",
        "event",
        "rows",
    )

    def __init__(
        self,
        event: str,
        parameters: tuple[str, ...],
        implementations: Sequence[Implementation],
        turn: CurrentHook,
        first_result: bool = False,
        answers: bool = True,
    ) -> None:
        self.event = event
        bound = [(i, self._bind(i, parameters)) for i in implementations]
        self.rows = tuple(
            (i.plugin, i.guard.around(event, call) if i.guard else call)
            for i, call in bound
            if not i.wrapper
        )
        self._wrappers = tuple((i.plugin, call) for i, call in bound if i.wrapper)
        self._guards = {i.plugin: i.guard for i in implementations if i.guard}
        self._labels = {i.plugin: i.label for i in implementations}
        self._turn = turn
        self._first = first_result
        self._answers = answers

    def collect(self, *args: Any) -> list[Result]:
        """Call all with *args*; return the answers that are not None, in order.

        Raises:
            PluginError: a wrapper returned no answers.
        """
        if not self._wrappers:
            return self._collect(args)
        wrappers = [(n, call, args) for n, call in self._wrappers]
        return self._around(wrappers, lambda: self._collect(args), answers=True) or []

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

    def hand_out(self, own: Mapping[str, Any]) -> None:
        """Call those named in *own*, each with the argument that is its own."""

        def inner() -> None:
            for name, call in self.rows:
                if name in own:
                    self._take_turn(name, call, (own[name],))

        wrappers = [(n, call, (own[n],)) for n, call in self._wrappers if n in own]
        self._around(wrappers, inner)

    def start(self, args: tuple[Any, ...], started: set[str]) -> None:
        """Call all, as :meth:`collect` does; *started* gets each name before its call."""

        def inner() -> None:
            for name, call in self.rows:
                started.add(name)
                self._take_turn(name, call, args)

        started.update(name for name, _ in self._wrappers)
        self._around([(n, call, args) for n, call in self._wrappers], inner)

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
                        self._take_turn(name, call, args)
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

    def _bind(
        self, implementation: Implementation, parameters: tuple[str, ...]
    ) -> Callable[..., Any]:
        return bind(implementation, parameters)

    def _take_turn(self, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
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

    def _around(
        self,
        wrappers: Sequence[tuple[str, Callable[..., Any], tuple[Any, ...]]],
        inner: Callable[[], Any],
        answers: bool = False,
    ) -> Any:
        """Run *inner* inside the wrappers, as pluggy does with new-style ones.

        Unlike there, what they return must be answers if *answers* are asked for.
        """
        opened: list[tuple[str, Generator[None, Any, Any]]] = []
        result: Any = None
        failure: BaseException | None = None
        try:
            for name, call, args in wrappers:
                wrapper = self._open(name, call, args)
                if wrapper is not None:
                    opened.append((name, wrapper))
            result = inner()
        except BaseException as error:
            failure = error
        for name, wrapper in reversed(opened):
            result, failure = self._leave(name, wrapper, result, failure, answers)
        if failure is not None:
            raise failure
        return result

    def _open(
        self, name: str, call: Callable[..., Any], args: tuple[Any, ...]
    ) -> Generator[None, Any, Any] | None:
        """Run a wrapper up to its yield; return None where its policy leaves it out."""
        guard = self._guards.get(name)
        if guard is not None and guard.skips(self.event):
            return None
        try:
            wrapper: Generator[None, Any, Any] = self._take_turn(name, call, args)
            try:
                self._take_turn(name, next, (wrapper,))
            except StopIteration:
                raise self._fault(name, bad_yield, "did not yield") from None
        except Exception as error:
            if guard is None or not guard.drops(self.event, error):
                raise
            return None
        return wrapper

    def _leave(
        self,
        name: str,
        wrapper: Generator[None, Any, Any],
        result: Any,
        failure: BaseException | None,
        answers: bool,
    ) -> tuple[Any, BaseException | None]:
        """Run a wrapper from its yield to its end; return how it goes on.

        What fails of its own accord, and is held back, changes nothing.
        """
        guard = self._guards.get(name)
        shown = list(result) if guard and isinstance(result, list) else result
        ended, after, error = self._unwind(name, wrapper, shown, failure)
        if not ended:
            error = self._fault(name, bad_yield, "has second yield")
        elif error is None and answers and not self._fits(after):
            error = self._fault(name, bad_return, after)
        if guard and is_own(error, failure) and guard.drops(self.event, error):
            return result, failure
        if not ended and error is not None:
            raise error
        return after, error

    def _fits(self, result: Any) -> bool:
        return are_answers(result) or (result is None and not self._answers)

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
            try:
                if failure is None:
                    wrapper.send(result)
                else:
                    wrapper.throw(failure)
            except RuntimeError as error:
                if not is_passing_stop(error, failure):
                    raise
                wrapper.close()
                return True, result, failure
            wrapper.close()
        except StopIteration as stop:
            return True, stop.value, None
        except BaseException as error:
            self._blame(error, name)
            return True, result, error
        finally:
            turn.name = before
        return False, result, failure

    def _fault(
        self, name: str, make: Callable[[str, str, Any], BaseException], what: Any
    ) -> BaseException:
        error = make(self._labels[name], self.event, what)
        self._blame(error, name)
        return error


def _own(
    split: Callable[[Any], Any] | None,
    values: Any,
    common: tuple[RunOptions, RunMetadata, int],
) -> SessionRunValues:
    return SessionRunValues(None if split is None else split(values), *common)
