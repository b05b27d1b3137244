"""Tests that neither the places nor the order of distributions change anything."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookbus.testing import fake_dist

EVENTS = """\
def _told(event):
    print(NAME, event)

@hookbus.hookimpl{first}
def begin({me}): _told("begin")

@hookbus.hookimpl
def after_create_session({me}): _told("after_create_session")

@hookbus.hookimpl{last}
def before_run({me}): _told("before_run")

@hookbus.hookimpl{around}
def after_run({me}):
    _told("after_run")
    {rest}

@hookbus.hookimpl
def end({me}): _told("end")
"""
PLUGINS = {
    "anchor": {"last": "(trylast=True)"},
    "banner": {"wishes": "options = hookbus.HookOptions(after='yard')"},
    "cover": {"around": "(wrapper=True)", "rest": "return (yield)"},
    "delta": {"cls": "DeltaHook"},
    "early": {"first": "(tryfirst=True)"},
    "flag": {
        "cls": "FlagHook",
        "autouse": True,
        "wishes": "options = hookbus.HookOptions(before=('anchor', 'banner'))",
    },
    "wrap": {"around": "(wrapper=True, tryfirst=True)", "rest": "return (yield)"},
    "yard": {},
    "zero": {"cls": "ZeroHook", "autouse": True},
}
"""Modules and classes, some with wishes for their place, by name."""
SHARED = ("delta", "yard")
FOLDERS = ("shared", *sorted(PLUGINS.keys() - SHARED))
"""Each distribution has a folder of its own, but for those that share one."""
ON = ["-p", "delta"]


def source(name: str, parts: dict) -> str:
    """Return a module, or a class, that prints its name at every event."""
    defaults = {"first": "", "last": "", "around": "", "rest": "pass"}
    text = EVENTS.format(**defaults | parts, me="self" if "cls" in parts else "")
    text = text.replace("NAME", repr(name))
    head = f"import hookbus\n\n{parts.get('wishes', '')}\n"
    if "cls" not in parts:
        return head + text
    helper, _, methods = text.partition("\n\n")
    body = "\n".join(f"    {line}" for line in methods.splitlines())
    wishes = f"    {parts.get('wishes', 'pass')}\n"
    return (
        f"import hookbus\n\n{helper}\n\nclass {parts['cls']}(hookbus.SessionRunHook):\n"
        f"{wishes}{body}\n"
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Return the folders with all distributions, by name."""
    made = {name: tmp_path_factory.mktemp(name) for name in FOLDERS}
    for name, parts in PLUGINS.items():
        value = f"fake_{name}{':' if 'cls' in parts else ''}{parts.get('cls', '')}"
        points = {"hookbus": {name: value}}
        if parts.get("autouse"):
            points["hookbus.autouse"] = {name: value}
        folder = made["shared" if name in SHARED else name]
        modules = {f"fake_{name}": source(name, parts)}
        fake_dist(folder, f"hookbus-{name}", points, modules=modules)
    return made


@pytest.fixture
def shown(folders, process, script) -> Callable[[Sequence[str]], list[str]]:
    """Return a function that tells what commands show with the folders in some order."""
    script("train.py")

    def shown(order: Sequence[str]) -> list[str]:
        path = [folders[name] for name in order]
        commands = [["hooks", *ON], ["plugins", *ON], ["run", *ON, "train.py"]]
        done = [process("-m", "hookbus", *words, path=path) for words in commands]
        assert [d.returncode for d in done] == [0] * len(done), done
        return [d.stdout for d in done]

    return shown


def test_a_run_calls_hooks_in_the_order_that_is_shown(shown):
    """`hookbus hooks` prints the calls that really happen, event by event."""
    hooks, *_, ran = shown(FOLDERS)
    told = [line.split()[0:3:2] for line in hooks.splitlines()[1:] if line[:1].isalpha()]
    happened = [line.split() for line in ran.splitlines()]
    for event in ("begin", "after_create_session", "end"):
        expected = [plugin for name, plugin in told if name == event]
        assert [p for p, *e in happened if e == [event]] == expected
        assert len(expected) == len(PLUGINS)
    for event in ("before_run", "after_run"):
        expected = [plugin for name, plugin in told if name == event]
        assert [p for p, *e in happened if e == [event]] == expected * 2


def test_the_order_is_that_of_the_names_but_for_wishes(shown):
    """By name where nobody wishes otherwise; classes that were named come last."""
    *_, ran = shown(FOLDERS)
    told = [line.split() for line in ran.splitlines()]
    ends = [plugin for plugin, *event in told if event == ["end"]]
    assert ends == [
        "cover",
        "early",
        "flag",
        "anchor",
        "wrap",
        "yard",
        "banner",
        "zero",
        "delta",
    ]
    runs = [plugin for plugin, *event in told if event == ["after_run"]]
    assert runs[:2] == ["wrap", "cover"]


@pytest.fixture(scope="module")
def kept() -> list[str]:
    """Return an empty list that all tests share."""
    return []


@pytest.fixture
def expected(shown, kept) -> list[str]:
    """Return the output with the folders in one order; it is asked for once."""
    kept[:] = kept or shown(FOLDERS)
    return kept


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_shuffled_folders_show_the_same(seed, shown, expected):
    """Equal bytes, whatever is found first."""
    order = random.Random(seed).sample(FOLDERS, len(FOLDERS))
    assert shown(order) == expected


@pytest.mark.long
@settings(
    max_examples=3,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.permutations(FOLDERS))
def test_permuted_folders_show_the_same(shown, expected, order):
    """Any order that there is."""
    assert shown(order) == expected


@pytest.mark.parametrize("seed", range(3))
def test_the_order_on_disk_does_not_count(seed, tmp_path, process):
    """In one folder, too, distributions are found in an order that nobody promises."""
    names = random.Random(seed).sample(sorted(PLUGINS), len(PLUGINS))
    for name in names:
        fake_dist(tmp_path, f"hookbus-{name}", {"hookbus": {name: f"fake_{name}:Hook"}})
    done = process("-m", "hookbus", "plugins", path=[tmp_path])
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == sorted(names)
