"""Compiles the calls of a run that repeats into straight-line functions.

In nearly every step the same hooks ask for the same values as in the step before. For
such a run the loops over hooks are written out as source, with the place of each value in
it. The general path stays the definition: when a hook asks for something else, the function
returns what it has got, and the general path goes on from there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from hookbus.backend.codegen import CompiledProgram, define
from hookbus.bus.caller import Caller, Result
from hookbus.bus.plan import RunPlan, RunRequest, is_plain
from hookbus.bus.registry import Implementation
from hookbus.errors import NoValueYetError
from hookbus.graph.fetches import Split, Structure
from hookbus.graph.node import Node
from hookbus.hooks.context import SessionRunContext, SessionRunValues, context_of
from hookbus.hooks.hook import SessionRunArgs

Departure: TypeAlias = tuple[int, list[Result], Any]
"""The place of a hook that asked for something new, the answers before it, and its own."""

_LITERAL = (str, int, bytes, bool, type(None))


@attrs.frozen(eq=False)
class StraightRun:
    """The hooks' part of a run, compiled for what each hook asks for.

    Attributes:
        before: calls ``before_run``; returns None if every hook has asked for the same.
            None if there are no hooks, like *after*.
        after: takes the context, the values fetched for all, and what is the same for all
            hooks in their SessionRunValues; calls ``after_run``.
        asking, telling: the bodies of both, for a longer function.
        names: the global names of both.
    """

    before: Callable[[SessionRunContext], Departure | None] | None
    after: Callable[..., None] | None
    asking: Sequence[str]
    telling: Sequence[str]
    names: dict[str, Any]

    @property
    def reach_anybody(self) -> bool:
        """Whether a hook gets one of the two events."""
        return self.before is not None or self.after is not None


Whole: TypeAlias = Callable[[Any, Any], Any]
"""Does a run with these fetches and feeds; returns OTHER if it is not made for it."""

OTHER = object()
"""Returned by a function that is made for other runs."""


@attrs.define(eq=False)
class Steady:
    """What is prepared for a run that repeats: same hooks, same fetches and feeds.

    Attributes:
        keys: the keys of the caller's feeds.
        plan: how to serve it.
        request: what the caller and the hooks ask for.
        renames: whether one of the keys is not just the name of its node.
        reported: the names that the step of a custom loop reports.
        answers: the requests of the hooks.
        hooks: the calls of the hooks; None until two runs in a row were the same.
        whole: does the whole run in a graph, if nobody is due.
        candidate: the plan of the run before, if that was another one.
        compiled: how often the calls were compiled.
    """

    keys: tuple[Any, ...]
    plan: RunPlan | None = None
    request: RunRequest = attrs.field(factory=RunRequest)
    renames: bool = False
    reported: tuple[str, ...] = ()
    answers: Sequence[Result] = ()
    hooks: StraightRun | None = None
    whole: Whole | None = None
    candidate: RunPlan | None = None
    compiled: int = 0


def compile_run(
    before: Caller,
    after: Caller,
    asked: Sequence[Result],
    shapes: Mapping[str, Hashable],
    places: Mapping[Any, int],
    splits: Mapping[str, Split],
) -> StraightRun:
    """Compile the calls of a run.

    Args:
        before: the caller of the hooks' ``before_run``, without wrappers or observers.
        after: the same for ``after_run``.
        asked: the requests of hooks: only fetches that are names, nodes, and dicts, lists
            and tuples of these.
        shapes: the structure of each such hook's fetches, by the hook's name.
        places: the place of each fetched leaf's value among all values.
        splits: what takes a hook's own results out of all values.
    """
    namespace: dict[str, Any] = {
        "current": before.current,
        "blame_before": before.blame,
        "blame_after": after.blame,
        "refuse": after.refuse_args,
        "Args": SessionRunArgs,
        "Values": SessionRunValues,
        "is_plain": is_plain,
        "new": object.__new__,
    }
    asking = _asking(before, dict(asked), namespace)
    telling = _telling(after, shapes, places, splits, namespace)
    if asking:
        lines = ["def before(run_context):", *asking, "    return departure"]
        define("\n".join(lines) + "\n", namespace)
    if telling:
        lines = ["def after(run_context, values, options, metadata, step_after):", *telling]
        define("\n".join(lines) + "\n", namespace)
    for caller, letter in ((before, "b"), (after, "c")):
        names = [f"{letter}{number}" for number in range(len(caller.implementations))]
        caller.note_copies(namespace, names)
    functions = namespace.get("before"), namespace.get("after")
    return StraightRun(*functions, asking, telling, namespace)


def compile_whole(
    context: SessionRunContext,
    steady: Steady,
    prepared: CompiledProgram | None,
    names: Mapping[str, Any],
) -> Whole:
    """Compile runs of a graph, in which nobody is due, from end to end.

    The function leaves a run that differs in anything to the general path.

    Args:
        context: that of a run like them.
        steady: what is prepared for them.
        prepared: the program, if the backend session has it in this form.
        names: the parts of the session, as the function uses them: ``NO_FEEDS``,
            ``backend``, ``bus``, ``group``, ``metadata``, ``options``, ``requests``,
            ``run``, ``schedule`` and ``session``.
    """
    hooks, plan, own = steady.hooks, steady.plan, context.original_args
    assert hooks is not None
    assert plan is not None
    # The names of the hooks' functions stay in this one, where a fork cuts them off.
    namespace = hooks.names
    namespace |= {} if prepared is None else prepared.names
    namespace |= {
        **names,
        "context_of": context_of,
        "NoValueYetError": NoValueYetError,
        "OTHER": OTHER,
        "inf": math.inf,
        "kind": context.kind,
        "now": time.monotonic,
        "of_key": dict(zip(steady.keys, steady.request.feeds, strict=True)),
        "plan": plan,
        "split": plan.split,
        "steady": steady,
    }
    # The tests are those of Schedule.enter() and Schedule.leave().
    in_time = "(schedule.next_time == inf or now() < schedule.next_time)"
    lines = [
        "def whole(fetches, feeds):",
        "    step = session.global_step",
        "    if not (",
        *(f"        {test} and" for test in _sameness(own, namespace)),
        "        step == schedule.at and step + schedule.added < schedule.next_step and",
        "        schedule.idle is group and schedule.changes == bus.changes and",
        f"        {in_time}",
        "    ):",
        "        return OTHER",
        *_beginning(hooks, steady),
        *_executing(prepared),
        "    step_after = session.global_step",
        "    if (",
        "        step_after - step == schedule.added and schedule.version == bus.version",
        f"        and {in_time}",
        "    ):",
        "        schedule.runs += 1",
        "        schedule.at = step_after",
        *(f"    {line}" for line in hooks.telling),
        "    else:",
        *([] if hooks.reach_anybody else [f"    {_MAKES_CONTEXT}"]),
        "        backend.tell((run_context, group, feeds, steady, None), plan, values)",
        f"    return {'values[0]' if own.fetches.__class__ is str else 'split(values)'}",
    ]
    define("\n".join(lines) + "\n", namespace)
    whole: Whole = namespace["whole"]
    return whole


def _beginning(hooks: StraightRun, steady: Steady) -> list[str]:
    """Return the lines that ask the hooks of a run, if there are any."""
    lines = []
    if hooks.reach_anybody:
        lines.append(_MAKES_CONTEXT)
    if hooks.before is not None:
        lines += [
            *hooks.asking,
            "    if departure is not None:",
            "        pending = backend.go_on(run_context, group, steady, departure)",
            "        return backend.execute(pending, pending[2])",
        ]
    if steady.renames:
        lines.append("    feeds = {of_key[key]: feeds[key] for key in feeds}")
    if hooks.reach_anybody:
        lines += [
            "    requests.asking = None",
            "    if requests.writes or requests.skip:",
            "        given = feeds or NO_FEEDS",
            "        pending = run_context, group, given, steady, None",
            "        return backend.execute(pending, given)",
        ]
    return lines


_MAKES_CONTEXT = "    run_context = context_of(backend, fetches, feeds, step, kind)"


def _executing(prepared: CompiledProgram | None) -> list[str]:
    """Return the lines that execute a run."""
    lines = ["    values = run(feeds or NO_FEEDS)"]
    if prepared is not None:
        lines = [*prepared.lines, f"    values = {prepared.results}"]
    return [
        "    try:",
        *(f"    {line}" for line in lines),
        "    except NoValueYetError as error:",
        "        raise backend.explained(error, steady.request) from None",
    ]


def _sameness(own: SessionRunArgs, namespace: dict[str, Any]) -> Iterator[str]:
    """Yield tests of whether a run is asked for the same."""
    if own.fetches.__class__ is str:
        namespace["fetch"] = own.fetches
        equal = f"fetches.__class__ is str and fetches == {own.fetches!r}"
        yield f"(fetches is fetch or {equal})"  # nearly always the same string
    else:
        yield f"fetches.__class__ is {own.fetches.__class__.__name__}"
        yield f"len(fetches) == {len(own.fetches)}"
        for number, part in enumerate(own.fetches):
            namespace[f"fetch{number}"] = part
            yield f"fetches[{number}] is fetch{number}"
    if not own.feed_dict:
        yield "not feeds"
        return
    yield f"feeds.__class__ is dict and len(feeds) == {len(own.feed_dict)}"
    for number, key in enumerate(own.feed_dict):
        namespace[f"key{number}"] = key
        yield f"key{number} in feeds"


def _asking(
    caller: Caller, requests: Mapping[str, Any], namespace: dict[str, Any]
) -> list[str]:
    """Return the lines that ask all hooks, until one asks for something else."""
    if not caller.implementations:
        return []
    lines = ["    departure, outer = None, current.name", "    try:"]
    lines.append("        while True:  # once")
    answers: list[str] = []
    for number, each in enumerate(caller.implementations):
        name, own = each.plugin, f"b{number}"
        lines.append(f"            current.name = {name!r}  # {_who(each)}")
        call = _call(caller, each, own, namespace, {"run_context": "run_context"})
        so_far = f"[{', '.join(answers)}]"
        request = requests.get(name)
        if request is None:
            lines.append(f"            answer = {call}")
            test, answer = "answer is not None", "answer"
        else:
            answer = f"a{number}"
            lines.append(f"            {answer} = {call}")
            test = _differs(answer, f"r{number}", request, namespace)
            answers.append(f"({name!r}, {answer})")
        lines += [
            f"            if {test}:",
            f"                departure = {number}, {so_far}, {answer}",
            "                break",
        ]
    return [*lines, "            break", *_ending("blame_before")]


def _differs(
    answer: str, ready: str, request: SessionRunArgs, namespace: dict[str, Any]
) -> str:
    """Return the test of whether a hook's answer differs from its request."""
    fetches, same_again = request.fetches, "True"
    namespace[ready] = request
    if fetches.__class__ is str:
        same = f"{answer}.fetches.__class__ is str and {answer}.fetches == {fetches!r}"
    elif fetches.__class__ is Node:
        same = f"{answer}.fetches is {ready}.fetches"
    else:  # the hook may change them in place, so they are compared with a copy
        namespace[f"{ready}_copy"] = _copied(fetches)
        same_again = f"{ready}.fetches == {ready}_copy"
        # Containers of other types may be equal, too; the outermost is easily seen.
        alike = f"{answer}.fetches.__class__ is {fetches.__class__.__name__}"
        if not is_plain(fetches, levels=1):
            alike = f"is_plain({answer}.fetches)"
        same = f"{alike} and {answer}.fetches == {ready}_copy"
    return (
        f"not ({same_again} if {answer} is {ready} else"
        f" {answer}.__class__ is Args and {same}"
        f" and {answer}.feed_dict is None and {answer}.options is None)"
    )


