"""Defines the errors that hookbus raises, as one tree, and the exit codes of its command.

::

    HookbusError
    ├── UsageError                     ValueError      a request that cannot be met
    │   ├── ArgumentTypeError          TypeError
    │   └── NotInstalledError          ImportError     a distribution is missing
    ├── PluginError                    RuntimeError    a plugin cannot take part
    ├── GraphError                     ValueError
    │   ├── UnknownNodeError
    │   ├── DuplicateNodeError
    │   ├── FetchTypeError             TypeError
    │   ├── UnfedPlaceholderError
    │   └── NoValueYetError
    ├── TrainingError                  RuntimeError    a hook's verdict on the training
    ├── GraphFinalizedError            RuntimeError
    ├── FeedConflictError              RuntimeError
    ├── WriteConflictError             RuntimeError
    ├── SessionClosedError             RuntimeError
    │   └── ForkedSessionError                         used in a forked child
    ├── RunAfterStopError              RuntimeError
    ├── ThreadsStillRunningError       RuntimeError
    ├── NotReadyError                  RuntimeError
    ├── DeadlineExceededError          TimeoutError
    ├── AbortedError                                   preempted: the backend went away
    ├── UnavailableError                               preempted: it cannot be reached
    ├── SessionInterruptedError                        a signal ended the session
    ├── OutOfRangeError                                end of input
    ├── PeerFailedError                RuntimeError    another process has failed
    ├── PeersDisagreeError             RuntimeError    the processes differ
    └── CheckpointError                RuntimeError
        ├── CheckpointDirectoryError   (UsageError)    cannot be written
        ├── CheckpointMismatchError    ValueError
        └── NoGoodCheckpointError      ValueError

:class:`SessionStoppedError` leaves a custom loop after its session has stopped. It is not
in the tree: it is no ``Exception``, so that no ``except Exception`` of the loop catches it.

Each one also subclasses the type that TensorFlow raises in that case, so that code
written for TensorFlow still catches it.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


class ExitCode(enum.IntEnum):
    """The exit codes of the ``hookbus`` command.

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
    """The command line, a setting or an argument is invalid."""
    NO_STEP = 5
    """Sessions were opened and started at step 0, and not one ran a step."""
    PREEMPTED = 75
    """Preempted and saved: run again to resume."""


class HookbusError(Exception):
    """The base class of all errors that hookbus raises itself."""


class UsageError(HookbusError, ValueError):
    """Arguments, flags or settings are invalid, incomplete or contradict each other."""


class NotInstalledError(UsageError, ImportError):
    """A name or a command belongs to a distribution that is not installed."""


def not_installed(what: str, distribution: str) -> NotInstalledError:
    """Return the error for a name or a command of a distribution that is missing."""
    return NotInstalledError(
        f"{what} is part of {distribution}, which is not installed: "
        f"pip install {distribution}"
    )


class PluginError(HookbusError, RuntimeError):
    """A plugin that is on cannot be loaded, or its hooks do not fit the bus."""


class GraphError(HookbusError, ValueError):
    """A graph, a fetch or a feed is invalid."""


class UnknownNodeError(GraphError):
    """The graph has no node of this name."""


class DuplicateNodeError(GraphError):
    """The name of a new node is taken or reserved."""


class FetchTypeError(GraphError, TypeError):
    """A fetch is not a node, a name or a nested structure of these."""


class UnfedPlaceholderError(GraphError):
    """A run needs a placeholder that is not fed.

    Attributes:
        node: the placeholder's name.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class NoValueYetError(GraphError):
    """An output of a train op is read before the op has run in this session.

    Attributes:
        node: the output's name.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class ArgumentTypeError(UsageError, TypeError):
    """An argument is of the wrong type."""


class TrainingError(HookbusError, RuntimeError):
    """A hook ends the training on purpose, as ``nan-tensor`` does for a loss of NaN.

    The error is a verdict, not a failure of the hook: no ``on_error`` policy holds it back.
    """


class GraphFinalizedError(HookbusError, RuntimeError):
    """A node is added after ``begin``, when the graph can no longer change."""


