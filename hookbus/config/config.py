"""Gathers the settings of flags, environment and config file in one Config."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus.config import files
from hookbus.config.declared import is_switch
from hookbus.config.files import ConfigFile
from hookbus.config.keys import Entry, value_of
from hookbus.config.parser import ParsedFlags, Precedence, Switch, parse_switch, read_flags
from hookbus.config.settings import Setting
from hookbus.config.sources import flags_of_environment, setting_of_entry, setting_of_flag
from hookbus.discovery import Catalog, installed_plugins
from hookbus.errors import UsageError, clipped, note_session_left, spelled
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.outcome import Outcome
from hookbus.logs import LEVEL
from hookbus.validation import check_share, expanded


@attrs.frozen
class SessionRecord:
    """The end of one session of the process, from which the command takes its exit code.

    Attributes:
        kind: its kind: ``train``, ``eval``, ``predict`` or ``aux``.
        first_step: the global step at which it became ready to run; None if it never did.
        outcome: how it ended.
        saved: whether its last step has a checkpoint.
    """

    kind: Kind
    first_step: int | None
    outcome: Outcome
    saved: bool


@attrs.define(eq=False)
class Config:
    """The switches and settings of plugins that are given outside the code.

    Attributes:
        words: the switches of plugins, those of the weakest place first.
        settings: the settings of plugins.
        autoload: whether module and autouse plugins are on by default.
        autoload_source: the setting that switched autoload off, for messages.
        required: distributions that must be installed, each with where it is required.
        strict: whether an unknown plugin to switch off is an error everywhere.
        trace: whether to log how long plugins take.
        hook_budget: the share of the time that each hook may take; None for any.
        hook_budget_place: the place that gives it.
        show_step: whether to log the source of the compiled step.
        again: whether to train again after the training has finished.
        attach: the trainers of a script that take part automatically, and where they are
            given.
        checkpoint_dir: the directory of checkpoints of sessions that train, in place of the
            program's own; None to leave it.
        grace_seconds: the seconds between a signal and the kill that follows it; None if
            they are not known.
        log_format: how the ``hookbus`` command writes its log.
        log_level: the lowest level that it logs.
        file: the config file that was read, or None.
        ignored: config files beside it that were not read.
        header: whether a session logs its plugins when it starts.
        records: the ends of the sessions that used this Config.
        met: the names of hooks that were passed to these sessions in code.
        replaced: the directories that :attr:`checkpoint_dir` has replaced, None for a
            session that had none.

    >>> config = Config(autoload=False).with_plugins("nan-tensor", "no:progress")
    >>> [(word.plugin, word.on) for word in config.words]
    [('nan-tensor', True), ('progress', False)]
    """

    words: tuple[Switch, ...] = ()
    settings: tuple[Setting, ...] = ()
    autoload: bool = True
    autoload_source: str = ""
    required: tuple[tuple[str, str], ...] = ()
    strict: bool = False
    trace: bool = False
    hook_budget: float | None = None
    hook_budget_place: Precedence = Precedence.CODE
    show_step: bool = False
    again: bool = False
    attach: tuple[tuple[str, ...], str] = ((), "")
    checkpoint_dir: str | None = None
    grace_seconds: float | None = None
    log_format: str = "console"
    log_level: int = LEVEL
    file: str | None = None
    ignored: tuple[str, ...] = ()
    header: bool = True
    records: list[SessionRecord] = attrs.field(factory=list)
    met: set[str] = attrs.field(factory=set)
    replaced: set[str | None] = attrs.field(factory=set)

    @classmethod
    def current(cls) -> Config:
        """Return the Config that ``hookbus run`` has set; without one, read it."""
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
            UsageError: something in them is invalid.
        """
        return cls.gathered(ParsedFlags(Precedence.COMMAND), environ, directory)

    @classmethod
    def gathered(
        cls,
        command: ParsedFlags,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Config:
        """Read the file and the environment, and add the flags of a command line.

        Args:
            command: the flags.
            environ: the variables, by default the process's.
            directory: where to look for the file and upwards; by default the current one.

        Raises:
            UsageError: something in them is invalid, or they contradict each other.
        """
        environment = flags_of_environment(os.environ if environ is None else environ)
        file = _file((command, *environment), _here() if directory is None else directory)
        places = _with_addopts([_keys_in(file), *environment, command])
        keys: dict[str, tuple[Any, str]] = {}
        for place in places:
            keys |= place.keys
        words = [word for place in places for word in _words(place, keys)]
        catalog = _catalog(words)
        given = [setting for place in places for setting in _settings(place, catalog)]
        _check_contradictions(words, given, catalog)
        implied = [Switch(s.plugin, True, s.source, s.place, implied=True) for s in given]
        values = {name: value for name, (value, _) in keys.items()}
        autoload, autoload_source = keys.get("autoload", (True, ""))
        required, source = keys.get("required_plugins", ((), ""))
        return cls(
            words=(*words, *implied),
            settings=(*_sections(file, catalog), *given),
            autoload=autoload,
            autoload_source=autoload_source,
            required=tuple((requirement, source) for requirement in required),
            strict=values.get("strict_plugins", False),
            trace=values.get("trace_plugins", False),
            hook_budget=values.get("hook_budget"),
            hook_budget_place=max(
                (place.place for place in places if "hook_budget" in place.keys),
                default=Precedence.CODE,
            ),
            show_step=values.get("show_step", False),
            again=values.get("again", False),
            attach=keys.get("attach", ((), "")),
            checkpoint_dir=values.get("checkpoint_dir"),
            grace_seconds=values.get("grace_seconds"),
            log_format=values.get("log_format", "console"),
            log_level=values.get("log_level", LEVEL),
            file=file.name if file is not None else None,
            ignored=file.ignored if file is not None else (),
        )

    def with_plugins(self, *names: str) -> Config:
        """Return this Config with plugins switched on, or off with ``no:NAME``.

        This counts as given in code: weaker than the environment, stronger than the file.

        Args:
            names: the plugins, in any spelling; ``no:NAME`` switches one off.

        >>> Config().with_plugins("no:progress").words[0].on
        False

        Raises:
            UsageError: a name is empty.
        """
        words = [
            parse_switch(name, f"with_plugins({name!r})", Precedence.CODE) for name in names
        ]
        return attrs.evolve(self, words=(*self.words, *words))

    def with_options(self, plugin: str, **options: Any) -> Config:
        """Return this Config with a plugin switched on and set, as flags would do it.

        Args:
            plugin: its name.
            options: its settings by name; text is converted as on the command line.
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
        )

    def budget(self, given: float | None) -> float | None:
        """Return the share of the time that each hook may take; None for any.

        Args:
            given: the argument of the session, which is weaker than the environment and
                the command line.

        Raises:
            UsageError: it is not above 0 and below 1.
        """
        check_share("hook_budget", given)
        check_share("Config(hook_budget=)", self.hook_budget)
        stronger = self.hook_budget_place > Precedence.CODE
        if given is None or (stronger and self.hook_budget is not None):
            return self.hook_budget
        return given

    def directory(self, given: str | Path | None) -> str | Path | None:
        """Return the directory of checkpoints of a session that trains.

        Args:
            given: the directory that the program gives; None without one.

        Raises:
            UsageError: this Config replaces it, and has replaced another one before.
        """
        chosen, own = self._with_directory(), expanded(given) if given else None
        if chosen is None:
            return own
        chosen.replaced.add(None if own is None else str(own.absolute()))
        if len(chosen.replaced) > 1:
            named = ", ".join(sorted(path or "none" for path in chosen.replaced))
            raise UsageError(
                f"checkpoint_dir = {spelled(chosen.checkpoint_dir)} cannot replace several "
                f"directories of one program: {named}; run it without --checkpoint-dir"
            )
        return chosen.checkpoint_dir

    @property
    def replaces_directory(self) -> bool:
        """Whether sessions that train save elsewhere than the program says."""
        return self._with_directory() is not None

    def _with_directory(self) -> Config | None:
        """Return the Config that replaces the directory of the program, or None.

        A program may give its sessions a Config without flags. The directory that the
        command line names also holds for them: it protects the program's own.
        """
        return next((c for c in (self, *_process) if c.checkpoint_dir is not None), None)

    @property
    def replaced_directory(self) -> Path | None:
        """The directory of the program that another one replaces; None without one."""
        chosen = self._with_directory()
        named = () if chosen is None else filter(None, chosen.replaced)
        return next(map(Path, named), None)

    def settings_of(self, plugin: str) -> tuple[Setting, ...]:
        """Return the settings of one plugin."""
        return tuple(s for s in self.settings if s.plugin == plugin)


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # the current folder was removed
        return None


_process: list[Config] = []


def set_process_config(config: Config | None) -> None:
    """Have every session of this process use *config*."""
    _process[:] = [] if config is None else [config]


def record_end(config: Config, record: SessionRecord, error: BaseException | None) -> None:
    """Record the end of a session, and on *error*, which left it, that it did."""
    config.records.append(record)
    if error is not None:
        note_session_left(error, record.first_step is not None)


def forget_records() -> None:
    """Forget the ended sessions, in a forked child: they are its parent's."""
    for config in _process:
        config.records.clear()


def _file(places: Iterable[ParsedFlags], directory: Path | None) -> ConfigFile | None:
    for place in places:
        if place.file is not None:
            return files.read((directory or Path()) / place.file, named=True)
    return files.find(directory) if directory is not None else None


def _keys_in(file: ConfigFile | None) -> ParsedFlags:
    """Return the keys of hookbus itself in a file."""
    own = [entry for entry in file.entries if not entry.plugin] if file else []
    keys = {e.key: (value_of(e.key, e.value, e.source), _described(e)) for e in own}
    return ParsedFlags(Precedence.FILE, keys=keys)


def _described(entry: Entry) -> str:
    """Return where a key is set, with its value if that is short."""
    short = entry.value in ("true", "false")
    return f"{entry.source}: {entry.key} = {entry.value}" if short else entry.source


def _with_addopts(places: Sequence[ParsedFlags]) -> list[ParsedFlags]:
    """Add the flags of the strongest ``addopts``, before the rest of its place."""
    for number, place in reversed([*enumerate(places)]):
        if "addopts" in place.keys:
            return [*places[:number], _addopts(place), *places[number:]]
    return [*places]


def _addopts(place: ParsedFlags) -> ParsedFlags:
    flags, source = place.keys["addopts"]
    added = read_flags(flags, place.place, source, is_switch=is_switch)
    if added.rest:
        raise UsageError(
            f"{source}: addopts has {spelled(added.rest[0])}, which is not a flag"
        )
    for key in ("addopts", "-c"):
        if key in added.keys or (key == "-c" and added.file is not None):
            raise UsageError(f"{source}: addopts cannot hold {key}")
    return added


def _words(place: ParsedFlags, keys: Mapping[str, tuple[Any, str]]) -> Iterator[Switch]:
    """Yield the switches of a place; its ``plugins`` count if no stronger place has any."""
    yield from place.words
    listed = place.keys.get("plugins")
    if listed is not None and listed is keys["plugins"]:
        names, source = listed
        for name in names:
            yield parse_switch(name, clipped(f"{source}: plugins = {name}"), place.place)


def _catalog(words: Iterable[Switch]) -> Callable[[], Catalog]:
    """Return a function that reads the metadata of all plugins at its first call."""
    named = [word.plugin for word in words if word.on]
    return functools.cache(lambda: installed_plugins().with_modules(named))


def _settings(place: ParsedFlags, catalog: Callable[[], Catalog]) -> Iterator[Setting]:
    for flag in place.flags:
        yield setting_of_flag(flag, place.place, catalog(), place.own)
    for entry in place.options:
        yield setting_of_entry(entry, place.place, catalog())


def _sections(file: ConfigFile | None, catalog: Callable[[], Catalog]) -> Iterator[Setting]:
    if file is None:
        return
    for section, source in file.sections:
        if catalog().find(section) is None:
            raise UsageError(
                f"{source}: a section for {spelled(section)}, and no plugin of that name "
                f"is installed{catalog().hint(section)}"
            )
    for entry in file.entries:
        if entry.plugin:
            yield setting_of_entry(entry, Precedence.FILE, catalog())


def _check_contradictions(
    words: Iterable[Switch], settings: Iterable[Setting], catalog: Callable[[], Catalog]
) -> None:
    """Refuse ``--NAME-SETTING`` together with ``-p no:NAME`` on one command line.

    Anywhere else, the setting takes effect when its plugin is switched on again.
    """
    here = [setting for setting in settings if setting.place is Precedence.COMMAND]
    if not here:
        return
    spoken = [word for word in words if word.place is Precedence.COMMAND]
    last = {catalog().name_of(word.plugin): word for word in spoken}
    for setting in here:
        word = last.get(setting.plugin)
        if word is not None and not word.on:
            raise UsageError(
                f"{setting.source} sets plugin {setting.plugin!r}, which {word.source} "
                "switches off; drop one of the two"
            )
