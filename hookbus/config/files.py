"""Finds and reads the config file.

From the current folder upwards, only the first file that has a section for hookbus is read.
Within a folder, files are tried in the order of :data:`LOADERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from hookbus.config.keys import Entry
from hookbus.errors import UsageError
from hookbus.logs import shown

OWN = "hookbus.toml"
"""The config file for hookbus alone, which is read even if it is empty."""
_OURS = re.compile(
    r"^[ \t]*\[+[ \t]*(tool[ \t]*[.:][ \t]*)?\W?hookbus\b|tool\s*\.\s*hookbus|\[tool\]",
    re.M,
)
"""Matches the text of a file that may have a section for hookbus."""

Sections: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Section to key to value; the section of hookbus itself is ''."""


@attrs.frozen
class ConfigFile:
    """A config file that was read.

    Attributes:
        name: its path, as messages show it.
        entries: its keys and values, in order.
        sections: the sections of plugins and their lines, empty ones included.
        ignored: files beside it that have a section as well and are not read.
    """

    name: str
    entries: tuple[Entry, ...] = ()
    sections: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()


def find(directory: Path) -> ConfigFile | None:
    """Return the config file for a folder, or None.

    Raises:
        UsageError: it cannot be read or is invalid.
    """
    for folder in (directory, *directory.parents):
        found = [folder / name for name in LOADERS if _is_there(folder / name)]
        for place, path in enumerate(found):
            file = read(path)
            if file is not None:
                others = [p for p in found[place + 1 :] if _has_section(p)]
                return attrs.evolve(file, ignored=tuple(map(shown, others)))
    return None


def read(path: Path, named: bool = False) -> ConfigFile | None:
    """Read a file; return None if it has no section for hookbus.

    Args:
        path: the file.
        named: whether the user named it; then it must have such a section, and its name
            may be any that ends in .toml, .ini or .cfg.

    Raises:
        UsageError: it cannot be read or is invalid.
    """
    text, fault = _text(path)
    if not named and path.name != OWN and not ("hookbus" in text and _OURS.search(text)):
        return None  # a mistake in it is not for hookbus to report
    if fault:
        raise _unreadable(path, f"{fault}; save it as UTF-8")
    sections = _loader(path)(text, path)
    if sections is None and named:
        raise UsageError(f"-c {shown(path)}: the file has no section for hookbus")
    return None if sections is None else _file(path, text, sections)