class FeedConflictError(HookbusError, RuntimeError):
    """Two parties feed the same node in one run.

    Attributes:
        node: the node's name.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class WriteConflictError(HookbusError, RuntimeError):
    """Two parties write the same variable in one run."""


class SessionClosedError(HookbusError, RuntimeError):
    """A session is used after it was closed."""


class ForkedSessionError(SessionClosedError):
    """A session is used in a process that was forked while it was open."""

    def __init__(
        self,
        message: str = "this process was forked while the session was open; the session "
        "belongs to the parent process and does nothing here: open a new session",
    ) -> None:
        super().__init__(message)


class RunAfterStopError(HookbusError, RuntimeError):
    """``run`` is called although a hook asked to stop."""


class SessionStoppedError(BaseException):
    """Leaves a custom loop that continues after its session has stopped.

    The session's block catches it. It is no :class:`Exception`, so that ``except
    Exception`` in the loop lets it pass.
    """


class ThreadsStillRunningError(HookbusError, RuntimeError):
    """Threads are still running after the grace period of ``Coordinator.join``."""


class NotReadyError(HookbusError, RuntimeError):
    """A session does not become ready; the message names the missing parts."""


class DeadlineExceededError(HookbusError, TimeoutError):
    """A worker has waited for its chief as long as its timeout allows."""


class AbortedError(HookbusError):
    """The backend aborted a run, as after a preemption; a retry may succeed."""


class UnavailableError(HookbusError):
    """The backend cannot be reached, as after a preemption; a retry may succeed."""


PREEMPTION_ERRORS = (AbortedError, UnavailableError)
"""The errors that any backend may raise when it has lost its machine."""


class SessionInterruptedError(HookbusError):
    """Leaves a loop that continues after a signal; the session's block handles it."""


class OutOfRangeError(HookbusError):
    """The input has ended; for the session's block this is a clean end."""


class PeerFailedError(HookbusError, RuntimeError):
    """Another process of the training run has failed, or does not answer."""


class PeersDisagreeError(HookbusError, RuntimeError):
    """The processes of a training run differ in something that all must have alike."""


class CheckpointError(HookbusError, RuntimeError):
    """A checkpoint cannot be written or read."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A checkpoint does not match the graph or the objects of the session."""


class CheckpointDirectoryError(CheckpointError, UsageError):
    """The checkpoint directory cannot be created or written."""


class NoGoodCheckpointError(CheckpointError, ValueError):
    """There are checkpoints, and none of them can be read."""


def text_of(value: object) -> str:
    """Return ``str(value)``; a description if that fails, as the code of a user may.

    >>> class Broken(Exception):
    ...     def __str__(self):
    ...         raise ValueError
    >>> text_of(OSError("no space")), text_of(Broken())
    ('no space', '<Broken without text: ValueError>')
    """
    return _as_text(str, value)


def repr_of(value: object) -> str:
    """Return ``repr(value)``; a description if that fails."""
    return _as_text(repr, value)


def summary_of(error: BaseException) -> str:
    """Return the type of an error and its text, as a traceback ends.

    >>> summary_of(OSError("no space")), summary_of(KeyboardInterrupt())
    ('OSError: no space', 'KeyboardInterrupt')
    """
    return f"{type(error).__name__}: {text_of(error)}".rstrip(": ")


def _as_text(convert: Callable[[object], str], value: object) -> str:
    try:
        return convert(value)
    except Exception as error:
        return f"<{type(value).__name__} without text: {type(error).__name__}>"


def add_note(error: BaseException, note: str) -> None:
    """Add a note of hookbus to *error*, even if its class is frozen."""
    notes = _attribute(error, "__notes__", [])
    before = notes if isinstance(notes, list) else []
    _set_attribute(error, "__notes__", [*before, f"hookbus: {note}"])


def set_context(error: BaseException, context: BaseException) -> None:
    """Show *context* in the traceback of *error*, even if its class is frozen."""
    _set_attribute(error, "__context__", context)


def _attribute(error: BaseException, name: str, default: Any) -> Any:
    try:
        return object.__getattribute__(error, name)
    except AttributeError:
        return default


def _set_attribute(error: BaseException, name: str, value: Any) -> None:
    # The class of a user may refuse attributes, like a frozen dataclass.
    object.__setattr__(error, name, value)


_SESSION_LEFT = "_hookbus_session_left"


def note_session_left(error: BaseException, was_ready: bool) -> None:
    """Note that an error has left a session, unless it has left another one before.

    The error itself holds the note. A list of errors would keep them, and with them the
    local variables of all frames in their tracebacks: models, data, the session.

    Args:
        error: gets the note.
        was_ready: whether the session had become ready to run.
    """
    if session_left_was_ready(error) is None:
        _set_attribute(error, _SESSION_LEFT, was_ready)


def session_left_was_ready(error: BaseException) -> bool | None:
    """Return whether the session that *error* left had become ready; None without one."""
    was_ready: bool | None = _attribute(error, _SESSION_LEFT, None)
    return was_ready


class Undo:
    """Calls a function when its block is left, and does not touch the block's error.

    A block of contextlib's sets the traceback of the error, which a frozen class refuses.
    """

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._undo()


