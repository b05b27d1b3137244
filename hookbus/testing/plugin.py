"""What pytest gets from hookbus: fixtures, and the options of the conformance suite.

Every pytest run in an environment with hookbus imports this module, so it imports the rest
only when somebody uses it.
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
"""Where a pytest run keeps the hook classes that it is to test."""
_SUITE = Path(__file__).with_name("conformance.py")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Declare which hooks the conformance suite is for, where it is asked for.

    Other projects may have options of these names.
    """
    if not any("hookbus.testing.conformance" in a or str(_SUITE) in a for a in args):
        return
    group = parser.getgroup("hookbus", "hookbus: hooks for hookbus.testing.conformance")
    group.addoption(
        "--hook",
        action="append",
        default=[],
        dest="hookbus_hooks",
        metavar="MODULE:CLASS",
        help="a hook class to test (repeatable)",
    )
    group.addoption(
        "--hook-setting",
        action="append",
        default=[],
        dest="hookbus_settings",
        metavar="NAME=VALUE",
        help="a setting of the hooks, its value as on the command line (repeatable)",
    )
    group.addoption(
        "--hook-node",
        action="append",
        default=[],
        dest="hookbus_nodes",
        metavar="NAME",
        help="a node that the hooks need, besides loss and accuracy (repeatable)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Look the hooks up before anything is collected.

    Raises:
        pytest.UsageError: they cannot be made as was said.
    """
    config.stash[CANDIDATES] = _candidates(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to run the conformance suite on nothing.

    Raises:
        pytest.UsageError: no hook was named.
    """
    if not config.stash[CANDIDATES] and any(item.path == _SUITE for item in items):
        raise pytest.UsageError(
            "hookbus.testing.conformance needs a hook class to test: "
            "--hook MODULE:CLASS, like --hook hookbus_nan_tensor:NanTensorHook"
        )


@pytest.fixture
def recorder() -> Recorder:
    """Return a hook that keeps every call of the sessions it is given to."""
    from hookbus.testing.recorder import Recorder

    return Recorder()


@pytest.fixture
def fake_dist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Return ``hookbus.testing.fake_dist`` for a folder that this test can import from.

    Processes that the test starts can, too. Afterwards all is as it was before.
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


def _candidates(config: pytest.Config) -> list[Candidate]:
    """Return the hook classes that the options name."""
    names = config.getoption("hookbus_hooks", default=[])
    if not names:
        return []
    from hookbus.errors import UsageError
    from hookbus.testing._suite.candidate import candidates

    try:
        return candidates(
            names, config.getoption("hookbus_settings"), config.getoption("hookbus_nodes")
        )
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
