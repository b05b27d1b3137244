"""Runs ``hookbus`` under changed conditions: with fixed entropy, a fixed clock, and others.

``python -m hookbus_certify.conditions entropy=1,clock run ...`` runs ``hookbus run ...``
with what the system would give to unseeded generators derived from 1, and with a clock that
shows the same times in each run. A difference between runs that a condition removes is due
to what the condition fixes.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import os
import random
import runpy
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

from hookbus_certify.plan import Plan
from hookbus_certify.redirecting import redirect, wrap_readers

_BEGAN = 1_600_000_000
"""The time, in seconds since the epoch, at which the fixed clock begins."""
_PATIENCE = 0.5
"""How long the thread that starts another one waits for its end, in seconds."""
_DRAWS = ("random", "randint", "uniform", "normal", "rand", "randn", "choice")
"""Functions of the modules ``random`` and ``numpy.random`` that people draw with."""
_MORE_DRAWS = ("gauss", "randrange", "shuffle", "sample", "choices", "normalvariate")
_MOST_DRAWS = ("permutation", "standard_normal", "random_sample", "beta", "exponential")


def fix_entropy(text: str) -> None:
    """Derive from a text what the system gives to generators that are not seeded."""
    numbers = itertools.count()

    def urandom(size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += hashlib.sha256(f"{text}:{next(numbers)}".encode()).digest()
        return found[:size]

    seed = random.Random.seed

    @functools.wraps(seed)
    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed(self, urandom(32) if a is None else a, version)

    os.urandom = urandom
    random._urandom = urandom  # type: ignore[attr-defined]
    random.Random.seed = seeded  # type: ignore[method-assign]
    random.seed = random._inst.seed
    secrets.randbits = random.SystemRandom().getrandbits
    random.seed()


def fix_clock(_: str) -> None:
    """Have the clock show the same times in each run."""
    ticks = itertools.count()

    def now() -> float:
        return _BEGAN + next(ticks) / 1000

    class FixedDatetime(datetime.datetime):
        """A datetime whose present is that of the fixed clock."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            """Return the time of the fixed clock."""
            return cls.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            """Return the time of the fixed clock."""
            return cls.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            """Return the time of the fixed clock."""
            return cls.now()

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    datetime.datetime = FixedDatetime  # type: ignore[misc]


def run_threads_in_turn(_: str) -> None:
    """Have each thread end before the next one starts, if it ends soon."""
    start = threading.Thread.start

    @functools.wraps(start)
    def begin(self: threading.Thread) -> None:
        start(self)
        if "hookbus" not in type(self).__module__:
            self.join(_PATIENCE)

    threading.Thread.start = begin  # type: ignore[method-assign]

    def submit(_: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future: futures.Future[Any] = futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    def in_order(given: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        for future in [*given]:
            future.exception(timeout)
            yield future

    futures.ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
    futures.as_completed = in_order  # type: ignore[assignment]


def separate_draws(_: str) -> None:
    """Give each thread but the main one global generators of its own."""
    modules: list[tuple[Any, Any]] = [(random, random.Random)]
    try:
        import numpy
    except ImportError:
        pass
    else:
        modules.append((numpy.random, numpy.random.RandomState))
    for module, generator in modules:
        own = threading.local()
        for name in (*_DRAWS, *_MORE_DRAWS, *_MOST_DRAWS):
            function = getattr(module, name, None)
            if function is not None:
                setattr(module, name, _separated(function, name, own, generator))


def _separated(function: Any, name: str, own: Any, generator: Any) -> Any:
    @functools.wraps(function)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return function(*args, **kwargs)
        if not hasattr(own, "generator"):
            own.generator = generator(0)
        return getattr(own.generator, name)(*args, **kwargs)

    return draw


def compute_in_one_thread(_: str) -> None:
    """Have libraries compute in one thread; they read these variables when imported."""
    for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB"):
        os.environ[f"{name}_NUM_THREADS"] = "1"


CONDITIONS: dict[str, Callable[[str], None]] = {
    "entropy": fix_entropy,
    "clock": fix_clock,
    "in-turn": run_threads_in_turn,
    "draws": separate_draws,
    "one-thread": compute_in_one_thread,
    "hash": lambda _: None,  # the one who starts the process sets PYTHONHASHSEED
}


def main() -> None:
    """Fix the conditions of the first argument, and run ``hookbus`` with the others."""
    for condition in sys.argv.pop(1).split(","):
        name, _, text = condition.partition("=")
        CONDITIONS[name](text)
    wrap_readers()
    if "--certify-probe-plan" in sys.argv:
        plan = Plan.read(sys.argv[sys.argv.index("--certify-probe-plan") + 1])
        redirect(plan.replaced, plan.checkpoints)
    runpy.run_module("hookbus", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
