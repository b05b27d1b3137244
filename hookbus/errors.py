"""Which errors hookbus raises, as one tree, and which exit code each ends in.

::

    HookbusError
    ├── UsageError                     ValueError      what was asked cannot be done
    │   └── ArgumentTypeError          TypeError
    ├── PluginError                    RuntimeError    a plugin cannot take part
    ├── GraphError                     ValueError
    │   ├── UnknownNodeError
    │   ├── DuplicateNodeError
    │   ├── FetchTypeError             TypeError
    │   └── UnfedPlaceholderError
    ├── TrainingError                  RuntimeError    a hook's verdict on the training
    ├── GraphFinalizedError            RuntimeError
    ├── FeedConflictError              RuntimeError
    ├── WriteConflictError             RuntimeError
    ├── SessionClosedError             RuntimeError
    ├── RunAfterStopError              RuntimeError
    ├── ThreadsStillRunningError       RuntimeError
    ├── NotReadyError                  RuntimeError
    ├── DeadlineExceededError          TimeoutError
    ├── AbortedError                                   preempted: the backend went away
    ├── UnavailableError                               preempted: it cannot be reached
    ├── SessionInterruptedError                        a signal ended the session
    ├── OutOfRangeError                                end of input
    └── CheckpointError                RuntimeError
        ├── CheckpointDirectoryError   (UsageError)    it cannot be written
        ├── CheckpointMismatchError    ValueError
        └── NoGoodCheckpointError      ValueError

Each also subclasses what TensorFlow raises in that case, so that code written for it
keeps catching it.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable


class ExitCode(enum.IntEnum):
    """What the ``hookbus`` command says to the shell.

    >>> int(ExitCode.PREEMPTED)
    75
    """

    OK = 0
    """Completed, or stopped as asked."""
    FAILED = 1
    """The run failed: a step or a hook raised."""
    INTERRUPTED = 2
    """Interrupted from the keyboard."""
    PLUGIN = 3
    """A plugin, or hookbus itself, failed before the first step."""
    USAGE = 4
    """The command line, a setting or an argument makes no sense."""
    NO_STEP = 5
    """Sessions were opened, none ran a step and all started at step 0."""
    PREEMPTED = 75
    """Preempted and saved: run again to resume."""


class HookbusError(Exception):
    """The root of all errors that hookbus raises itself."""


class UsageError(HookbusError, ValueError):
    """Arguments, flags or settings that contradict each other or do not suffice."""


class PluginError(HookbusError, RuntimeError):
    """A plugin that is on cannot be loaded or has hooks that do not fit the bus."""


class GraphError(HookbusError, ValueError):
    """A graph, a fetch or a feed that does not fit together."""


class UnknownNodeError(GraphError):
    """A name that no node of the graph has."""


class DuplicateNodeError(GraphError):
    """A second node under a name that is taken or reserved."""


class FetchTypeError(GraphError, TypeError):
    """A fetch that is neither a node, nor a name, nor a nesting of these."""


class UnfedPlaceholderError(GraphError):
    """A placeholder that a run needs and nobody feeds.

    Attributes:
        node: the placeholder's name.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class ArgumentTypeError(UsageError, TypeError):
    """An argument of a session is of a type that it cannot be."""


class TrainingError(HookbusError, RuntimeError):
    """What a hook ends a training with because that is what the hook is for.

    It is a verdict and no failure of the hook, so that no ``on_error`` holds it back.
    """


class GraphFinalizedError(HookbusError, RuntimeError):
    """A node is added after ``begin``, when the graph cannot change any more."""


class FeedConflictError(HookbusError, RuntimeError):
    """Two parties feed one node in one run."""


class WriteConflictError(HookbusError, RuntimeError):
    """Two parties write one variable in one run."""


class SessionClosedError(HookbusError, RuntimeError):
    """A session is used after it was closed."""


class RunAfterStopError(HookbusError, RuntimeError):
    """``run`` is called although a hook asked to stop."""


class ThreadsStillRunningError(HookbusError, RuntimeError):
    """Threads outlive the grace period of ``Coordinator.join``."""


class NotReadyError(HookbusError, RuntimeError):
    """A session does not become ready: its scaffold names what is missing."""


class DeadlineExceededError(HookbusError, TimeoutError):
    """A worker has waited for its chief as long as it may."""


class AbortedError(HookbusError):
    """The backend gave up what it was doing, as after a preemption; trying again helps."""


class UnavailableError(HookbusError):
    """The backend cannot be reached, as after a preemption; trying again helps."""


class SessionInterruptedError(HookbusError):
    """A loop goes on after a signal; leaves it, and the session's block takes it in."""


class OutOfRangeError(HookbusError):
    """The input has ended; a session's block takes it as a clean end."""


class CheckpointError(HookbusError, RuntimeError):
    """A checkpoint cannot be written or read."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A checkpoint was written by another graph."""


class CheckpointDirectoryError(CheckpointError, UsageError):
    """The directory for checkpoints cannot be made or written."""


class NoGoodCheckpointError(CheckpointError, ValueError):
    """There are checkpoints, and not one of them can be read."""


def reason_of(error: BaseException) -> str:
    r"""Return the line of an error that says why; it may have others around it.

    >>> reason_of(PluginError("cannot load plugin 'x'\n  OSError: gone\n  Run ..."))
    'OSError: gone'
    """
    lines = str(error).splitlines() or [repr(error)]
    return lines[min(1, len(lines) - 1)].strip()


END_OF_INPUT = (OutOfRangeError, StopIteration)
"""The exceptions that mean end of input, subclasses included (TF took only the exact
types; a library that subclasses StopIteration means the same)."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'loss'?"`` or, where nothing is close, ``""``.

    >>> did_you_mean("los", ["loss", "accuracy"])
    "; did you mean 'loss'?"
    >>> did_you_mean("zzz", ["loss"])
    ''
    """
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    if not close:
        return ""
    # What is much farther away than the nearest was not meant.
    nearness = [difflib.SequenceMatcher(None, c, word).ratio() for c in close]
    close = [c for c, near in zip(close, nearness, strict=True) if near > nearness[0] - 0.1]
    return f"; did you mean {' or '.join(map(repr, close))}?"


_CULPRITS = "_hookbus_culprits"


def blame(error: BaseException, culprit: str, note: str, scope: object = None) -> None:
    """Note on *error* who raised it, unless somebody deeper in has done so already.

    Args:
        error: gets the note.
        culprit: a plugin's name, ``op 'NAME'`` or ``input 'NAME'``.
        note: what to write on the error.
        scope: what tells the session apart; an error that leaves a session inside
            another one's event is that of a hook of each.
    """
    known: list[tuple[object, str]] = getattr(error, _CULPRITS, [])
    if any(scope is None or where is None or where is scope for where, _ in known):
        return
    with contextlib.suppress(Exception):  # some errors are frozen; they leave as they are
        error.add_note(f"hookbus: {note}")
        setattr(error, _CULPRITS, [*known, (scope, culprit)])


def culprit_of(error: BaseException, scope: object = None) -> str | None:
    """Return who was blamed for *error*, in a session if *scope* tells one, or None."""
    known: list[tuple[object, str]] = getattr(error, _CULPRITS, [])
    for where, culprit in known:
        if scope is None or where is None or where is scope:
            return culprit
    return None
