"""Tests when checkpoints are saved, how many stay, and what listeners are told."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook, CheckpointSaverListener

import hookbus
from tests.support import commands


def counting(increment: int = 1, length: int = 1000) -> hookbus.Graph:
    """Return a graph that counts its runs."""
    graph = hookbus.Graph()
    graph.input("batch", lambda: iter(range(length)))
    graph.variable("w", np.zeros(2))

    @graph.train_op(updates="w", increment=increment)
    def train(w: Any, batch: int) -> Any:
        return w + 1

    return graph


def session(*hooks: Any, graph: Any = None, **arguments: Any) -> hookbus.MonitoredSession:
    """Open a session with the hooks given and no plugins."""
    if "session_creator" not in arguments:
        arguments["graph"] = graph or counting()
    config = hookbus.Config(autoload=False)
    return hookbus.MonitoredSession(hooks=hooks, config=config, **arguments)


def train(*hooks: Any, runs: int, graph: Any = None) -> None:
    """Train for some runs, or until the input ends."""
    with session(*hooks, graph=graph) as opened:
        for _ in itertools.islice(opened.loop(), runs):
            pass


def saved(directory: Path | str = ".") -> list[int]:
    """Return the steps of the checkpoints in a directory."""
    return sorted(
        int(path.name.removeprefix("ckpt-"))
        for path in Path(directory).iterdir()
        if path.name.startswith("ckpt-")
    )


def saver(**settings: Any) -> CheckpointSaverHook:
    """Make a saver that keeps everything, in the directory ``runs``."""
    return CheckpointSaverHook(**{"checkpoint_dir": "runs", "max_to_keep": 0} | settings)


@pytest.mark.parametrize(
    ("runs", "steps"), [(0, [0]), (1, [0, 1]), (6, [0, 3, 6]), (7, [0, 3, 6, 7])]
)
def test_every_so_many_steps_and_at_both_ends(runs: int, steps: list[int]) -> None:
    """With save_steps=3: at the start, at each third step, and at the end if it is new."""
    train(saver(save_steps=3), runs=runs)
    assert saved("runs") == steps


@pytest.mark.parametrize(
    ("increment", "steps"), [(2, [0, 4, 8, 10]), (5, [0, 5, 10, 15, 20, 25])]
)
def test_the_period_is_in_global_steps(increment: int, steps: list[int]) -> None:
    """A run that adds several steps is due when the period is reached or passed."""
    train(saver(save_steps=3), runs=5, graph=counting(increment))
    assert saved("runs") == steps


def test_the_end_of_input_is_saved() -> None:
    """A session whose input has ended saves its last step."""
    train(saver(save_steps=3), runs=1000, graph=counting(length=5))
    assert saved("runs") == [0, 3, 5]


def test_a_failure_saves_nothing() -> None:
    """After an error there is no final checkpoint."""

    class Failing(hookbus.SessionRunHook):
        def after_run(self, run_values: hookbus.SessionRunValues) -> None:
            assert run_values.global_step < 5

    with pytest.raises(AssertionError):
        train(saver(save_steps=3), Failing(), runs=9)
    assert saved("runs") == [0, 3]


def test_the_period_counts_from_the_step_that_was_restored() -> None:
    """A session that goes on at step 5 saves at 8 and 11, and not 5 again."""
    train(saver(save_steps=3), runs=5)
    train(saver(save_steps=3), runs=6)
    assert saved("runs") == [0, 3, 5, 8, 11]


def test_runs_that_do_not_train_are_not_saved() -> None:
    """Only a new step is due."""
    with session(saver(save_steps=1)) as opened:
        opened.run("train")
        for _ in range(5):
            opened.run("w")
        opened.run("train")
    assert saved("runs") == [0, 1, 2]


@pytest.mark.parametrize(
    ("epochs", "steps"), [(1, [0, 2, 4, 6, 8, 9]), (2, [0, 4, 8, 9]), (5, [0, 9])]
)
def test_every_so_many_epochs(epochs: int, steps: list[int]) -> None:
    """With save_epochs: at the end of such passes of a custom loop, and at both ends."""
    hook = saver(save_epochs=epochs)
    config = hookbus.Config(autoload=False)
    with hookbus.MonitoredSession(hooks=[hook], config=config) as opened:
        for number in range(5):
            for _ in opened.iterate(range(2)):
                with opened.step():
                    pass
                if number == 4:
                    break
    assert saved("runs") == steps


@pytest.mark.parametrize("given", [{}, {"save_steps": 1, "save_epochs": 1}])
def test_the_three_periods_exclude_each_other(given: dict[str, int]) -> None:
    """The error names all of them."""
    with pytest.raises(hookbus.UsageError) as caught:
        saver(**given)
    for setting in ("save_secs", "save_steps", "save_epochs"):
        assert setting in str(caught.value)


def test_a_period_in_seconds(clock: list[float]) -> None:
    """With save_secs=2 and 0.7 s a run: at the start, at 2.1 s, at 4.2 s, at the end."""
    with session(saver(save_secs=2)) as opened:
        for _ in range(7):
            clock[0] += 0.7
            opened.run("train")
    assert saved("runs") == [0, 3, 6, 7]


def test_no_seconds_means_every_step() -> None:
    """save_secs=0 saves after each run that trained."""
    train(saver(save_secs=0), runs=3)
    assert saved("runs") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        ({}, [4, 5, 6, 7, 8]),
        ({"max_to_keep": 2}, [7, 8]),
        ({"max_to_keep": 1}, [8]),
        ({"max_to_keep": 0}, list(range(9))),
        ({"max_to_keep": None}, list(range(9))),
    ],
    ids=str,
)
def test_how_many_stay(keep: dict[str, Any], steps: list[int]) -> None:
    """The newest five by default; 0 and None keep all."""
    train(CheckpointSaverHook("runs", save_steps=1, **keep), runs=8)
    assert saved("runs") == steps


def test_pruning_goes_on_after_a_restart() -> None:
    """Checkpoints of the session before count too."""
    train(saver(save_steps=1, max_to_keep=3), runs=4)
    train(saver(save_steps=1, max_to_keep=3), runs=2)
    assert saved("runs") == [4, 5, 6]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "Either every_secs or every_steps"),
        ({"save_secs": 1, "save_steps": 1}, "both every_secs and every_steps"),
    ],
)
def test_exactly_one_period_is_given(settings: dict[str, int], told: str) -> None:
    """None and both are refused when the hook is made."""
    with pytest.raises(hookbus.UsageError, match=told):
        CheckpointSaverHook("runs", **settings)


def test_a_saver_needs_a_directory() -> None:
    """Its own or the session's; the message names the ways to give one."""
    told = "--checkpoint-saver-checkpoint-dir"
    with pytest.raises(hookbus.UsageError, match=told):
        session(CheckpointSaverHook(save_steps=1))


