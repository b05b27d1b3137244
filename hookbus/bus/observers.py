"""Reports every call on the bus to observers, and adds up the time of each plugin."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, TypeAlias

import attrs

from hookbus.errors import repr_of
from hookbus.hooks.event_bus import HookCall
from hookbus.logs import log

Observer: TypeAlias = Callable[[HookCall], object]


class Observers:
    """The functions that receive every call, and the clock that they share."""

    def __init__(self) -> None:
        self._callbacks: dict[object, Observer] = {}
        self.elsewhere: float = 0.0
        """Seconds that the current call spent in events that it sent itself."""

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, observer: Observer) -> Callable[[], None]:
        """Report calls to *observer* from now on; return a function that ends this."""
        token = object()
        self._callbacks[token] = observer

        def remove() -> None:
            self._callbacks.pop(token, None)

        return remove

    def report(self, call: HookCall) -> None:
        """Report a call; an observer that fails receives no further calls."""
        for token, observer in list(self._callbacks.items()):
            try:
                observer(call)
            except Exception as error:
                self._callbacks.pop(token, None)
                log.error(
                    "an observer failed and is no longer called",
                    observer=getattr(observer, "__qualname__", type(observer).__name__),
                    error=repr_of(error),
                )

    def watched(
        self,
        call: Callable[..., Any],
        plugin: str,
        event: str,
        parameters: tuple[str, ...],
        wrapper: bool,
    ) -> Callable[..., Any]:
        """Return a plugin's function with its calls reported."""

        def watched(*args: Any) -> Any:
            watch = self.watch(plugin, event, parameters, args, wrapper)
            if wrapper:
                return WrapperProxy(call(*args), watch.begin, watch.resume)
            return watch.through(call, args)

        return watched

    def watch(
        self,
        plugin: str | None,
        event: str,
        parameters: tuple[str, ...],
        args: tuple[Any, ...],
        wrapper: bool = False,
    ) -> Watch:
        """Return a watch of one call; *plugin* is None for a whole event."""
        named = dict(zip(parameters, args, strict=True))
        return Watch(self, plugin, event, named, wrapper)


def is_passing_stop(error: BaseException, failure: object) -> bool:
    """Return whether *error* is a StopIteration on its way through a generator.

    Python turns it into a RuntimeError there (pluggy#544); here it is the end of input.
    """
    return (
        isinstance(failure, StopIteration)
        and isinstance(error, RuntimeError)
        and error.__cause__ is failure
    )


class WrapperProxy:
    """Stands in for a wrapper, and runs its parts through other functions.

    It is not a generator, because a generator would turn a StopIteration that passes
    through it into a RuntimeError.

    Args:
        wrapper: the wrapper.
        begin: calls the function that it gets with the arguments, to run the first part.
        resume: does so to run the second part, after the yield.
    """

    def __init__(
        self,
        wrapper: Generator[None, Any, Any],
        begin: Callable[..., Any],
        resume: Callable[..., Any],
    ) -> None:
        self._next = partial(begin, next, wrapper)
        self.send: Callable[[Any], Any] = partial(resume, wrapper.send)
        self.throw: Callable[[BaseException], Any] = partial(resume, wrapper.throw)
        self.close: Callable[[], None] = wrapper.close

    def __next__(self) -> None:
        self._next()


@attrs.define(eq=False)
class Watch:
    """Times one call and reports it."""

    _observers: Observers
    _plugin: str | None
    _event: str
    _arguments: Mapping[str, Any]
    _wrapper: bool
    _start: float = attrs.field(factory=time.perf_counter)
    _seconds: float = 0.0

    def through(self, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call, report the result or error, and pass it on."""
        result = self.begin(call, *args)
        self.report(result)
        return result

    def begin(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call, and report nothing but an error, because more is to follow."""
        try:
            return self.timed(call, *args)
        except BaseException as error:
            self.report(None, error)
            raise

    def resume(self, call: Callable[[Any], None], value: Any) -> None:
        """Call the second part of a wrapper with what its yield gets, and report it all."""
        try:
            self.timed(call, value)
        except StopIteration as stop:
            self.report(stop.value)
            raise
        except BaseException as error:
            self.report(None, value if is_passing_stop(error, value) else error)
            raise
        self.report(None)

    def timed(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call, and add the time to this call's."""
        clock = self._observers
        outside, clock.elsewhere = clock.elsewhere, 0.0
        start = time.perf_counter()
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

    def report(self, result: Any, error: BaseException | None = None) -> None:
        """Report the call, which has ended."""
        call = HookCall(
            self._plugin,
            self._event,
            self._arguments,
            result,
            error,
            self._start,
            self._seconds,
            self._wrapper,
        )
        self._observers.report(call)


_FIRST, _LAST = "before_run", "after_run"


@attrs.frozen
class Line:
    """The time of one plugin in one event, in *seconds* over all its *calls*.

    *share* is that time divided by the time of all steps; None for events outside steps.
    """

    plugin: str
    event: str
    calls: int
    seconds: float
    share: float | None


@attrs.define(eq=False)
class Tracer:
    """Adds up the calls that it observes: ``bus.observe(tracer.take)``.

    A step lasts from the start of ``before_run`` to the end of ``after_run``.

    Attributes:
        step_seconds: the time of all steps.
    """

    step_seconds: float = 0.0
    _began: float | None = None
    _spent: dict[tuple[str, str], tuple[int, float]] = attrs.field(factory=dict)
    _in_steps: set[tuple[str, str]] = attrs.field(factory=set)

    def take(self, call: HookCall) -> None:
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
        """Return the sums, the most time first."""
        lines = []
        for key, (calls, seconds) in self._spent.items():
            in_steps = key in self._in_steps and self.step_seconds
            share = seconds / self.step_seconds if in_steps else None
            lines.append(Line(*key, calls, seconds, share))
        return sorted(lines, key=lambda line: -line.seconds)

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

    def _count_step(self, call: HookCall) -> None:
        if call.event == _FIRST:
            self._began = call.start
        elif call.event == _LAST and self._began is not None:
            self.step_seconds += call.start + call.seconds - self._began
            self._began = None
