"""Hooks and wrappers, in whatever stack, do on the bus what they do in pluggy.

Each stack is called twice, made of the same functions: as members of a Bus, and as plugins
of a pluggy.PluginManager. Compared is who ran and in which order, every ``finally``
included; what each wrapper was shown; what came out; and of an exception, which one it is
and what ``__cause__`` and ``__context__`` it has.

What differs on purpose is translated, or left out of the comparison:

* Order. On the bus the first registered is called first. In pluggy it is the last one, but
  among ``trylast`` plugins the first. So pluggy gets the plugins in another order.
* Answers. On the bus wrappers are shown pairs of plugin and answer, also where the event
  wants one answer: then it is a list of one pair, or of none. Compared is what is in them.
* The error for a wrapper that never yields, or yields twice. It is hookbus's own and names
  the plugin; what it says and hides is not compared, nor are the notes that errors get.
* What a wrapper returns. On the bus it is a list of pairs again, and anything else is
  refused, which pluggy does not do. So the wrappers here return nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pluggy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookbus import hookimpl, hookspec
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Registration as Member
from tests.support.profiles import examples

SAMPLE = examples(1_000)
"""So many stacks are tried by default."""
FULL = 20_000
"""At least so many different ones are tried with -m slow."""
OLDEST = "1.7.0"
"""The oldest pluggy that setup.cfg admits."""


class Spec:
    """An event of which all answers are wanted."""

    @hookspec
    def event(self, world: World) -> str: ...


class FirstSpec:
    """An event of which one answer is wanted."""

    @hookspec(firstresult=True)
    def event(self, world: World) -> str: ...


@attrs.define
class World:
    """Where the functions of a stack are called: on a bus or in pluggy.

    Attributes:
        pairs: whether results are those of a bus, lists of pairs.
        first: whether the event wants one answer.
        notes: what happened, in order.
        caught: by wrapper, what it caught.
    """

    pairs: bool
    first: bool
    notes: list[Any] = attrs.field(factory=list)
    caught: dict[int, BaseException] = attrs.field(factory=dict)

    def note(self, *what: Any) -> None:
        self.notes.append(what)

    def answer(self, who: int, value: str) -> Any:
        """Return an answer as it stands in a list of results."""
        return (f"p{who}", value) if self.pairs else value

    def answers(self, *answers: Any) -> Any:
        """Return the expected result of a wrapper for these answers."""
        if self.first and not self.pairs:
            return next(iter(answers), None)
        return list(answers)

    def seen(self, result: Any) -> Any:
        """Return the contents of a result."""
        if not isinstance(result, list):
            return result
        answers = [value for _, value in result] if self.pairs else list(result)
        return next(iter(answers), None) if self.first else answers


class End(StopIteration):
    """The end of an input, as somebody may call it."""


ERRORS = [
    ValueError,
    RuntimeError,
    StopIteration,
    End,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
]
Error: TypeAlias = type[BaseException]


def fail(error: Error | None, *label: Any) -> None:
    """Raise *error*, if there is one, so that it can be told from others of its class."""
    if error is not None:
        raise labelled(error, label)


def labelled(error: Error, label: Any) -> BaseException:
    made = error()
    made.label = label
    return made


# What a wrapper makes of a result.


def same(world: World, who: int, result: Any) -> Any:
    return result


def another(world: World, who: int, result: Any) -> Any:
    return world.answers(world.answer(who, f"{who} instead"))


def nothing(world: World, who: int, result: Any) -> Any:
    return world.answers()


def longer(world: World, who: int, result: Any) -> Any:
    if world.first or not isinstance(result, list):
        return result
    return [*result, world.answer(who, f"{who} too")]


def lengthened(world: World, who: int, result: Any) -> Any:
    if not world.first and isinstance(result, list):
        result.append(world.answer(who, f"{who} in place"))
    return result


# What it does while it handles an exception; new is an error that it may raise.


def passes(who: int, error: BaseException, new: Error) -> Any:
    raise


def raises_it(who: int, error: BaseException, new: Error) -> Any:
    raise error


def raises_new(who: int, error: BaseException, new: Error) -> Any:
    raise labelled(new, (who, "handling"))


def raises_from(who: int, error: BaseException, new: Error) -> Any:
    raise labelled(new, (who, "handling")) from error


def raises_from_none(who: int, error: BaseException, new: Error) -> Any:
    raise labelled(new, (who, "handling")) from None


def swallows(who: int, error: BaseException, new: Error) -> str:
    return f"{who} swallowed"


# Its action when it is closed at a second yield; caught: the error it swallowed before.


def closes(who: int, caught: BaseException | None, new: Error) -> None:
    pass


def fails_to_close(who: int, caught: BaseException | None, new: Error) -> None:
    raise labelled(new, (who, "closing"))


def closes_with_the_same(who: int, caught: BaseException | None, new: Error) -> None:
    if caught is not None:
        raise caught


def refuses_to_close(who: int, caught: BaseException | None, new: Error) -> None:
    """Yields a third time; see Wrapper.function."""


@attrs.frozen
class Hook:
    """A function that is no wrapper.

    Attributes:
        rank: ``tryfirst``, ``trylast`` or nothing.
        answer: what it answers; None is no answer, an empty str is one.
        error: what it raises instead.
    """

    rank: str
    answer: str | None
    error: Error | None

    def function(self, who: int) -> Callable[..., Any]:
        def event(plugin: object, world: World) -> Any:
            world.note(who)
            fail(self.error, who)
            return self.answer and f"{who} {self.answer}"

        return event


@attrs.frozen
class Bare:
    """A wrapper that yields once or never, with nothing around it.

    Attributes:
        rank: ``tryfirst``, ``trylast`` or nothing.
        before: what it raises before its yield.
        yields: whether it yields.
        after: what it raises after its yield.
        makes: what it makes of the result.
    """

    rank: str
    before: Error | None
    yields: bool
    after: Error | None
    makes: Callable[..., Any]

    def function(self, who: int) -> Callable[..., Any]:
        def event(plugin: object, world: World) -> Generator[None, Any, Any]:
            world.note(who, "enters")
            fail(self.before, who, "before")
            if not self.yields:
                return "nobody sees this"
            result = yield
            world.note(who, "sees", world.seen(result))
            fail(self.after, who, "after")
            return self.makes(world, who, result)

        return event


@attrs.frozen
class Wrapper:
    """A wrapper that deals with what happens inside.

    Attributes:
        rank: ``tryfirst``, ``trylast`` or nothing.
        handles: what it does with an exception.
        new: what it raises where it raises something new.
        leaving: what its ``finally`` raises.
        again: what it does when it is closed at a second yield; None if it has none.
        makes: what it makes of the result.
    """

    rank: str
    handles: Callable[..., Any]
    new: Error
    leaving: Error | None
    again: Callable[..., None] | None
    makes: Callable[..., Any]

    def function(self, who: int) -> Callable[..., Any]:
        def event(plugin: object, world: World) -> Generator[None, Any, Any]:
            world.note(who, "enters")
            try:
                result = yield
                world.note(who, "sees", world.seen(result))
            except BaseException as error:
                world.note(who, "catches", described(error))
                world.caught[who] = error
                answer = world.answer(who, self.handles(who, error, self.new))
                result = world.answers(answer)
            finally:
                world.note(who, "leaves")
                fail(self.leaving, who, "leaving")
            if self.again is not None:
                try:
                    yield
                finally:
                    world.note(who, "is closed")
                    self.again(who, world.caught.get(who), self.new)
                    if self.again is refuses_to_close:
                        yield
            return self.makes(world, who, result)

        return event


Stack: TypeAlias = tuple[Hook | Bare | Wrapper, ...]

ranks = st.sampled_from(["", "", "tryfirst", "trylast"])
errors = st.sampled_from(ERRORS)
seldom = st.one_of(st.none(), st.none(), st.none(), errors)
makes = st.sampled_from([same, another, nothing, longer, lengthened])
handling = [passes, raises_it, raises_new, raises_from, raises_from_none, swallows]
closing = [closes, fails_to_close, closes_with_the_same, refuses_to_close]
again = st.one_of(st.none(), st.none(), st.none(), st.sampled_from(closing))
parts = st.one_of(
    st.builds(
        Hook, ranks, st.sampled_from([None, "", "answers"]), st.one_of(st.none(), errors)
    ),
    st.builds(
        Bare, ranks, seldom, st.sampled_from([True, True, True, False]), seldom, makes
    ),
    st.builds(Wrapper, ranks, st.sampled_from(handling), errors, seldom, again, makes),
)
stacks = st.lists(parts, max_size=7).map(tuple)
cases = st.tuples(stacks, st.booleans(), st.booleans())
"""A stack, whether one answer is wanted, and whether somebody observes the bus."""


def described(error: BaseException | None) -> Any:
    """Tell an exception from all others that a stack may raise, with its whole chain."""
    if error is None:
        return None
    for fault in ("did not yield", "has second yield"):
        if fault in str(error):
            return fault
    return (
        type(error),
        getattr(error, "label", str(error)),
        described(error.__cause__),
        described(error.__context__),
        error.__suppress_context__,
    )


def plugin_of(who: int, part: Hook | Bare | Wrapper) -> object:
    flags = {part.rank: True} if part.rank else {}
    mark = hookimpl(wrapper=not isinstance(part, Hook), **flags)
    return type("Plugin", (), {"event": mark(part.function(who))})()


def on_a_bus(stack: Stack, first: bool, observed: bool) -> Any:
    """Call a stack as members of a bus, the first registered first."""
    bus = Bus()
    bus.add_events(FirstSpec if first else Spec)
    for who, part in enumerate(stack):
        bus.register(Member(f"p{who}", plugin_of(who, part), "hooks=[...]"))
    if observed:
        bus.observe(lambda call: None)
    world = World(pairs=True, first=first)
    return outcome(world, lambda: bus.caller("event").collect(world))


def in_pluggy(stack: Stack, first: bool) -> Any:
    """Call a stack as plugins of pluggy, registered so that they are called in order."""
    manager = pluggy.PluginManager("hookbus")
    manager.add_hookspecs(FirstSpec if first else Spec)
    numbered = list(enumerate(stack))
    last = [one for one in numbered if one[1].rank == "trylast"]
    others = [one for one in numbered if one[1].rank != "trylast"]
    for who, part in [*last, *reversed(others)]:
        manager.register(plugin_of(who, part))
    world = World(pairs=False, first=first)
    return outcome(world, lambda: manager.hook.event(world=world))


def outcome(world: World, call: Callable[[], Any]) -> Any:
    """Return how a call ended and all that was noted, to the last generator's end."""
    with unraisable_noted(world):
        try:
            ended: Any = ("returned", world.seen(call()))
        except BaseException as error:
            ended = ("raised", described(error))
            forget(error)
        while world.caught:  # a generator that is dropped may catch that, too
            forget(world.caught.popitem()[1])
    return ended, world.notes


