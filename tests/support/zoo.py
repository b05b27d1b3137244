"""Runs training scripts of many shapes by hand and with a session, and cuts them short.

A training script is a function that takes a :class:`Run`. By hand, a run gives it a loop in
plain Python; otherwise it gives a session that saves, and that a hook, a signal or an error
cuts short at a step. Each run is a process of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import numpy as np

from hookbus import Config, MonitoredTrainingSession, SessionRunHook, hookimpl

if TYPE_CHECKING:
    import pytest

Kind: TypeAlias = Literal["stop", "sigterm", "sigkill", "exception"]
KINDS: tuple[Kind, ...] = ("stop", "sigterm", "sigkill", "exception")
SAVED_EVERY = 2
SCRIPT = Path(__file__).with_name("zoo_script.py")
"""Does one training run; the module and the name of the training are its arguments."""
MOST_RUNS = 60


class Cut(Exception):
    """The error of a hook that cuts a run short."""


class Cutter(SessionRunHook):
    """Cuts a run short after a step."""

    def __init__(self, kind: Kind, at: int) -> None:
        self.kind, self.at = kind, at

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step != self.at or run_context.kind != "train":
            return
        if self.kind == "stop":
            run_context.request_stop("cut short")
        elif self.kind == "exception":
            raise Cut
        else:
            number = signal.SIGTERM if self.kind == "sigterm" else signal.SIGKILL
            os.kill(os.getpid(), number)


class Listener(SessionRunHook):
    """Notes the evaluations and the ends of epochs that hooks are told of."""

    def __init__(self, note: Callable[..., None]) -> None:
        self.note = note

    @hookimpl
    def evaluated(self, metrics: Mapping[str, float], global_step: int, name: Any) -> None:
        self.note("evaluated", global_step, name, {**metrics})


class Evaluation:
    """The means of what a loop by hand reports."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self._reports: list[Mapping[str, float]] = []

    def report(self, **values: float) -> None:
        """Add values to the means, each with the weight 1."""
        self._reports.append(values)
        names = {name for each in self._reports for name in each}
        for name in names:
            numbers = [float(each[name]) for each in self._reports if name in each]
            self.metrics[name] = sum(numbers) / len(numbers)


class ByHand:
    """A loop without hookbus, in the words of a session.

    Args:
        aside: a block in which draws have no effect, and modules are in evaluation mode.
    """

    resuming = False

    def __init__(self, aside: Callable[[Mapping[str, Any]], Any]) -> None:
        self.global_step = 0
        self._aside, self._tracked = aside, dict[str, Any]()

    def track(self, **things: Any) -> Any:
        """Return the objects."""
        self._tracked.update(things)
        values = {n: t[0]() if isinstance(t, tuple) else t for n, t in things.items()}
        return next(iter(values.values())) if len(values) == 1 else values

    def hold(self, **values: Any) -> Any:
        """Return an object with these attributes."""
        return SimpleNamespace(**values)

    def epochs(self, count: int) -> range:
        """Return the numbers of all epochs."""
        return range(count)

    def iterate(self, values: Iterable[Any], name: str | None = None) -> Iterator[Any]:
        """Return the values."""
        return iter(values)

    def enumerate(self, values: Iterable[Any], start: int = 0) -> Iterator[Any]:
        """Return the values with their index."""
        return iter(enumerate(values, start))

    def should_stop(self) -> bool:
        """Return False: the loop goes to its end."""
        return False

    @contextlib.contextmanager
    def step(self, kind: str | None = None, increment: int = 1) -> Iterator[Any]:
        """Count a step, or several."""
        yield SimpleNamespace(report=lambda **_: None, skipped=False, feeds={})
        self.global_step += increment

    @contextlib.contextmanager
    def evaluation(self, name: str | None = None) -> Iterator[Evaluation]:
        """Evaluate aside."""
        with self._aside(self._tracked):
            yield Evaluation()


@contextlib.contextmanager
def aside(tracked: Mapping[str, Any]) -> Iterator[None]:
    """Undo what a block draws from Python's, NumPy's and the tracked generators."""
    own = [
        each.bit_generator for each in tracked.values() if hasattr(each, "bit_generator")
    ]
    states = random.getstate(), np.random.get_state(), [each.state for each in own]
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for each, state in zip(own, states[2], strict=True):
            each.state = state


