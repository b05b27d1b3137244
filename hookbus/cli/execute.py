"""Runs the user's code with plugins on, and chooses the exit code by its end."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType

from hookbus.backend.codegen import FILES as COMPILED
from hookbus.cli.output import report, report_interruption
from hookbus.config.config import Config, SessionRecord, set_process_config
from hookbus.config.keys import LOG_LEVELS
from hookbus.config.parser import ParsedFlags
from hookbus.discovery import CORE, installed_plugins
from hookbus.errors import (
    ExitCode,
    HookbusError,
    SessionInterruptedError,
    SessionStoppedError,
    UnknownNodeError,
    UsageError,
    culprit_of,
    session_left_was_ready,
    text_of,
)
from hookbus.logs import Stderr, configure, log
from hookbus.plugin.selection import Selection, select

_OWN = ("hookbus", "hookbus_estimator")
"""The packages whose frames are those of hookbus: those that define its names."""


def execute(main: Callable[[], None], config: Config, files: Collection[str]) -> int:
    """Run the user's code and return the exit code.

    Args:
        main: runs the code.
        config: the configuration of the sessions that the code opens.
        files: absolute paths of the user's files; messages name a line of one of them.
    """
    set_process_config(config)
    try:
        main()
    except SystemExit as error:
        if _is_a_plugins(error):
            return _when(error, report(error, f"SystemExit({error.code!r})"))
        # `sys.exit(main())` exits with None or 0 whatever happened in main().
        signalled = error.code in (None, ExitCode.OK, ExitCode.PREEMPTED)
        code = _after_signal(config.records) if signalled else None
        if code is None or (code == error.code == ExitCode.PREEMPTED):
            raise  # the latter absorbs signals until the process ends
        return code
    except KeyboardInterrupt as error:
        return report_interruption(error)
    except (HookbusError, SessionStoppedError) as error:
        interrupted = isinstance(error, SessionInterruptedError)
        ending = _after_signal(config.records) if interrupted else None
        if ending is not None:
            log.warning(text_of(error))
            return ending
        code = report(error)
        place = _place(error, files)
        if place and code != ExitCode.USAGE:
            print(f"  {place}", file=Stderr())
        return _when(error, code)
    except BaseException as error:
        _print_traceback(error, whole=config.log_level <= LOG_LEVELS["debug"])
        return _when(error, ExitCode.FAILED)
    finally:
        set_process_config(None)
    return _verdict(config.records)


def prepare(parsed: ParsedFlags) -> tuple[Config, Selection]:
    """Gather the configuration, set the log up, and choose plugins, before a program runs.

    Raises:
        UsageError: the user has made a mistake.
    """
    config = Config.gathered(parsed)
    configure(config.log_format, config.log_level)
    return config, select(config, own=_may_name_own_hook)


def _may_name_own_hook(name: str) -> bool:
    """Return whether a name to switch off may belong to a hook that the user's code makes.

    The first session finds out. A name close to that of a plugin counts as a typo.
    """
    return name not in CORE and not installed_plugins().did_you_mean(name)


def _is_a_plugins(error: SystemExit) -> bool:
    """Return whether a hook raised it; the user's code may exit as it likes."""
    culprit = culprit_of(error)
    return culprit is not None and not culprit.startswith(("op ", "input "))


def _when(error: BaseException, code: int) -> int:
    """Correct an error's exit code: it depends on whether the session had become ready."""
    was_ready = session_left_was_ready(error)
    if was_ready is None:
        return code
    if was_ready:
        return ExitCode.FAILED
    if isinstance(error, UsageError) or culprit_of(error) is None:
        return code
    # A plugin that looks up a missing node was given a wrong name.
    return ExitCode.USAGE if isinstance(error, UnknownNodeError) else ExitCode.PLUGIN


def _verdict(records: Sequence[SessionRecord]) -> int:
    """Return the exit code of code that ended without an error.

    Only training sessions have to run steps and to save them.
    """
    code = _after_signal(records)
    if code is not None:
        return code
    training = [record for record in records if record.kind == "train"]
    failed = [r.outcome for r in records if r.outcome.kind == "failed"]
    if failed:
        log.warning("a session failed, and the script went on", why=failed[-1].why)
        return ExitCode.OK
    if training and all(r.outcome.step == r.first_step == 0 for r in training):
        log.warning("no session ran a step")
        return ExitCode.NO_STEP
    return ExitCode.OK


def _after_signal(records: Sequence[SessionRecord]) -> int | None:
    """Return the exit code if a signal ended a session, or None."""
    preempted = [r for r in records if r.outcome.kind == "preempted"]
    if all(r.saved for r in preempted if r.kind == "train"):
        if preempted:
            return ExitCode.PREEMPTED
        interrupted = any(r.outcome.kind == "interrupted" for r in records)
        return ExitCode.INTERRUPTED if interrupted else None
    log.warning("preempted, and nothing was saved: the next run starts where this one did")
    return ExitCode.FAILED


def _print_traceback(error: BaseException, whole: bool) -> None:
    """Print a traceback as Python would, without the frames above the user's code.

    Args:
        error: the error.
        whole: whether to print the frames of hookbus between those of the user's code.
    """
    trace: TracebackType | None = error.__traceback__
    leading = (*_own_files(), importlib.__file__, "<frozen importlib")
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(leading):
        trace = trace.tb_next
    if trace is not None or isinstance(error, SyntaxError):
        # Not by assignment, which a frozen class refuses.
        BaseException.with_traceback(error, trace)
    if not whole:
        _hide_own_frames(error, set())
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    is_in_compiled = any(f.f_code.co_filename.startswith(COMPILED) for f in frames)
    if is_in_compiled and sys.excepthook is sys.__excepthook__:
        # The other does not find its lines before 3.13.
        traceback.print_exception(error, file=Stderr())
    else:  # the script may have set its own
        sys.excepthook(type(error), error, error.__traceback__)


def _own_files() -> tuple[str, ...]:
    """Return the prefixes of hookbus's files, and of the code that a session compiles."""
    modules = (sys.modules[name] for name in _OWN if name in sys.modules)
    return (*(str(Path(str(m.__file__)).parent) + os.sep for m in modules), COMPILED)


def _hide_own_frames(error: BaseException | None, done: set[int]) -> None:
    """Remove frames of hookbus that lead to other code, from all errors of a chain.

    If the last frames are those of hookbus, they may show a fault in it, so they stay.
    """
    if error is None or id(error) in done:
        return
    done.add(id(error))
    own_files, frames = _own_files(), list[TracebackType]()
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept, foreign = None, False
    for frame in reversed(frames):
        own = frame.tb_frame.f_code.co_filename.startswith(own_files)
        foreign = foreign or not own
        if not (own and foreign):
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    BaseException.with_traceback(error, kept)
    behind = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *behind):
        _hide_own_frames(other, done)


def _place(error: BaseException, files: Collection[str]) -> str | None:
    """Return the line of the user's code that an error came from."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename in files:
            return f"in {frame.f_code.co_filename}:{line} ({frame.f_code.co_name})"
    return None
