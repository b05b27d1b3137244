"""A hook finds out whether its saved state is about the value that it watches."""

from __future__ import annotations

import pytest

from hookbus import Watched

LOSS = Watched("loss", "val", "min")


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (Watched("accuracy", "val", "min"), "val/accuracy (min)"),
        (Watched("loss", "test", "min"), "test/loss (min)"),
        (Watched("loss", "", "min"), "loss of the evaluation without a name (min)"),
        (Watched("loss", None, "min"), "loss (min)"),
        (Watched("loss", "val", "max"), "val/loss (max)"),
        (Watched("loss", "val"), "val/loss"),
    ],
)
def test_a_state_about_another_value_is_told_by_both_names(other, shown, capsys):
    """The metric, the evaluation and the direction count."""
    assert not LOSS.fits(other.state_dict(), "my-hook")
    (line,) = capsys.readouterr().err.splitlines()
    assert "[warning  ] a saved state is about another value, and is left out" in line
    assert "by=my-hook" in line
    assert "watches='val/loss (min)'" in line
    assert shown in line.partition(" saved=")[2]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (LOSS, LOSS),
        (Watched("loss", True, "min"), LOSS),
        (LOSS, Watched("loss", True, "min")),
        (Watched("loss"), Watched("loss")),
    ],
)
def test_a_state_about_the_same_value_fits(here, there, capsys):
    """The only evaluation is the one whose name came."""
    assert here.fits(there.state_dict(), "my-hook")
    assert not capsys.readouterr().err


def test_the_only_evaluation_is_not_a_node(capsys):
    """Both may have the same name."""
    assert not Watched("loss", True).fits(Watched("loss").state_dict(), "my-hook")
    assert "watches='loss of evaluations' saved=loss" in capsys.readouterr().err


def test_a_state_that_does_not_tell_its_value_fits():
    """It is that of an older version."""
    assert LOSS.fits(None, "my-hook")
