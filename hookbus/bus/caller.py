"""Calls the hooks of one event in order, inside their wrappers, and returns answers.

pluggy registers functions; this module calls them. A caller compiles what pluggy has
registered into rows of (plugin name, function). So a step needs no lookup, errors and
answers carry the name of their plugin, and each hook can receive its own values.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeGuard

from hookbus.bus.costs import HookCosts
from hookbus.bus.observers import Observers, Watch, is_passing_stop
from hookbus.bus.registry import Bound, Implementation
from hookbus.errors import PluginError, blame, culprit_of
from hookbus.hooks.context import CommonValues, SessionRunValues
from hookbus.hooks.hook import SessionRunArgs
from hookbus.hooks.requests import CurrentHook
from hookbus.process.interrupts import interruptible

Result: TypeAlias = tuple[str, Any]
"""A plugin's name and its answer."""

Failure: TypeAlias = tuple[str, BaseException]
"""A plugin's name and the error that it raised."""

Wrapper: TypeAlias = Generator[None, Any, Any]

ArgsOf: TypeAlias = Callable[[str], tuple[Any, ...] | None]
"""Returns the arguments for one plugin just before its call, or None to leave it out."""

Splits: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""Plugins to functions that take their results out of the values fetched for all."""

_OTHER_ANSWERS = frozenset(
    {
        "begin",
        "before_first_run",
        "planned_last_step",
        "veto_save",
        "after_save",
        "pruning",
    }
)
"""The events of core whose answer is no request for fetches and feeds."""


class Caller:
    """Calls the hooks of one event; replaced when plugins change.

    Args:
        event: the event's name.
        parameters: its arguments, in the order in which calls pass them.
        implementations: the hooks' functions, in calling order.
        current: gets the name of the hook that is being called.
        first_result: whether to stop at the first answer that is not None.
        answers: whether the event takes answers; if not, a wrapper does not need to return
            them.
        observers: receive every call; None without observers.
        costs: adds up the time of each hook; None without a budget.

    Attributes:
        costs: adds up the time of each hook; None without a budget.
        current: the name of the hook that is being called.
        implementations: the hooks' functions, in calling order.
        rows: the plugins' names and functions, in calling order, without wrappers.
        is_plain: whether it calls the functions in turn, without wrappers or observers.
    """

    def __init__(
        self,
        event: str,
        parameters: tuple[str, ...],
        implementations: Sequence[Implementation],
        current: CurrentHook,
        first_result: bool = False,
        answers: bool = True,
        observers: Observers | None = None,
        costs: HookCosts | None = None,
    ) -> None:
        self.observers = observers
        self.costs = costs
        self.current = current
        self.rows: list[tuple[str, Bound]] = []
        self.implementations = implementations
        self._copies: list[tuple[dict[str, Any], Sequence[str]]] = []
        self._event, self._parameters = event, parameters
        self._first, self._answers = first_result, answers
        self._refuses_args = not answers or event in _OTHER_ANSWERS
        self._labels = {i.plugin: i.label for i in implementations}
        self._guards = {i.plugin: i.guard for i in implementations if i.guard}
        self._wrappers: list[tuple[str, Bound]] = []
        for each in implementations:
            interruptible(each.function)
            call = each.bind(parameters)
            if costs is not None:
                timed = costs.timed_wrapper if each.wrapper else costs.timed
                call = timed(each.plugin, call)
            if observers is not None:
                call = observers.watched(call, each.plugin, event, parameters, each.wrapper)
            if each.guard and not each.wrapper:
                call = each.guard.around(event, call)
            (self._wrappers if each.wrapper else self.rows).append((each.plugin, call))
        self.is_plain: bool = not self._wrappers and observers is None

    @property
    def names(self) -> Iterable[str]:
        """The hooks that get the event."""
        return self._labels

    @property
    def reaches_nobody(self) -> bool:
        """Whether a call would reach no plugin and no observer."""
        return not self._labels and self.observers is None

    def collect(self, *args: Any) -> list[Result]:
        """Call all hooks with *args*; return the answers that are not None, in order.

        Raises:
            PluginError: a wrapper returned no answers.
        """
        if self.is_plain:
            return self._collect(args)
        collect = partial(self._collect, args)
        return self._around(collect, args, lambda _: args, answers=True) or []

    @contextlib.contextmanager
    def around(self, *args: Any) -> Iterator[None]:
        """Call all hooks with *args*, and do a block inside their wrappers.

        An error of the block goes on, whatever the wrappers do.
        """
        watch = None if self.observers is None else self._watch(args)
        timed = operator.call if watch is None else watch.timed
        opened: list[tuple[str, Wrapper]] = []
        failure: BaseException | None = None
        own: BaseException | None = None
        try:
            timed(self._open_all, lambda _: args, opened)
            timed(self._collect, args)
        except BaseException as error:
            failure = error
        if failure is None:
            try:
                yield
            except BaseException as error:
                own = failure = error
        _, failure = timed(self._leave_all, opened, None, failure, False)
        failure = failure or own
        if watch is not None:
            watch.report(None if failure else [], failure)
        if failure is not None:
            raise failure

    def resume(
        self, args: tuple[Any, ...], bailout: tuple[int, list[Result], Any]
    ) -> list[Result]:
        """Call the hooks after one that bailed out; return the answers of all.

        Args:
            args: the event's arguments.
            bailout: the hook's place, the answers before its own, and its own.
        """
        place, results, answer = bailout
        if answer is not None:
            results.append((self.implementations[place].plugin, answer))
        return self._collect(args, place + 1, results)

    def note_copies(self, namespace: dict[str, Any], names: Sequence[str]) -> None:
        """Note names of the hooks' functions elsewhere, which :meth:`cut_off` replaces."""
        self._copies.append((namespace, names))

    def cut_off(self) -> None:
        """Reach no hook any more, even in a call that is under way."""
        self.rows.clear()
        for namespace, names in self._copies:
            namespace.update(dict.fromkeys(names, _reach_nobody))

    def deliver(
        self, context: Any, splits: Splits, values: Any, common: CommonValues
    ) -> None:
        """Call each hook with *context* and a SessionRunValues with its own results.

        Args:
            context: the run's context.
            splits: take the results of each hook that has some out of *values*.
            values: the values fetched for all.
            common: the other fields of every SessionRunValues.
        """
        if self.is_plain:
            self._deliver(context, splits, values, common)
            return

        def args_of(name: str) -> tuple[Any, ...]:
            results = splits[name](values) if name in splits else None
            return context, SessionRunValues(results, *common)

        args = context, SessionRunValues(None, *common)
        self._around(partial(self._deliver, context, splits, values, common), args, args_of)

    def visit(self, args: tuple[Any, ...], args_of: ArgsOf) -> list[Result]:
        """Call each hook with its own arguments; return the answers, in order.

        Wrappers neither see the answers nor return them. *args* are the event's arguments,
        as observers see them.
        """
        answers: list[Result] = []
        if self.is_plain:
            self._visit(args_of, answers)
        else:
            self._around(partial(self._visit, args_of, answers), args, args_of)
        return answers

    def visit_all(self, args: tuple[Any, ...], args_of: ArgsOf) -> list[Failure]:
        """Call each hook like :meth:`visit`, and go on after an error.

        Returns:
            The errors, each with the name of its hook.
        """
        failures: list[Failure] = []
        reached = False

        def inside() -> None:
            nonlocal reached
            reached = True
            self._visit(args_of, [], failures)

        try:
            self._around(inside, args, args_of)
        except BaseException as error:
            failures.append((culprit_of(error, self.current) or self._event, error))
            if not reached:  # a wrapper that fails must not keep the others from the event
                inside()
        return failures

    def _visit(
        self,
        args_of: ArgsOf,
        answers: list[Result],
        failures: list[Failure] | None = None,
    ) -> None:
        for name, call in self.rows:
            given = args_of(name)
            if given is None:
                continue
            try:
                answer = self._call(name, call, given)
                if answer is not None:
                    self.refuse_args(name, answer)
                    answers.append((name, answer))
            except BaseException as error:
                if failures is None:
                    raise
                failures.append((name, error))

    def _collect(
        self, args: tuple[Any, ...], start: int = 0, results: list[Result] | None = None
    ) -> list[Result]:
        current, before = self.current, self.current.name
        results = [] if results is None else results
        try:
            for name, call in self.rows[start:] if start else self.rows:
                current.name = name
                answer = call(*args)
                if answer is not None:
                    results.append((name, answer))
                    if self._refuses_args:
                        self.refuse_args(name, answer)
                    if self._first:
                        break
        except BaseException as error:
            self.blame(error, current.name)
            raise
        finally:
            current.name = before
        return results

    def _deliver(
        self, context: Any, splits: Splits, values: Any, common: CommonValues
    ) -> None:
        current, before = self.current, self.current.name
        split_of = splits.get
        try:
            for name, call in self.rows:
                current.name = name
                split = split_of(name)
                results = None if split is None else split(values)
                answer = call(context, SessionRunValues(results, *common))
                if answer is not None:
                    self.refuse_args(name, answer)
        except BaseException as error:
            self.blame(error, current.name)
            raise
        finally:
            current.name = before

    def refuse_args(self, name: str, answer: Any) -> None:
        """Refuse a request for fetches and feeds that no run would serve."""
        if isinstance(answer, SessionRunArgs):
            error = PluginError(
                f"plugin {self._labels[name]}: {self._event}() returned "
                "SessionRunArgs(...); only before_run() asks for fetches and feeds"
            )
            self.blame(error, name)
            raise error

    def _call(
        self,
        name: str,
        call: Bound,
        args: tuple[Any, ...],
        passing: BaseException | None = None,
    ) -> Any:
        """Call a hook; *passing* is the error of others that may go through it."""
        current, before = self.current, self.current.name
        current.name = name
        try:
            return call(*args)
        except BaseException as error:
            if error is not passing:
                self.blame(error, name)
            raise
        finally:
            current.name = before

    def blame(self, error: BaseException, name: str) -> None:
        """Note on an error that a hook raised it in this event."""
        label = self._labels.get(name, repr(name))
        blame(error, name, f"raised by plugin {label} in {self._event}()", self.current)

    def _around(
        self,
        inside: Callable[[], Any],
        args: tuple[Any, ...],
        args_of: ArgsOf,
        answers: bool = False,
    ) -> Any:
        """Run *inside* within the wrappers; report the whole event to observers.

        Wrappers go around the others as new-style ones do in pluggy. Unlike there, a
        wrapper must return answers if *answers* are wanted.

        Args:
            inside: calls the hooks that are not wrappers.
            args: the event's arguments, as observers see them.
            args_of: returns the arguments of one wrapper.
            answers: whether the result must be a list of answers.
        """
        if self.observers is None:
            return self._wrap(inside, args_of, answers)
        return self._watch(args).through(self._wrap, (inside, args_of, answers))

    def _watch(self, args: tuple[Any, ...]) -> Watch:
        """Return a watch, which times and reports the whole event."""
        assert self.observers is not None
        return self.observers.watch(None, self._event, self._parameters, args)

    def _wrap(self, inside: Callable[[], Any], args_of: ArgsOf, answers: bool) -> Any:
        opened: list[tuple[str, Wrapper]] = []
        result: Any = None
        failure: BaseException | None = None
        try:
            self._open_all(args_of, opened)
            result = inside()
        except BaseException as error:
            failure = error
        result, failure = self._leave_all(opened, result, failure, answers)
        if failure is not None:
            raise failure
        return result

    def _open_all(self, args_of: ArgsOf, opened: list[tuple[str, Wrapper]]) -> None:
        """Run all wrappers up to their yields; add them to *opened*."""
        for name, call in self._wrappers:
            wrapper = self._open(name, call, args_of(name))
            if wrapper is not None:
                opened.append((name, wrapper))

    def _leave_all(
        self,
        opened: Sequence[tuple[str, Wrapper]],
        result: Any,
        failure: BaseException | None,
        answers: bool,
    ) -> tuple[Any, BaseException | None]:
        """Run wrappers to their ends; return the result and error after them."""
        for name, wrapper in reversed(opened):
            result, failure = self._leave(name, wrapper, result, failure, answers)
        return result, failure

    def _open(self, name: str, call: Bound, args: tuple[Any, ...] | None) -> Wrapper | None:
        """Run a wrapper up to its yield; return None if it is left out."""
        guard = self._guards.get(name)
        if args is None or (guard is not None and guard.skips(self._event)):
            return None
        try:
            wrapper: Wrapper = self._call(name, call, args)
            try:
                self._call(name, next, (wrapper,))
            except StopIteration:
                raise self._bad_yield(name, "did not yield") from None
        except Exception as error:
            if guard is None or not guard.drops(self._event, error):
                raise
            return None
        return wrapper

    def _leave(
        self,
        name: str,
        wrapper: Wrapper,
        result: Any,
        failure: BaseException | None,
        answers: bool,
    ) -> tuple[Any, BaseException | None]:
        """Run a wrapper from its yield to its end; return the result and error after it.

        If its policy suppresses the wrapper's own error, both stay as they were.
        """
        guard = self._guards.get(name)
        shown = list(result) if guard and isinstance(result, list) else result
        ended, after, error = self._unwind(name, wrapper, shown, failure)
        if not ended:
            error = self._bad_yield(name, "has second yield")
        elif error is None and answers and not self._fits(after):
            error = PluginError(
                f"plugin {self._labels[name]}: its wrapper of {self._event}() returned "
                f"{after!r}; a wrapper returns the result of its yield, a list of pairs "
                "(plugin, answer): write answers = yield, and return answers at its end"
            )
            self.blame(error, name)
        if guard and _is_own(error, failure) and guard.drops(self._event, error):
            return result, failure
        if not ended and error is not None:
            raise error
        return after, error

    def _fits(self, result: Any) -> bool:
        if result is None:
            return not self._answers
        return isinstance(result, list) and all(
            isinstance(pair, tuple) and len(pair) == 2 for pair in result
        )

    def _unwind(
        self, name: str, wrapper: Wrapper, result: Any, failure: BaseException | None
    ) -> tuple[bool, Any, BaseException | None]:
        """Resume a wrapper; return whether it ended, and the result and error after it."""
        try:
            try:
                if failure is None:
                    self._call(name, wrapper.send, (result,))
                else:
                    self._call(name, wrapper.throw, (failure,), failure)
            except RuntimeError as error:
                if not is_passing_stop(error, failure):
                    raise
                wrapper.close()
                return True, result, failure
            self._call(name, wrapper.close, ())
        except StopIteration as stop:
            return True, stop.value, None
        except BaseException as error:
            return True, result, error
        return False, result, failure

    def _bad_yield(self, name: str, what: str) -> RuntimeError:
        error = RuntimeError(
            f"the wrapper of plugin {self._labels[name]} for {self._event}() {what}; a "
            "wrapper yields exactly once"
        )
        self.blame(error, name)
        return error


def _reach_nobody(*_: Any) -> None:
    """Take the place of a hook's function in a forked child."""


def _is_own(
    error: BaseException | None, failure: BaseException | None
) -> TypeGuard[BaseException]:
    """Return whether an error is the wrapper's own: not *failure*, and not caused by it."""
    if error is None or error is failure:
        return False
    return failure is None or error.__cause__ is not failure
