"""How ``hookbus run`` runs a script: as Python would, with plugins on."""

from __future__ import annotations

import builtins
import os
import sys
import traceback
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType

from hookbus import cli
from hookbus.choosing import select
from hookbus.cli.flags import HELP, own_folder_first, wants_help
from hookbus.cli.help import help_of
from hookbus.config import Config, set_process_config
from hookbus.config.grammar import Said, read_flags
from hookbus.config.owners import looks_like_ours
from hookbus.errors import (
    ExitCode,
    HookbusError,
    UnknownNodeError,
    UsageError,
    culprit_of,
    did_you_mean,
)
from hookbus.installed import CORE, installed_plugins
from hookbus.logs import configure, log
from hookbus.places import Place


def run(arguments: Sequence[str]) -> int:
    """Run a script and return the exit code.

    Raises:
        UsageError: the flags make no sense, or there is no such script.
    """
    said = read_flags(arguments, Place.COMMAND, switches=HELP)
    own_folder_first(said.rest[0] if said.rest else None)
    config = Config.gathered(said)
    configure(config.log_format)
    selection = select(config, own=_may_be_the_scripts)
    if wants_help(said):
        print(help_of(selection, config), end="")
        return ExitCode.OK
    script = _script(said)
    late = looks_like_ours(said.rest[1:], selection.catalog)
    if late is not None:
        log.warning(
            "a flag after the script goes to the script; move it before it if it was "
            "meant for hookbus",
            flag=late,
        )
    set_process_config(config)
    try:
        return _execute(script, said.rest, config)
    finally:
        set_process_config(None)


def _may_be_the_scripts(name: str) -> bool:
    """Say whether a name to switch off may be that of a hook which the script makes.

    Its first session will tell. What is nearly the name of a plugin is a slip.
    """
    return name not in CORE and not did_you_mean(name, installed_plugins())


def _script(said: Said) -> Path:
    if not said.rest:
        last = said.flags[-1:]
        taken = [f for f in last if f.value is not None and Path(f.value).is_file()]
        hint = "".join(f" ({f.value} was taken for the value of {f.name})" for f in taken)
        raise UsageError(
            f"hookbus run needs a script: hookbus run [flags] SCRIPT [ARGS]{hint}"
        )
    script = Path(said.rest[0])
    if not script.is_file():
        what = "is a directory" if script.is_dir() else "does not exist"
        raise UsageError(f"the script {script} {what} (looked in {Path.cwd()})")
    return script


def _execute(script: Path, argv: Sequence[str], config: Config) -> int:
    path = os.path.abspath(script)  # noqa: PTH100 (Python does not resolve links here)
    try:
        _as_main(path, argv)
        if not config.records:  # there was no session that could look for every name
            select(config)
    except SystemExit as error:
        if not _is_a_plugins(error):
            raise
        print(f"ERROR: SystemExit({error.code!r})", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(f"  {note}", file=sys.stderr)
        return _when(error, config, ExitCode.FAILED)
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


def _is_a_plugins(error: SystemExit) -> bool:
    """Say whether it came out of a hook; a script's own code may end as it likes."""
    culprit = culprit_of(error)
    return culprit is not None and not culprit.startswith(("op ", "input "))


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
    own_folder_first(path)
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
