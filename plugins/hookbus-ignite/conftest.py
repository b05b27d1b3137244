"""Imports Ignite before warnings are errors: PyTorch 2.13 warns of what it imports."""

import contextlib
import importlib
import warnings

with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.simplefilter("ignore")
    importlib.import_module("ignite.engine")
