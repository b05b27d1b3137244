"""Every test starts in an empty folder, with an environment that says nothing."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.profiles import load_profile
from tests.support.watching import clock as clock
from tests.support.watching import lines as lines

load_profile()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and all children would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in os.environ:
        if name.startswith("HOOKBUS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
