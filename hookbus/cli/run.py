"""Runs a script or a module as Python would, with plugins on."""

from __future__ import annotations

import builtins
import importlib
import os
import pkgutil
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import attrs

from hookbus.cli.execute import execute, prepare
from hookbus.cli.flags import HELP, MODULE, parse, split_flags, wants_help
from hookbus.cli.help import help_of
from hookbus.cli.names import FLAG, with_names
from hookbus.cli.target import no_module, own_folder_first, what_is
from hookbus.config.parser import CommandFlags, ParsedFlags, Precedence
from hookbus.config.sources import looks_like_ours
from hookbus.discovery import spec_of
from hookbus.errors import ExitCode, UsageError, clipped
from hookbus.logs import log
from hookbus.plugin.attaching import attached, attachments
from hookbus.plugin.selection import Selection, select

if TYPE_CHECKING:
    from importlib.abc import PathEntryFinder

STDIN = "-"
"""The script that is read from standard input."""
_HELP = [
    "usage: hookbus run [flags] SCRIPT [ARGS ...]",
    "       hookbus run [flags] -m MODULE [ARGS ...]",
    "       hookbus run --names [flags] SCRIPT [ARGS ...]",
    "",
    "Run a training script, or a module, as Python would, with plugins. SCRIPT may be",
    "a folder or a zip file with a __main__.py, or - for standard input.",
    "With --names, run one step, and print the names of all values that hooks may",
    "fetch in it.",
]


def run(arguments: Sequence[str]) -> int:
    """Run a script or a module and return the exit code.

    Raises:
        UsageError: a flag or a setting is wrong, or the script or module does not exist.
    """
    own = CommandFlags(switches=(*HELP, FLAG), last=(MODULE,))
    parsed = parse(arguments, own)
    if FLAG in parsed.switches and not wants_help(parsed):
        split = split_flags("hookbus run", arguments, [FLAG])
        return with_names(run, [*split.flags, *split.program])
    module = parsed.values.get(MODULE)
    names_script = module is None and parsed.rest and parsed.rest[0] != STDIN
    own_folder_first(parsed.rest[0] if names_script else None)
    config, selection = prepare(parsed)
    if wants_help(parsed):
        print(help_of(selection, config, _HELP), end="")
        return ExitCode.OK
    program = _script(parsed) if module is None else _module(module, parsed.rest)
    late = looks_like_ours(program.arguments, selection.catalog)
    if late is not None:
        log.warning(
            "a flag after the script goes to the script; put it before the script if it "
            "is meant for hookbus",
            flag=late,
        )

    def main() -> None:
        names, source = config.attach
        with attached(names, source):
            program.run()
        if not config.records:  # no session has looked for every name
            _tell_of_no_session(select(config))

    return execute(main, config, [program.path])


def _tell_of_no_session(selection: Selection) -> None:
    """Warn of plugins that the user switched on, if the script has opened no session."""
    words = {verdict.name: verdict.decisive for verdict in selection.on}
    asked = [n for n, word in words.items() if word and word.place is Precedence.COMMAND]
    if asked:
        trainers = [f"--attach {name}" for name in attachments() if name in sys.modules]
        hint = f"to watch it as it is: {' or '.join(trainers)}" if trainers else None
        log.warning(
            "the script has opened no session, so no plugin took part",
            plugins=", ".join(asked),
            **({"hint": hint} if hint else {}),
        )


@attrs.frozen
class _Program:
    """The script or module that becomes ``__main__``.

    Attributes:
        path: the file.
        arguments: the words after its name in ``sys.argv``.
        name: its name in ``sys.argv``.
        spec: the origin of a module; None for a script.
        source: its source if it came through standard input, or None.
    """

    path: str
    arguments: Sequence[str]
    name: str
    spec: ModuleSpec | None = None
    source: bytes | None = None

    def run(self) -> None:
        """Run it as Python would; its module stays ``__main__``."""
        module, spec = types.ModuleType("__main__"), self.spec
        loader = SourceFileLoader("__main__", self.path) if spec is None else spec.loader
        source = self.source
        if source is None:
            source = cast("SourceFileLoader", loader).get_data(self.path)
            if spec is None:
                own_folder_first(self.path)
            elif spec.parent:
                importlib.import_module(spec.parent)
        module.__dict__.update(
            __file__=self.path,
            __cached__=None if spec is None else spec.cached,
            __loader__=loader,
            __package__=None if spec is None else spec.parent,
            __spec__=spec,
            __annotations__={},
            __builtins__=builtins,
        )
        sys.argv = [self.name, *self.arguments]
        sys.modules["__main__"] = module
        exec(compile(source, self.path, "exec", dont_inherit=True), module.__dict__)


def _script(parsed: ParsedFlags) -> _Program:
    if not parsed.rest:
        last = parsed.flags[-1:]
        named = [f for f in last if f.value is not None]
        taken = [f for f in named if what_is(Path(f.value or "")) == "a file"]
        hint = "".join(f" ({f.value} was read as the value of {f.name})" for f in taken)
        raise UsageError(
            "hookbus run needs a script: hookbus run [flags] SCRIPT [ARGS], or a module: "
            f"hookbus run [flags] -m MODULE [ARGS]{hint}"
        )
    name, *arguments = parsed.rest
    if name == STDIN:
        closed = cast("TextIO | None", sys.stdin) is None  # Python runs nothing then
        source = b"" if closed else sys.stdin.buffer.read()
        return _Program("<stdin>", arguments, name, source=source)
    script = Path(name)
    importer = pkgutil.get_importer(os.path.abspath(script))  # noqa: PTH100 (as below)
    if importer is not None:
        spec = cast("PathEntryFinder", importer).find_spec("__main__")
        if spec is None or not (spec.origin or "").endswith(".py"):
            raise UsageError(
                f"{clipped(str(script))} has no __main__.py, which Python runs in a folder "
                "or a zip file"
            )
        return _Program(str(spec.origin), arguments, name, spec)
    what = what_is(script)
    if what != "a file":
        alone = [f.name for f in parsed.flags[-1:] if f.following == (name,)]
        hint = "".join(f"; the flag {flag} before it takes true or false" for flag in alone)
        shown = clipped(str(script))
        raise UsageError(f"the script {shown} {what} (looked in {Path.cwd()}){hint}")
    # Python does not resolve links here.
    return _Program(os.path.abspath(script), arguments, name)  # noqa: PTH100


def _module(name: str, arguments: Sequence[str]) -> _Program:
    """Find a module without importing it, or the module ``__main__`` of a package."""
    if name.endswith(".py") and what_is(Path(name)) == "a file":
        raise UsageError(
            f"-m takes the name of a module; to run the file: hookbus run {name}"
        )
    spec = spec_of(name)
    if spec is None:
        raise no_module(name)
    if spec.submodule_search_locations is not None:
        spec = spec_of(f"{name}.__main__")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"-m {name}: it has no source to run, like {name}/__main__.py")
    return _Program(spec.origin, arguments, spec.origin, spec)
