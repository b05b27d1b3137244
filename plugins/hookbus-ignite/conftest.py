"""Imports Ignite before warnings are errors: with PyTorch 2.13 it warns of PyTorch."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ignite.engine as ignite_engine  # noqa: F401
