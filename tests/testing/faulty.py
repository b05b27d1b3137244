"""Hooks that break one rule each, and one that breaks none."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import attrs

from hookbus import HookOptions, SessionRunArgs, SessionRunHook, hookimpl


@attrs.define(eq=False)
class FineHook(SessionRunHook):
    """Keeps all the rules."""

    options = HookOptions(only_observes=True)

    every: int = 1
    names: tuple[str, ...] = ("loss", "accuracy")
    label: str = "lowest so far"
    _lowest: float = attrs.field(default=float("inf"), init=False)

    def before_run(self):
        return SessionRunArgs(list(self.names))

    def after_run(self, run_values):
        self._lowest = min(self._lowest, run_values.results[0])

    def state_dict(self):
        return {"lowest": self._lowest}

    def load_state_dict(self, state):
        self._lowest = state["lowest"]


class MisspeltHook(SessionRunHook):
    @hookimpl
    def after_runn(self):
        """Be no event."""


@attrs.define
class ByValueHook(SessionRunHook):
    every: int = 1


class ShoutedHook(SessionRunHook):
    """Is called Shouted_Hook by its entry point."""


class RaisingHook(SessionRunHook):
    def end(self):
        raise RuntimeError("the end is bad")


class OnceHook(SessionRunHook):
    sessions = 0

    def after_create_session(self):
        self.sessions += 1
        assert self.sessions == 1, "twice"


class GraphOnlyHook(SessionRunHook):
    def before_run(self):
        return SessionRunArgs("x")


class PairingHook(SessionRunHook):
    running = False

    def after_create_session(self):
        self.running = False  # after a preemption it begins anew

    def before_run(self):
        assert not self.running
        self.running = True

    def after_run(self):
        self.running = False


class ThreadHook(SessionRunHook):
    def begin(self):
        self.done = threading.Event()
        threading.Thread(target=self.done.wait, daemon=True, name="watcher").start()

    def end(self):
        self.done.set()


class FileHook(SessionRunHook):
    def begin(self):
        self.file = Path("values.txt").open("w")  # noqa: SIM115

    def end(self):
        self.file.close()


def ignore(number, frame):
    """Do nothing about a signal."""


class SignalHook(SessionRunHook):
    def begin(self):
        self.before = signal.signal(signal.SIGUSR1, ignore)

    def end(self):
        signal.signal(signal.SIGUSR1, self.before)


class HastyHook(SessionRunHook):
    def after_create_session(self, session):
        self.session = session

    def on_exception(self):
        assert self.session is not None


class CountingHook(SessionRunHook):
    runs = 0

    def after_run(self):
        self.runs += 1

    def state_dict(self):
        return {"runs": self.runs}

    def load_state_dict(self, state):
        self.runs = state["runs"]


class DrainingHook(CountingHook):
    def state_dict(self):
        state, self.runs = {"runs": self.runs}, 0
        return state


class SetHook(CountingHook):
    def state_dict(self):
        return {"runs": {self.runs}}

    def load_state_dict(self, state):
        (self.runs,) = state["runs"]


class OneWayHook(SessionRunHook):
    def state_dict(self):
        return {}


class ForgetfulHook(CountingHook):
    def load_state_dict(self, state):
        """Forget it."""


class RestartingHook(CountingHook):
    def after_create_session(self):
        self.runs = 0


class Observer(SessionRunHook):
    options = HookOptions(only_observes=True)


class FeedingHook(Observer):
    def before_run(self):
        return SessionRunArgs(feed_dict={"x": 0.0})


class AssigningHook(Observer):
    def after_run(self, run_context):
        if "lr" in run_context.session.variables():
            run_context.assign({"lr": 0.5})


class PullingHook(Observer):
    def after_run(self, run_context):
        if "x" in run_context.session.graph:
            run_context.session.run("x")


class DrawingHook(Observer):
    def after_run(self):
        random.random()


class ChancyHook(Observer):
    def __init__(self):
        self.seed = random.random()


class UntypedHook(SessionRunHook):
    def __init__(self, every=10):
        self.every = every


class BatchHook(SessionRunHook):
    """Counts what it sees of evaluations, and is wrong in those inside training alone."""

    options = HookOptions(kinds=("train", "eval"))

    def before_run(self, run_context):
        return SessionRunArgs("loss") if run_context.kind == "eval" else None

    def after_run(self, run_context, run_values):
        if run_context.kind == "eval" and run_context.evaluation == "val":
            raise ValueError(f"no batch like {run_values.results}")


class LabelHook(SessionRunHook):
    """Takes part in evaluations and predictions only, and wants a label in each."""

    options = HookOptions(kinds=("eval", "predict"), only_observes=True)

    wanted: str = "loss"

    def __init__(self, wanted="loss"):
        self.wanted, self.seen = wanted, 0

    def before_run(self, run_context):
        if run_context.kind not in ("eval", "predict"):
            raise ValueError(f"called in a run of the kind {run_context.kind}")
        return SessionRunArgs([self.wanted, "label"])

    def after_run(self, run_context, run_values):
        if run_context.kind == "predict":
            raise ValueError("no label when predicting")
        self.seen += run_values.results[1] is not None

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class PredictHook(LabelHook):
    """The hook above without its fault."""

    def after_run(self, run_values):
        self.seen += len(run_values.results[1])
