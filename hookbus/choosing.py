"""What a Config comes to with the plugins that are installed: who is on, and why."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable

from hookbus.config import Config
from hookbus.config.environment import slips
from hookbus.errors import UsageError
from hookbus.installed import Catalog, Installed, check_entry, installed_plugins
from hookbus.logs import log
from hookbus.requirements import check_fits, check_required
from hookbus.selection import Selection, Word, decide


def select(
    config: Config,
    words: Iterable[Word] = (),
    catalog: Catalog | None = None,
    showing: bool = False,
    own: Callable[[str], bool] = lambda _: False,
) -> Selection:
    """Decide about every plugin; nothing is imported.

    Args:
        config: what was said outside the code.
        words: what the code says.
        catalog: what is installed, by default looked up.
        showing: whether it is only for a look, and a distribution that is missing no error.
        own: says whether a hook of the program itself may bear a name.

    Raises:
        UsageError: a name is unknown, or a distribution is missing that is required.
    """
    every = (*words, *config.words)
    catalog = catalog or installed_plugins()
    catalog = catalog.with_modules(w.plugin for w in every if w.on)
    selection = decide(
        catalog, every, config.autoload, config.autoload_source, config.strict, own
    )
    warnings = [*slips(os.environ), *selection.warnings]
    try:
        check_required(config.required, selection.verdicts)
    except UsageError as error:
        if not showing:
            raise
        warnings.append(str(error))
    for warning in warnings:
        _warn_once(warning)
    return selection


def check_loadable(plugin: Installed) -> None:
    """See to it, from metadata alone, that a plugin can be imported.

    Raises:
        PluginError: its entry point leads nowhere, its name is not its own, or it asks
            for another hookbus.
    """
    check_entry(plugin)
    check_fits(plugin)


@functools.cache
def _warn_once(message: str) -> None:
    """Warn; the command and each of its sessions decide anew about the same words."""
    log.warning(message)
