"""Gives a hook its settings by flag, environment or file, and makes the hook."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from hookbus.config.config import Config
from hookbus.config.parser import Precedence, read_flags
from hookbus.config.settings import fields_of, flag_of
from hookbus.plugin.roster import session_hooks
from hookbus.testing._suite.candidate import Candidate

_QUIET = {"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "1"}


def spelled_settings(candidate: Candidate, made: Any) -> dict[str, str]:
    """Return the text of each setting of a hook that is not None and has a text.

    An object without its own text, like a function, has the text that was given.
    """
    values = {field: getattr(made, field, None) for field in fields_of(candidate.cls)}
    given = candidate.settings
    texts = {field: _text(value) or given.get(field) for field, value in values.items()}
    return {field: text for field, text in texts.items() if text}


def options(candidate: Candidate, texts: Mapping[str, str]) -> str:
    """Return the flags that switch a hook on and give its settings."""
    flags = [f"-o {candidate.name}.{f}={shlex.quote(text)}" for f, text in texts.items()]
    return " ".join([f"-p {candidate.switch}", *flags])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str | PurePath):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    return ""


def _by_flag(candidate: Candidate, texts: Mapping[str, str]) -> Config:
    flags = [f"{flag_of(candidate.name, field)}={text}" for field, text in texts.items()]
    parsed = read_flags(["-p", candidate.switch, *flags], Precedence.COMMAND)
    return Config.gathered(parsed, _QUIET)


def _by_environment(candidate: Candidate, texts: Mapping[str, str]) -> Config:
    environment = {**_QUIET, "HOOKBUS_ADDOPTS": options(candidate, texts)}
    return Config.from_environment(environment)


def _by_file(candidate: Candidate, texts: Mapping[str, str]) -> Config:
    lines = [f"plugins = [{json.dumps(candidate.switch)}]", f"[{candidate.name}]"]
    lines += [f"{f} = {json.dumps(t, ensure_ascii=False)}" for f, t in texts.items()]
    Path("hookbus.toml").write_text("\n".join(lines), "utf-8")
    return Config.from_environment(_QUIET)


PLACES: Mapping[str, Callable[[Candidate, Mapping[str, str]], Config]] = {
    "flag": _by_flag,
    "environment": _by_environment,
    "file": _by_file,
}
"""The places where settings can be given."""


def hook_from(place: str, candidate: Candidate, texts: Mapping[str, str]) -> Any:
    """Return the hook that a session would have with settings from one place."""
    config = PLACES[place](candidate, texts)
    found = {m.name: m.plugin for m in session_hooks(config, candidate.kind, {})}
    return found[candidate.name]
