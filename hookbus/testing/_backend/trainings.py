"""Rules of whole training runs: how they end, recover and resume, and how hooks act."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

from hookbus.backend.protocol import Session
from hookbus.errors import AbortedError, UnavailableError, UnfedPlaceholderError
from hookbus.hooks.hook import SessionRunArgs, SessionRunHook
from hookbus.session.monitored import MonitoredSession
from hookbus.session.training import MonitoredTrainingSession
from hookbus.testing._backend import killed
from hookbus.testing._backend.candidate import Backend
from hookbus.testing._backend.kinds import of_graphs, quiet, session_arguments
from hookbus.testing._backend.runner import (
    START,
    PlannedError,
    Runner,
    expect,
    fail,
    line,
    np,
    refused,
)
from hookbus.testing._suite.compare import unsavable
from hookbus.testing.backend_model import BackendModel
from hookbus.testing.scenarios import SCENARIOS, all_at_once, saving, steps_in


class _Seen(SessionRunHook):
    """Keeps the backend sessions, and the state at the end."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.state: dict[str, Any] = {}

    def after_create_session(self, session: Session) -> None:
        self.sessions.append(session)

    def after_run(self) -> None:
        self.state = Runner(self.sessions[-1]).state


def test_an_unfed_placeholder_names_who_asks(model: BackendModel) -> None:
    """A session raises UnfedPlaceholderError, which names the placeholder and the hook."""
    graph = line(model)
    model.placeholder(graph, "bias")
    model.op(graph, "shifted", ["bias", "n"])

    class CuriousHook(SessionRunHook):
        def before_run(self) -> SessionRunArgs:
            return SessionRunArgs("shifted")

    with MonitoredSession(graph, hooks=[CuriousHook()], config=quiet()) as session:
        with refused(UnfedPlaceholderError, "a run without a value for bias") as refusal:
            session.run("train")
        text = "\n".join([str(refusal.error), *getattr(refusal.error, "__notes__", [])])
        for word in ("bias", "curious"):
            if word not in text:
                fail(f"the message has no {word!r}: {text}. Give the error the node's name")
        expect(
            session.run("shifted", {"bias": 1.0}) is None, False, "a run with a feed", ""
        )


def test_the_end_of_an_input_ends_the_session(model: BackendModel) -> None:
    """A session ends well when its input ends, after as many steps as there are values."""
    graph = model.graph()
    model.variable(graph, "n", np.float32(0))
    model.input(graph, "x", lambda: [1.0, 2.0, 3.0])
    model.train_op(graph, "train", {"n": ["n", "x"]})
    config = quiet()
    with MonitoredSession(graph, config=config) as session:
        found = [float(session.run("n")) for _ in session.loop()]
    outcome = config.records[-1].outcome
    expect(found, [1.0, 3.0, 6.0], "n after each step", "Raise OutOfRangeError at the end")
    expect((outcome.kind, outcome.step), ("end_of_input", 3), "the outcome", "")


def test_a_preempted_session_recovers(model: BackendModel, tmp_path: Path) -> None:
    """After a preemption a new session goes on from the checkpoint, inputs included."""
    errors = [None, None, AbortedError("the suite"), None, UnavailableError("the suite")]

    def flaky() -> float:
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error
        return 0.0

    graph, seen = line(model), _Seen()
    model.call(graph, "flaky", flaky)
    hooks, arguments = [saving(tmp_path), seen], session_arguments(tmp_path)
    with MonitoredTrainingSession(graph, hooks=hooks, **arguments) as session:
        while session.global_step < 5:
            session.run(["count", "flaky"])
    expect(len(seen.sessions), 3, "the sessions", "List these errors in preemption_errors")
    found = seen.state
    expect(found, {**START, "n": 15.0, "global_step": 5}, "the end", "Restore everything")


def test_a_checkpoint_restores_in_a_new_session(
    model: BackendModel, tmp_path: Path
) -> None:
    """A new session has the variables, the step and the positions of the checkpoint."""
    for steps in (3, 5):
        seen = _Seen()
        hooks, arguments = [saving(tmp_path), seen], session_arguments(tmp_path)
        with (
            contextlib.suppress(PlannedError),
            MonitoredTrainingSession(line(model), hooks=hooks, **arguments) as session,
        ):
            while session.global_step < steps:
                session.run("count")
            raise PlannedError
        wanted = {**START, "n": float(sum(range(1, steps + 1))), "global_step": steps}
        expect(seen.state, wanted, f"after step {steps}", "See write() and seek()")
        state = seen.sessions[-1].state_dict()
        faults = "; ".join(unsavable(state, "state_dict()"))
        expect(faults, "", "what checkpoints cannot hold", "Use dicts, lists and arrays")
        seen.sessions[-1].load_state_dict(state)


def test_killed_and_resumed_it_ends_like_an_uninterrupted_one(
    backend: Backend, tmp_path: Path
) -> None:
    """A training run that SIGKILL ends and that resumes has the bits of a whole one."""
    whole = killed.train(backend.model, tmp_path / "whole")
    code = killed.kill_in_the_middle(backend, tmp_path / "killed")
    expect(code, -signal.SIGKILL, "the exit code of the killed process", "See its error")
    found = steps_in(tmp_path / "killed")
    expect(found, [0, 2, 4], "the steps of its checkpoints", "")
    resumed = killed.train(backend.model, tmp_path / "killed")
    advice = "Restore all values bit for bit, and the positions of inputs"
    expect(resumed, whole, "the variables of the resumed run", advice)


@pytest.mark.parametrize("plugin", SCENARIOS)
def test_a_built_in_hook_does_the_same_as_everywhere(
    model: BackendModel, plugin: str, tmp_path: Path
) -> None:
    """Steps, files and values with a built-in hook are those of every other backend."""
    SCENARIOS[plugin](of_graphs(model), tmp_path)


def test_all_built_in_hooks_together_do_the_same_as_everywhere(
    model: BackendModel, tmp_path: Path
) -> None:
    """All built-in hooks leave the usual results of a run that was cut and resumed."""
    found = all_at_once(of_graphs(model), tmp_path / "found")
    wanted = all_at_once(of_graphs(BackendModel()), tmp_path / "wanted")
    for part, value in wanted.items():
        expect(found[part], value, f"{part!r} of a run with all hooks", "")
    expect(found["end"], ("stopped", "stop-at-step", 7, 728), "the end of the training", "")
