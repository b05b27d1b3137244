"""Checkpoints of JAX arrays are written in the background, without a copy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hookbus_jax.library import JaxLibrary

from hookbus import list_checkpoints, load_tracked
from tests.support.saving import saving
from tests.support.watching import lines as lines

ELEMENTS, STEPS = 300_000, 24
GIVEN_UP = "a checkpoint is given up, and the next one is due"


def values_at(step: int) -> float:
    """Return the value of the state after so many steps."""
    value = 0.0
    for x in range(step):
        value = value * 0.5 + x
    return value


def train(directory, donate: bool) -> float:
    def update(state, x):
        return jax.tree.map(lambda w: w * 0.5 + x, state)

    step_fn = jax.jit(update, donate_argnums=(0,) if donate else ())
    with saving(directory, 3) as session:
        held = session.hold(state={"a": jnp.zeros(ELEMENTS), "b": jnp.zeros(ELEMENTS)})
        for x in session.iterate(range(STEPS)):
            with session.step():
                held.state = step_fn(held.state, float(x))
    return float(held.state["b"][-1])


@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_each_checkpoint_has_the_values_of_its_step(donate, tmp_path, lines):
    """A program that donates its arrays loses the first one at most, and saves again."""
    assert train(tmp_path, donate) == pytest.approx(values_at(STEPS))
    stored = list_checkpoints(tmp_path)
    assert stored[-1].global_step == STEPS
    for info in stored:
        state = load_tracked(info.path, "state")
        for leaf in state.values():
            assert float(leaf.min()) == float(leaf.max())
            assert float(leaf[0]) == pytest.approx(values_at(info.global_step))
    given_up = [line for line in lines if line["event"] == GIVEN_UP]
    assert len(given_up) <= donate


def test_a_copy_outlives_an_array_that_is_donated():
    """Arrays are copied only for programs that donate them: nobody can change them."""
    library, array = JaxLibrary(), jnp.arange(3.0)
    assert library.is_immutable(array)
    copied = library.copied(array)
    array.delete()
    assert copied.tolist() == [0, 1, 2]
    assert library.why_not_saved(array) is not None
