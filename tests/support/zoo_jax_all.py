"""All training runs with JAX in the zoo, for the server that imports them and forks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support import zoo_jax, zoo_jax_graphs, zoo_jax_libraries, zoo_jax_spread
from tests.support.zoo import Run

TRAININGS: dict[str, Callable[[Run], Any]] = {
    **zoo_jax.TRAININGS,
    **zoo_jax_libraries.TRAININGS,
    **zoo_jax_graphs.TRAININGS,
    **zoo_jax_spread.TRAININGS,
}