def _text(path: Path) -> tuple[str, str]:
    """Return the text of a file, and why it is not UTF-8.

    If it is not, its letters are guessed, to see if it has a section for hookbus.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    fault = "it has null bytes, like UTF-16" if b"\0" in content else ""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fault = fault or str(error)
    if fault:
        text = content.replace(b"\0", b"").lstrip(b"\xff\xfe").decode("latin-1")
    return text, fault


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"cannot read the config file {shown(path)}: {why}")


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder above may be forbidden
        return False


def _has_section(path: Path) -> bool:
    try:
        return read(path) is not None
    except UsageError:  # it is not read anyway
        return False


def _parse_toml(text: str, path: Path) -> dict[str, Any]:
    import tomllib  # imported late, like configparser: most programs have no such file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(path, error) from None
    except (RecursionError, ValueError):  # thousands of brackets, or of digits
        raise UsageError(
            f"{shown(path)}: a value is nested too deeply, or a number has too many digits"
        ) from None


def _syntax_error(path: Path, error: Exception) -> UsageError:
    # Parsers have no attribute for the line everywhere, but name it in the text.
    named = re.search(r"line:?\s*(\d+)", str(error))
    line = getattr(error, "lineno", None) or (named[1] if named else 1)
    reason = str(error).splitlines()[0]
    return UsageError(f"{shown(path)}:{line}: syntax error: {reason}")


def _whole_toml(text: str, path: Path) -> Sections:
    table = _parse_toml(text, path)
    if "hookbus" in _table(table.get("tool")):
        _refuse(path, "[tool.hookbus]", "at the top")
    return _plugin_tables(table)


def _pyproject(text: str, path: Path) -> Sections | None:
    whole = _parse_toml(text, path)
    if "hookbus" in whole:
        _refuse(path, "[hookbus]", "in [tool.hookbus]")
    tools = _table(whole.get("tool"))
    if "hookbus" not in tools:
        return None
    if not isinstance(tools["hookbus"], dict):
        raise UsageError(f"{shown(path)}: tool.hookbus is not a table")
    return _plugin_tables(tools["hookbus"])


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _refuse(path: Path, section: str, right: str) -> None:
    raise UsageError(
        f"{shown(path)}: {section} is not read from this file; put its keys {right}"
    )


def _plugin_tables(table: Mapping[str, Any]) -> Sections:
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    plugins = {key: value for key, value in table.items() if isinstance(value, dict)}
    return {"": own, **plugins}


def _ini(text: str, path: Path) -> Sections | None:
    import configparser

    # A default section that cannot occur: the keys of [DEFAULT] belong to others.
    parser = configparser.RawConfigParser(default_section="\n")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text, shown(path))
    except configparser.Error as error:
        raise _syntax_error(path, error) from None
    either = "tool:hookbus" if "[tool:hookbus" in text else "hookbus"
    section = {"tox.ini": "hookbus", "setup.cfg": "tool:hookbus"}.get(path.name, either)
    for other in {"hookbus", "tool:hookbus"} - {section}:
        if parser.has_section(other):
            _refuse(path, f"[{other}]", f"in [{section}]")
    found = {
        name[len(section) + 1 :]: dict(parser[name])
        for name in parser.sections()
        if name == section or name.startswith(f"{section}.")
    }
    return {"": {}, **found} if found else None


LOADERS: dict[str, Callable[[str, Path], Sections | None]] = {
    OWN: _whole_toml,
    "pyproject.toml": _pyproject,
    "tox.ini": _ini,
    "setup.cfg": _ini,
}
"""The names of config files, the strongest first, each with its loader."""


def _loader(path: Path) -> Callable[[str, Path], Sections | None]:
    kinds = {".toml": _whole_toml, ".ini": _ini, ".cfg": _ini}
    loader = LOADERS.get(path.name) or kinds.get(path.suffix)
    if loader is None:
        raise UsageError(f"-c {shown(path)}: a config file ends in .toml, .ini or .cfg")
    return loader


def _file(path: Path, text: str, sections: Sections) -> ConfigFile:
    name, lines = shown(path), _Lines(text)
    entries = [
        _entry(section, key, value, f"{name}:{lines.of(section, key)}")
        for section, keys in sections.items()
        for key, value in keys.items()
    ]
    headers = [(s, f"{name}:{lines.of(s)}") for s in sections if s]
    return ConfigFile(name, tuple(entries), tuple(headers))


def _entry(section: str, key: str, value: Any, source: str) -> Entry:
    if isinstance(value, list):
        return Entry(section, key, tuple(_as_text(v, key, source) for v in value), source)
    return Entry(section, key, _as_text(value, key, source), source)


def _as_text(value: Any, key: str, source: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        try:
            return str(value)
        except ValueError:  # Python refuses to write it in decimal digits
            raise UsageError(f"{source}: {key}: the number has too many digits") from None
    raise UsageError(
        f"{source}: {key}: expected text, a number, true or false, or a list of these, "
        f"not {type(value).__name__}"
    )


class _Lines:
    """Finds the lines of keys in a file, which parsers do not report."""

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, str], int] = {}
        section = ""
        for number, line in enumerate(text.split("\n"), 1):
            header = re.match(r"\s*\[([^\]]+)\]", line)
            if header:
                bare = re.sub(r"[\"'\s\[]", "", header[1])
                section = re.sub(r"^(tool[.:])?hookbus\b\.?", "", bare)
                self._found.setdefault((section, ""), number)
            key = re.match(r"""\s*([\w."'-]+)\s*[=:]""", line)
            if key:
                *table, name = (word.strip("\"'") for word in key[1].split("."))
                for place in (section, ".".join(table) or section):
                    self._found.setdefault((place, name), number)

    def of(self, section: str, key: str = "") -> int:
        """Return the number of the line of a key, or of its section."""
        found = self._found
        for place in ((section, key), ("", section), (section, "")):
            if place in found:
                return found[place]
        return 1
