"""Runs the ``hookbus`` command for ``python -m hookbus``."""

from __future__ import annotations

import sys

from hookbus.cli import main

if __name__ == "__main__":
    sys.exit(main())
