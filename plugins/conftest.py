"""Every test starts in an empty folder, with an environment that says nothing."""

from __future__ import annotations

import importlib.util

from tests.support.folders import _clean as _clean
from tests.support.folders import pytest_configure as pytest_configure
from tests.support.folders import tmp_path as tmp_path
from tests.support.handlers import heed_signals
from tests.support.profiles import load_profile
from tests.support.watching import clock as clock
from tests.support.watching import lines as lines

load_profile()
heed_signals()

# Tests of a backend need its library: tox -e jax, and so on. That of scikit-learn is
# not installed elsewhere, because each step looks for values of a library with a plugin.
NEEDED = {name: name for name in ("jax", "tensorflow", "torch")}
NEEDED["sklearn"] = "hookbus_sklearn"
collect_ignore = [
    f"hookbus-{library}"
    for library, module in NEEDED.items()
    if importlib.util.find_spec(module) is None
]
