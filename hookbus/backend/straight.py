"""Compiles a program that repeats into one straight-line function.

The function does what :meth:`EmbeddedSession.execute` does for a run that is not traced and
that no hook assigns to: slots are local variables, and ops are called directly.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from hookbus.backend.generated import define
from hookbus.backend.library import on_host
from hookbus.backend.program import Call, Program

Run: TypeAlias = Callable[[Mapping[str, Any]], Sequence[Any]]
"""Takes the feeds, runs and commits, and returns the values."""

_NUMBERS = frozenset({bool, int, float, complex})


def compile_program(program: Program, names: Mapping[str, Any]) -> Run:
    """Compile a program for one session.

    Args:
        program: what to run.
        names: the session and its parts, as the function uses them: ``session``,
            ``variables`` and ``last`` (its dicts), ``pull``, ``last_output``, ``unpack``,
            ``check``, ``explain``, ``refuse`` and ``xp``.
    """
    namespace = {
        **names,
        "NUMBERS": _NUMBERS,
        "SOLE": _SOLE,
        "references": sys.getrefcount,
        "deepcopy": copy.deepcopy,
        "on_host": on_host,
        "ops": [call[0] for call in program.calls],
    }
    lines = ["def run(feeds):", "    if session._closed: refuse()", *_filling(program)]
    updates: list[tuple[str, str]] = []
    if program.calls:
        lines += ["    at = 0", "    try:"]
        for number, (call, reads) in enumerate(
            zip(program.calls, program.arguments, strict=True)
        ):
            namespace[f"f{number}"] = call[0].call
            if number:
                lines.append(f"        at = {number}")
            lines += _calling(number, call, reads, updates)
        lines += [
            "    except BaseException as error:",
            "        explain(error, ops[at])",
            "        raise",
        ]
    lines += _committing(program, updates)
    lines.append(f"    return {_results(program)}")
    define("\n".join(lines) + "\n", namespace)
    run: Run = namespace["run"]
    return run


def _filling(program: Program) -> list[str]:
    lines = [f"    s{slot} = variables[{name!r}]" for slot, name in program.variables]
    # A view: its shape and dtype can be set, which the variable's must not be.
    lines += [f"    s{slot} = variables[{name!r}].view()" for slot, name in program.arrays]
    lines += [f"    s{slot} = feeds[{name!r}]" for slot, name in program.feeds]
    if program.step_slot is not None:
        lines.append(f"    s{program.step_slot} = session.global_step")
    if program.xp_slot is not None:
        lines.append(f"    s{program.xp_slot} = xp")
    lines += [
        f"    s{slot} = last_output({name!r}, {op!r}, {key!r})"
        for slot, name, op, key in program.last_outputs
    ]
    if program.inputs:
        slots = ", ".join(f"s{slot}" for slot, _ in program.inputs)
        lines.append(f"    {slots}, = pull({[name for _, name in program.inputs]!r})")
    return lines


def _calling(
    number: int, call: Call, reads: Sequence[int], updates: list[tuple[str, str]]
) -> list[str]:
    """Return the lines of one op; add (variable, new value) of its updates."""
    operation, _, own, outputs = call
    called = f"f{number}({', '.join(f's{slot}' for slot in reads)})"
    if not operation.trains and not outputs:
        return [f"        s{own} = {called}"]
    if operation.single_update and not outputs:
        (name,), new = operation.updates, f"u{len(updates)}"
        updates.append((name, new))
        return [
            f"        {new} = {called}",
            f"        s{own} = None",
            f"        old, kind = variables[{name!r}], {new}.__class__",
            "        if kind is not old.__class__ or (kind not in NUMBERS and"
            f" getattr({new}, 'shape', ()) != getattr(old, 'shape', ())):",
            f"            check({name!r}, {new}, {f'op {operation.name!r}'!r})",
        ]
    lines = [f"        news, results = unpack(ops[{number}], {called})"]
    for name in operation.updates:
        new = f"u{len(updates)}"
        updates.append((name, new))
        lines.append(f"        {new} = news.pop({name!r})")
    lines += [f"        s{slot} = results[{key!r}]" for key, slot in outputs]
    lines.append(f"        s{own} = {'results' if outputs else None}")
    return lines


def _committing(program: Program, updates: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for name, new in updates:
        lines += [
            f"    if {new}.__class__ not in NUMBERS:",
            # Other code that holds the array, or a view of it, could change the variable.
            f"        shared = references({new}) > SOLE",
            f"        if shared or getattr({new}, 'base', None) is not None:",
            f"            {new} = deepcopy({new})",
            f"        if hasattr({new}, 'setflags'): {new}.setflags(write=False)",
            f"    variables[{name!r}] = {new}",
        ]
    lines += [f"    last[{op!r}] = s{slot}" for slot, op in program.trained]
    changes = bool(updates) + bool(program.increment)
    if changes:
        lines.append(f"    session.version += {changes}")
    if program.increment:
        lines.append(f"    session.global_step += {program.increment}")
    return lines


def _results(program: Program) -> str:
    kept = len(program.results) - program.moved
    here = "".join(f"s{slot}, " for slot in program.results[:kept])
    moved = "".join(f"s{slot}, " for slot in program.results[kept:])
    if not moved:
        return f"({here})"
    return f"({here}*on_host(({moved})),)" if here else f"on_host(({moved}))"


def _sole() -> int:
    """Return the count of references to a value that only a local variable holds."""
    namespace: dict[str, Any] = {"references": sys.getrefcount}
    define(
        "def counted():\n    value = object()\n    return references(value)\n", namespace
    )
    found: int = namespace["counted"]()
    return found


_SOLE = _sole()
