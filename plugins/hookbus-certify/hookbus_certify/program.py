"""Finds the variables of a running program: those of its modules, functions and hooks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import json
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus_certify.encoding import MISSING, decoded, encoded, is_generator, set_state

_DEEPEST = 5
_MOST = 4000
_LONGEST = 200
"""The items of a list or dict that are looked at one by one."""
OF_HOOK = " of the hook"
"""How the names of variables end that are fields of hooks."""
_OPAQUE = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    type,
)


@attrs.frozen(eq=False)
class Variable:
    """One number, text, array or generator that a program keeps.

    Attributes:
        name: its place, like ``optimizer.speed in main()``.
        read: returns the value that is there now.
        write: puts another one there; None where that is not possible.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None] | None

    def give(self, form: Any) -> None:
        """Put the value of a form there, if that is possible."""
        value = self.read()
        if is_generator(value):
            set_state(value, decoded(form))
            return
        found = decoded(form)
        if hasattr(value, "dtype") and getattr(value, "shape", None) == found.shape:
            with contextlib.suppress(IndexError, TypeError, ValueError):
                value[...] = found
                return
        if self.write is not None:
            self.write(found)


@attrs.define(eq=False)
class Program:
    """The variables of the program at one moment, by name."""

    variables: dict[str, Variable] = attrs.field(factory=dict)
    _seen: dict[int, Any] = attrs.field(factory=dict)

    @classmethod
    def found(cls, hooks: Mapping[str, Any]) -> Program:
        """Look for the variables of the program that calls, and of hooks by name."""
        program = cls()
        for name, hook in hooks.items():
            program._seen[id(hook)] = name
            program._take_fields(f"{name}.", OF_HOOK, hook, 0)
        for module in _modules():
            prefix = "" if module.__name__ == "__main__" else f"{module.__name__}."
            program._take_namespace(prefix, "", vars(module), vars(module).__setitem__)
        for frame in _frames():
            program._take_frame(frame)
        return program

    def described(self) -> dict[str, Any]:
        """Return each variable's form with a digest of it, for JSON."""
        found = {}
        for name, variable in self.variables.items():
            # A place may be gone by now, like the item of a list that is shorter.
            with contextlib.suppress(AttributeError, LookupError):
                form = encoded(variable.read())
                if form is MISSING:
                    continue
                digest = hashlib.sha256(json.dumps(form).encode()).hexdigest()
                kind = "generator" if is_generator(variable.read()) else "value"
                found[name] = {"digest": digest, "kind": kind, "form": form}
        return found

    def _take_namespace(
        self,
        prefix: str,
        suffix: str,
        names: Mapping[str, Any],
        write: Callable[[str, Any], None],
    ) -> None:
        for name in [*names]:
            value = names[name]
            if name.startswith("__") or isinstance(value, types.ModuleType):
                continue
            if isinstance(value, types.FunctionType):
                self._take_function(prefix, suffix, value)
            elif isinstance(value, type):
                self._take_class(f"{prefix}{name}.", suffix, value)
            else:
                self._take(prefix + name, suffix, _Place(names, name, write), 0)

    def _take_function(self, prefix: str, suffix: str, value: Any) -> None:
        """Take what a function of the program keeps in its closure."""
        if not _is_own(value.__code__.co_filename):
            return
        for name, cell in zip(
            value.__code__.co_freevars, value.__closure__ or (), strict=False
        ):
            where = f" in {value.__name__}(){suffix}"
            self._take(prefix + name, where, _Cell(cell), 0)

    def _take_class(self, prefix: str, suffix: str, value: type) -> None:
        module = sys.modules.get(value.__module__)
        if not _is_own(getattr(module, "__file__", None) or ""):
            return
        for name, part in [*vars(value).items()]:
            if not name.startswith("__") and not callable(part) and _is_data(part):
                place = _Place(vars(value), name, _attribute_setter(value))
                self._take(prefix + name, suffix, place, 1)

    def _take(self, name: str, suffix: str, place: Any, depth: int) -> None:
        """Take a value, or what is inside it."""
        value = place.read()
        if len(self.variables) >= _MOST or isinstance(value, _OPAQUE):
            return
        is_number = isinstance(value, bool | int | float | str | bytes | None)
        if not is_number and self._seen.setdefault(id(value), name + suffix) != (
            name + suffix
        ):
            return
        if is_number or is_generator(value) or hasattr(value, "dtype"):
            self._add(name + suffix, place)
        else:
            self._take_parts(name, suffix, place, depth)

    def _take_parts(self, name: str, suffix: str, place: Any, depth: int) -> None:
        """Take what is inside a container, a generator or another object."""
        value = place.read()
        if isinstance(value, types.GeneratorType):
            self._take_generator(value, depth)
        elif isinstance(value, Mapping):
            self._take_items(name, suffix, value, depth)
        elif isinstance(value, list | tuple | deque | set | frozenset):
            if encoded(value) is not MISSING:
                self._add(name + suffix, place)
            elif not isinstance(value, set | frozenset):
                items = dict(enumerate(value))
                self._take_items(name, suffix, items, depth, owner=value)
        elif type(value).__module__ == "itertools":
            self._add(name + suffix, _Shown(value))
        elif depth < _DEEPEST and _is_data(value):
            self._take_fields(f"{name}.", suffix, value, depth)

    def _add(self, name: str, place: Any) -> None:
        self.variables.setdefault(name, Variable(name, place.read, place.write))

    def _take_items(
        self, name: str, suffix: str, value: Any, depth: int, owner: Any = None
    ) -> None:
        if depth >= _DEEPEST or len(value) > _LONGEST:
            return
        owner = value if owner is None else owner
        for key in [*value]:
            if isinstance(key, str | int):
                place = _Place(owner, key, getattr(owner, "__setitem__", None))
                self._take(f"{name}[{key!r}]", suffix, place, depth + 1)

    def _take_fields(self, prefix: str, suffix: str, value: Any, depth: int) -> None:
        """Take the attributes of an object."""
        for name in _fields_of(value):
            place = _Place(_Attributes(value), name, _attribute_setter(value))
            self._take(prefix + name, suffix, place, depth + 1)

    def _take_generator(self, value: Any, depth: int) -> None:
        frame = value.gi_frame
        if frame is not None and depth < _DEEPEST and _is_own(frame.f_code.co_filename):
            self._take_frame(frame)

    def _take_frame(self, frame: types.FrameType) -> None:
        """Take the local variables of a function."""
        where = f" in {frame.f_code.co_name}()"
        self._take_namespace("", where, _Locals(frame), _setter(frame))