@attrs.define(eq=False)
class Run:
    """One run of a training script.

    Attributes:
        epochs: the number of all epochs.
        cut: how and where it is cut short; None for a run to the end.
        by_hand: whether there is no hookbus.
        aside: a block without effects, for evaluations by hand.
        server: the module that a server imports, which forks for each process; None to fork
            this process, which a library with threads does not allow.
        variables: environment variables that the process gets.
    """

    epochs: int = 3
    cut: tuple[Kind, int] | None = None
    by_hand: bool = False
    aside: Callable[[Mapping[str, Any]], Any] = aside
    server: str | None = None
    variables: Mapping[str, str] = attrs.field(factory=dict)

    @contextlib.contextmanager
    def session(self, graph: Any = None) -> Iterator[Any]:
        """Open a session, of a graph if there is one, or a loop by hand."""
        if self.by_hand:
            yield ByHand(self.aside)
            return
        hooks: list[Any] = [Listener(self.note)]
        if self.cut is not None:
            hooks.append(Cutter(*self.cut))
        with MonitoredTrainingSession(
            graph,
            checkpoint_dir="runs",
            hooks=hooks,
            save_checkpoint_steps=SAVED_EVERY,
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=Config(autoload=False, header=False),
        ) as session:
            yield session

    def say(self, epoch: int, *words: Any) -> None:
        """Print a line about an epoch."""
        self.note("said", epoch, *map(repr, words))

    def note(self, what: str, *words: Any) -> None:
        """Append a line to the file of this training script."""
        with Path("lines.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, *words]) + "\n")


Training: TypeAlias = Callable[[Run], Any]
"""Trains; returns everything in which two training runs must be equal."""


@attrs.frozen
class Done:
    """The results of a process.

    Attributes:
        result: a digest of what the training returned; None if it did not return.
        code: the exit code; negative for a signal.
        log: what it wrote to stderr.
    """

    result: Any
    code: int
    log: str


def in_process(training: Training, run: Run) -> Done:
    """Run a training script in its own process, in the current directory."""
    Path("result.json").unlink(missing_ok=True)
    code = _forked(training, run) if run.server is None else _served(training, run)
    result = Path("result.json")
    found = json.loads(result.read_text("utf-8")) if result.exists() else None
    log = Path("log.txt").read_text("utf-8")
    return Done(found, code, log)


def _forked(training: Training, run: Run) -> int:
    """Train in a fork of this process; return the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _work(training, run)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _served(training: Training, run: Run) -> int:
    """Train in a fork of a server, which has imported a module; return the exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([str(run.server)])
    process = context.Process(target=_work, args=(training, run))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _work(training: Training, run: Run) -> None:
    """Train in a child, which ends here."""
    code = 1
    try:
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 2)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        os.environ.update(run.variables)
        random.seed(3)
        np.random.seed(3)
        returned = training(run)
        Path("result.json").write_text(json.dumps(digest_of(returned)), "utf-8")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Cut:
        code = 3
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def digest_of(value: Any) -> Any:
    """Return something for JSON that is equal exactly where values are, bit for bit."""
    if isinstance(value, Mapping):
        return {str(key): digest_of(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [digest_of(part) for part in value]
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        value = value.view(-1).numpy() if value.dtype.is_floating_point else value.numpy()
    if isinstance(value, np.ndarray):
        hashed = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return [str(value.dtype), list(value.shape), hashed]
    return repr(value)


def lines_of(what: str) -> dict[str, Any]:
    """Return the last line of each epoch, or all lines on each evaluation."""
    path, found = Path("lines.jsonl"), dict[str, Any]()
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        kind, key, *words = json.loads(line)
        if kind == what:
            found.setdefault(str(key), []).append(words)
    return found


@attrs.frozen
class Straight:
    """A run by hand, to compare with."""

    result: Any
    said: Mapping[str, Any]


def by_hand(training: Training, run: Run, place: Path) -> Straight:
    """Run a training script without hookbus."""
    with _inside(place):
        done = in_process(training, attrs.evolve(run, by_hand=True, cut=None))
        assert done.code == 0, done.log
        return Straight(done.result, _last(lines_of("said")))


def cut_and_resumed(
    training: Training, run: Run, kind: Kind, at: int, every: bool, place: Path
) -> tuple[Any, Mapping[str, Any], str]:
    """Cut a run short, start it until it is done; return its end, lines and log.

    Args:
        training: the training.
        run: how to run it.
        kind: how it is cut short.
        at: the step after which it is.
        every: whether each further run is cut short as well, *at* steps later.
        place: an empty directory.
    """
    log, step = "", at
    with _inside(place):
        for _ in range(MOST_RUNS):
            cut = (kind, step) if step == at or every else None
            done = in_process(training, attrs.evolve(run, cut=cut))
            log += done.log
            was_cut = cut is not None and _is_cut(done, kind)
            assert was_cut or done.code == 0, done.log
            if not was_cut:
                return done.result, _last(lines_of("said")), log
            step += at
    raise AssertionError(f"{MOST_RUNS} runs were not enough")


def started_again(training: Training, run: Run, place: Path) -> tuple[Done, bool]:
    """Start a run that has finished; return its end, and whether it changed files."""
    with _inside(place):
        before = {path: path.read_bytes() for path in Path("runs").rglob("ckpt-*/*")}
        done = in_process(training, run)
        after = {path: path.read_bytes() for path in Path("runs").rglob("ckpt-*/*")}
    return done, before != after


@attrs.define(eq=False)
class Zoo:
    """Trainings that are compared with themselves by hand.

    Attributes:
        trainings: the training runs by name.
        run: how they are run.
        folders: makes the folders that they are run in.
    """

    trainings: Mapping[str, Training]
    run: Run
    folders: pytest.TempPathFactory
    _done: dict[tuple[str, int], Straight] = attrs.field(factory=dict, init=False)

    def straight(self, name: str, epochs: int) -> Straight:
        """Return a run by hand, which is done once."""
        if (name, epochs) not in self._done:
            run = attrs.evolve(self.run, epochs=epochs)
            done = by_hand(self.trainings[name], run, self.folders.mktemp(name))
            self._done[name, epochs] = done
        return self._done[name, epochs]

    def check_cut_short(self, name: str, kind: Kind, steps: Iterable[int]) -> None:
        """Demand of a run, cut short at each of some steps, what it does by hand."""
        training, expected = self.trainings[name], self.straight(name, self.run.epochs)
        for at in steps:
            place = self.folders.mktemp(f"{name}-{kind}-{at}")
            result, said, log = cut_and_resumed(training, self.run, kind, at, False, place)
            assert (result, said) == (expected.result, expected.said), at
            assert "warning" not in log.replace("[warning  ] finishing this step", ""), log

    def check_finished(
        self, name: str, place: Path, starts: int = 1, goes_on: bool = True
    ) -> None:
        """Demand that a finished run changes no file, and takes more epochs.

        Args:
            name: the training.
            place: the folder.
            starts: how often it is started again.
            goes_on: whether it has two epochs more to do.
        """
        training, epochs = self.trainings[name], self.run.epochs
        done, _ = started_again(training, self.run, place)
        assert done.result == self.straight(name, epochs).result, done.log
        for _ in range(starts):
            done, has_changed = started_again(training, self.run, place)
            assert done.code == 0, done.log
            assert done.result == self.straight(name, epochs).result
            assert not has_changed
            assert "nothing to train" in done.log
        if not goes_on:
            return
        more = attrs.evolve(self.run, epochs=epochs + 2)
        done, _ = started_again(training, more, place)
        assert done.code == 0, done.log
        assert done.result == self.straight(name, more.epochs).result


def _is_cut(done: Done, kind: Kind) -> bool:
    """Return whether a run was cut short, and did not come to its end before."""
    if kind == "stop":
        return "kind=stopped" in done.log and "nothing to train" not in done.log
    return done.code == {"sigterm": 75, "sigkill": -signal.SIGKILL, "exception": 3}[kind]


def _last(lines: Mapping[str, Any]) -> dict[str, Any]:
    return {epoch: said[-1] for epoch, said in lines.items()}


@contextlib.contextmanager
def _inside(place: Path) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(place):
        yield
