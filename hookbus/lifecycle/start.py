"""Begins a session: calls the hooks, and opens the backend, again after a preemption."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakSet

import attrs

from hookbus import random_state
from hookbus.backend.program import is_live
from hookbus.backend.reports import ReportSession
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Registration
from hookbus.checkpoint.reader import NewestIn
from hookbus.config.config import Config, SessionRecord, record_end
from hookbus.errors import PREEMPTION_ERRORS, CheckpointError
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.hook_options import options_of
from hookbus.hooks.outcome import NOBODY, failed_outcome, resumes
from hookbus.hooks.requests import CurrentHook, Effects, Requests
from hookbus.library.checksums import digest_of
from hookbus.library.lookup import find_peers
from hookbus.lifecycle.beginning import (
    agree_on_stop,
    begin_training,
    stop_before_first_run,
)
from hookbus.lifecycle.creators import SessionCreator
from hookbus.lifecycle.ending import Ending
from hookbus.lifecycle.recovery import Preemptions, Recoveries, Recovery, Rollbacks
from hookbus.lifecycle.requests import apply_after_run, apply_requests
from hookbus.lifecycle.saves import take_written
from hookbus.lifecycle.services import Services
from hookbus.lifecycle.state import (
    LoopState,
    Mode,
    Phase,
    SessionOptions,
    SessionState,
    note_closed,
    note_open,
)
from hookbus.logs import log, speak_as
from hookbus.passes.position import ProgramPosition
from hookbus.peers.agreement import Agreement
from hookbus.peers.protocol import CHIEF
from hookbus.plugin.roster import versions
from hookbus.process.forks import ForkGuard
from hookbus.process.interrupts import call_interruptibly, signals_deferred
from hookbus.process.signals import SignalWatch, raise_deferred
from hookbus.saving.contents import Contents, continues_always, continues_input
from hookbus.saving.copies import KeptValue
from hookbus.saving.hook_state import (
    Stateful,
    load_evaluated,
    load_hooks,
    saved_states,
    stateful,
    states_of,
)
from hookbus.saving.retention import Retention
from hookbus.saving.saver import Saver
from hookbus.step.backend_handle import BackendHandle
from hookbus.tracked.objects import Tracking
from hookbus.validation import expanded

T = TypeVar("T")
Done: TypeAlias = tuple[Any, int]
"""The values of a successful run, and the global step after it."""


_thread = threading.local()


def _current_hooks() -> WeakSet[CurrentHook]:
    """Return the current hooks of the sessions that are open in this thread.

    A session that its program drops without an end is not open any more.
    """
    hooks: WeakSet[CurrentHook] = vars(_thread).setdefault("hooks", WeakSet())
    return hooks


def current_config() -> Config:
    """Return the process's Config; inside an event of another session, an empty one.

    Flags are for the session that the user sees. A plugin may open another one, for example
    for an evaluation. If flags applied to that, its plugins would open sessions for ever.
    """
    return Config(autoload=False, header=False) if inside_event() else Config.current()


def inside_event() -> bool:
    """Return whether this thread is inside an event of an open session."""
    return any(hook.name != NOBODY for hook in _current_hooks())


def new_session(
    creator: SessionCreator,
    hooks: Sequence[Registration],
    mode: Mode,
    options: SessionOptions,
    recovery: Recovery | None = None,
    hook_budget: float | None = None,
    again: bool = False,
) -> SessionState:
    """Create the parts of a session; nothing runs yet.

    *hooks* are registered in their order. *recovery* sets how often a preempted session is
    opened again; None for never. *hook_budget* is the share of the time that each hook may
    take. *again* is whether a finished run trains again.

    Raises:
        UsageError, PluginError: a hook is invalid.
    """
    kind, config = options.kind, options.config
    peers, agreement = find_peers(trains=kind == "train"), None
    if peers is not None:
        options = attrs.evolve(options, rank=peers.rank, ranks=peers.size)
        speak_as(peers.rank)
        if kind == "train" and not inside_event():
            agreement = Agreement(peers)
        if peers.rank != CHIEF:
            hooks = [member for member in hooks if options_of(member.plugin).ranks == "all"]
    fork_guard = ForkGuard()
    bus = Bus(kind, config.budget(hook_budget), fork_guard)
    if config.trace:
        bus.trace()
    try:
        bus.register(*hooks)
    except BaseException as error:  # no session will exist to record it
        outcome = failed_outcome(error, 0, bus.current)
        record_end(config, SessionRecord(kind, None, outcome, saved=False), error)
        raise
    # The ranks exchange their requests after each run.
    given = creator.checkpoint_dir
    tracking = Tracking(keeps_states=mode.foreign is None or given is not None)
    digest = None if agreement is None else _digest_of_assigned(tracking)
    requests = Requests(
        pending=agreement is not None,
        effects=Effects(digest),
        foreign=mode.foreign,
    )
    # Absolute: the script may change the current directory.
    directory = expanded(given).absolute() if given else None
    # Without training, a custom loop tracks only some of the objects of a checkpoint.
    saves = kind == "train" or not mode.takes_reports
    checkpoints = Checkpoints(
        directory,
        requests,
        bus.current,
        saves=saves,
        replaced=config.replaced_directory,
        restores_from=_directory_of(creator.checkpoint_filename_with_path),
        replace=config.directory if config.replaces_directory else None,
        foreign=None if mode.foreign is None or not mode.foreign.saves else mode.foreign,
    )
    rollbacks = Rollbacks((recovery or Recovery()).rollbacks)
    contents = Contents(
        stateful(bus),
        tracking,
        ProgramPosition(tracking.generators),
        rollbacks.state_dict,
        _resuming(options.one_call, again or config.again),
    )
    retention = Retention(checkpoints, bus)
    saver = Saver(
        retention,
        contents,
        versions(hooks),
        agreement=agreement,
        fork_guard=fork_guard,
    )
    signals = SignalWatch(saves=lambda: bool(checkpoints.enabled_by or mode.save))
    signals.notes_only = agreement is not None
    # Only the caller of a custom loop could repeat its step. One rank alone cannot begin
    # again: the others wait for it in the middle of a step.
    preemptions = None
    if recovery is not None and agreement is None and mode.replaces_backend:
        preemptions = Preemptions(recovery)
    hooks_here = (member.plugin for member in bus.members.values())
    undoes = any(options_of(plugin).rolls_back == "step" for plugin in hooks_here)
    return SessionState(
        options,
        mode,
        creator,
        bus,
        requests,
        contents,
        saver,
        Ending(signals),
        Recoveries(rollbacks, preemptions),
        agreement,
        loop=LoopState(kept=KeptValue() if undoes else None),
    )


def _digest_of_assigned(tracking: Tracking) -> Callable[[str, Any], int]:
    """Return a function that gives a checksum of a value assigned to a variable.

    It is 0 if each rank has its own value.
    """

    def digest(name: str, value: Any) -> int:
        own = tracking.own_names()
        if any(name == each or name.startswith(f"{each}.") for each in own):
            return 0
        return digest_of((name, value)) or 0

    return digest


def _resuming(one_call: bool, again: bool) -> Callable[[str | None], bool]:
    """Return whether a session continues in the input of one that ended in a way.

    By default it always does, so that nothing is trained after the end. An Estimator trains
    as often as it is called.
    """
    if one_call:
        return resumes
    return continues_input if again else continues_always


def finalize(state: SessionState) -> None:
    """Finalize the graph, and prepare saving, before the first backend session is opened.

    Raises:
        CheckpointError: the checkpoints cannot be written.
    """
    creator = state.creator
    if state.agreement is not None:
        _compare_ranks(state, state.agreement)
    creator.scaffold.finalize()
    saved_names, graph = creator.scaffold.saved_names, creator.graph
    state.saver.checkpoints.freeze()
    state.contents.take_graph(saved_names, graph)
    state.saver.prepare()
    for node, wraps in graph.wraps.items():
        log.debug("node wrapped", node=node, by=", ".join(wraps))


def _compare_ranks(state: SessionState, agreement: Agreement) -> None:
    """Check that all ranks have the same hooks, settings and checkpoint directory.

    Raises:
        PeersDisagreeError: the ranks differ.
    """
    members, directory = state.bus.members, state.saver.checkpoints.directory
    shared = [name for name in members if state.bus.is_everywhere(name)]
    agreement.same(
        {
            "the version of hookbus": state.saver.versions["hookbus"],
            "their hooks": shared,
            **{f"the settings of {n}": _plain_settings(members[n].plugin) for n in shared},
            "their checkpoint directory": None if directory is None else str(directory),
        }
    )
    state.saver.check_shared()


def _plain_settings(hook: Any) -> dict[str, str]:
    """Return the settings of a hook whose text can be compared between processes."""
    fields = attrs.fields_dict(type(hook)) if attrs.has(type(hook)) else {}
    settings = {n: getattr(hook, n) for n, field in fields.items() if field.init}
    plain = (bool, int, float, str, type(None))
    return {
        name: repr(value) for name, value in settings.items() if isinstance(value, plain)
    }


def enter_session(state: SessionState) -> None:
    """Watch signals, and record that the session is open in this thread."""
    note_open(state)
    state.lines.begin()
    if state.options.watch_signals:
        state.ending.signals.install()
    _current_hooks().add(state.bus.current)


def leave_session(state: SessionState) -> None:
    """Record that the session is closed, if this thread opened it."""
    note_closed(state)
    state.lines.end()
    _current_hooks().discard(state.bus.current)


def open_backend(state: SessionState) -> BackendHandle:
    """Open a backend session; try again if it is preempted before it is ready.

    Raises:
        CheckpointError: the checkpoints cannot be read.
        BaseException: the preemption, if the session does not recover from it.
    """
    while True:
        cause = _try_to_open(state)
        if cause is None:
            assert state.backend is not None
            preemptions = state.recoveries.preemptions
            if preemptions is not None:
                preemptions.opened(state.backend.session)
            if state.first_step is None:
                state.first_step = state.global_step
            if state.phase in (Phase.BEGUN, Phase.RUNNING):  # no hook asked to stop
                state.enter(Phase.RUNNING)
            return state.backend
        _wait_to_reopen(state, cause)


def _directory_of(path: str | Path | NewestIn | None) -> Path | None:
    """Return the directory of one checkpoint that a session restores."""
    if path is None:
        return None
    if isinstance(path, NewestIn):
        return path.directory.absolute()
    return Path(path).absolute().parent


@signals_deferred
def recover(state: SessionState, cause: BaseException) -> BackendHandle:
    """Replace the backend session, which was preempted, by a new one, restored."""
    assert state.backend is not None
    assert state.recoveries.preemptions is not None
    state.recoveries.preemptions.closed(state.backend.session)
    take_written(state, None, wait=True)  # the new session restores the newest one
    close_replaced(state)
    state.ending.repeat_failed()
    _wait_to_reopen(state, cause)
    backend = open_backend(state)
    raise_deferred()
    return backend


def finish_run(state: SessionState, context: SessionRunContext) -> None:
    """Serve the requests after a successful run of a graph, a roll-back included."""
    apply_after_run(state, context)
    if context.asked.rollback is not None:
        state.mode.roll_back(state, context.asked, context)


def close_replaced(state: SessionState) -> None:
    """Close the backend session, before a new one replaces it.

    Raises:
        BaseException: the error of a thread, except a preemption.
    """
    old = state.backend
    assert old is not None
    old.stepper.flush_idle()
    left = old.close(state.options.grace)
    if left is not None and not isinstance(left, old.session.preemption_errors):
        raise left


def repeat(
    state: SessionState,
    cause: BaseException,
    what: Callable[[BackendHandle], T],
    done: Done | None = None,
) -> T:
    """Repeat a call that a preemption interrupted, on a new backend session.

    Args:
        state: the session.
        cause: the preemption.
        what: the function to call again.
        done: the values of the run and the step after it, if the preemption came only after
            the run. If the checkpoint contains that step, the call is not repeated.
    """
    while True:
        backend = recover(state, cause)
        if done is not None and backend.session.global_step >= done[1]:
            return cast("T", done[0])
        try:
            return what(backend)
        except Exception as error:
            further = recoverable(state, error)
            if further is None:
                raise
            cause = further


def recoverable(state: SessionState, error: BaseException) -> BaseException | None:
    """Return the preemption that caused an error, if the session recovers from it.

    A session that shows its backend raises the preemption instead.
    """
    found = state.backend.preemption(error) if state.backend is not None else None
    if state.recoveries.preemptions is not None:
        return found
    if state.options.shows_backend and found is not None and found is not error:
        raise found from error
    return None


def _wait_to_reopen(state: SessionState, cause: BaseException) -> None:
    """Wait before a backend session is opened again, or raise the preemption."""
    preemptions = state.recoveries.preemptions
    if preemptions is None:
        raise cause
    preemptions.wait(cause, state.ending.signals.came)
    state.requests.forget_run(state.is_waiting)


def _try_to_open(state: SessionState) -> BaseException | None:
    """Open a backend session, and serve requests; return the preemption, or None."""
    try:
        session = call_interruptibly(state.creator.create_session)
    except PREEMPTION_ERRORS as error:
        return error
    state.bus.failures.spare(session.preemption_errors)
    services, driven = Services(state, session), state.mode.is_driven
    backend = BackendHandle(session, services, state.bus, state.agreement, driven)
    try:
        _prepare(state, backend)
    except BaseException as error:
        cause = backend.preemption(error)
        backend.close(state.options.grace)
        if cause is None:
            raise
        return cause
    state.backend = backend
    try:
        # The objects of a custom loop are known only at its first step.
        if not state.mode.takes_reports:
            state.saver.note_restored(session)
        # After note_restored(): the checkpoint lacks these numbers, so it is out of date.
        session.leave_out(state.recoveries.rollbacks.left_out)
        if state.kind == "train" and state.ending.stop is None:
            stop_before_first_run(state, session)
        if state.agreement is not None:
            agree_on_stop(state, state.agreement)
        asked, saving = None, not state.mode.takes_reports
        if saving and state.kind == "train" and state.ending.stop is None:
            asked = begin_training(state, session)
        apply_requests(state, None, saving, together=True, asked=asked)
    except Exception as error:
        cause = recoverable(state, error)
        if cause is None:
            raise
        backend.close(state.options.grace)
        return cause
    return None


def _prepare(state: SessionState, backend: BackendHandle) -> None:
    """Restore or initialize a backend session in this order, and notify the hooks."""
    session, creator, contents = backend.session, state.creator, state.contents
    training = state.kind == "train"
    path = creator.checkpoint_filename_with_path
    # 1. Variables, step, tracked objects and the position in the input.
    restored = call_interruptibly(state.saver.restore, session, training, path)
    if restored is None:
        _restore_pristine(state)
    contents.tracking.add_all(creator.graph.objects)
    # A loop may track more objects until its first step.
    if training and not state.mode.takes_reports:
        contents.tracking.check()
    # 2. The initialization of the scaffold.
    hurry = state.ending.signals.came
    call_interruptibly(creator.prepare, session, restored is not None, hurry)
    # 3. The states of hooks.
    if restored is not None:
        states = saved_states(contents.hooks, restored.state)
        ended = restored.manifest.ended
        if training:
            load_hooks(contents.hooks, states, ended)
            if state.first_step is None and resumes(ended):
                state.recoveries.rollbacks.load_state_dict(
                    restored.state.get("rollbacks", {})
                )
        else:
            load_evaluated(contents.hooks, states, ended, state.kind)
    elif state.loop.handed is not None:
        contents.load_kept(session, state.loop.handed)
    state.bus.caller("after_create_session").collect(session, backend.coord)
    if isinstance(session, ReportSession) and not state.mode.takes_reports:
        session.change_values()  # in a loop the first step does, when all is tracked
    # 4. Generators last: the numbers drawn before must not matter.
    if training:
        contents.begin_generators(restored)
        # A loop may import more until its first step.
        if restored is not None and not state.mode.takes_reports:
            contents.generators.restore_rest()


def _restore_pristine(state: SessionState) -> None:
    """Give hooks and generators their first states, as the session restores nothing.

    The first call records these states. A foreign loop has initialized its own values.
    Without a checkpoint_dir the loop may have restored values in its own way, so the hooks
    keep their states.
    """
    hooks = state.contents.hooks
    if state.mode.is_driven and state.saver.checkpoints.directory is None:
        return
    if state.recoveries.pristine is None:
        state.recoveries.pristine = _copies(hooks, states_of(hooks)), random_state.capture()
        return
    graph = state.creator.graph
    changed = [*graph.objects, *(node.name for node in graph.variables if is_live(node))]
    if changed and not state.mode.is_driven:
        raise CheckpointError(
            "the session was preempted, and there is no checkpoint: the objects of its "
            f"graph ({', '.join(changed)}) have changed in place. Save checkpoints, for "
            "example with checkpoint_dir="
        )
    states, generators = state.recoveries.pristine
    load_hooks(hooks, _copies(hooks, states), None)
    if state.kind == "train":
        random_state.restore(generators)


def _copies(hooks: Mapping[str, Stateful], states: Mapping[str, Any]) -> dict[str, Any]:
    return {name: hooks[name].copied(state) for name, state in states.items()}
