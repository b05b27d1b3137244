"""`hookbus certify` finds JAX training runs, as people write them, to be exact."""

from __future__ import annotations

import shutil

import pytest

from tests.support.certified import EXAMPLES, QUIET
from tests.support.zoo import SCRIPT
from tests.support.zoo_jax_all import TRAININGS
from tests.support.zoo_jax_spread import devices

certify = pytest.importorskip("hookbus_certify.command").certify

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", TRAININGS)
def test_the_trainings_of_the_zoo_are_certified(name, capsys, monkeypatch):
    """Each is interrupted in each way, at random steps."""
    for variable, value in devices(4).items():
        monkeypatch.setenv(variable, value)
    words = ("--runs", "4", *QUIET, str(SCRIPT), "tests.support.zoo_jax_all", name)
    assert certify(words) == 0, capsys.readouterr().out


def test_the_example_is_certified(capsys):
    """It is interrupted in each way."""
    shutil.copy(EXAMPLES / "jax_digits.py", ".")
    assert certify(["--runs", "4", *QUIET, "jax_digits.py"]) == 0, capsys.readouterr().out