STATE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors of code that gets a state which it never had."""


def refused_state(who: str, error: BaseException) -> CheckpointError:
    """Return the error for a state in a checkpoint that its owner does not take."""
    return CheckpointError(
        f"{who} does not take the state that it has in the checkpoint "
        f"({type(error).__name__}: {error}): another version of it has saved the "
        "checkpoint, or somebody has changed it; give another checkpoint_dir, or move the "
        "checkpoint away to use the one before"
    )


class StateRefused:
    """Turns the error of a block that gives an object a state of a checkpoint.

    Errors of hookbus leave the block as they are. So do those of the system.

    Args:
        who: the object, for the message.
    """

    def __init__(self, who: str) -> None:
        self._who = who

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, STATE_ERRORS) and not isinstance(error, HookbusError):
            raise refused_state(self._who, error) from error


def reason_of(error: BaseException) -> str:
    r"""Return the line of an error's message that gives the reason.

    >>> reason_of(PluginError("cannot load plugin 'x'\n  OSError: gone\n  Run ..."))
    'OSError: gone'
    """
    lines = text_of(error).splitlines() or [repr_of(error)]
    return lines[min(1, len(lines) - 1)].strip()


END_OF_INPUT = (OutOfRangeError, StopIteration)
"""The exceptions that mean end of input, their subclasses included.

TensorFlow accepts the exact types only; but a library that subclasses StopIteration also
means the end of its input.
"""


_LONGEST_SLIP = 200
"""A longer word is no slip, and comparing it with every known one takes long."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'loss'?"``, or ``""`` if no known word is close.

    >>> did_you_mean("los", ["loss", "accuracy"])
    "; did you mean 'loss'?"
    >>> did_you_mean("zzz", ["loss"])
    ''
    """
    import difflib  # only a mistake needs it

    if len(word) > _LONGEST_SLIP:
        return ""
    bare = {each.lstrip("-"): each for each in known}  # every flag begins with dashes
    close = difflib.get_close_matches(word.lstrip("-"), bare, n=3, cutoff=0.6)
    if not close:
        return ""
    # Drop words that are much less similar than the most similar one.
    nearness = [difflib.SequenceMatcher(None, c, word.lstrip("-")).ratio() for c in close]
    pairs = zip(close, nearness, strict=True)
    close = [bare[c] for c, near in pairs if near > nearness[0] - 0.1]
    return f"; did you mean {' or '.join(map(repr, close))}?"


_LONGEST_TEXT = 200


def spelled(value: object) -> str:
    """Return the repr of any value of the user in a short form, for a message.

    >>> spelled("loss"), spelled([3] * 1000)
    ("'loss'", '[3, 3, 3, 3, 3, 3, ...]')
    """
    import reprlib  # only a mistake needs it

    short = reprlib.Repr()
    short.maxstring = short.maxother = _LONGEST_TEXT
    return short.repr(value)


def escaped(text: str) -> str:
    r"""Return text with everything escaped that a terminal would act on, or not show.

    >>> escaped("red: \x1b[31m")
    'red: \\x1b[31m'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clipped(text: str) -> str:
    """Return a text of the user for a message: printable, and without a long middle.

    >>> len(clipped("9" * 5000)), clipped("-p progress")
    (203, '-p progress')
    """
    half = _LONGEST_TEXT // 2
    short = text if len(text) <= _LONGEST_TEXT else f"{text[:half]}...{text[-half:]}"
    return escaped(short)


_CULPRITS = "_hookbus_culprits"


def blame(error: BaseException, culprit: str, note: str, scope: object = None) -> None:
    """Add a note to *error* that names its culprit, unless it names one already.

    Args:
        error: gets the note.
        culprit: a plugin's name, ``op 'NAME'`` or ``input 'NAME'``.
        note: the text of the note.
        scope: identifies the session. An error that leaves a session inside an event of
            another one has a culprit in each.
    """
    if culprit_of(error, scope) is not None:
        return
    add_note(error, note)
    known = _attribute(error, _CULPRITS, [])
    _set_attribute(error, _CULPRITS, [*known, (scope, culprit)])


@contextlib.contextmanager
def blaming_writers(writes: Mapping[str, tuple[str, Any]]) -> Iterator[None]:
    """Add a note to an error of a block that writes the assignments of hooks.

    Args:
        writes: maps each variable to the plugin that assigns it, and the value.
    """
    try:
        yield
    except Exception as error:
        every = ", ".join(f"{name!r} by {who!r}" for name, (who, _) in writes.items())
        who = next(iter(writes.values()))[0]
        blame(error, who, f"raised while the session assigned {every}")
        raise


def culprit_of(error: BaseException, scope: object = None) -> str | None:
    """Return the culprit of *error*, in the session *scope* if given; None without one."""
    known: list[tuple[object, str]] = _attribute(error, _CULPRITS, [])
    for where, culprit in known:
        if scope is None or where is None or where is scope:
            return culprit
    return None
