"""A distribution that a test installs is found as any other, and gone afterwards."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import distribution, entry_points

import pytest

from hookbus.testing import fake_dist as write
from tests.support import commands

HOOK = """
    import hookbus

    class HelloHook(hookbus.SessionRunHook):
        def begin(self):
            print("hello from", __name__)
"""
ENTRIES = {"hookbus": {"hello": "fake_hello:HelloHook"}}


def test_what_it_writes(tmp_path):
    """Metadata as of an installed distribution, and its modules beside them."""
    info = write(
        tmp_path / "new",
        "fake-hello",
        {"hookbus": {"hello": "a:A"}, "hookbus.autouse": {"hello": "a"}},
        version="2.1",
        requires=["hookbus>=0.1", "attrs"],
        modules={"a": HOOK, "package": "", "package.inner.deep": "X = 1"},
    )
    assert info == tmp_path / "new" / "fake_hello-2.1.dist-info"
    assert info.joinpath("METADATA").read_text() == (
        "Metadata-Version: 2.1\nName: fake-hello\nVersion: 2.1\n"
        "Requires-Dist: hookbus>=0.1\nRequires-Dist: attrs\n"
    )
    assert info.joinpath("entry_points.txt").read_text() == (
        "[hookbus]\nhello = a:A\n[hookbus.autouse]\nhello = a\n"
    )
    written = {p.relative_to(info.parent).as_posix() for p in info.parent.rglob("*.py")}
    assert written == {"a.py", "package/__init__.py", "package/inner/deep.py"}
    assert (info.parent / "a.py").read_text().startswith("\nimport hookbus\n")


def test_it_is_found_in_this_process(fake_dist):
    """By importlib.metadata, with its files, and its modules can be imported."""
    fake_dist("fake-hello", ENTRIES, modules={"fake_hello": HOOK})
    (entry,) = entry_points(group="hookbus", name="hello")
    assert entry.load().__name__ == "HelloHook"
    assert "fake_hello.py" in map(str, distribution("fake-hello").files)


def test_it_is_found_in_processes(fake_dist):
    """A process that the test starts also sees it."""
    fake_dist("fake-hello", ENTRIES, modules={"fake_hello": HOOK})
    code = (
        "from hookbus.testing import *; from hookbus import *; run_steps(steps=1, config=C)"
    )
    code = code.replace("C)", "Config(autoload=False).with_plugins('hello'))")
    done = commands.run([sys.executable, "-c", code])
    assert done.stdout == "hello from fake_hello\n", done.stderr


def test_several_can_be_installed(fake_dist):
    """One after the other, in one test."""
    for name in ("one", "two"):
        entries = {"hookbus": {f"fake-{name}": f"fake_{name}:X"}}
        fake_dist(f"fake-{name}", entries, modules={f"fake_{name}": "X = 1"})
        assert importlib.import_module(f"fake_{name}").X == 1
    found = {entry.name for entry in entry_points(group="hookbus")}
    assert {"fake-one", "fake-two"} <= found


@pytest.fixture
def afterwards():
    """Look, when the fixtures that came later are undone, at what is left."""
    before = list(sys.path), os.environ.get("PYTHONPATH")
    yield
    assert (list(sys.path), os.environ.get("PYTHONPATH")) == before
    assert "fake_hello" not in sys.modules
    assert [*entry_points(group="hookbus", name="hello")] == []


@pytest.mark.usefixtures("afterwards")
def test_it_is_gone_afterwards(request):
    """Paths, variables and imported modules are as before."""
    request.getfixturevalue("fake_dist")("x", ENTRIES, modules={"fake_hello": HOOK})
    importlib.import_module("fake_hello")
