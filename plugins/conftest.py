"""Every test starts in an empty folder, with an environment that says nothing."""

from __future__ import annotations

import signal

from tests.support.folders import _clean as _clean
from tests.support.folders import tmp_path as tmp_path
from tests.support.profiles import load_profile
from tests.support.watching import clock as clock
from tests.support.watching import lines as lines

load_profile()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and all children would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
