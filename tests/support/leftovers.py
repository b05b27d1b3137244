"""Has the count of what a test leaves open, which the conformance suite defines."""

from __future__ import annotations

from hookbus.testing._suite.leftovers import Held as Held
