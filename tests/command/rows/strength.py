"""Lists rows about the stronger of two places, for words, settings and pairs of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from tests.command.row import Row
from tests.command.rows.settings import clipper

PLACES = ("file", "code", "environment", "command line")
"""The places in which a user speaks, the weakest first."""
CURRENT = "Config.current()"


def said(place: str, word: str) -> dict[str, Any]:
    """Return the part of a row that says ``clipper`` or ``no:clipper`` in a place."""
    return {
        "file": {"files": {"hookbus.toml": f"plugins = ['{word}']\n"}},
        "code": {"session": f"config={CURRENT}.with_plugins('{word}')"},
        "environment": {"env": {"HOOKBUS_PLUGINS": word}},
        "command line": {"flags": f"-p {word}"},
    }[place]


def given(place: str, plugin: str, setting: str, value: int) -> dict[str, Any]:
    """Return the part of a row that sets a plugin in a place."""
    flag = f"--{plugin}-{setting.replace('_', '-')} {value}"
    return {
        "file": {"files": {"hookbus.toml": f"[{plugin}]\n{setting} = {value}\n"}},
        "code": {
            "session": f"config={CURRENT}.with_options('{plugin}', {setting}={value})"
        },
        "environment": {"env": {"HOOKBUS_ADDOPTS": flag}},
        "command line": {"flags": flag},
    }[place]


def saver(**settings: int | None) -> tuple[str, ...]:
    """Return the output of the saver with these settings."""
    return (f"saver { {'save_secs': None, 'save_steps': None} | settings }",)


IMPORTED: Mapping[bool, str] = {
    True: "imported fake_clipper fake_meter fake_sampler",
    False: "imported fake_meter fake_sampler",
}
WORDS = [
    Row(
        f"{'on' if on else 'off'} by the {strong} beats the {weak}",
        **said(weak, "no:clipper" if on else "clipper"),
        **said(strong, "clipper" if on else "no:clipper"),
        code=0,
        shows=(IMPORTED[on],),
    )
    for weak, strong in combinations(PLACES, 2)
    for on in (True, False)
]
SETTINGS = [
    Row(
        f"a setting of the {strong} beats that of the {weak}",
        **given(weak, "clipper", "size", 5),
        **given(strong, "clipper", "size", 7),
        code=0,
        shows=clipper(size=7),
    )
    for weak, strong in combinations(PLACES, 2)
]
BOTH = [
    *(
        Row(
            f"a setting of the {strong} switches on what the {weak} switches off",
            **said(weak, "no:clipper"),
            **given(strong, "clipper", "size", 7),
            code=0,
            shows=clipper(size=7),
        )
        for weak, strong in combinations(PLACES, 2)
    ),
    *(
        Row(
            f"a setting of the {weak} waits where the {strong} switches off",
            **given(weak, "clipper", "size", 5),
            **said(strong, "no:clipper"),
            code=0,
            shows=IMPORTED[False],
        )
        for weak, strong in combinations(PLACES, 2)
    ),
    *(
        Row(
            f"a setting of the code waits where the code switches off, {when}",
            session=f"config={CURRENT}.{first}.{second}",
            code=0,
            shows=IMPORTED[False],
        )
        for when, first, second in (
            ("before", "with_plugins('no:clipper')", "with_options('clipper', size=5)"),
            ("after", "with_options('clipper', size=5)", "with_plugins('no:clipper')"),
        )
    ),
]


def paired(steps: str, secs: str) -> dict[str, Any]:
    """Return the part of a row that gives the saver steps in one place, secs in another."""
    found: dict[str, Any] = {"session": "checkpoint_dir='runs'"}
    for place, setting, value in ((steps, "save_steps", 5), (secs, "save_secs", 60)):
        if place == "code":
            found["session"] += f", {setting.replace('save', 'save_checkpoint')}={value}"
        else:
            found |= given(place, "checkpoint-saver", setting, value)
    return found


PAIRS = [
    *(
        Row(
            f"one of a pair by the {strong} clears the other of the {weak}",
            **paired(steps=weak, secs=strong),
            installed="checkpoint-saver",
            code=0,
            shows=saver(save_secs=60),
        )
        for weak, strong in combinations(PLACES, 2)
    ),
    *(
        Row(
            f"one of a pair by the {weak} is cleared by the other of the {strong}",
            **paired(steps=strong, secs=weak),
            installed="checkpoint-saver",
            code=0,
            shows=saver(save_steps=5),
        )
        for weak, strong in combinations(PLACES, 2)
    ),
    Row(
        "one of a pair by the file clears the other of a default",
        session="checkpoint_dir='runs'",
        files={"hookbus.toml": "[checkpoint-saver]\nsave_steps = 5\n"},
        installed="checkpoint-saver",
        code=0,
        shows=saver(save_steps=5),
    ),
]
WHY = [
    Row(
        "hookbus why tells all that was said, the weakest first",
        "-p no:fake_clipper",
        command="why clipper",
        env={
            "HOOKBUS_PLUGINS": "no:clipper,clipper",
            "HOOKBUS_ADDOPTS": "--clipper-size 7",
        },
        files={"hookbus.toml": "plugins = ['clipper']\n[clipper]\nsize = 5\n"},
        code=0,
        shows=(
            "clipper is off: -p no:fake_clipper",
            "  installed     hookbus-clipper 1.0, entry point fake_clipper:ClipperHook",
            "  default       not switched on",
            "  file          hookbus.toml:1: plugins = clipper: on",
            "  environment   --clipper-size 7 (from HOOKBUS_ADDOPTS): on",
            "  environment   HOOKBUS_PLUGINS=no:clipper: off",
            "  environment   HOOKBUS_PLUGINS=clipper: on",
            "  command line  -p no:fake_clipper: off  (decides)",
            "  set           size = 5 by hookbus.toml:3 (waits until the plugin is on)",
            "  set           size = 7 by --clipper-size 7 (from HOOKBUS_ADDOPTS) (waits …",
        ),
    ),
    Row(
        "hookbus why takes the name in every spelling",
        command="why hookbus_sampler",
        code=0,
        shows=("sampler is on: found", "  default       found  (decides)"),
    ),
    Row(
        "hookbus why of a plugin that nobody has",
        command="why clippr",
        code=4,
        tells="ERROR: no plugin called 'clippr' is installed; did you mean 'clipper'?",
    ),
]
ROWS = [*WORDS, *SETTINGS, *BOTH, *PAIRS, *WHY]
