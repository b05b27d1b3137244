"""Tests that a tracker checks the package that it needs, before the training begins."""

from __future__ import annotations

import attrs
import pytest

from hookbus import UsageError
from hookbus.testing import run_steps
from hookbus.tracking import Tracker


@attrs.define(eq=False)
class Board(Tracker):
    """Sends to a package that tests install."""

    distribution = "hookbus-board"
    package = "board"

    def send(self, records):
        """Lose them."""


@pytest.mark.parametrize("version", ["1.9", "3.0", None])
def test_a_tracker_refuses_another_version_of_its_package(version, fake_dist):
    """The message names the range, what there is, and the command that installs it."""
    fake_dist("hookbus-board", {}, version="0.1.0", requires=["board<3,>=2"])
    if version is not None:
        fake_dist("board", {}, version=version)
    found = "it is not" if version is None else f"board {version} is"

    with pytest.raises(UsageError) as caught:
        run_steps(Board(), steps=1)

    assert str(caught.value).splitlines()[0] == (
        f"hookbus-board 0.1.0 works with board<3,>=2, and {found} installed: pip install "
        "'board<3,>=2'"
    )


def test_a_version_in_the_range_is_accepted(fake_dist):
    """The training runs."""
    fake_dist("hookbus-board", {}, version="0.1.0", requires=["board<3,>=2"])
    fake_dist("board", {}, version="2.5")

    assert run_steps(Board(), steps=1).global_step == 1
