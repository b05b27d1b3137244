"""Tests that a tracker can gather records, where a request costs much."""

from __future__ import annotations

import attrs

from hookbus.testing import run_steps
from hookbus.tracking import Tracker


@attrs.define(eq=False)
class Gathers(Tracker):
    """Notes how many records came together."""

    gather_secs = 600.0
    sent: list[int] = attrs.field(factory=list, init=False)

    def send(self, records):
        self.sent.append(len(records))


def test_records_wait_for_others_until_the_end():
    """The end does not wait: the four numbers, the program and the outcome go at once."""
    hook = Gathers(1)
    run_steps(hook, steps=4)

    assert hook.sent == [6]


def test_many_records_wait_for_no_more():
    """A request has at most 200 records."""
    hook = Gathers(1)
    run_steps(hook, steps=500)

    assert sum(hook.sent) == 502
    assert max(hook.sent) == 200
