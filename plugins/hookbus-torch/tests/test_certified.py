"""`hookbus certify` finds PyTorch training runs, as people write them, to be exact."""

from __future__ import annotations

import pytest

from tests.support.certified import certified_example, certified_in_zoo
from tests.support.zoo_torch import TRAININGS

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", TRAININGS)
def test_the_trainings_of_the_zoo_are_certified(name, capsys):
    """Each is interrupted in each way, at random steps."""
    assert certified_in_zoo("zoo_torch", name) == 0, capsys.readouterr().out


def test_the_example_is_certified(capsys):
    """It is interrupted in each way."""
    assert certified_example("torch_digits") == 0, capsys.readouterr().out
