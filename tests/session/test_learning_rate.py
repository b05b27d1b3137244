"""Tests that hooks find the variable of the learning rate."""

from __future__ import annotations

import pytest

import hookbus
from hookbus import Graph, UsageError, learning_rate_variable
from hookbus.backend import create_session


@pytest.mark.parametrize(
    ("names", "given", "found"),
    [
        (["lr", "w"], None, "lr"),
        (["optimizer.learning_rate", "w"], None, "optimizer.learning_rate"),
        (["lr", "rate"], "rate", "rate"),
        (["lr", "optimizer.lr"], "lr", "lr"),
        (["w", "lrs"], None, "p: no variable can be the learning rate; name it with --p"),
        (["lr", "a.lr"], None, "p: lr and a.lr can be the learning rate; name it with --p"),
        (["lr"], "lrs", "p: there is no variable 'lrs'; lr can be"),
    ],
)
def test_the_variable_of_the_learning_rate_is_found_by_its_name(names, given, found):
    """The only one called lr or learning_rate, or the one that the setting names."""
    graph = Graph()
    for name in names:
        graph.variable(name, 1.0)
    session = create_session(graph)
    if not found.startswith("p: "):
        assert learning_rate_variable(session, given, "p") == found
        return
    with pytest.raises(UsageError) as caught:
        learning_rate_variable(session, given, "p")
    assert str(caught.value).startswith(found)
    assert "; name it with --p-variable" in str(caught.value)


def test_it_is_a_name_of_the_module_learning_too():
    """Hooks that were written for it keep working, without another distribution."""
    assert hookbus.learning.learning_rate_variable is learning_rate_variable
