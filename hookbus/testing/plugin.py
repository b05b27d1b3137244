"""Provides fixtures for pytest, and the options of the conformance suite.

Every pytest run in an environment with hookbus imports this module, so it imports other
modules only when they are needed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hookbus.testing._suite.candidate import Candidate
    from hookbus.testing.recorder import Recorder


CANDIDATES: pytest.StashKey[list[Candidate]] = pytest.StashKey()
"""The key of the hook classes that a pytest run tests."""
_SUITE = Path(__file__).with_name("conformance.py")
_SETTING = "a setting of the hooks, its value as on the command line"
_NODE = "a node that the hooks need, besides loss and accuracy"
_OPTIONS = (
    ("--hook", "hookbus_hooks", "MODULE:CLASS", "a hook class to test"),
    ("--hook-setting", "hookbus_settings", "NAME=VALUE", _SETTING),
    ("--hook-node", "hookbus_nodes", "NAME", _NODE),
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Declare the options of the conformance suite, if it is to run.

    Other projects may have options of these names.
    """
    if not any("hookbus.testing.conformance" in a or str(_SUITE) in a for a in args):
        return
    group = parser.getgroup("hookbus", "hookbus: hooks for hookbus.testing.conformance")
    for flag, dest, metavar, text in _OPTIONS:
        help_text = f"{text} (repeatable)"
        group.addoption(
            flag, action="append", default=[], dest=dest, metavar=metavar, help=help_text
        )


def pytest_configure(config: pytest.Config) -> None:
    """Find the hook classes before anything is collected.

    Raises:
        pytest.UsageError: they cannot be made with the given settings.
    """
    config.stash[CANDIDATES] = []
    names = config.getoption("hookbus_hooks", default=[])
    if not names:
        return
    from hookbus.errors import UsageError
    from hookbus.testing._suite.candidate import candidates

    settings, nodes = map(config.getoption, ("hookbus_settings", "hookbus_nodes"))
    try:
        config.stash[CANDIDATES] = candidates(names, settings, nodes)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to run the conformance suite without a hook.

    Raises:
        pytest.UsageError: no hook is given.
    """
    if not config.stash[CANDIDATES] and any(item.path == _SUITE for item in items):
        raise pytest.UsageError(
            "hookbus.testing.conformance needs a hook class to test: "
            "--hook MODULE:CLASS, like --hook hookbus_nan_tensor:NanTensorHook"
        )


@pytest.fixture
def recorder() -> Recorder:
    """Return a hook that records every call in the sessions it takes part in."""
    from hookbus.testing.recorder import Recorder

    return Recorder()


@pytest.fixture
def fake_dist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Return ``hookbus.testing.fake_dist`` for a folder that this test imports from.

    Processes that the test starts import from it, too. All is undone after the test.
    """
    from hookbus.testing.dists import fake_dist

    site = tmp_path_factory.mktemp("site")
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        yield functools.partial(fake_dist, site)
    for module, found in list(sys.modules.items()):
        if Path(getattr(found, "__file__", None) or os.sep).is_relative_to(site):
            del sys.modules[module]
