"""Tells which of the two runs of the tests this is: the ordinary one, or the full one.

``tox -e full`` sets the variable: no test is left out then, hypothesis tries ten times as
many examples, and every command is run by a new process.
"""

from __future__ import annotations

import os

FULL = os.environ.get("TESTS_PROFILE") == "full"