@attrs.frozen(eq=False)
class _Place:
    """A place in a dict, a list, a namespace or an object."""

    owner: Any
    key: Any
    _write: Callable[[Any, Any], None] | None

    def read(self) -> Any:
        """Return the value that is there."""
        return self.owner[self.key]

    @property
    def write(self) -> Callable[[Any], None] | None:
        """The function that puts another value there."""
        if self._write is None:
            return None
        write, key = self._write, self.key
        return lambda value: write(key, value)


@attrs.frozen(eq=False)
class _Attributes:
    """The attributes of an object, by name."""

    owner: Any

    def __getitem__(self, name: str) -> Any:
        return object.__getattribute__(self.owner, name)


@attrs.frozen(eq=False)
class _Locals(Mapping[str, Any]):
    """The local variables of a function that runs, as they are now."""

    frame: types.FrameType

    def __getitem__(self, name: str) -> Any:
        return self.frame.f_locals[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.frame.f_locals])

    def __len__(self) -> int:
        return len(self.frame.f_locals)


@attrs.frozen(eq=False)
class _Cell:
    """A variable that a function shares with the one around it."""

    cell: Any

    def read(self) -> Any:
        """Return the value that is there."""
        try:
            return self.cell.cell_contents
        except ValueError:  # it is empty
            return MISSING

    def write(self, value: Any) -> None:
        """Put another value there."""
        self.cell.cell_contents = value


@attrs.frozen(eq=False)
class _Shown:
    """A value of which only its text is known, like an ``itertools.count``."""

    value: Any
    write: None = None

    def read(self) -> str:
        """Return the text."""
        return repr(self.value)


def _attribute_setter(value: Any) -> Callable[[str, Any], None]:
    return lambda name, new: setattr(value, name, new)


def _setter(frame: types.FrameType) -> Callable[[str, Any], None]:
    """Return a function that sets a local variable of a frame."""

    def write(name: str, value: Any) -> None:
        frame.f_locals[name] = value
        if sys.version_info < (3, 13):  # since then, f_locals writes through
            api = ctypes.pythonapi
            api.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))

    return write


def _fields_of(value: Any) -> Iterator[str]:
    """Yield the names of an object's attributes, those in slots included."""
    yield from [*getattr(value, "__dict__", ())]
    for each in type(value).__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                yield name


def _is_data(value: Any) -> bool:
    """Return whether a value belongs neither to hookbus nor to Python itself."""
    package = type(value).__module__.partition(".")[0]
    return package in ("builtins", "collections", "types") or not (
        package in sys.stdlib_module_names - {"__main__"} or package == "hookbus"
    )


def _root() -> str | None:
    """Return the folder of the script."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if path is None else str(Path(path).absolute().parent)


def _is_own(file: str) -> bool:
    """Return whether a file belongs to the program, and not to what it uses."""
    root = _root()
    if root is None or not file.startswith(root):
        return False
    return not {"site-packages", "dist-packages", "hookbus", "hookbus_certify"} & {
        *Path(file).relative_to(root).parts
    }


def _modules() -> list[types.ModuleType]:
    """Return the modules of the program."""
    return [
        module
        for module in [*sys.modules.values()]
        if isinstance(module, types.ModuleType)
        and _is_own(getattr(module, "__file__", None) or "")
    ]


def _frames() -> list[types.FrameType]:
    """Return the functions of the program that run, and its generators that wait."""
    found, frame = [], sys._getframe()
    while frame is not None:
        if _is_own(frame.f_code.co_filename) and frame.f_code.co_name != "<module>":
            found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    waiting = [
        each.gi_frame
        for each in gc.get_objects()
        if type(each) is types.GeneratorType and each.gi_frame is not None
    ]
    return found + [f for f in waiting if _is_own(f.f_code.co_filename)]