def _copied(fetches: Any) -> Any:
    """Return plain fetches with copies of all containers."""
    kind = fetches.__class__
    if kind is dict:
        return {key: _copied(part) for key, part in fetches.items()}
    return kind(map(_copied, fetches)) if kind in (list, tuple) else fetches


def _telling(
    caller: Caller,
    shapes: Mapping[str, Hashable],
    places: Mapping[Any, int],
    splits: Mapping[str, Split],
    namespace: dict[str, Any],
) -> list[str]:
    """Return the lines that give all hooks their results."""
    if not caller.implementations:
        return []
    lines = ["    outer = current.name", "    try:"]
    for number, each in enumerate(caller.implementations):
        name = each.plugin
        results = "None"
        if name in shapes:
            split = f"split{number}"
            namespace[split] = splits[name]
            results = _expression(shapes[name], places) or f"{split}(values)"
        given = {"run_context": "run_context", "run_values": "run_values"}
        call = _call(caller, each, f"c{number}", namespace, given)
        lines.append(f"        current.name = {name!r}  # {_who(each)}")
        if "run_values" in call:
            lines += _making_values(results)
        lines.append(f"        answer = {call}")
        lines.append(f"        if answer is not None: refuse({name!r}, answer)")
    return [*lines, *_ending("blame_after")]


