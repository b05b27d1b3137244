"""Sends the records of a run to a tracker: from a thread, each of them once."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import attrs

from hookbus.graph.graph import Graph
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.logs import log
from hookbus.plugin.requirements import check_in_range
from hookbus.tracking.journal import Journal
from hookbus.tracking.recording import RecordingHook
from hookbus.tracking.records import Record, RunInfo
from hookbus.tracking.sender import Sender
from hookbus.validation import numeric

FOLDER = "tracking"
"""The folder, in a directory of checkpoints, for the journals of trackers."""


@attrs.define(eq=False)
class Tracker(RecordingHook, abc.ABC):
    """Base of hooks that send the records of a run to a server, or into its files.

    A subclass overrides :meth:`connect` and :meth:`send`, which a thread of the tracker
    calls. A server that is slow, or that cannot be reached, holds no step and ends no
    training: the thread tries again, after waits of 0.5 to 30 seconds. At most 10,000
    records wait. The end of the training waits for *wait_secs*, and tells how many records
    were not sent.

    If the training has a directory of checkpoints, a journal in it holds every record, in
    the folder ``tracking``. A run that was killed sends what was missing, and
    nothing twice. Without such a directory, a resumed run asks :meth:`has`.

    Args:
        every_n_steps: global steps between two records of numbers.
        names: the numbers to record, by name or pattern; by default all that the program
            reports, or the loss, the accuracy and the declared summaries of a graph.
        wait_secs: the longest time that the end of the training waits for records.

    >>> class Printer(Tracker):
    ...     def send(self, records):
    ...         for record in records:
    ...             if record.scalars:
    ...                 print(record.step, record.scalars)
    >>> from hookbus.testing import run_steps
    >>> _ = run_steps(Printer(every_n_steps=2), values={"loss": [4.0, 3.0, 2.0]})
    1 {'loss': 4.0}
    3 {'loss': 2.0}
    """

    distribution: ClassVar[str] = ""
    """The distribution of the plugin, whose requirements name versions of *package*."""
    package: ClassVar[str] = ""
    """The distribution that the tracker is made of, in lower case."""
    gather_secs: ClassVar[float] = 0.0
    """The seconds for which a record waits for others, if each request costs time."""

    wait_secs: float = attrs.field(default=10.0, validator=numeric(least=0))
    _sender: Sender | None = attrs.field(default=None, init=False)
    _journal: Journal | None = attrs.field(default=None, init=False)

    def begin(self, graph: Graph, checkpoints: Checkpoints) -> None:
        """Look the numbers up.

        Raises:
            UsageError: the package of the tracker is missing, or is of another version.
        """
        if self.distribution:
            check_in_range(self.distribution, self.package)
        super().begin(graph, checkpoints)

    def connect(self, run: RunInfo) -> None:
        """Connect to the place of the records: a new run of it, or that with this id.

        It is called in the thread of the tracker, and again if it raises an error.

        Args:
            run: identifies the run.
        """

    @abc.abstractmethod
    def send(self, records: Sequence[Record]) -> None:
        """Send records, in the thread of the tracker.

        If it raises an error, it gets the records again, except those for which
        :meth:`has` is true.

        Args:
            records: at least one; in their order.
        """

    def has(self, record: Record) -> bool:  # noqa: ARG002
        """Return whether a record has arrived already, in the thread of the tracker.

        It is asked for the records that were on their way when sending failed, or when the
        program was killed. The default is False, so such records may arrive twice.

        Args:
            record: one of the records that may have arrived.
        """
        return False

    def disconnect(self) -> None:
        """Close the connection, in the thread of the tracker, after the last record."""

    def start(self, run: RunInfo) -> None:
        """Open the journal, and start the thread."""
        waiting: Sequence[Record] = ()
        doubtful: float = math.inf if run.is_resumed else 0
        self._journal = None
        if run.directory is not None:
            self._journal = journal = self._journal_of(run, run.directory)
            if not journal.is_new:
                self._run = journal.run
                self.leave_out(journal.records)
                waiting, doubtful = journal.unsent, journal.doubtful
                run = attrs.evolve(run, id=journal.run, is_resumed=True)
        self._sender = Sender(
            self.name, self, run, self._journal, waiting, doubtful, self.gather_secs
        )

    def _journal_of(self, run: RunInfo, directory: Path) -> Journal:
        """Open the journal of a run; put that of another run aside."""
        path = directory / FOLDER / f"{self.name}.jsonl"
        journal = Journal(path, run.id)
        if run.is_resumed and journal.run != run.id:
            journal.put_aside()
            journal = Journal(path, run.id)
        return journal

    def take(self, record: Record) -> None:
        """Add a record to the journal, and have it sent."""
        if self._journal is not None:
            self._journal.add(record)
        if self._sender is not None:
            self._sender.put(record)

    def stop(self) -> None:
        """Wait for the thread, and tell how many records were not sent."""
        sender, self._sender = self._sender, None
        journal, self._journal = self._journal, None
        if sender is None:
            return
        lost, why = sender.close(self.wait_secs)
        if journal is not None:
            journal.close()
        if lost:
            kept = {} if journal is None else {"kept_in": str(journal.path)}
            log.warning(
                "records were not sent", records=lost, by=self.name, why=why, **kept
            )
