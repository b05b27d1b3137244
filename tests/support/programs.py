"""Draws random programs: what hooks do in them, and what their caller does."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, get_args

import attrs
from hypothesis import strategies as st

from tests.support.roles import ACTS, KINDS, At, Pair, Role, Turn, Want
from tests.support.worlds import Program


@attrs.frozen
class Casting:
    """The roles that the programs of a comparison have.

    Attributes:
        names: the names that hooks fetch.
        late: names that some of them fetch besides, in some runs; a run of them may fail.
        acts: what hooks do besides: some of :data:`ACTS`.
        kinds: the kinds of hooks.
        reductions: the reductions that they ask for.
    """

    names: tuple[str, ...]
    late: tuple[str, ...]
    acts: tuple[str, ...]
    kinds: tuple[str, ...] = tuple(KINDS)
    reductions: tuple[str, ...] = ("none",)


@st.composite
def roles(draw: Callable[..., Any], casting: Casting, moment: int) -> tuple[Role, ...]:
    """Draw the hooks of one program, many of which act at one global step.

    They share few names, acts, kinds and turns, so that these meet: hooks that are drawn
    from all that there is would rarely have anything to do with each other.
    """

    def some(choices: Sequence[str], most: int) -> list[str]:
        chosen: list[str] = draw(
            st.lists(st.sampled_from(choices), min_size=1, max_size=most)
        )
        return chosen

    names, late = some(casting.names, 3), some((*casting.names, *casting.late), 2)
    acts = ["nothing", *some(casting.acts, 2)]
    kinds = ["plain", "plain", *some(casting.kinds, 2)] if draw(_RARELY) else ["plain"]
    turns = ["always", *some(get_args(Turn), 2)]
    reductions = ["none", "none", "none", *some(casting.reductions, 2)]
    is_odd, found = draw(_RARELY), []
    for _ in range(draw(st.integers(1, 4))):
        kind, act = draw(st.sampled_from(kinds)), draw(st.sampled_from(acts))
        reduce = st.just("none") if kind == "chief" else st.sampled_from(reductions)
        usual, odd = _wants()
        first = draw(odd if is_odd else usual).named(names)
        first = attrs.evolve(first, reduce=draw(reduce))
        turn = draw(st.sampled_from(turns))
        second = first
        if turn not in ("always", "sometimes", "changes"):
            other = draw(st.one_of(usual, usual, odd, st.none()))
            second = first if other is None else other.named(late)
            if kind != "chief":
                how = draw(st.sampled_from((first.reduce, *casting.reductions)))
                second = attrs.evolve(second, reduce=how)
        if kind == "chief" and act not in ("fetches late", "sends"):
            act = "nothing"  # it would do that on one rank alone
        at = moment if act == "nothing" or not draw(_RARELY) else draw(st.integers(1, 9))
        found.append(Role(kind, (first, second), turn, draw(st.booleans()), act, at))
    return tuple(found)


_RARELY = st.sampled_from([False, False, False, True])


@functools.cache
def _wants() -> tuple[st.SearchStrategy[Want], st.SearchStrategy[Want]]:
    """Return strategies for usual wants and for odd ones, with numbers for names."""
    number = st.sampled_from("012345")
    leaf = st.one_of(number, number, number.map(At))
    fetches = st.one_of(
        leaf,
        leaf,
        st.fixed_dictionaries({"l": leaf}),
        st.lists(leaf, min_size=1, max_size=3),
        st.builds(lambda a, b, c: {"inner": {"l": a}, "both": (b, [c])}, leaf, leaf, leaf),
        st.builds(lambda a, b: ([a], {"s": b}), leaf, leaf),
        st.none(),
    )
    odd = st.one_of(
        st.builds(Want, st.builds(Pair, leaf, leaf)),
        st.builds(Want, fetches, fed=st.just(2.0)),
        st.builds(Want, fetches, trace=st.sampled_from([0, 1])),
        st.builds(Want, fetches, foreign=st.just(True)),
    )
    return st.builds(Want, fetches), odd


NAMES = ("loss", "w", "n", "s", "x", "i", "j", "cell.gradient", "global_step")


def without(some: Sequence[str], *left_out: str) -> tuple[str, ...]:
    """Return the items that begin with none of some words."""
    return tuple(each for each in some if not each.startswith(left_out))


@attrs.frozen
class Scene:
    """A situation that once went wrong, for programs to have it among other things.

    Attributes:
        roles: the hooks that it takes; they act at the moment at which much happens.
        event: what the caller does at that moment; None for what it usually does.
        usual: what it does in all other steps of the scene's own program.
    """

    roles: tuple[Role, ...]
    event: str | None = None
    usual: str = "step"

    def hooks(self, moment: int) -> tuple[Role, ...]:
        """Return its hooks, which act at a global step."""
        return tuple(attrs.evolve(role, at=moment) for role in self.roles)

    @property
    def program(self) -> Program:
        """A program that has nothing else, and is at the moment twice after a roll-back."""
        before, after = [self.usual] * 7, [self.usual] * 8
        events = *before, self.event or self.usual, *after
        hooks = self.hooks(moment=8)
        return Program(hooks, events, any(role.saves for role in hooks), goes_on=False)


def asking(first: Want, second: Want | None = None, turn: Turn = "once") -> Role:
    """Return a hook that asks for something, and for something else at its moment."""
    return Role("plain", (first, first if second is None else second), turn)


def doing(act: str) -> Role:
    """Return a hook that asks for nothing, and does something at its moment."""
    return Role("plain", (Want(), Want()), act=act)


NO_VALUE = Scene((asking(Want("cell.gradient")),), "no gradient")
ANSWERS = Scene((asking(Want("loss")), doing("answers after")))
SKIPS = Scene((asking(Want("loss"), Want(["loss", "w"])), doing("skips")))
READS_ONCE = Scene((asking(Want(), Want("j")), doing("rolls back")))
READS_LATER = Scene((asking(Want("loss"), Want({"l": "j"})), doing("rolls back before")))
ORDER = Scene((doing("assigns before"),), "two fed in another order", "two fed")


@attrs.frozen
class Setting:
    """The parts of the random programs of one comparison.

    Attributes:
        casting: their hooks.
        usual: what the caller does again and again: one of these rows of events.
        odd: what it does in between.
        scenes: what has gone wrong before.
        goes_on: whether it may go on after an error.
        looks: whether it looks at what is left in the end.
    """

    casting: Casting
    usual: tuple[tuple[str, ...], ...]
    odd: tuple[str, ...]
    scenes: tuple[Scene, ...] = ()
    goes_on: bool = True
    looks: bool = True


GRAPH = Setting(
    Casting((*NAMES, "pair.a"), ("j", "out", "nothing"), (*ACTS, "rolls back")),
    (
        ("step",),
        ("step",),
        ("nodes",),
        ("tuple",),
        ("nested",),
        ("node",),
        ("fed",),
        ("fed more",),
        ("fed node",),
        ("step", "other"),
        ("node", "other node"),
        ("fed more", "feeds in another order"),
        ("two fed",),
        ("two fed", "two fed in another order"),
        ("step", "aux"),
    ),
    (
        "step",
        "other",
        "nodes",
        "read",
        "conflict",
        "fed",
        "fed node",
        "two fed in another order",
        "traced",
        "recorded",
        "fails",
        "lost",
        "no gradient",
        "unknown",
        "aux",
        "step function",
        "signal",
        "restart",
    ),
    (NO_VALUE, ANSWERS, SKIPS, READS_ONCE, READS_LATER, ORDER),
)
BLOCKS = Setting(
    Casting(NAMES, ("j", "more"), ACTS),
    (
        ("step",),
        ("step",),
        ("step",),
        ("more names",),
        ("step", "another order"),
        ("step", "more names"),
        ("in two parts",),
    ),
    (
        "step",
        "another order",
        "more names",
        "in two parts",
        "fewer names",
        "late",
        "late but missing",
        "summary",
        "cancelled",
        "fails",
        "aux",
        "evaluation",
        "read",
        "new pass",
        "no gradient",
        "signal",
        "restart",
    ),
    (NO_VALUE, ANSWERS, SKIPS),
)
DRIVEN = attrs.evolve(
    BLOCKS,
    usual=BLOCKS.usual[:-1],
    odd=without(BLOCKS.odd, "in two parts", "summary", "read", "new pass"),
)
DRIVEN_GRAPH = Setting(
    GRAPH.casting,
    (("step",), ("step",), ("nodes",), ("step", "other"), ("own fetches",)),
    (
        "step",
        "other",
        "nested",
        "fails",
        "lost",
        "no gradient",
        "aux",
        "cancelled",
        "lacks a value",
        "signal",
        "restart",
    ),
    (NO_VALUE, ANSWERS, SKIPS),
)
SETTINGS = {
    "graph": GRAPH,
    "blocks": BLOCKS,
    "driven": DRIVEN,
    "driven graph": DRIVEN_GRAPH,
}
EVERYWHERE = Setting(
    Casting(
        ("loss", "w", "n", "s", "x", "i", "cell.gradient", "global_step"),
        ("loss",),
        without(ACTS, "fetches late", "rolls back"),
    ),
    (("step",),),
    ("step",),
    goes_on=False,
    looks=False,
)
"""Events that exist in all forms."""
GOING_BACK = attrs.evolve(
    EVERYWHERE,
    casting=attrs.evolve(
        EVERYWHERE.casting,
        acts=without(ACTS, "fetches late"),
        # The new backend session of a graph asks all hooks when they are due.
        kinds=without(tuple(KINDS), "waits", "always due"),
    ),
)
"""Events of the forms that can go back: runs of a graph, and blocks."""


def of_ranks(setting: Setting) -> Setting:
    """Return a setting for several ranks, none of which does anything alone."""
    casting = attrs.evolve(
        setting.casting,
        acts=without(setting.casting.acts, "signals"),
        reductions=REDUCTIONS,
    )
    odd = without(setting.odd, "signal", "lost", "restart")
    scenes = *REDUCED, *setting.scenes[:2]
    return attrs.evolve(setting, casting=casting, odd=odd, scenes=scenes, goes_on=False)


REDUCTIONS = ("mean", "sum", "max")
REDUCED = (
    Scene((asking(Want("loss"), Want("loss", "mean"), "switches"),)),
    Scene((asking(Want(["w", "n"]), Want(["w", "n"], "sum")),)),
)


@st.composite
def programs(draw: Callable[..., Any], setting: Setting) -> Program:
    """Draw a program in which much happens at one step, after some that repeat."""
    moment = draw(st.sampled_from([4, 7, 8, 9]))
    length = draw(st.integers(moment + 1, 14))
    usual = draw(st.sampled_from(setting.usual))
    events = [*itertools.islice(itertools.cycle(usual), length)]
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.one_of(st.just(moment - 1), st.integers(0, length - 1)))
        events[at] = draw(st.sampled_from(setting.odd))
    hooks = draw(roles(setting.casting, moment))
    if setting.scenes and draw(st.sampled_from([False, False, True])):
        scene = draw(st.sampled_from(setting.scenes))
        hooks = (*hooks[:2], *scene.hooks(moment))
        events[moment - 1] = scene.event or usual[(moment - 1) % len(usual)]
    saves = "restart" in events or any(role.saves for role in hooks)
    goes_on = setting.goes_on and draw(st.sampled_from([True, True, False]))
    budget = draw(st.sampled_from([False] * 4 + [True]))
    return Program(hooks, tuple(events), saves, goes_on, budget, setting.looks)
