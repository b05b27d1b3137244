"""Generates two functions for a run that repeats: one asks all hooks, one tells them.

In nearly every step, each hook repeats its last request. For such a run the module
generates source that calls the hooks one by one and reads each value at a fixed index. If a
hook asks for something else, the generated function bails out, and the general path resumes
after that hook. The general path defines the behaviour of both.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from hookbus.backend.codegen import define
from hookbus.backend.read_only import SAFE, protected
from hookbus.bus.caller import Caller
from hookbus.bus.registry import Implementation
from hookbus.graph.fetches import Structure
from hookbus.graph.node import Node
from hookbus.hooks.context import UsualRunValues
from hookbus.hooks.hook import SessionRunArgs
from hookbus.hooks.outcome import NOBODY
from hookbus.step.plan import RunPlan
from hookbus.step.request import LITERALS, Unplanned, copy_of, is_plain, other_fields
from hookbus.step.trace import Ask, Tell, ask_nobody, tell_nobody


def specialize(
    before: Caller, after: Caller, unplanned: Unplanned, plan: RunPlan
) -> tuple[Ask, Tell]:
    """Compile the calls of hooks for repetitions of a run.

    Args:
        before: the caller of the hooks' ``before_run``, without wrappers or observers.
        after: the caller of the hooks' ``after_run``, without wrappers or observers.
        unplanned: the requests of the run, which must be plain.
        plan: the plan of these requests.

    Returns:
        The functions *ask* and *tell* of a :class:`hookbus.step.trace.Trace`.
    """
    namespace: dict[str, Any] = {
        "current": before.current,
        "blame_before": before.blame,
        "blame_after": after.blame,
        "refuse": after.refuse_args,
        "resume": before.resume,
        "NOBODY": NOBODY,
        "Args": SessionRunArgs,
        "Values": UsualRunValues,
        "is_plain": is_plain,
        "protected": protected,
        "SAFE": SAFE,
    }
    asking = _asking(before, dict(unplanned.answers), namespace)
    telling = _telling(after, plan, namespace)
    if asking:
        lines = [
            "def ask(run_context):",
            *asking,
            "    return None if bailout is None else resume((run_context,), bailout)",
        ]
        define("\n".join(lines) + "\n", namespace)
    if telling:
        lines = ["def tell(run_context, values, step_after):", *telling]
        define("\n".join(lines) + "\n", namespace)
    for caller, letter in ((before, "b"), (after, "c")):
        names = [f"{letter}{number}" for number in range(len(caller.implementations))]
        caller.note_copies(namespace, names)
    return namespace.get("ask", ask_nobody), namespace.get("tell", tell_nobody)


def _asking(
    caller: Caller, requests: Mapping[str, Any], namespace: dict[str, Any]
) -> list[str]:
    """Return the lines that ask all hooks, until one asks for something else."""
    if not caller.implementations:
        return []
    lines = ["    bailout = None", "    try:", "        while True:  # once"]
    answers: list[str] = []
    for number, each in enumerate(caller.implementations):
        name, own = each.plugin, f"b{number}"
        lines.append(f"            current.name = {name!r}  # {_who(each)}")
        call = _call(caller, each, own, namespace, "run_context")
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
            f"                bailout = {number}, {so_far}, {answer}",
            "                break",
        ]
    return [*lines, "            break", *_ending("blame_before")]


def _differs(
    answer: str, ready: str, request: SessionRunArgs, namespace: dict[str, Any]
) -> str:
    """Return an expression that is true if a hook's answer differs from its request."""
    fetches, same_again = request.fetches, "True"
    namespace[ready] = request
    if fetches.__class__ is str:
        equal = f"{answer}.fetches.__class__ is str and {answer}.fetches == {fetches!r}"
        same = _same(f"{answer}.fetches", f"{ready}_fetches", fetches, equal, namespace)
    elif fetches is None or fetches.__class__ is Node:
        same = f"{answer}.fetches is {ready}.fetches"
    else:  # the hook may change them in place, so they are compared with a copy
        namespace[f"{ready}_copy"] = copy_of(fetches)
        same_again = f"{ready}.fetches == {ready}_copy"
        # Containers of different types can be equal. One level is quick to compare by its
        # class; is_plain() looks at all levels.
        alike = f"{answer}.fetches.__class__ is {fetches.__class__.__name__}"
        if not is_plain(fetches, levels=1):
            alike = f"is_plain({answer}.fetches)"
        same = f"{alike} and {answer}.fetches == {ready}_copy"
    others = ""
    for name, value in other_fields(request):
        own, equal = f"{answer}.{name}", f"{answer}.{name} == {value!r}"
        same_field = _same(own, f"{ready}_{name}", value, equal, namespace)
        others += f" and {same_field}"
    return (
        f"not ({same_again} if {answer} is {ready} else"
        f" {answer}.__class__ is Args and {same}{others})"
    )