def _making_values(results: str) -> list[str]:
    """Return the lines that do what the constructor of SessionRunValues does.

    They take less than its call.
    """
    return [
        "        run_values = new(Values)",
        f"        run_values.results = {results}",
        "        run_values.options = options",
        "        run_values.run_metadata = metadata",
        "        run_values.global_step = step_after",
        "        run_values.skipped = False",
    ]


def _expression(shape: Hashable, places: Mapping[Any, int]) -> str | None:
    """Return the source of a hook's results, if its structure is simple."""
    if not isinstance(shape, Structure):
        return f"values[{places[shape]}]"
    kind, details, *inside = shape
    if kind not in (dict, list, tuple):
        return None
    parts = [_expression(part, places) for part in inside]
    if None in parts:
        return None
    if kind is not dict:
        return f"{kind.__name__}([{', '.join(map(str, parts))}])"
    by_key = dict(zip(details[0], parts, strict=True))
    if not all(key.__class__ in _LITERAL for key in by_key):
        return None
    return f"{{{', '.join(f'{key!r}: {by_key[key]}' for key in shape.order or by_key)}}}"


def _call(
    caller: Caller,
    each: Implementation,
    own: str,
    namespace: dict[str, Any],
    given: Mapping[str, str],
) -> str:
    """Return the source of a hook's call; it gets the arguments that it names."""
    if each.guard is None and not each.defaulted and caller.costs is None:
        namespace[own] = each.function
        return f"{own}({', '.join(given[name] for name in each.parameters)})"
    namespace[own] = dict(caller.rows)[each.plugin]
    return f"{own}({', '.join(given.values())})"


def _who(each: Implementation) -> str:
    """Return the function of a hook as a comment."""
    called = getattr(each.function, "__qualname__", type(each.function).__qualname__)
    return " ".join(f"{called}, plugin {each.label}".split())


def _ending(blame: str) -> list[str]:
    return [
        "    except BaseException as error:",
        f"        {blame}(error, current.name)",
        "        raise",
        "    finally:",
        "        current.name = outer",
    ]
