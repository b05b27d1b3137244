"""Defines a hook, and its requests to a run."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeAlias

import attrs

from hookbus.backend.protocol import RunOptions
from hookbus.errors import UsageError, did_you_mean, spelled
from hookbus.graph.node import Node
from hookbus.hooks.hook_options import HookOptions
from hookbus.peers.protocol import Reduction
from hookbus.peers.reduction import check_reduction


@attrs.frozen(eq=False, init=False)
class SessionRunArgs:
    """The request of a hook, or of the caller, for one run.

    Args:
        fetches: a node, its name, or any nesting of list, tuple, namedtuple, dict and
            attrs classes of these; None for nothing. A name with ``*``, ``?`` or ``[`` is a
            pattern, unless a value has this very name: its value is a dict, name to value,
            of all that matches.
        feed_dict: maps nodes or names to their values in this run.
        options: how to run; the options of several hooks are merged.
        reduce: how to combine the values of several processes. ``"none"`` (default) gives
            each process its own values; ``"mean"``, ``"sum"`` and ``"max"`` are over all
            processes; ``"gather"`` gives a list with the value of each process, in the
            order of their ranks. To combine values, a hook must take part in all processes
            (``ranks="all"``) and ask in the same steps. One collective serves all hooks of
            a step. In a dict, like ``graph.metrics``, single numbers are combined; other
            values stay those of the process. A single process keeps its values, and
            gathers lists of one.
        missing: the effect of a value that does not exist in a run, like the gradient of a
            frozen parameter. ``"error"`` (default) ends the training. ``"skip"`` leaves the
            value out: a dict loses its key, and None takes its place anywhere else. It
            excludes *reduce*.

    Raises:
        UsageError: there is no such reduction, or *missing* is something else.

    >>> request = SessionRunArgs({"loss": "loss", "rates": "*/lr"}, missing="skip")
    >>> request.fetches["rates"], request.reduce
    ('*/lr', 'none')
    """

    fetches: Any = None
    feed_dict: Mapping[Node | str, Any] | None = None
    options: RunOptions | None = None
    reduce: Reduction | Literal["none", "gather"] = "none"
    missing: Literal["error", "skip"] = "error"

    # Many hooks make a request in each step. attrs would set each field by its name.
    def __init__(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Node | str, Any] | None = None,
        options: RunOptions | None = None,
        reduce: Reduction | Literal["none", "gather"] = "none",
        missing: Literal["error", "skip"] = "error",
    ) -> None:
        _set_fetches(self, fetches)
        _set_feed_dict(self, feed_dict)
        _set_options(self, options)
        _set_reduce(self, reduce)
        _set_missing(self, missing)
        if reduce != "none" or missing != "error":
            self.__attrs_post_init__()

    def __attrs_post_init__(self) -> None:
        if self.missing != "error" and self.missing != "skip":
            raise UsageError(
                f"SessionRunArgs(missing={spelled(self.missing)}): expected 'error' or "
                f"'skip'{did_you_mean(str(self.missing), ('error', 'skip'))}"
            )
        if self.reduce != "none":
            check_reduction(self.reduce)


_set_fetches, _set_feed_dict, _set_options, _set_reduce, _set_missing = (
    getattr(SessionRunArgs, field.name).__set__ for field in attrs.fields(SessionRunArgs)
)


class SessionRunHook:
    """Base class for hooks; override what you need.

    Each method may take fewer arguments than shown: a hook gets those it names. Methods
    for other events than these six need ``@hookbus.hookimpl``. A hook with state has the
    methods ``state_dict()`` and ``load_state_dict(state)``; every checkpoint contains the
    result of the first, under the hook's name. ``load_state_dict`` may also take ``ended``:
    the kind of outcome of the session that saved it, or None.

    Attributes:
        options: how a session treats the hook, and how flags set it. An object may have
            options of its own.

    >>> from hookbus.testing import run_steps
    >>> class StopBelowHook(SessionRunHook):
    ...     def before_run(self):
    ...         return SessionRunArgs("loss")
    ...     def after_run(self, run_context, run_values):
    ...         if run_values.results < 0.3:
    ...             run_context.request_stop(f"loss is {run_values.results}")
    >>> run_steps(StopBelowHook(), values={"loss": [0.5, 0.25, 0.1]}).outcome.why
    'loss is 0.25'
    """

    options: ClassVar[HookOptions] = HookOptions()

    # A type checker accepts an override with any of its event's arguments only if the
    # method here takes everything.

    def begin(self, *args: Any, **kwargs: Any) -> str | None:
        """``begin(graph, checkpoints, kind, rank, ranks, clock, requests)``: add nodes.

        It is the last chance to add nodes to *graph*. *kind* is the purpose of the session,
        like ``train``; *rank* is the number of this process among *ranks*; *clock* returns
        seconds of training. *checkpoints* is a :class:`Checkpoints`, and *requests* a
        :class:`SessionRequests`. A text that it returns is a reason to stop without a run.
        """

    def after_create_session(self, *args: Any, **kwargs: Any) -> None:
        """``after_create_session(session, coord)``: the backend session exists.

        Its state is restored. *coord* is the :class:`Coordinator` of the session's threads.
        After a preemption the hook gets the event again, with a new *session*.
        """

    def before_run(self, *args: Any, **kwargs: Any) -> SessionRunArgs | None:
        """``before_run(run_context)``: return the request for this run, or None.

        The request is a :class:`SessionRunArgs`: the values to fetch and to feed.
        """

    def after_run(self, *args: Any, **kwargs: Any) -> None:
        """``after_run(run_context, run_values)``: react to the results.

        ``run_values.results`` has the structure of the fetches that ``before_run`` asked
        for. *run_context* takes requests: to assign, to save and to stop.
        """

    def end(self, *args: Any, **kwargs: Any) -> None:
        """``end(session, outcome)``: finish; the session ended cleanly.

        *session* can be read, and its last checkpoint is written afterwards. *outcome* is
        the :class:`Outcome`.
        """

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        """``on_exception(session, exception, outcome)``: finish after an error.

        It is called instead of ``end``. The error is on its way to the caller and cannot be
        suppressed here.
        """


HookObject: TypeAlias = SessionRunHook | ModuleType
"""The types of hooks for type checkers.

At run time, any object with a method for an event is a hook. No type describes these and
leaves out classes, which are a frequent mistake.
"""
