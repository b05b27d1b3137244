"""Every test starts in an empty folder, with an environment that says nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from tests.support.folders import _clean as _clean
from tests.support.folders import pytest_configure as pytest_configure
from tests.support.folders import tmp_path as tmp_path
from tests.support.handlers import ctrl_c as ctrl_c
from tests.support.handlers import heed_signals
from tests.support.profiles import load_profile, mark_the_rest
from tests.support.times import pytest_terminal_summary as pytest_terminal_summary

collect_ignore = ["kept"]  # scripts and a plugin of other versions
load_profile()
heed_signals()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the cases of this run before pytest looks at the marks."""
    mark_the_rest(items)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the thousands of collected tests, which all stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """An event that lets threads of a test end, set at its end at the latest."""
    event = threading.Event()
    yield event
    event.set()
