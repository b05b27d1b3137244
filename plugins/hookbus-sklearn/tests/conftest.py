"""Every test computes in one thread: in a forked process, others would wait for ever."""

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limit the threads of all libraries."""
    with threadpool_limits(1):
        yield
