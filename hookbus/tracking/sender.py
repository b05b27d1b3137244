"""Sends records from a thread, so that a slow or dead server never holds a step."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from hookbus.errors import summary_of
from hookbus.logs import log
from hookbus.tracking.journal import Journal
from hookbus.tracking.records import Record, RunInfo

CAPACITY = 10_000
"""The most records that wait to be sent. Further ones are left out."""
_BATCH = 200
_FIRST_WAIT_SECS = 0.5
_LONGEST_WAIT_SECS = 30.0
_LAST_TRIES = 2
"""The number of tries at the end: the one before may have failed by chance."""


class Place(Protocol):
    """The place to which records go. The thread of the sender calls its methods."""

    def connect(self, run: RunInfo) -> None:
        """Connect; an error means that it is tried again."""

    def send(self, records: Sequence[Record]) -> None:
        """Send records; an error means that none has arrived, and is tried again."""

    def has(self, record: Record) -> bool:
        """Return whether a record has arrived already."""

    def disconnect(self) -> None:
        """Disconnect, after the last record."""


class Sender:
    """Sends records in their order, and tries again when that fails.

    The waits between two tries grow from 0.5 to 30 seconds.

    Args:
        who: the name of the plugin, for messages.
        place: the place to which they go.
        run: identifies the run, for the place.
        journal: is told what was sent; None without one.
        first: records that wait from the start on.
        doubtful: how many of the next records may have arrived before; with ``math.inf``,
            all of them up to the first one that is missing.
        gather_secs: how long a record waits for others, to be sent with them.
    """

    def __init__(
        self,
        who: str,
        place: Place,
        run: RunInfo,
        journal: Journal | None,
        first: Iterable[Record] = (),
        doubtful: float = 0,
        gather_secs: float = 0.0,
    ) -> None:
        self._who, self._place, self._about = who, place, run
        self._journal = journal
        self._queue = deque(first)
        self._doubtful, self._gather_secs = doubtful, gather_secs
        self._changed = threading.Condition()
        self._is_closing = self._is_open = False
        self._why: str | None = None
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name=f"{who} sender", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Have a record sent, unless too many wait already."""
        with self._changed:
            if len(self._queue) >= CAPACITY:
                self._left_out += 1
                return
            self._queue.append(record)
            self._changed.notify()

    def close(self, secs: float) -> tuple[int, str | None]:
        """Wait until all is sent, for a limited time.

        Args:
            secs: the longest time to wait.

        Returns:
            How many records were not sent, and why the last try has failed.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(secs)
        with self._changed:
            return len(self._queue) + self._left_out, self._why

    def _run(self) -> None:
        wait, last_tries = _FIRST_WAIT_SECS, 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                self._changed.wait_for(self._has_gathered, self._gather_secs)
                batch = [self._queue[n] for n in range(min(len(self._queue), _BATCH))]
                last_tries += self._is_closing
            if not batch:
                break
            if self._tries(batch):
                wait, last_tries = _FIRST_WAIT_SECS, 0
                continue
            if last_tries == _LAST_TRIES:
                return
            with self._changed:
                if last_tries:
                    self._changed.wait(_FIRST_WAIT_SECS)
                else:
                    self._changed.wait_for(lambda: self._is_closing, wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECS)
        self._disconnect()

    def _has_gathered(self) -> bool:
        return self._is_closing or len(self._queue) >= _BATCH

    def _tries(self, batch: Sequence[Record]) -> bool:
        """Send records; return whether they have arrived."""
        try:
            if not self._is_open:
                self._place.connect(self._about)
                self._is_open = True
            new = self._new_in(batch)
            self._mark("sending", len(batch))
            if new:
                self._place.send(new)
        except Exception as error:
            # A server may have taken records, and its answer was lost.
            self._doubtful = max(self._doubtful, len(batch))
            self._note(summary_of(error))
            return False
        self._mark("sent", len(batch))
        self._note(None)
        self._doubtful = max(0, self._doubtful - len(batch))
        with self._changed:
            for _ in batch:
                self._queue.popleft()
        return True

    def _new_in(self, batch: Sequence[Record]) -> list[Record]:
        """Return the records of a batch that are missing in the place."""
        new = []
        for number, record in enumerate(batch):
            if number < self._doubtful and self._place.has(record):
                continue
            if self._doubtful == math.inf and record.scalars:
                self._doubtful = 0  # this is where the program was killed
            new.append(record)
        return new

    def _mark(self, word: Literal["sending", "sent"], count: int) -> None:
        """Note in the journal what happens to the next records."""
        if self._journal is None:
            return
        try:
            self._journal.mark(word, count)
        except OSError as error:
            self._journal = None
            log.warning(
                "the journal cannot be written; after a kill, records may be sent twice",
                by=self._who,
                why=summary_of(error),
            )

    def _disconnect(self) -> None:
        if not self._is_open:
            return
        try:
            self._place.disconnect()
        except Exception as error:
            self._note(summary_of(error))

    def _note(self, why: str | None) -> None:
        """Report that sending fails or works again, once."""
        if why is not None and self._why is None:
            log.warning(
                "records cannot be sent for now; the training goes on",
                by=self._who,
                why=why,
            )
        elif why is None and self._why is not None:
            log.info("records are sent again", by=self._who)
        self._why = why
