"""How ``hookbus run`` runs a script: as Python would, with plugins on."""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType

from hookbus import cli
from hookbus.cli import flags as command_line
from hookbus.cli.flags import FLAGS
from hookbus.config import ENVIRONMENT, Config, set_process_config
from hookbus.config.settings import fields_of, flag_of
from hookbus.errors import (
    ExitCode,
    HookbusError,
    UnknownNodeError,
    UsageError,
    culprit_of,
)
from hookbus.loading import broken
from hookbus.logs import configure, log
from hookbus.selection import Verdict, decide, installed_plugins


def run(arguments: Sequence[str]) -> int:
    """Run a script and return the exit code.

    Raises:
        UsageError: the flags make no sense, or there is no such script.
    """
    installed = installed_plugins()
    flags = command_line.parse(arguments, installed)
    config = flags.onto(Config.from_environment())
    configure(flags.log_format)
    verdicts = decide(installed, config.words, config.autoload, config.autoload_source)
    if flags.help:
        print(_help(verdicts), end="")
        return ExitCode.OK
    if not flags.rest:
        raise UsageError("hookbus run needs a script: hookbus run [flags] SCRIPT [ARGS]")
    script = Path(flags.rest[0])
    if not script.is_file():
        what = "is a directory" if script.is_dir() else "does not exist"
        raise UsageError(f"the script {script} {what} (looked in {Path.cwd()})")
    late = command_line.looks_like_ours(flags.rest[1:], installed)
    if late is not None:
        log.warning(
            "a flag after the script goes to the script; move it before it if it was "
            "meant for hookbus",
            flag=late,
        )
    set_process_config(config)
    try:
        return _execute(script, flags.rest, config)
    finally:
        set_process_config(None)


def _execute(script: Path, argv: Sequence[str], config: Config) -> int:
    path = os.path.abspath(script)  # noqa: PTH100 (Python does not resolve links here)
    try:
        _as_main(path, argv)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except HookbusError as error:
        code = cli.report(error)
        place = _place(error, path)
        if place and code != ExitCode.USAGE:
            print(f"  {place}", file=sys.stderr)
        return _when(error, config, code)
    except BaseException as error:
        _print_traceback(error, path)
        return _when(error, config, ExitCode.FAILED)
    return _verdict(config)


def _as_main(path: str, argv: Sequence[str]) -> None:
    """Run a file as ``python FILE`` would: its module is and stays ``__main__``."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __package__=None,
        __annotations__={},
        __builtins__=builtins,
    )
    sys.argv = list(argv)
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(path).resolve().parent)
    sys.modules["__main__"] = module
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _when(error: BaseException, config: Config, code: int) -> int:
    """Correct the exit code of an error by when it came: before or after a first run."""
    record = next((r for r in config.records if r.error is error), None)
    if record is None:
        return code
    if record.first_step is not None:
        return ExitCode.FAILED
    if isinstance(error, UsageError) or culprit_of(error) is None:
        return code
    # A plugin that looks up a node which is not there was told a wrong name.
    return ExitCode.USAGE if isinstance(error, UnknownNodeError) else ExitCode.PLUGIN


def _verdict(config: Config) -> int:
    """Return the exit code of a script that ended by itself."""
    records = config.records
    kinds = [record.outcome.kind for record in records]
    if "preempted" in kinds:
        return _preempted(all(r.saved for r in records if r.outcome.kind == "preempted"))
    if "interrupted" in kinds:
        return ExitCode.INTERRUPTED
    failed = [r.outcome for r in records if r.outcome.kind == "failed"]
    if failed:
        log.warning("a session failed, and the script went on", why=failed[-1].why)
        return ExitCode.OK
    if records and all(r.outcome.step == r.first_step == 0 for r in records):
        log.warning("no session ran a step")
        return ExitCode.NO_STEP
    return ExitCode.OK


def _preempted(saved: bool) -> ExitCode:
    if saved:
        return ExitCode.PREEMPTED
    log.warning("preempted, and nothing was saved: the next run starts where this one did")
    return ExitCode.FAILED


def _print_traceback(error: BaseException, path: str) -> None:
    """Print what Python would, without the frames of hookbus that led to the script."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.excepthook(type(error), error, trace)  # a script may have one of its own


def _place(error: BaseException, path: str) -> str | None:
    """Return the line of the script in which an error came up."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename == path:
            return f"in {path}:{line} ({frame.f_code.co_name})"
    return None


def _help(verdicts: dict[str, Verdict]) -> str:
    lines = ["usage: hookbus run [flags] SCRIPT [ARGS ...]", "", "flags:"]
    lines += _columns(FLAGS)
    lines += ["", "environment:"]
    lines += _columns(ENVIRONMENT)
    lines += ["", "settings of the plugins that are on (-p NAME shows those of NAME):"]
    for verdict in verdicts.values():
        if verdict.on:
            lines += _settings_help(verdict)
    off = [name for name, verdict in verdicts.items() if not verdict.on]
    lines += ["", f"installed and off: {', '.join(off) or 'none'}"]
    return "\n".join(lines) + "\n"


def _columns(texts: Mapping[str, str]) -> list[str]:
    width = max(map(len, texts))
    return [f"  {name:{width}}  {text}".rstrip() for name, text in texts.items()]


def _settings_help(verdict: Verdict) -> list[str]:
    assert verdict.installed is not None
    try:
        code = verdict.installed.entry.load()
    except (Exception, SystemExit) as error:
        why = broken(verdict, error).splitlines()[1].strip()
        return [f"  {verdict.name}: broken: {why}"]
    if not isinstance(code, type):
        return [f"  {verdict.name}: no settings"]
    texts = {
        flag_of(verdict.name, field): _default(default)
        for field, (_, default) in fields_of(code).items()
    }
    return _columns(texts) if texts else [f"  {verdict.name}: no settings"]


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "(required)"
    return "" if value is None or value == () else f"(default {value})"
