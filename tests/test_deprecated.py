"""A public name that was renamed works for a while, and warns of its new name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hookbus
from hookbus.deprecated import RENAMED


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_an_old_name_is_the_new_one(old, monkeypatch):
    """The warning names both, the version without the old one, and the caller's line."""
    monkeypatch.delitem(vars(hookbus), old, raising=False)
    where, _, name = f"hookbus.{RENAMED[old]}".rpartition(".")
    told = rf"^hookbus\.{old} is now {where}\.{name}; the old name goes away in 0\.3$"
    with pytest.warns(DeprecationWarning, match=told) as caught:
        found = getattr(hookbus, old)
    assert found is getattr(sys.modules[where], name)
    assert caught[0].filename == __file__
    assert old not in hookbus.__all__


def test_an_import_of_an_old_name_warns_where_it_stands():
    """Once in a process, and only somebody who uses the name."""
    code = "import hookbus\nfrom hookbus import Call\nhookbus.Call"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert line.startswith(
        "<string>:2: DeprecationWarning: hookbus.Call is now hookbus.Hook"
    )


def test_a_name_that_never_was_is_no_attribute():
    """As of any module."""
    with pytest.raises(AttributeError, match="module 'hookbus' has no attribute 'Cal'"):
        getattr(hookbus, "Cal")  # noqa: B009 (the check of types would refuse the name)
