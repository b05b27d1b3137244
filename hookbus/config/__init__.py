"""What the user said about plugins, from all places, as one Config."""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from hookbus.config.settings import Setting, boolean
from hookbus.errors import UsageError
from hookbus.hook import Outcome
from hookbus.selection import Word, parse_word

PLUGINS = "HOOKBUS_PLUGINS"
NO_AUTOLOAD = "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"
ENVIRONMENT = {
    PLUGINS: "plugins to switch on or off, like nan-tensor,no:progress",
    NO_AUTOLOAD: "true: plugins that are on when found stay off unless named",
}
"""The environment variables that hookbus reads, and what each does."""


@attrs.frozen
class SessionRecord:
    """How one session of the process went, for the command's exit code.

    Attributes:
        first_step: the global step at which it was ready for a run; None if it never was.
        outcome: how it ended.
        saved: whether there is a checkpoint of its last step.
        error: what left it, or None.
    """

    first_step: int | None
    outcome: Outcome
    saved: bool
    error: BaseException | None = attrs.field(default=None, repr=False, eq=False)


@attrs.define(eq=False)
class Config:
    """Which plugins are on and how they are set, as far as it was said outside the code.

    Attributes:
        words: what was said about plugins, the weakest first.
        settings: what was set.
        autoload: whether module and autouse plugins are on when nobody names them.
        autoload_source: what switched autoload off, for messages.
        records: how the sessions that took this Config ended.
    """

    words: tuple[Word, ...] = ()
    settings: tuple[Setting, ...] = ()
    autoload: bool = True
    autoload_source: str = ""
    records: list[SessionRecord] = attrs.field(factory=list)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read the environment variables.

        Args:
            environ: the variables, by default the process's.

        Raises:
            UsageError: one cannot be understood.
        """
        environ = os.environ if environ is None else environ
        listed = [w for w in environ.get(PLUGINS, "").split(",") if w.strip()]
        words = [parse_word(word, f"{PLUGINS}={word.strip()}") for word in listed]
        off = _switch(environ, NO_AUTOLOAD)
        source = f"{NO_AUTOLOAD}={environ[NO_AUTOLOAD]}" if off else ""
        return cls(tuple(words), (), not off, source)

    def with_words(self, *words: Word) -> Config:
        """Return this Config with stronger words added."""
        return attrs.evolve(self, words=(*self.words, *words), records=self.records)

    def with_settings(self, *settings: Setting) -> Config:
        """Return this Config with settings added; each knows its own strength."""
        both = (*self.settings, *settings)
        return attrs.evolve(self, settings=both, records=self.records)

    def settings_of(self, plugin: str) -> tuple[Setting, ...]:
        """Return what was set for one plugin."""
        return tuple(s for s in self.settings if s.plugin == plugin)


_process: list[Config] = []


def set_process_config(config: Config | None) -> None:
    """Make *config* the one that every session of this process takes."""
    _process[:] = [] if config is None else [config]


def current_config() -> Config:
    """Return the process's Config, else what the environment says."""
    return _process[0] if _process else Config.from_environment()


def _switch(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "")
    if not text.strip():
        return False
    try:
        return boolean(text)
    except ValueError as error:
        raise UsageError(f"{name}={text!r}: {error}") from error
