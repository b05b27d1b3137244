"""What the user said about plugins, from all places, as one Config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.config.parser import ParsedFlags, Precedence, Switch, parse_switch
from hookbus.config.settings import Setting
from hookbus.config.sources import gather
from hookbus.discovery import installed_plugins
from hookbus.hooks.hook import Kind
from hookbus.hooks.outcome import Outcome
from hookbus.logs import LEVEL


@attrs.frozen
class SessionRecord:
    """How one session of the process went, for the command's exit code.

    Attributes:
        kind: what it was for: ``train``, ``eval``, ``predict`` or ``aux``.
        first_step: the global step at which it was ready for a run; None if it never was.
        outcome: how it ended.
        saved: whether there is a checkpoint of its last step.
        error: what left it, or None.
    """

    kind: Kind
    first_step: int | None
    outcome: Outcome
    saved: bool
    error: BaseException | None = attrs.field(default=None, repr=False, eq=False)


@attrs.define(eq=False)
class Config:
    """Which plugins are on and how they are set, as far as it was said outside the code.

    Attributes:
        words: what was said about plugins, in each place in order.
        settings: what was set.
        autoload: whether module and autouse plugins are on when nobody names them.
        autoload_source: what switched autoload off, for messages.
        required: distributions that must be there, each with where that was said.
        strict: whether an unknown plugin to switch off is an error in every place.
        trace: whether to tell how long plugins take.
        log_format: how the ``hookbus`` command writes its log.
        log_level: the lowest level that it logs.
        file: the config file that was read, or None.
        ignored: config files beside it that do not count.
        header: whether sessions tell at their start which plugins they have.
        records: how the sessions that took this Config ended.
        met: the names of hooks that were passed to them in code.
    """

    words: tuple[Switch, ...] = ()
    settings: tuple[Setting, ...] = ()
    autoload: bool = True
    autoload_source: str = ""
    required: tuple[tuple[str, str], ...] = ()
    strict: bool = False
    trace: bool = False
    log_format: str = "console"
    log_level: int = LEVEL
    file: str | None = None
    ignored: tuple[str, ...] = ()
    header: bool = True
    records: list[SessionRecord] = attrs.field(factory=list)
    met: set[str] = attrs.field(factory=set)

    @classmethod
    def current(cls) -> Config:
        """Return the process's Config, as ``hookbus run`` sets it; else read one."""
        return _process[0] if _process else cls.from_environment()

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> Config:
        """Read the config file and the environment variables.

        Args:
            environ: the variables, by default the process's.
            directory: where to look for the file and upwards; by default the current one.

        Raises:
            UsageError: something in them cannot be understood.
        """
        return cls.gathered(ParsedFlags(Precedence.COMMAND), environ, directory)

    @classmethod
    def gathered(
        cls,
        command: ParsedFlags,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Config:
        """Read the file and the environment, and add what a command line said."""
        found = gather(
            command,
            os.environ if environ is None else environ,
            _here() if directory is None else directory,
        )
        keys = {key: value for key, (value, _) in found.keys.items()}
        required, source = found.keys.get("required_plugins", ((), ""))
        return cls(
            found.words,
            found.settings,
            keys.get("autoload", True),
            found.keys.get("autoload", (True, ""))[1],
            tuple((requirement, source) for requirement in required),
            keys.get("strict_plugins", False),
            keys.get("trace_plugins", False),
            keys.get("log_format", "console"),
            keys.get("log_level", LEVEL),
            found.file.name if found.file is not None else None,
            found.file.ignored if found.file is not None else (),
        )

    def with_plugins(self, *names: str) -> Config:
        """Return this Config with plugins switched on, or with ``no:NAME`` off.

        It is said in code: weaker than the environment, stronger than the file.

        >>> Config().with_plugins("no:progress").words[0].on
        False

        Raises:
            UsageError: a name is empty.
        """
        words = [
            parse_switch(name, f"with_plugins({name!r})", Precedence.CODE) for name in names
        ]
        return attrs.evolve(self, words=(*self.words, *words), records=self.records)

    def with_options(self, plugin: str, **options: Any) -> Config:
        """Return this Config with a plugin switched on and set, as flags would.

        Args:
            plugin: its name.
            options: setting to value; text is read as on the command line.
        """
        name = installed_plugins().with_modules([plugin]).name_of(plugin)
        call = f"with_options({plugin!r}, {', '.join(f'{key}=' for key in options)})"
        settings = [
            Setting(name, field.replace("-", "_"), value, call, Precedence.CODE)
            for field, value in options.items()
        ]
        words = [Switch(plugin, True, call, Precedence.CODE, implied=True)]
        return attrs.evolve(
            self,
            words=(*self.words, *words),
            settings=(*self.settings, *settings),
            records=self.records,
        )

    def settings_of(self, plugin: str) -> tuple[Setting, ...]:
        """Return what was set for one plugin."""
        return tuple(s for s in self.settings if s.plugin == plugin)


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # the folder was removed under our feet
        return None


_process: list[Config] = []


def set_process_config(config: Config | None) -> None:
    """Make *config* the one that every session of this process takes."""
    _process[:] = [] if config is None else [config]
