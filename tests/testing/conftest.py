"""Runs the conformance suite as an author does, in a process of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from tests.support.suites import Results, results_of


@pytest.fixture
def conformance() -> Callable[..., Results]:
    """Return a function that runs the suite for hooks with some options."""
    return functools.partial(results_of, "conformance")
