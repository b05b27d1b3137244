"""Tests that a backend keeps the rules that the loop, the hooks and users rely on.

``pytest --pyargs hookbus.testing.backend --backend my_package:MyGraph``
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hookbus.backend.protocol import create_session
from hookbus.graph.graph import Graph
from hookbus.testing._backend.candidate import Backend
from hookbus.testing._backend.rules import TESTS
from hookbus.testing._backend.runner import Opener, Runner, line
from hookbus.testing._suite.leftovers import on_its_own  # noqa: F401 (a fixture)
from hookbus.testing.backend_model import BackendModel
from hookbus.testing.plugin import BACKENDS

globals().update(TESTS)  # pytest runs the tests of this module, which is one command


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test for each backend."""
    found = metafunc.config.stash[BACKENDS]
    metafunc.parametrize("backend", found, ids=[each.spelled for each in found])


@pytest.fixture(autouse=True)
def _excepted(request: pytest.FixtureRequest, backend: Backend) -> None:
    """Skip a rule that the backend declares as one that it cannot keep."""
    rule = request.node.originalname.removeprefix("test_")
    reason = backend.model.exceptions.get(rule)
    if reason is not None:
        pytest.skip(f"{backend.spelled} cannot keep this rule: {reason}")


@pytest.fixture
def model(backend: Backend) -> BackendModel:
    """Return the object that builds graphs of the backend."""
    return backend.model


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Return a function that opens a session of a graph; close them all afterwards."""
    runners: list[Runner] = []

    def open_session(graph: Graph) -> Runner:
        graph.finalize()
        runners.append(Runner(create_session(graph)))
        return runners[-1]

    yield open_session
    for runner in runners:
        runner.session.close()


@pytest.fixture
def run(model: BackendModel, opened: Opener) -> Runner:
    """Return a session of the small graph that most tests use."""
    return opened(line(model))