def forget(error: BaseException | None) -> None:
    """Let go of the frames that an exception holds, and so of generators left open."""
    while error is not None:
        error.__traceback__ = None
        forget(error.__cause__)
        error = error.__context__


@contextlib.contextmanager
def unraisable_noted(world: World) -> Iterator[None]:
    """Note what is raised where nobody can catch it, by generators that are dropped."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda what: world.note("unraisable", described(what.exc_value))
    try:
        yield
    finally:
        sys.unraisablehook = before


def compare(case: tuple[Stack, bool, bool]) -> None:
    stack, first, observed = case
    assert on_a_bus(stack, first, observed) == in_pluggy(stack, first)


CLOSES_WITH_STOP = (
    Wrapper("", swallows, ValueError, None, closes_with_the_same, same),
    Hook("", None, StopIteration),
)
"""It looks as if the exception only passed, but it is one that close() raises."""


@settings(max_examples=SAMPLE)
@given(cases)
@example((CLOSES_WITH_STOP, False, False))
@example((CLOSES_WITH_STOP, False, True))
@pytest.mark.long
def test_a_stack_does_what_it_does_in_pluggy(case: tuple[Stack, bool, bool]) -> None:
    """No difference in order, results, exceptions and their chains."""
    compare(case)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_great_many_stacks_do_what_they_do_in_pluggy() -> None:
    """Many more stacks behave alike; the test shows how many, on which pluggy."""
    tried: set[Any] = set()

    @settings(max_examples=FULL * 5 // 4)  # some come twice
    @given(cases)
    def try_one(case: tuple[Stack, bool, bool]) -> None:
        compare(case)
        tried.add(case)

    try_one()
    print(f"{len(tried)} stacks on pluggy {pluggy.__version__}")
    assert len(tried) >= FULL


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_oldest_pluggy_makes_no_difference(tmp_path: Path) -> None:
    """The great many stacks again, in a process that has the oldest pluggy."""
    python("-m", "pip", "install", "-q", "--target", str(tmp_path), f"pluggy=={OLDEST}")
    many = test_a_great_many_stacks_do_what_they_do_in_pluggy.__name__
    tests = (
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:xdist",
        "-m",
        "slow",
        f"{__file__}::{many}",
    )
    said = python(*tests, PYTHONPATH=str(tmp_path))
    (count,) = re.findall(
        rf"(\d+) stacks on pluggy {re.escape(OLDEST)}$", said, re.MULTILINE
    )
    assert int(count) >= FULL


def python(*arguments: str, **environment: str) -> str:
    """Run this Python and return what it printed; it must succeed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
