"""Compiles a program that repeats into one straight-line function.

The function behaves like :meth:`EmbeddedSession.execute` for a run that is not traced, and
in which no hook assigns variables. Slots become local variables, and ops are called
directly. A traceback shows the lines of generated source.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import linecache
import sys
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

import attrs

from hookbus.backend.program import Call, Program
from hookbus.graph.operation import Operation
from hookbus.library.lookup import PLAIN, on_host

Run: TypeAlias = Callable[[Mapping[str, Any]], Sequence[Any]]
"""Takes the feeds, runs and commits, and returns the values."""

_NUMBERS = frozenset({bool, int, float, complex})
_MOST_TESTED = 8
"""The most values whose classes a compiled step tests, before it moves them to the host."""
FILES = "<hookbus, compiled"
"""The beginning of the names of files that generated source seems to come from."""

_lines: dict[str, list[str]] = {}
"""The lines of each such file, as long as somebody may need them."""
_numbers = itertools.count(1)
_CODE = "<code>"
"""The name under which a namespace keeps the code of its functions."""
_MOST = 512


def define(source: str, namespace: dict[str, Any]) -> None:
    """Define the functions of some source in a namespace, which is also their globals.

    Each function has code of its own: CPython keeps in the code where it has found globals,
    and looks for them anew in each call if functions with other globals share it.
    """
    code = _code_of(source)
    namespace.setdefault(_CODE, []).append(code)
    exec(code, namespace)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            namespace[inner.co_name].__code__ = inner.replace()


@functools.lru_cache(maxsize=_MOST)
def _code_of(source: str) -> CodeType:
    """Compile source, which gets its own file; the file goes with the code."""
    file = f"{FILES} {next(_numbers)}>"
    lines = _lines[file] = source.splitlines(keepends=True)
    linecache.cache[file] = len(source), None, lines, file
    code = compile(source, file, "exec")
    weakref.finalize(code, _forget, file).atexit = False
    return code


def _forget(file: str) -> None:
    """Forget the lines of a file whose functions are gone."""
    del _lines[file]
    linecache.cache.pop(file, None)


def source_of(function: Any) -> str:
    """Return the source of a function that :func:`define` has defined."""
    code = function.__code__
    return "".join(inspect.getblock(_lines[code.co_filename][code.co_firstlineno - 1 :]))


@attrs.frozen(eq=False)
class _Updates:
    """The updates of a compiled program.

    Attributes:
        shapes: the shape of each variable that is updated, which never changes.
        arrays: the names of those variables that are arrays of NumPy.
        news: the variables, and the local variables with their new values, in order.
    """

    shapes: Mapping[str, tuple[int, ...]]
    arrays: Container[str]
    news: list[tuple[str, str]] = attrs.field(factory=list)

    def new(self, variable: str) -> str:
        """Return the name of a local variable for the new value of a variable."""
        name = f"u{len(self.news)}"
        self.news.append((variable, name))
        return name

    def checking(self, operation: Operation, name: str, new: str) -> list[str]:
        """Return the lines that check a new value, if it is not as the old one."""
        shape, who = self.shapes[name], f"op {operation.name!r}"
        if name in self.arrays:
            return [
                f"        if {new}.__class__ is not ndarray or {new}.shape != {shape}:",
                f"            check({name!r}, {new}, {who!r})",
            ]
        return [
            f"        old, cls = variables[{name!r}], {new}.__class__",
            "        if cls is not old.__class__ or (cls not in NUMBERS and"
            f" getattr({new}, 'shape', ()) != {shape}):",
            f"            check({name!r}, {new}, {who!r})",
        ]


def compile_program(program: Program, names: Mapping[str, Any]) -> Run:
    """Compile a program for one session.

    Args:
        program: the program to compile.
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
        "PLAIN": PLAIN,
        "ops": [call[0] for call in program.calls],
    }
    ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)  # no dependency of core
    namespace["ndarray"] = ndarray
    written = {name: names["variables"][name] for name in program.writers}
    updates = _Updates(
        {name: shape_of(value) for name, value in written.items()},
        {name for name, value in written.items() if type(value) is ndarray},
    )
    lines = ["    if session._closed: refuse()", *_filling(program)]
    if program.calls:
        lines += ["    at = 0", "    try:"]
        for number, (call, reads) in enumerate(
            zip(program.calls, program.arguments, strict=True)
        ):
            namespace[f"f{number}"] = call[0].call
            if number:
                lines.append(f"        at = {number}")
            lines.append(f"        # op {call[0].name!r}")
            lines += _calling(number, call, reads, updates)
        lines += [
            "    except BaseException as error:",
            "        explain(error, ops[at])",
            "        raise",
        ]
    lines += _committing(program, updates)
    lines = ["def run(feeds):", *lines, *_returning(program)]
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


