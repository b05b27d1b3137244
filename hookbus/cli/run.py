"""How ``hookbus run`` runs a script: as Python would, with plugins on."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hookbus import cli
from hookbus.cli import flags as command_line
from hookbus.cli.flags import FLAGS
from hookbus.config import ENVIRONMENT, Config, set_process_config
from hookbus.config.settings import fields_of, flag_of
from hookbus.errors import ExitCode, HookbusError, UsageError
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
    sys.argv = list(argv)
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(os.fspath(script), run_name="__main__")
    except SystemExit:
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except HookbusError as error:
        return cli.report(error)
    except BaseException as error:
        _print_traceback(error, script)
        return ExitCode.FAILED
    return _verdict(config)


def _verdict(config: Config) -> int:
    """Return the exit code of a script that ended by itself."""
    records = config.records
    failed = [r.outcome for r in records if r.outcome.kind == "failed"]
    if failed:
        log.warning("a session failed, and the script went on", why=failed[-1].why)
        return ExitCode.OK
    if records and all(r.outcome.step == r.first_step == 0 for r in records):
        log.warning("no session ran a step")
        return ExitCode.NO_STEP
    return ExitCode.OK


def _print_traceback(error: BaseException, script: Path) -> None:
    """Print what Python would, without the frames of hookbus that led to the script."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and not _is_script(trace, script):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _is_script(trace: TracebackType, script: Path) -> bool:
    return Path(trace.tb_frame.f_code.co_filename) == script


def _help(verdicts: dict[str, Verdict]) -> str:
    lines = ["usage: hookbus run [flags] SCRIPT [ARGS ...]", "", "flags:"]
    lines += [f"  {flag:28} {text}" for flag, text in FLAGS.items()]
    lines += ["", "environment:"]
    lines += [f"  {name:28} {text}" for name, text in ENVIRONMENT.items()]
    lines += ["", "settings of the plugins that are on (-p NAME shows those of NAME):"]
    for verdict in verdicts.values():
        if verdict.on:
            lines += _settings_help(verdict)
    off = [name for name, verdict in verdicts.items() if not verdict.on]
    lines += ["", f"installed and off: {', '.join(off) or 'none'}"]
    return "\n".join(lines) + "\n"


def _settings_help(verdict: Verdict) -> list[str]:
    assert verdict.installed is not None
    try:
        code = verdict.installed.entry.load()
    except Exception as error:
        return [f"  broken: {broken(verdict, error).splitlines()[1].strip()}"]
    if not isinstance(code, type):
        return [f"  {verdict.name}: no settings"]
    lines = []
    for field, (_, default) in fields_of(code).items():
        shown = "" if default is None or default == () else f"(default {default})"
        lines.append(f"  {flag_of(verdict.name, field):40} {shown}".rstrip())
    return lines or [f"  {verdict.name}: no settings"]
