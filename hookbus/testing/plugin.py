"""Provides fixtures for pytest, and the options of the suites for hooks and backends.

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
    from hookbus.testing._backend.candidate import Backend
    from hookbus.testing._suite.candidate import Candidate
    from hookbus.testing.recorder import Recorder


CANDIDATES: pytest.StashKey[list[Candidate]] = pytest.StashKey()
"""The key of the hook classes that a pytest run tests."""
BACKENDS: pytest.StashKey[list[Backend]] = pytest.StashKey()
"""The key of the backends that a pytest run tests."""
_SETTING = "a setting of the hooks, its value as on the command line"
_NODE = "a node that the hooks need, besides loss and accuracy"
_INPUT = "a value that each step has, as JSON, like predictions=[0,1]"
_LIBRARY = "train a model of this library in the sessions, like torch (default: graph)"
_BACKEND = "what makes an empty graph or a BackendModel of a backend to test"
_OPTIONS = {
    "conformance": (
        ("--hook", "hookbus_hooks", "MODULE:CLASS", "a hook class to test"),
        ("--hook-setting", "hookbus_settings", "NAME=VALUE", _SETTING),
        ("--hook-node", "hookbus_nodes", "NAME", _NODE),
        ("--hook-input", "hookbus_inputs", "NAME=JSON", _INPUT),
        ("--hook-backend", "hookbus_libraries", "NAME", _LIBRARY),
    ),
    "backend": (("--backend", "hookbus_backends", "MODULE:FACTORY", _BACKEND),),
}
"""The options of each suite, by the name of its module."""
_PATHS = {name: Path(__file__).with_name(f"{name}.py") for name in _OPTIONS}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Declare the options of the suites that are to run.

    Other projects may have options of these names.
    """
    for suite, options in _OPTIONS.items():
        names = f"hookbus.testing.{suite}", str(_PATHS[suite])
        if not any(name in argument for argument in args for name in names):
            continue
        group = parser.getgroup("hookbus", f"hookbus: options of hookbus.testing.{suite}")
        for flag, dest, metavar, text in options:
            help_text = f"{text} (repeatable)"
            group.addoption(
                flag,
                action="append",
                default=[],
                dest=dest,
                metavar=metavar,
                help=help_text,
            )


def pytest_configure(config: pytest.Config) -> None:
    """Find the hook classes and the backends before anything is collected.

    Raises:
        pytest.UsageError: they cannot be made with the given settings.
    """
    config.stash[CANDIDATES], config.stash[BACKENDS] = [], []
    names = config.getoption("hookbus_hooks", default=[])
    spelled = config.getoption("hookbus_backends", default=[])
    if not (names or spelled):
        return
    from hookbus.errors import UsageError

    try:
        if names:
            from hookbus.testing._suite.candidate import candidates

            rest = [dest for _, dest, *_ in _OPTIONS["conformance"][1:]]
            config.stash[CANDIDATES] = candidates(names, *map(config.getoption, rest))
        if spelled:
            from hookbus.testing._backend.candidate import Backend

            config.stash[BACKENDS] = [*map(Backend.named, dict.fromkeys(spelled))]
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to run a suite without a hook or backend, or with an unknown exception.

    Raises:
        pytest.UsageError: nothing is given to test, or an exception names no rule.
    """
    paths = {item.path for item in items}
    if not config.stash[CANDIDATES] and _PATHS["conformance"] in paths:
        raise pytest.UsageError(
            "hookbus.testing.conformance needs a hook class to test: "
            "--hook MODULE:CLASS, like --hook hookbus_nan_tensor:NanTensorHook"
        )
    if _PATHS["backend"] not in paths:
        return
    if not config.stash[BACKENDS]:
        raise pytest.UsageError(
            "hookbus.testing.backend needs a backend to test: "
            "--backend MODULE:FACTORY, like --backend hookbus:Graph"
        )
    from hookbus.errors import UsageError
    from hookbus.testing._backend.rules import RULES

    try:
        for backend in config.stash[BACKENDS]:
            backend.check_exceptions(RULES)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture
def recorder() -> Recorder:
    """Return a hook that records every call in the sessions it takes part in."""
    from hookbus.testing.recorder import Recorder

    return Recorder()


@pytest.fixture
def fake_dist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Return ``hookbus.testing.fake_dist`` for a folder that this test imports from.

    Processes that the test starts also import from it. All is undone after the test.
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
