"""Collects the requests of hooks until the session serves them."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, get_args

import attrs

from hookbus.errors import (
    SessionClosedError,
    UsageError,
    WriteConflictError,
    did_you_mean,
)
from hookbus.hooks.inbox import Inbox, Posted, PostedKind, SessionRequests, StopKind
from hookbus.hooks.outcome import (
    NOBODY,
    Rollback,
    RollbackPlace,
    SaveRequest,
    StopReason,
    united,
)
from hookbus.process.interrupts import signals_deferred
from hookbus.validation import number_in

Served: TypeAlias = Literal["skip", "feed", "rollback", "save"]
"""The requests of hooks that only the loop that runs the steps can serve."""
SERVED: tuple[Served, ...] = get_args(Served)
"""All of them."""

Stage: TypeAlias = Literal["open", "ended", "over"]
"""How far a session is: it serves requests, records only numbers, or serves nothing."""


@attrs.define(eq=False)
class CurrentHook:
    """The name of the hook that is being called, which a request records."""

    name: str = NOBODY

    def spelled(self) -> str:
        """Return the name of the party that asks now, for messages."""
        return _spelled(self.name)


@attrs.frozen
class ForeignLoop:
    """A loop that hookbus does not own, as hooks make requests of it.

    Attributes:
        serves: the requests that it serves.
        name: its name, for messages.
        instead: the user's way in place of a request that it does not serve.
    """

    serves: frozenset[Served] = frozenset()
    name: str = "the loop that runs the steps"
    instead: Mapping[Served, str] = attrs.field(factory=dict)

    @property
    def saves(self) -> bool:
        """Whether it writes the checkpoints, for hooks or only on its own schedule."""
        return "save" in self.serves or "save" in self.instead

    def check(self, request: Served, who: str, how: str) -> None:
        """Refuse a request that the loop does not serve; *how* tells what *who* has done.

        Raises:
            UsageError: it does not.
        """
        if request in self.serves:
            return
        instead = self.instead.get(request)
        hint = "" if instead is None else f": {instead}"
        raise UsageError(f"hook {who!r} {how}, but {self.name} {_UNSERVED[request]}{hint}")


_UNSERVED: Mapping[Served, str] = {
    "skip": "makes every update",
    "feed": "uses no values of hooks",
    "rollback": "cannot go back",
    "save": "saves no checkpoint for hooks",
}


@attrs.define(eq=False)
class RunRequests:
    """The requests of hooks in one run. The context of the run owns them.

    The requests of a failed run are lost, except that a stop may take effect later.

    Attributes:
        stop: the first request to end the session.
        save: the request for a checkpoint.
        rollback: the first request to go back to a checkpoint.
        skip: the plugin that asked to skip the update.
        writes: the plugin that assigned each variable, and the value, by variable.
        writers: the plugin that has assigned each variable in this run, also if that is
            committed.
        is_undone: whether a roll-back has undone the run. Between two steps of a custom
            loop, hooks may still make requests through the context of such a run.
    """

    stop: StopReason | None = None
    save: SaveRequest | None = None
    rollback: Rollback | None = None
    skip: str | None = None
    writes: dict[str, tuple[str, Any]] = attrs.field(factory=dict)
    writers: dict[str, str] = attrs.field(factory=dict)
    is_undone: bool = False


class AskedRun(Protocol):
    """A run through whose context hooks make requests."""

    @property
    def kind(self) -> str:
        """The purpose of the run."""

    @property
    def is_over(self) -> bool:
        """Whether the run failed, or its requests are served; it takes no more then."""

    @property
    def has_failed(self) -> bool:
        """Whether the run is a step that failed; a hook can only have it undone."""

    @property
    def is_asking(self) -> bool:
        """Whether a ``before_run`` of the run is still to come, or under way."""

    @property
    def is_opening(self) -> bool:
        """Whether it stands for the time before the first run, so there is no run yet."""

    @property
    def asked(self) -> RunRequests:
        """The requests of hooks; the session serves them."""


@attrs.define(eq=False)
class Effects:
    """Counts how hooks have changed the training, which ranks compare.

    Attributes:
        digest: returns a checksum of a value for a variable; None if nobody compares them.
        skipped: the number of skipped updates, by the plugin that asked.
        skipped_at: the sum of the global steps at which they were.
        assigned: the number of values that hooks have assigned to variables.
        digests: the sum of their checksums.
    """

    digest: Callable[[str, Any], int] | None = None
    skipped: Counter[str] = attrs.field(factory=Counter)
    skipped_at: int = 0
    assigned: int = 0
    digests: int = 0

    def note_skipped(self, who: str, step: int) -> None:
        """Count an update that a hook had the session skip."""
        self.skipped[who] += 1
        self.skipped_at += step

    def note_assigned(self, name: str, value: Any) -> None:
        """Count a value that a hook has assigned."""
        self.assigned += 1
        if self.digest is not None:
            self.digests += self.digest(name, value)


@attrs.define(eq=False)
class Requests:
    """Takes the requests of hooks, those of a run into its :class:`RunRequests`.

    Hooks make them in the thread of the session or, during a run, in any other one. No
    signal handler raises in these methods, where it could leave the lock taken.

    Attributes:
        pending: whether there may be something to serve after the run.
        save: the request for a checkpoint that is written whatever becomes of the run: one
            from outside of any run, or one that an earlier run left over.
        values: the numbers that belong to the checkpoint of a step, by that step.
        effects: the updates that were skipped, and the values that hooks have assigned.
        foreign: the loop that runs the steps, if hookbus does not own it.
        stage: which requests are still accepted.
        inbox: the requests of other threads.
    """

    pending: bool = False
    save: SaveRequest | None = None
    values: dict[int, dict[str, float]] = attrs.field(factory=dict)
    effects: Effects = attrs.field(factory=Effects)
    foreign: ForeignLoop | None = None
    stage: Stage = "open"
    inbox: Inbox = attrs.field(factory=Inbox)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def of(self, who: str) -> SessionRequests:
        """Return the requests of a hook, or of the caller, from any thread."""
        return SessionRequests(who, self._post)

    @signals_deferred
    def _post(self, posted: Posted) -> None:
        """Take a request that is served after the next step."""
        with self._lock:
            is_open = self.stage == "open"
            if is_open:
                self.inbox.posted.append(posted)
                self.pending = True
        if not is_open:
            posted.answer.set_exception(_too_late())

    @signals_deferred
    def take_posted(self) -> list[Posted]:
        """Return the requests of other threads, which are served from now on."""
        with self._lock:
            return self.inbox.take()

    @property
    def owes_answers(self) -> bool:
        """Whether threads wait for the answer to a request that is being served."""
        return bool(self.inbox.taken)

    @signals_deferred
    def answer(self, *kinds: PostedKind, result: Any = None) -> None:
        """Tell the threads that have asked for something that it is done.

        If *result* is an exception, it tells them why it is not.
        """
        with self._lock:
            found = self.inbox.answered(*kinds)
        for each in found:
            if isinstance(result, Exception):
                each.answer.set_exception(result)
            else:
                each.answer.set_result(result)

    @signals_deferred
    def refuse(self, posted: Posted, error: Exception) -> None:
        """Tell a thread why its request is not served."""
        with self._lock:
            self.inbox.taken.remove(posted)
        posted.answer.set_exception(error)

    @signals_deferred
    def request_stop(
        self,
        who: str,
        why: str,
        run: AskedRun,
        kind: StopKind = "stopped",
        label: str | None = None,
    ) -> None:
        """Ask for the end of the session; the outcome names the first hook that asked.

        Args:
            who: the plugin that asks.
            why: the reason, in words.
            run: the run through whose context it asks.
            kind: the kind of the outcome.
            label: a word for programs, for the outcome.

        Raises:
            UsageError: the run is over, or the session serves no further request; or there
                is no such kind, or the label is no text.
        """
        if kind not in get_args(StopKind):
            raise UsageError(
                f"hook {who!r} called run_context.request_stop(kind={kind!r}): expected "
                f"'stopped' or 'preempted'{did_you_mean(str(kind), get_args(StopKind))}"
            )
        if label is not None and (not isinstance(label, str) or not label):
            raise UsageError(
                f"hook {who!r} called run_context.request_stop(label={label!r}): expected "
                "a word, like 'pruned'"
            )
        with self._lock:
            asked = self._asked_of(run, who, "request_stop()")
            if asked.stop is None:
                asked.stop = StopReason(who, why, kind, label)

    @signals_deferred
    def request_save(
        self, who: str, why: str, run: AskedRun | None = None, keep: bool = False
    ) -> None:
        """Ask for a checkpoint, maybe one to *keep*; several requests write one.

        Outside a run (*run* is None) it is written even if the current run fails.

        Raises:
            UsageError: the run is over, or the session serves no further request.
        """
        request = SaveRequest(who, str(why), {who: str(why)} if keep else {})
        with self._lock:
            if run is None:
                self._admit(who, "checkpoints.request_save()")
                self.save = united(self.save, request)
            else:
                asked = self._asked_of(run, who, "request_save()")
                asked.save = united(asked.save, request)

    @signals_deferred
    def record_values(self, who: str, values: Mapping[str, Any], global_step: int) -> None:
        """Record numbers for the checkpoint of a step.

        Raises:
            UsageError: a value is not a finite number; or nothing is recorded any more.
        """
        what = "checkpoints.record_values()"
        numbers: dict[str, float] = {}
        for name, value in values.items():
            number = number_in(value)
            if number is None or not math.isfinite(number):
                raise UsageError(
                    f"{_spelled(who)} called {what} with {name}={value!r}: expected a "
                    "finite number"
                )
            numbers[str(name)] = number
        with self._lock:
            if self.stage == "over":
                raise UsageError(
                    f"{_spelled(who)} called {what} after the last finished(); record them "
                    "in finished() at the latest"
                )
            self.values.setdefault(global_step, {}).update(numbers)
            self.pending = True

    @signals_deferred
    def assign(
        self, who: str, values: Mapping[str, Any], run: AskedRun, later: bool = True
    ) -> None:
        """Ask for variables to be written, each by one party per run.

        If they are not written *later*, the caller writes them, and what the same party has
        asked for before is forgotten.

        Raises:
            UsageError: the run is over.
            WriteConflictError: another party writes the same variable.
        """
        with self._lock:
            asked = self._asked_of(run, who, "assign()")
            for name, value in values.items():
                other = asked.writers.setdefault(name, who)
                if other != who:
                    raise WriteConflictError(
                        f"variable {name!r} is written by two parties in one run: "
                        f"{other!r} and {who!r}; switch one of them off"
                    )
                if later:
                    asked.writes[name] = (who, value)
                else:
                    asked.writes.pop(name, None)
                self.effects.note_assigned(name, value)

    @signals_deferred
    def skip_update(self, who: str, run: AskedRun) -> None:
        """Ask a run not to commit the updates of its train ops.

        Raises:
            UsageError: every ``before_run`` was called, the run is not a ``train`` run, or
                the loop that runs the steps makes every update.
        """
        with self._lock:
            asked = self._asked_of(run, who, "skip_update()", first=False)
            if run.kind != "train":
                raise UsageError(
                    f"hook {who!r} called run_context.skip_update() in a run of the kind "
                    f"{run.kind!r}, which updates nothing"
                )
            if not run.is_asking:
                raise UsageError(
                    f"hook {who!r} called run_context.skip_update() after before_run(): "
                    "the update is under way; ask in before_run()"
                )
            if self.foreign is not None:
                self.foreign.check("skip", who, "called run_context.skip_update()")
            asked.skip = asked.skip or who

    @signals_deferred
    def request_rollback(
        self,
        who: str,
        why: str,
        skip_inputs: bool,
        run: AskedRun,
        to: RollbackPlace = "checkpoint",
    ) -> None:
        """Ask to go back; the first request counts.

        Raises:
            UsageError: the run is over or never began; there is no such place; or the
                loop that runs the steps cannot go back.
        """
        if to not in get_args(RollbackPlace):
            raise UsageError(
                f"hook {who!r} called run_context.request_rollback(to={to!r}): expected "
                f"'checkpoint' or 'step'{did_you_mean(str(to), get_args(RollbackPlace))}"
            )
        undoes = to == "step"
        with self._lock:
            asked = self._asked_of(run, who, "request_rollback()", undoes, first=False)
            if self.foreign is not None:
                how = "called run_context.request_rollback()"
                self.foreign.check("rollback", who, how)
            if asked.rollback is None:
                asked.rollback = Rollback(who, why, skip_inputs and not undoes, to=to)

    @signals_deferred
    def take_rollback(self, asked: RunRequests) -> Rollback | None:
        """Return the request to roll back; forget it, the writes and the save requests."""
        with self._lock:
            rollback, asked.rollback = asked.rollback, None
            if rollback is not None:
                asked.writes, asked.save, self.save = {}, None, None
                asked.is_undone = True
            return rollback

    @signals_deferred
    def take_values(self) -> dict[int, dict[str, float]]:
        """Return the numbers to record, by step and name, and forget them."""
        with self._lock:
            values, self.values = self.values, {}
            return values

    @signals_deferred
    def take_save(self, asked: RunRequests | None = None) -> SaveRequest | None:
        """Return the request for a checkpoint, of a run or from outside, and forget it."""
        with self._lock:
            own = None if asked is None else asked.save
            save, self.save = united(own, self.save), None
            if asked is not None:
                asked.save = None
            return save

    @signals_deferred
    def take_writes(self, asked: RunRequests) -> dict[str, tuple[str, Any]]:
        """Return the pending writes, (plugin, value) by variable, and forget them."""
        with self._lock:
            writes, asked.writes = asked.writes, {}
            return writes

    @signals_deferred
    def take_asked(
        self, asked: RunRequests
    ) -> tuple[StopReason | None, SaveRequest | None, Rollback | None]:
        """Return the requests on which all ranks have to agree, and forget them."""
        with self._lock:
            found = asked.stop, united(asked.save, self.save), asked.rollback
            asked.stop = asked.save = self.save = asked.rollback = None
            return found

    @signals_deferred
    def pass_on(self, asked: RunRequests, other: RunRequests) -> None:
        """Move the requests to stop, to save and to roll back of a run to another one."""
        with self._lock:
            other.stop = other.stop or asked.stop
            other.save = united(other.save, asked.save)
            other.rollback = other.rollback or asked.rollback
            asked.stop = asked.save = asked.rollback = None

    def has_work(self, asked: RunRequests) -> bool:
        """Return whether there is something to serve, of a run or from outside."""
        own = asked.stop, asked.save, asked.rollback, asked.writers, asked.skip
        return any(own) or self.save is not None or bool(self.values)

    @signals_deferred
    def served(self, asked: RunRequests, is_waiting: bool) -> None:
        """Record that the session has served the requests.

        A checkpoint that is still to be written stays requested. *is_waiting* is whether
        the session may have work after a run without any requests.
        """
        with self._lock:
            self.save, asked.save = united(self.save, asked.save), None
            asked.skip = None  # of a step that was cancelled
            asked.writers.clear()
            own = self.save or self.values or asked.writes or self.inbox.posted
            self.pending = is_waiting or bool(own)

    def forget_run(self, is_waiting: bool) -> None:
        """Record that a run has taken its requests along."""
        self.served(RunRequests(), is_waiting)

    @signals_deferred
    def close(self, stage: Stage = "over") -> None:
        """Refuse further requests: the session does nothing that could serve them."""
        with self._lock:
            self.stage = stage
            left = self.inbox.close()
        for each in left:
            each.answer.set_exception(_too_late())

    def _asked_of(
        self,
        run: AskedRun,
        who: str,
        what: str,
        undoes: bool = False,
        first: bool = True,
    ) -> RunRequests:
        """Return the requests of a run, for one more.

        *undoes* is whether that undoes a step, which may have failed. *first* is whether it
        is possible before the first run.

        Raises:
            UsageError: it could have no effect.
        """
        if run.has_failed and not undoes:
            raise UsageError(
                f"{_spelled(who)} called run_context.{what} in step_failed(), where a step "
                'can only be undone: run_context.request_rollback(to="step")'
            )
        if run.is_over:
            raise UsageError(
                f"{_spelled(who)} called run_context.{what} after the run of this context; "
                "ask during the run, through its own context"
            )
        if run.is_opening and not first:
            raise UsageError(
                f"{_spelled(who)} called run_context.{what} before the first run; it "
                "concerns a run: call it in before_run() or later"
            )
        self._admit(who, f"run_context.{what}")
        return run.asked

    def _admit(self, who: str, what: str) -> None:
        """Refuse a request that could have no effect.

        Raises:
            UsageError: the session serves no further request.
        """
        if self.stage != "open":
            raise UsageError(
                f"{_spelled(who)} called {what} after the last end(); the session serves "
                "no further request: ask in end() at the latest"
            )
        self.pending = True


def _too_late() -> SessionClosedError:
    return SessionClosedError(
        "the session has ended, and serves no further request of another thread"
    )


def _spelled(who: str) -> str:
    return "the caller" if who == NOBODY else f"hook {who!r}"