def test_a_session_has_one_directory() -> None:
    """A saver that would write elsewhere than the session restores from is an error."""
    creator = hookbus.ChiefSessionCreator(counting(), checkpoint_dir="here")
    with pytest.raises(hookbus.UsageError, match=r"there.*here; give only one"):
        session(saver(checkpoint_dir="there", save_steps=1), session_creator=creator)
    assert not Path("there").exists()


def test_the_sessions_directory_is_taken() -> None:
    """Without one of its own the saver writes where the session restores from."""
    creator = hookbus.ChiefSessionCreator(counting(), checkpoint_dir="here")
    with session(CheckpointSaverHook(save_steps=1), session_creator=creator) as opened:
        opened.run("train")
    assert saved("here") == [0, 1]


def test_a_directory_of_the_savers_own_is_restored_from() -> None:
    """The next session with such a saver starts from its checkpoint."""
    train(saver(save_steps=1), runs=3)
    with session(saver(save_steps=1)) as opened:
        assert opened.global_step == 3


class Noting(CheckpointSaverListener):
    """Writes down what it is told, and asks to stop after some steps."""

    def __init__(self, notes: list[Any], name: str = "a", stop: Iterable[int] = ()) -> None:
        self.notes, self.name, self.stop = notes, name, stop

    def begin(self) -> None:
        self.notes.append(f"{self.name} begin")

    def before_save(self, session: hookbus.Session, global_step_value: int) -> None:
        there = Path("runs", f"ckpt-{global_step_value}").exists()
        self.notes.append(f"{self.name} before {global_step_value} {there}")

    def after_save(self, session: hookbus.Session, global_step_value: int) -> bool:
        there = Path("runs", f"ckpt-{global_step_value}", "manifest.json").exists()
        self.notes.append(f"{self.name} after {global_step_value} {there}")
        return global_step_value in self.stop

    def end(self, session: hookbus.Session, global_step_value: int) -> None:
        self.notes.append(f"{self.name} end {global_step_value}")


def test_listeners_are_told_in_order_phase_by_phase() -> None:
    """All before the save, while nothing is there; then all after it, when it is safe."""
    notes: list[str] = []
    train(saver(save_steps=2, listeners=[Noting(notes), Noting(notes, "b")]), runs=2)
    assert notes == [
        *("a begin", "b begin"),
        *("a before 0 False", "b before 0 False", "a after 0 True", "b after 0 True"),
        *("a before 2 False", "b before 2 False", "a after 2 True", "b after 2 True"),
        *("a end 2", "b end 2"),
    ]


def test_listeners_are_told_of_the_final_save_and_then_of_the_end() -> None:
    """A listener's end comes last: after the save that closes the session."""
    notes: list[str] = []
    train(saver(save_steps=100, listeners=[Noting(notes)]), runs=2)
    assert notes[-3:] == ["a before 2 False", "a after 2 True", "a end 2"]


