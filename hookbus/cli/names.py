"""Prints the names of values after one training step, for ``hookbus run --names``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, get_args

import attrs

from hookbus.backend.protocol import Session, ValueRecord
from hookbus.cli.output import printable
from hookbus.discovery import installed_plugins
from hookbus.errors import GraphError
from hookbus.hooks.context import SessionRunContext, SessionRunValues
from hookbus.hooks.hook import SessionRunArgs, SessionRunHook
from hookbus.hooks.hook_options import HookOptions
from hookbus.library.roles import Role

FLAG = "--names"
_WRITERS = ("checkpoint-saver", "summary-saver")
"""The plugins that would leave files behind."""
_NO_VALUE = "no value in this step"


def with_names(run: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a program for one step, with the hook that prints names, and without a trace.

    Args:
        run: runs a program with the words of a command line.
        arguments: the words of the user.
    """
    installed = installed_plugins().plugins
    off = [f"no:{name}" for name in _WRITERS if name in installed]
    words = [f"{__name__}:{NamesHook.__name__}", *off]
    with tempfile.TemporaryDirectory() as folder:
        flags = [word for each in words for word in ("-p", each)]
        return run([*flags, "--checkpoint-dir", folder, *arguments])


@attrs.define(eq=False)
class NamesHook(SessionRunHook):
    """Prints the names of values after the first training step, and stops."""

    options: ClassVar[HookOptions] = HookOptions(ranks="all", only_observes=True)
    _is_chief: bool = attrs.field(default=True, init=False)
    _is_done: bool = attrs.field(default=False, init=False)

    def begin(self, rank: int) -> None:
        """Print in one process only."""
        self._is_chief = rank == 0

    def before_run(self) -> SessionRunArgs | None:
        """Ask for all that there is, because some values exist only in the step."""
        return SessionRunArgs("*", missing="skip")

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Print the names with a description of each value, and stop."""
        if self._is_chief and not self._is_done:
            self._is_done = True
            print("\n".join(_lines(run_context.session, run_values.results)), flush=True)
        run_context.request_stop(f"hookbus run {FLAG} trains for one step")


def _lines(session: Session, values: dict[str, Any]) -> list[str]:
    """Return the lines about all names, grouped by role."""
    lines = []
    for role in get_args(Role):
        names = session.names(role=role)
        if not names:
            continue
        widest = max(map(len, names))
        lines.append(role)
        lines += [
            printable(f"  {name:{widest}}  {_described(session, name, values)}")
            for name in names
        ]
    return lines


def _described(session: Session, name: str, values: dict[str, Any]) -> str:
    """Return the type and the shape of a value."""
    if name not in values:
        return _NO_VALUE
    value = values[name]
    if session.graph.takes_reports:  # where it is, it has the dtype of its library
        try:
            value = session.run(name)
        except GraphError:
            return _NO_VALUE
    record = ValueRecord.of(name, value)
    shape = f" {record.shape}" if record.is_array else ""
    return f"{record.type}{shape}"
