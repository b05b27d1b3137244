"""Every test starts in an empty folder, with an environment that says nothing."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.folders import _clean as _clean
from tests.support.folders import pytest_configure as pytest_configure
from tests.support.folders import tmp_path as tmp_path
from tests.support.handlers import heed_signals
from tests.support.profiles import load_profile, mark_the_rest
from tests.support.watching import clock as clock
from tests.support.watching import lines as lines

load_profile()
heed_signals()

# Tests of a backend need its library: tox -e jax, and so on. That of scikit-learn is
# not installed elsewhere, because each step looks for values of a library with a plugin.
TRAINERS = ("ignite", "keras", "lightning", "transformers")
NEEDED = {name: name for name in ("jax", "tensorflow", "torch", *TRAINERS)}
NEEDED["sklearn"] = "hookbus_sklearn"
NEEDED |= {name: name for name in ("mlflow", "opentelemetry", "optuna", "wandb")}
NEEDED["prometheus"] = "prometheus_client"
NEEDED["live"] = "starlette"
collect_ignore = [
    f"hookbus-{library}"
    for library, module in NEEDED.items()
    if importlib.util.find_spec(module) is None
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the cases of this run; let the trainers warn.

    They warn of one another, of small data, and of a machine without a GPU.
    """
    mark_the_rest(items)
    for item in items:
        if any(f"hookbus-{name}" in item.path.parts for name in TRAINERS):
            item.add_marker(pytest.mark.filterwarnings("default"))
