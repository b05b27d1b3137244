"""Defines a hook, the kinds of sessions it serves, and its requests to a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import attrs

from hookbus.backend.protocol import RunOptions
from hookbus.errors import UsageError, did_you_mean
from hookbus.peers.protocol import Reduction
from hookbus.peers.reduction import check_reduction

if TYPE_CHECKING:
    from hookbus.graph.node import Node


Kind: TypeAlias = Literal["train", "eval", "predict", "aux"]
"""The purpose of a session or a run."""
_KINDS: tuple[str, ...] = get_args(Kind)


def check_kind(kind: str | None) -> None:
    """Raise UsageError for an unknown kind."""
    if kind is not None and kind not in _KINDS:
        hint = did_you_mean(kind, _KINDS)
        raise UsageError(f"kind={kind!r}: expected one of {', '.join(_KINDS)}{hint}")


@attrs.frozen(eq=False)
class SessionRunArgs:
    """What a hook, or the caller, wants from one run.

    Args:
        fetches: a node, its name, or any nesting of list, tuple, namedtuple, dict and
            attrs classes of these; None for nothing.
        feed_dict: maps nodes or names to their values in this run.
        options: how to run; the options of several hooks are merged.
        reduce: what the values are in a training of several processes: ``"none"`` (default)
            for those of each process, ``"mean"``, ``"sum"`` or ``"max"`` of all processes.
            The hook must then take part in all of them (``ranks = "all"``), and ask in the
            same steps. One collective serves all hooks of a step. A single process keeps
            its values.

    Raises:
        UsageError: there is no such reduction.
    """

    fetches: Any = None
    feed_dict: Mapping[Node | str, Any] | None = None
    options: RunOptions | None = None
    reduce: Reduction | Literal["none"] = "none"

    def __attrs_post_init__(self) -> None:
        if self.reduce != "none":
            check_reduction(self.reduce)


class SessionRunHook:
    """Base class for hooks; override what you need.

    Each method may take fewer arguments than shown: a hook gets those it names. Methods
    for other events than these six need ``@hookbus.hookimpl``. A hook with state has the
    methods ``state_dict()`` and ``load_state_dict(state)``; every checkpoint contains the
    result of the first, under the hook's name. ``load_state_dict`` may also take ``ended``:
    the kind of outcome of the session that saved it, or None.

    Attributes, of the class or of one object, that control how the session treats the hook:

    * ``on_error``: the policy for an exception that leaves one of its events: ``raise``
      (default) ends the session, ``warn`` skips the event for this hook, ``quarantine:N``
      also switches the hook off after N failures, 3 if no number is given. It is also a
      setting.
    * ``only_observes``: True for a hook that changes nothing: it feeds and assigns
      nothing, pulls no input, draws no number from a global generator. False by default.
    * ``can_wait``: True for a hook that only watches: nothing depends on when it is called
      next. If the time of hooks is limited (``hook_budget``), the session may call it
      later than its ``next_due`` asks. False by default.
    * ``ranks``: the processes of a training in which it takes part: ``"all"`` (default), or
      ``"chief"`` for a hook that only writes or shows something.
    * ``before`` and ``after``: the name of a plugin, or a tuple of names, that it is
      called before or after.
    * ``kinds``: the kinds of runs that reach it. A hook that flags switch on takes part in
      sessions of these kinds only; its default is ``train``. A hook in ``hooks=`` takes
      part in its session, whose kind is added to these.

    Class attributes, for settings that come from flags:

    * ``main_setting``: the field that ``--NAME VALUE`` sets; by default the first.
    * ``default_settings``: values that apply if a flag switches the plugin on and nothing
      else sets them.
    * ``exclusive_settings``: groups of fields of which giving one clears the others
      that come from weaker sources.
    """

    main_setting: ClassVar[str | None] = None
    default_settings: ClassVar[Mapping[str, Any]] = {}
    exclusive_settings: ClassVar[tuple[tuple[str, ...], ...]] = ()
    kinds: ClassVar[tuple[Kind, ...]] = ("train",)
    on_error: ClassVar[str] = "raise"
    only_observes: ClassVar[bool] = False
    can_wait: bool = False
    ranks: str = "all"

    # A type checker accepts an override with any of its event's arguments only if the
    # method here takes everything.

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """``begin(graph, checkpoints, kind, rank)``: the last chance to add nodes."""

    def after_create_session(self, *args: Any, **kwargs: Any) -> None:
        """``after_create_session(session, coord)``: the backend session exists."""

    def before_run(self, *args: Any, **kwargs: Any) -> SessionRunArgs | None:
        """``before_run(run_context)``: return what you want from this run, or None."""

    def after_run(self, *args: Any, **kwargs: Any) -> None:
        """``after_run(run_context, run_values)``: react to the results."""

    def end(self, *args: Any, **kwargs: Any) -> None:
        """``end(session, outcome)``: finish; the session ended cleanly."""

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        """``on_exception(session, exception, outcome)``: finish after an error."""
