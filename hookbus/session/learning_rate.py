"""Finds the variable that is the learning rate, for hooks that change it."""

from __future__ import annotations

from hookbus.backend.protocol import Session
from hookbus.errors import UsageError, did_you_mean
from hookbus.session.monitored import MonitoredSession
from hookbus.validation import backend_of

_RATES = ("lr", "learning_rate")


def learning_rate_variable(
    session: Session | MonitoredSession, name: str | None, plugin: str
) -> str:
    """Return the name of the variable that is the learning rate.

    In a custom loop, call it in the first step at the earliest: before, the loop may still
    track more.

    Args:
        session: the backend session, as hooks have it, or a monitored session.
        name: the value of the plugin's setting ``variable``. None looks for the only
            variable called ``lr`` or ``learning_rate``, even inside something that is
            tracked, like ``optimizer.lr``.
        plugin: the name of the plugin, for messages.

    Raises:
        UsageError: there is no such variable, or several could be meant.

    >>> from hookbus import Graph
    >>> from hookbus.backend import create_session
    >>> graph = Graph()
    >>> lr, w = graph.variable("lr", 0.1), graph.variable("w", 8.0)
    >>> learning_rate_variable(create_session(graph), None, "reduce-lr-on-plateau")
    'lr'
    """
    given: Session = backend_of(session, "learning_rate_variable")
    variables = given.variables()
    if name in variables:
        return name
    found = [each for each in variables if each.rpartition(".")[2] in _RATES]
    if name is None and len(found) == 1:
        return found[0]
    missing = near = ""
    if name is not None:
        missing, near = f"there is no variable {name!r}; ", did_you_mean(name, variables)
    raise UsageError(
        f"{plugin}: {missing}{' and '.join(found) or 'no variable'} can be the learning "
        f"rate; name it with --{plugin}-variable{near}"
    )
