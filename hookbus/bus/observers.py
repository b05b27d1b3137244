"""Who is told of every call on the bus, and what the time of all calls adds up to."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions
from hookbus.bus.caller import Caller, Implementation, Result, bind
from hookbus.bus.wrappers import is_passing_stop
from hookbus.hooks.context import CurrentHook
from hookbus.hooks.event_bus import Call
from hookbus.hooks.hook import SessionRunValues
from hookbus.logs import log

Observer: TypeAlias = Callable[[Call], object]


class Observers:
    """Those who are told, and the clock that they share."""

    def __init__(self) -> None:
        self._told: dict[object, Observer] = {}
        self.elsewhere = 0.0
        """Seconds that the call of the moment spent in events which it sent itself."""

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(self, observer: Observer) -> Callable[[], None]:
        """Tell *observer* from now on; return what undoes that."""
        token = object()
        self._told[token] = observer
        return lambda: self._forget(token)

    def tell(self, call: Call) -> None:
        """Tell all; one that fails is told no more, and the call goes on."""
        for token, observer in list(self._told.items()):
            try:
                observer(call)
            except Exception as error:
                self._forget(token)
                log.error(
                    "an observer failed and is told no more",
                    observer=getattr(observer, "__qualname__", type(observer).__name__),
                    error=repr(error),
                )

    def _forget(self, token: object) -> None:
        self._told.pop(token, None)


class ObservedCaller(Caller):
    """A caller that tells observers; it stands in for a plain one while there are some."""

    __slots__ = ("_observers", "_parameters")

    def __init__(
        self,
        event: str,
        parameters: tuple[str, ...],
        implementations: Sequence[Implementation],
        turn: CurrentHook,
        first_result: bool,
        observers: Observers,
        answers: bool = True,
    ) -> None:
        self._observers, self._parameters = observers, parameters
        super().__init__(event, parameters, implementations, turn, first_result, answers)

    def collect(self, *args: Any) -> list[Result]:
        """Call all with *args*; return the answers that are not None, in order."""
        results: list[Result] = self._watch(None, args).through(super().collect, args)
        return results

    def deliver(
        self,
        context: Any,
        splits: Mapping[str, Callable[[Any], Any]],
        values: Any,
        common: tuple[RunOptions, RunMetadata, int],
    ) -> None:
        """Call each with *context* and a SessionRunValues of its own."""
        watch = self._watch(None, (context, SessionRunValues(None, *common)))
        watch.through(super().deliver, (context, splits, values, common))

    def hand_out(self, own: Mapping[str, Any]) -> None:
        """Call those named in *own*, each with the argument that is its own."""
        self._watch(None, (own,)).through(super().hand_out, (own,))

    def start(self, args: tuple[Any, ...], started: set[str]) -> None:
        """Call all; *started* gets each name before its call."""
        self._watch(None, args).through(super().start, (args, started))

    def finish(
        self, args: tuple[Any, ...], only: Container[str]
    ) -> list[tuple[str, BaseException]]:
        """Call those named in *only* though some raise; return who raised what."""
        finish, failures = super().finish, []
        watch = self._watch(None, args)
        watch.through(lambda: failures.extend(finish(args, only)), ())
        return failures

    def _bind(
        self, implementation: Implementation, parameters: tuple[str, ...]
    ) -> Callable[..., Any]:
        call, plugin = bind(implementation, parameters), implementation.plugin
        if implementation.wrapper:
            return lambda *args: _WatchedWrapper(
                call(*args), self._watch(plugin, args, wrapper=True)
            )
        return lambda *args: self._watch(plugin, args).through(call, args)

    def _watch(
        self, plugin: str | None, args: tuple[Any, ...], wrapper: bool = False
    ) -> _Watch:
        named = dict(zip(self._parameters, args, strict=True))
        return _Watch(self._observers, plugin, self.event, named, wrapper)


@attrs.define(eq=False)
class _Watch:
    """One call that observers are going to be told of."""

    _observers: Observers
    _plugin: str | None
    _event: str
    _arguments: Mapping[str, Any]
    _wrapper: bool
    _start: float | None = None
    _seconds: float = 0.0

    def through(self, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call, tell how it went, and let it go on so."""
        try:
            result = self.timed(call, *args)
        except BaseException as error:
            self.tell(None, error)
            raise
        self.tell(result)
        return result

    def timed(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call, and add the time to that of this call."""
        clock = self._observers
        outside, clock.elsewhere = clock.elsewhere, 0.0
        start = time.perf_counter()
        if self._start is None:
            self._start = start
        try:
            return call(*args)
        finally:
            seconds = time.perf_counter() - start
            if self._plugin is None:
                self._seconds += seconds
                clock.elsewhere = outside + seconds
            else:
                self._seconds += seconds - clock.elsewhere
                clock.elsewhere = outside

    def tell(self, result: Any, error: BaseException | None = None) -> None:
        """Tell the observers that it is over."""
        call = Call(
            self._plugin,
            self._event,
            self._arguments,
            result,
            error,
            self._start or 0.0,
            self._seconds,
            self._wrapper,
        )
        self._observers.tell(call)


class _WatchedWrapper:
    """What a caller does with a wrapper, done with this one and timed.

    It is no generator, which would turn a StopIteration that passes into a RuntimeError.
    """

    def __init__(self, wrapper: Generator[None, Any, Any], watch: _Watch) -> None:
        self._wrapper, self._watch = wrapper, watch

    def __next__(self) -> None:
        try:
            self._watch.timed(next, self._wrapper)
        except BaseException as error:
            self._watch.tell(None, error)
            raise

    def send(self, result: Any) -> None:
        """Go on after the others, which went well."""
        self._go_on(self._wrapper.send, result)

    def throw(self, failure: BaseException) -> None:
        """Go on after the others, one of which failed."""
        self._go_on(self._wrapper.throw, failure)

    def close(self) -> None:
        """Give up after a second yield."""
        self._wrapper.close()

    def _go_on(self, go_on: Callable[[Any], None], how: Any) -> None:
        try:
            self._watch.timed(go_on, how)
        except StopIteration as stop:
            self._watch.tell(stop.value)
            raise
        except BaseException as error:
            self._watch.tell(None, how if is_passing_stop(error, how) else error)
            raise
        self._watch.tell(None)


_FIRST, _LAST = "before_run", "after_run"


@attrs.frozen
class Line:
    """What one plugin took in one event.

    Attributes:
        plugin: its name.
        event: the event.
        calls: how often it was called.
        seconds: the time in all.
        share: that time divided by the time of all steps; None for what is called
            between steps, at the beginning or at the end.
    """

    plugin: str
    event: str
    calls: int
    seconds: float
    share: float | None


@attrs.define(eq=False)
class Tracer:
    """Adds up what observers are told; ``bus.observe(tracer.take)``.

    A step goes from the start of ``before_run`` to the end of ``after_run``.

    Attributes:
        step_seconds: the time of all steps.
    """

    step_seconds: float = 0.0
    _began: float | None = None
    _spent: dict[tuple[str, str], tuple[int, float]] = attrs.field(factory=dict)
    _in_steps: set[tuple[str, str]] = attrs.field(factory=set)

    def take(self, call: Call) -> None:
        """Count one call."""
        if call.plugin is None:
            self._count_step(call)
            return
        key = call.plugin, call.event
        calls, seconds = self._spent.get(key, (0, 0.0))
        self._spent[key] = calls + 1, seconds + call.seconds
        if call.event == _FIRST or self._began is not None:
            self._in_steps.add(key)

    def lines(self) -> list[Line]:
        """Return what was added up, the most time first."""
        lines = [
            Line(*key, calls, seconds, self._share(key, seconds))
            for key, (calls, seconds) in self._spent.items()
        ]
        return sorted(lines, key=lambda line: -line.seconds)

    def _share(self, key: tuple[str, str], seconds: float) -> float | None:
        if key not in self._in_steps or not self.step_seconds:
            return None
        return seconds / self.step_seconds

    def report(self) -> None:
        """Log one line for each plugin and event."""
        for line in self.lines():
            share = {} if line.share is None else {"share": f"{line.share:.1%}"}
            log.info(
                "plugin time",
                plugin=line.plugin,
                bus_event=line.event,
                calls=line.calls,
                total_ms=round(line.seconds * 1000, 3),
                **share,
            )

    def _count_step(self, call: Call) -> None:
        if call.event == _FIRST:
            self._began = call.start
        elif call.event == _LAST and self._began is not None:
            self.step_seconds += call.start + call.seconds - self._began
            self._began = None