def test_listeners_are_told_of_saves_that_others_asked_for() -> None:
    """They belong to the checkpoints, not to the period."""

    class Asker(hookbus.SessionRunHook):
        def after_run(self, run_context: hookbus.SessionRunContext) -> None:
            run_context.request_save("now")

    notes: list[str] = []
    train(saver(save_steps=100, listeners=[Noting(notes)]), Asker(), runs=1)
    assert "a after 1 True" in notes


def test_a_listener_may_stop_the_session() -> None:
    """after_save returning True stops it after that run; the others are still told."""
    notes: list[str] = []
    listeners = [Noting(notes, "a", stop=[4]), Noting(notes, "b")]
    with session(saver(save_steps=2, listeners=listeners)) as opened:
        assert len(list(opened.loop())) == 4
    assert "b after 4 True" in notes
    outcome = opened.outcome
    assert outcome is not None
    assert (outcome.kind, outcome.who) == ("stopped", "checkpoint-saver")
    assert "Noting" in outcome.why


def test_a_listener_cannot_stop_the_session_at_its_ends() -> None:
    """The first save and the last one come after no run: the answer does not count."""
    notes: list[str] = []
    with session(saver(save_steps=5, listeners=[Noting(notes, stop=[0, 3])])) as opened:
        for _ in range(3):
            assert not opened.should_stop()
            opened.run("train")
    assert "a after 3 True" in notes
    assert opened.outcome is not None
    assert opened.outcome.kind == "completed"


def test_an_error_of_a_listener_fails_the_run_and_keeps_the_checkpoint() -> None:
    """Raised in after_save, it leaves run(); what was saved is safe."""

    class Broken(CheckpointSaverListener):
        def after_save(self, session: hookbus.Session, global_step_value: int) -> None:
            if global_step_value == 2:
                raise ConnectionError("no upload today")

    with pytest.raises(ConnectionError) as caught:
        train(saver(save_steps=1, listeners=[Broken()]), runs=5)
    assert "checkpoint-saver" in caught.value.__notes__[0]
    assert saved("runs") == [0, 1, 2]


@pytest.fixture
def run_script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script of five steps under the command, with flags."""
    Path("script.py").write_text(SCRIPT)

    def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hookbus", "run", *flags, "script.py"]
        return commands.run(command)

    return run_script


SCRIPT = """
import hookbus
graph = hookbus.Graph()
graph.variable("w", 0)
graph.train_op(lambda w: w + 1, name="train", updates="w")
with hookbus.MonitoredTrainingSession(
    graph, checkpoint_dir="runs", save_summaries_steps=None, log_step_count_steps=None
) as session:
    for _ in range(5):
        session.run("train")
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ([], [0, 5]),
        (["--checkpoint-saver-save-steps", "2"], [0, 2, 4, 5]),
        (["--checkpoint-saver-save-secs", "0"], [1, 2, 3, 4, 5]),
        (["--checkpoint-saver-save-steps=1", "--checkpoint-saver-max-to-keep=2"], [4, 5]),
        (
            ["--checkpoint-saver-save-steps=1", "--checkpoint-saver-max-to-keep=0"],
            [0, 1, 2, 3, 4, 5],
        ),
    ],
    ids=str,
)
def test_flags_set_the_saver(flags: list[str], steps: list[int], run_script: Run) -> None:
    """Each setting has a flag; steps stand in for the session's seconds."""
    done = run_script(*flags)
    assert done.returncode == 0, done.stderr
    assert saved("runs") == steps


def test_the_flag_that_blocks_it_keeps_everything_from_being_saved(run_script: Run) -> None:
    """-p no:checkpoint-saver: the script runs, and no checkpoint is written."""
    done = run_script("-p", "no:checkpoint-saver")
    assert done.returncode == 0, done.stderr
    assert saved("runs") == []


@pytest.mark.parametrize("hook", [True, False], ids=["-p", "directory"])
def test_flags_alone_save_a_script_that_does_not(hook: bool) -> None:
    """A directory given by a flag switches saving on where the script has none."""
    Path("plain.py").write_text(
        "import hookbus\nwith hookbus.MonitoredSession() as session:\n    session.run([])\n"
    )
    flags = ["--checkpoint-saver-checkpoint-dir", "runs"]
    flags += ["-p", "checkpoint-saver"] if hook else []
    command = [sys.executable, "-m", "hookbus", "run", *flags, "plain.py"]
    commands.run(command)
    assert saved("runs") == [0]


def test_listeners_can_be_named_by_a_flag(run_script: Run) -> None:
    """A list of them is given as MODULE:LIST, as all settings are that are no text."""
    Path("mine.py").write_text(
        "import hookbus\n"
        "class Loud(hookbus.CheckpointSaverListener):\n"
        "    def after_save(self, session, global_step_value):\n"
        "        print('saved', global_step_value)\n"
        "LISTENERS = [Loud()]\n"
    )
    done = run_script("--checkpoint-saver-listeners", "mine:LISTENERS")
    assert done.stdout == "saved 0\nsaved 5\n", done.stderr