def _calling(number: int, call: Call, reads: Sequence[int], updates: _Updates) -> list[str]:
    """Return the lines of one op; add its updates."""
    operation, _, own, outputs = call
    called = f"f{number}({', '.join(f's{slot}' for slot in reads)})"
    if not operation.trains and not outputs:
        return [f"        s{own} = {called}"]
    if not operation.updates and not outputs:
        return [f"        {called}", f"        s{own} = None"]
    if operation.single_update and not outputs:
        new = updates.new(operation.updates[0])
        return [
            f"        {new} = {called}",
            f"        s{own} = None",
            *updates.checking(operation, operation.updates[0], new),
        ]
    lines = [f"        returned = {called}"]
    news = [(name, updates.new(name)) for name in operation.updates]
    # Nearly always in one of the forms that an op may choose from.
    usual, taken = _taking(operation, news, outputs)
    lines.append(f"        if {usual}:")
    lines += [f"            {line}" for line in taken]
    lines.append(f"            s{own} = {'results.copy()' if outputs else None}")
    for name, new in news:
        checks = updates.checking(operation, name, new)
        lines += [f"    {line}" for line in checks]
    lines.append("        else:")
    lines.append(f"            news, results = unpack(ops[{number}], returned)")
    lines += [f"            {new} = news.pop({name!r})" for name, new in news]
    lines += [f"            s{slot} = results[{key!r}]" for key, slot in outputs]
    lines.append(f"            s{own} = {'results' if outputs else None}")
    # Else it would hold the new values, which the commit would have to copy.
    lines.append("        returned = news = None")
    return lines


def _taking(
    operation: Operation,
    news: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, int]],
) -> tuple[str, list[str]]:
    """Return a test of the form in which an op returns, and the lines that take it apart.

    The form is that in which the values have names: new values and outputs are dicts, a
    single new value is itself, and a pair holds both if there are both.
    """
    tests, lines = [], []
    both = bool(news and outputs)
    if both:
        tests.append("returned.__class__ is tuple and len(returned) == 2")
    first, last = ("returned[0]", "returned[1]") if both else ("returned", "returned")
    if operation.single_update:
        lines.append(f"{news[0][1]} = {first}")
    elif news:
        tests.append(_is_dict_of(first, [name for name, _ in news]))
        lines += [f"{new} = {first}[{name!r}]" for name, new in news]
    if outputs:
        tests.append(_is_dict_of(last, [key for key, _ in outputs]))
        lines.append(f"results = {last}")
        lines += [f"s{slot} = results[{key!r}]" for key, slot in outputs]
    return " and ".join(tests), lines


def _is_dict_of(value: str, names: Sequence[str]) -> str:
    has = "".join(f" and {name!r} in {value}" for name in names)
    return f"{value}.__class__ is dict and len({value}) == {len(names)}{has}"


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a value, ``()`` for one that has none."""
    return tuple(getattr(value, "shape", ()))


def _committing(program: Program, updates: _Updates) -> list[str]:
    lines = []
    for name, new in updates.news:
        test = "if"
        if name in updates.arrays:
            test = "elif"
            lines += [
                f"    if {new}.__class__ is ndarray:",
                f"        if {_count(new)} > SOLE or {new}.base is not None:",
                f"            {new} = deepcopy({new})",
                f"        {new}.setflags(False)",
            ]
        lines += [
            f"    {test} {new}.__class__ not in NUMBERS:",
            # Other code that holds the array, or a view of it, could change the variable.
            f"        shared = {_count(new)} > SOLE",
            f"        if shared or getattr({new}, 'base', None) is not None:",
            f"            {new} = deepcopy({new})",
            f"        protect = getattr({new}, 'setflags', None)",
            "        if protect is not None: protect(False)",
            f"    variables[{name!r}] = {new}",
        ]
    lines += [f"    last[{op!r}] = s{slot}" for slot, op in program.trained]
    changes = bool(updates.news) + bool(program.increment)
    if changes:
        lines.append(f"    session.version += {changes}")
    if program.increment:
        lines.append(f"    session.global_step += {program.increment}")
    return lines


def _returning(program: Program) -> list[str]:
    """Return the lines that return the results; those of hooks move to the host."""
    kept = len(program.results) - program.moved
    names = [f"s{slot}, " for slot in program.results]
    here, moved = "".join(names[:kept]), "".join(names[kept:])
    if not moved:
        return [f"    return ({here})"]
    moving = f"    return ({here}*on_host(({moved})),)"
    if program.moved > _MOST_TESTED:
        return [moving]
    # Nearly always these are losses, which need no call.
    tests = [f"s{slot}.__class__ in PLAIN" for slot in program.results[kept:]]
    are_plain = " and ".join(tests)
    return [f"    if {are_plain}: return ({here}{moved})", moving]


def _count(local: str) -> str:
    """Return the expression of the count of references to a local variable's value.

    An argument that is a local variable has its own reference; from Python 3.14 on,
    only in some places. It always has one if the call also sets the variable.
    """
    return f"references({local} := {local})"


def _sole() -> int:
    """Return the count of references to a value that only a local variable holds.

    If the count depends on the place after all, the lowest one is right: in other places,
    values are copied without need. Each value lives within one line. Otherwise a debugger
    that reads the local variables before each line would add a reference.
    """
    namespace: dict[str, Any] = {"references": sys.getrefcount}
    value = f"value = object(); return {_count('value')}"
    define(
        f"def first():\n    {value}\n"
        f"def behind():\n    try: value = None\n    except: raise\n    {value}\n",
        namespace,
    )
    return min(int(namespace[name]()) for name in ("first", "behind"))


_SOLE = _sole()
