"""What a hook is, what it is handed, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import attrs

from hookbus.errors import UsageError, WriteConflictError, did_you_mean
from hookbus.pause import pause
from hookbus.session import RunMetadata, RunOptions

if TYPE_CHECKING:
    from hookbus.node import Node
    from hookbus.session import Session

Kind: TypeAlias = Literal["train", "eval", "predict", "aux"]
"""What a session or a run is for."""


def check_kind(kind: str | None) -> None:
    """Refuse a kind that there is none of.

    Raises:
        UsageError: it is none.
    """
    kinds = get_args(Kind)
    if kind is not None and kind not in kinds:
        raise UsageError(
            f"kind={kind!r}: expected one of {', '.join(kinds)}{did_you_mean(kind, kinds)}"
        )


NOBODY = "caller"
"""Whose turn it is while no hook is called."""

OutcomeKind: TypeAlias = Literal[
    "completed", "stopped", "end_of_input", "interrupted", "preempted", "failed"
]


@attrs.frozen
class Outcome:
    """How a session ended.

    Attributes:
        kind: ``completed`` (the caller left the loop), ``stopped`` (a hook asked),
            ``end_of_input``, ``interrupted``, ``preempted`` or ``failed``.
        who: the plugin that stopped or failed it, or ``caller``.
        why: the reason in words.
        step: the global step at the end.
    """

    kind: OutcomeKind
    who: str
    why: str
    step: int


def was_cut_short(ended: str | None) -> bool:
    """Say whether a session goes on where the one before it stood, as if it had not ended.

    A hook asks it in ``load_state_dict``: a period that has begun goes on after a kill, a
    preemption and Ctrl-C, and begins anew after a session that was over.

    Args:
        ended: what ``load_state_dict`` is told: the kind of the outcome, None where the
            session saved the checkpoint and went on.

    >>> was_cut_short(None), was_cut_short("preempted"), was_cut_short("stopped")
    (True, True, False)
    """
    return ended in (None, "interrupted", "preempted")


@attrs.frozen(eq=False)
class SessionRunArgs:
    """What a hook, or the caller, wants from one run.

    Args:
        fetches: a node, its name, or any nesting of list, tuple, namedtuple, dict and
            attrs classes of these; None for nothing.
        feed_dict: node or name to the value that it has in this run.
        options: how to run; options of several askers are merged.
    """

    fetches: Any = None
    feed_dict: Mapping[Node | str, Any] | None = None
    options: RunOptions | None = None


@attrs.define(eq=False)
class SessionRunValues:
    """What came out of one run, for one hook. Read it only.

    Attributes:
        results: the values, in the structure of the hook's fetches; None for none.
        options: the merged options of the run.
        run_metadata: what the backend recorded about the run.
        global_step: the global step after the run, an int.
    """

    results: Any
    options: RunOptions
    run_metadata: RunMetadata
    global_step: int


@attrs.define(eq=False)
class Turn:
    """Whose turn it is on the bus, so that a request knows who made it."""

    name: str = NOBODY


@attrs.define(eq=False)
class Asks:
    """What hooks have asked for and the loop has not done yet."""

    stop: tuple[str, str] | None = None
    save: tuple[str, str] | None = None
    save_anyway: tuple[str, str] | None = None
    writes: dict[str, tuple[str, Any]] = attrs.field(factory=dict)
    _writers: dict[str, str] = attrs.field(factory=dict)

    def new_run(self) -> None:
        """Forget what was asked for in a run that failed, and who wrote what."""
        self.stop = self.save = None
        if self._writers:
            self._writers.clear()
            self.writes = {}

    def request_stop(self, who: str, why: str) -> None:
        """Ask for the end of the session; the first to ask is named as who did."""
        if self.stop is None:
            self.stop = (who, why)

    def request_save(self, who: str, why: str, anyway: bool = False) -> None:
        """Ask for a checkpoint; one is written however many ask.

        *anyway* asks for it whatever becomes of the run.
        """
        if anyway and self.save_anyway is None:
            self.save_anyway = (who, why)
        if self.save is None:
            self.save = (who, why)

    def take_save(self) -> tuple[str, str] | None:
        """Return who asked for a checkpoint and why, and forget it."""
        wish = self.save or self.save_anyway
        self.save = self.save_anyway = None
        return wish

    def assign(self, who: str, values: Mapping[str, Any]) -> None:
        """Ask for variables to be written; one party a variable and run."""
        for name, value in values.items():
            other = self._writers.setdefault(name, who)
            if other != who:
                raise WriteConflictError(
                    f"variable {name!r} is written by two parties in one run: "
                    f"{other!r} and {who!r}; switch one of them off"
                )
            self.writes[name] = (who, value)

    def take_writes(self) -> dict[str, tuple[str, Any]]:
        """Return the pending writes, name to (who, value), and forget them."""
        if not self.writes:
            return self.writes
        writes, self.writes = self.writes, {}
        return writes


@attrs.define(eq=False)
class Desk:
    """What every run's context shares: made once a session, so that a step need not.

    Attributes:
        session: the backend session.
        asks: where requests gather.
        turn: whose turn it is.
        emit: sends an event.
        writable: returns the name of a variable that a value may be written to.
        last_step: tells the step at which the session is expected to end.
        hurry: says whether the session is to end, by a signal or by its coordinator.
        current: the context of the run that goes on; requests through others are void.
    """

    session: Session
    asks: Asks
    turn: Turn
    emit: Callable[..., list[Any]]
    writable: Callable[[Node | str, Any], str]
    last_step: Callable[[], int | None]
    hurry: Callable[[], bool]
    current: SessionRunContext | None = None


class SessionRunContext:
    """One run, as hooks see it: what was asked for, and the ways to ask for more.

    One object serves all hooks in both phases of a run.

    Attributes:
        session: the backend session; runs through it reach no hook.
        global_step: the global step before the run, an int.
        kind: what the run is for.
    """

    __slots__ = ("_desk", "_feed_dict", "_fetches", "global_step", "kind", "session")

    def __init__(
        self,
        desk: Desk,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        global_step: int,
        kind: Kind,
    ) -> None:
        self._desk = desk
        self._fetches = fetches
        self._feed_dict = feed_dict
        self.session = desk.session
        self.global_step = global_step
        self.kind = kind
        desk.current = self

    @property
    def original_args(self) -> SessionRunArgs:
        """The caller's own fetches and feeds, without what hooks add."""
        return SessionRunArgs(self._fetches, self._feed_dict)

    @property
    def last_step(self) -> int | None:
        """The global step at which the session is expected to end, where known."""
        return self._desk.last_step()

    @property
    def stop_requested(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._desk.asks.stop is not None

    def request_stop(self, reason: str = "asked to stop") -> None:
        """Ask for the end of the session after this run.

        All hooks still get this run's ``after_run``; it cannot be withdrawn. Like every
        request, it does nothing through the context of a run that is over.
        """
        if self._desk.current is self:
            self._desk.asks.request_stop(self._desk.turn.name, reason)

    def request_save(self, why: str = "asked to save") -> None:
        """Ask for a checkpoint after the last ``after_run`` of this run."""
        if self._desk.current is self:
            self._desk.asks.request_save(self._desk.turn.name, why)

    def assign(self, values: Mapping[Node | str, Any]) -> None:
        """Ask for variables to be set.

        Asked in ``before_run``, it is committed with the run's own updates and not seen
        by its reads; asked in ``after_run``, it is committed before the next run and
        before any save.

        Raises:
            UnknownNodeError: a name is no node's.
            GraphError: a node is no variable, or is the global step, or the value has
                another shape than the variable.
            WriteConflictError: another party writes the same variable in this run.
        """
        desk = self._desk
        named = {desk.writable(node, value): value for node, value in values.items()}
        if desk.current is self:
            desk.asks.assign(desk.turn.name, named)

    def wait(self, seconds: float) -> bool:
        """Wait inside the run; return whether it was to the end.

        A signal that ends the session, and a stop of its coordinator, cut it short; also
        those that came before. A hook that waits in another way would not hear them.
        """
        return pause(seconds, self._desk.hurry)

    def emit(self, event: str, **arguments: Any) -> list[Any]:
        """Send an event to all hooks and return their answers, Nones left out.

        For ``logged``, ``measured`` and events that plugins add themselves.
        """
        return self._desk.emit(event, **arguments)


class SessionRunHook:
    """The class to subclass for a hook; override what you need.

    Each method may take fewer arguments than shown: a hook gets those it names. Methods
    for other events than these six need ``@hookbus.hookimpl``. A hook with state has the
    methods ``state_dict()`` and ``load_state_dict(state)``; what the first returns is
    kept in every checkpoint under the hook's name. ``load_state_dict`` may also name
    ``ended``: the kind of outcome with which the session that saved it ended, or None.

    Attributes that say how it wants to be treated, of the class or of one object:

    * ``on_error``: what becomes of an exception that leaves one of its events: ``raise``
      (default) ends the session, ``warn`` drops the event, ``quarantine:N`` also switches
      the hook off after N failures, 3 where no number is given. It can be set like any
      setting, too.
    * ``only_observes``: it changes nothing: it feeds and assigns nothing, pulls no input,
      draws no number from a global generator. False by default.
    * ``before`` and ``after``: the name of a plugin, or a tuple of names, that it wants to
      be called before or after.

    Class attributes, for settings that come from flags:

    * ``main_setting``: the field that ``--NAME VALUE`` sets; by default the first.
    * ``default_settings``: what flags leave out; stands back for whatever is said.
    * ``exclusive_settings``: groups of fields of which giving one clears the others
      that come from weaker places.
    * ``kinds``: the kinds of sessions and runs it serves when flags switch it on.
    """

    main_setting: ClassVar[str | None] = None
    default_settings: ClassVar[Mapping[str, Any]] = {}
    exclusive_settings: ClassVar[tuple[tuple[str, ...], ...]] = ()
    kinds: ClassVar[tuple[Kind, ...]] = ("train",)
    on_error: ClassVar[str] = "raise"
    only_observes: ClassVar[bool] = False

    # Each may be overridden with any of its event's arguments, which a type checker
    # accepts only of a method that takes everything.

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """``begin(graph, checkpoints, kind)``: add nodes or look them up, while one can."""

    def after_create_session(self, *args: Any, **kwargs: Any) -> None:
        """``after_create_session(session, coord)``: the backend session is there."""

    def before_run(self, *args: Any, **kwargs: Any) -> SessionRunArgs | None:
        """``before_run(run_context)``: return what you want from this run, or None."""

    def after_run(self, *args: Any, **kwargs: Any) -> None:
        """``after_run(run_context, run_values)``: react to what you asked for."""

    def end(self, *args: Any, **kwargs: Any) -> None:
        """``end(session, outcome)``: finish; the session ended well."""

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        """``on_exception(session, exception, outcome)``: finish after an error."""