def _same(
    value: str, known: str, recorded: Any, equal: str, namespace: dict[str, Any]
) -> str:
    """Return the test of whether a value is the recorded one, nearly always the object."""
    if recorded is None:
        return f"{value} is None"
    namespace[known] = recorded
    return f"({value} is {known} or {equal})"


def _telling(caller: Caller, plan: RunPlan, namespace: dict[str, Any]) -> list[str]:
    """Return the lines that give all hooks their results."""
    if not caller.implementations:
        return []
    shapes, splits = plan.shapes, plan.splits
    lines = ["    try:"]
    for number, each in enumerate(caller.implementations):
        name = each.plugin
        results = "None"
        if name in splits:
            split, shape = f"split{number}", shapes.get(name)
            namespace[split] = splits[name]
            simple = None if shape is None else _expression(shape, plan.places)
            results = simple or f"{split}(values)"
        call = _call(caller, each, f"c{number}", namespace, "run_context, run_values")
        lines.append(f"        current.name = {name!r}  # {_who(each)}")
        if "run_values" in call:  # a constructor would be slower
            lines += [
                "        run_values = Values()",
                f"        run_values.results = {results}",
                "        run_values.global_step = step_after",
            ]
        lines.append(f"        answer = {call}")
        lines.append(f"        if answer is not None: refuse({name!r}, answer)")
    return [*lines, *_ending("blame_after")]


def _expression(shape: Hashable, places: Mapping[Any, int]) -> str | None:
    """Return the source of a hook's results, or None if their structure is not simple."""
    if not isinstance(shape, Structure):
        # Most are numbers, which need no protection.
        value = f"v if (v := values[{places[shape]}]).__class__ in SAFE else protected(v)"
        return f"({value})"
    kind, details, *inside = shape
    if kind not in (dict, list, tuple):
        return None
    parts = [_expression(part, places) for part in inside]
    if None in parts:
        return None
    if kind is not dict:
        return f"{kind.__name__}([{', '.join(map(str, parts))}])"
    by_key = dict(zip(details[0], parts, strict=True))
    if not all(key.__class__ in LITERALS for key in by_key):
        return None
    return f"{{{', '.join(f'{key!r}: {by_key[key]}' for key in shape.order or by_key)}}}"


def _call(
    caller: Caller,
    each: Implementation,
    own: str,
    namespace: dict[str, Any],
    arguments: str,
) -> str:
    """Return the source of a hook's call, with those of *arguments* that the hook names."""
    if each.guard is None and not each.defaulted and caller.costs is None:
        namespace[own] = each.function
        return f"{own}({', '.join(each.parameters)})"
    namespace[own] = dict(caller.rows)[each.plugin]
    return f"{own}({arguments})"


def _who(each: Implementation) -> str:
    """Return the name of a hook's function, for a comment in the source."""
    called = getattr(each.function, "__qualname__", type(each.function).__qualname__)
    return " ".join(f"{called}, plugin {each.label}".split())


def _ending(blame: str) -> list[str]:
    return [
        "    except BaseException as error:",
        f"        {blame}(error, current.name)",
        "        raise",
        "    finally:",
        "        current.name = NOBODY",
    ]
