"""Tests when a session saves, what a checkpoint holds, and who can veto it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

import hookbus


class Asker(hookbus.SessionRunHook):
    """Asks for a checkpoint after each run."""

    def after_run(self, run_context):
        run_context.request_save("because I can")


class Stateful(hookbus.SessionRunHook):
    """Counts the runs that it has seen, and keeps the count."""

    def __init__(self):
        self.seen = 0
        self.saved_at = []

    def after_run(self, run_values):
        self.seen = run_values.global_step

    @hookbus.hookimpl
    def after_save(self, global_step):
        self.saved_at.append(global_step)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def kept_state(directory, step):
    """Return the contents of a checkpoint other than arrays."""
    return json.loads((directory / f"ckpt-{step}" / "state.json").read_text())


def test_one_checkpoint_is_written_however_many_ask(tmp_path, trained):
    """Two hooks and the saver ask after each run; each step is saved once."""
    watcher = Stateful()
    trained(tmp_path, 3, Asker(), watcher, Asker())
    assert watcher.saved_at == [0, 1, 2, 3]


def test_the_first_to_ask_is_named(tmp_path, trained):
    """The manifest says who wanted the checkpoint and why."""
    trained(tmp_path, 2, Asker(), save_checkpoint_steps=100)
    manifest = json.loads((tmp_path / "ckpt-1" / "manifest.json").read_text())
    assert (manifest["saved_by"], manifest["why"]) == ("asker", "because I can")


@pytest.mark.parametrize("place", ["chief_only_hooks", "hooks"])
def test_a_checkpoint_holds_every_hooks_state_after_the_step(place, tmp_path, opened):
    """Whether a hook comes before or after the saver, its state is that of the step."""
    hook = Stateful()
    with opened(tmp_path, **{place: [hook]}) as session:
        session.run("train")
        assert kept_state(tmp_path, 1)["hooks"] == {"stateful": {"seen": 1}}
        session.run("train")
        assert kept_state(tmp_path, 2)["hooks"] == {"stateful": {"seen": 2}}


def test_the_last_checkpoint_is_written_after_every_end(tmp_path, trained):
    """The effects of a hook's end() are in the checkpoint."""

    class Finisher(Stateful):
        def end(self):
            self.seen = "finished"

    trained(tmp_path, 2, Finisher(), save_checkpoint_steps=100)
    assert kept_state(tmp_path, 2)["hooks"] == {"finisher": {"seen": "finished"}}


def test_two_hooks_of_a_class_keep_states_of_their_own(tmp_path, trained):
    """States are kept under the names that the hooks bear, numbered where need be."""
    trained(tmp_path, 1, Stateful(), Stateful())
    assert kept_state(tmp_path, 1)["hooks"].keys() == {"stateful", "stateful-2"}


def test_what_a_hook_assigns_is_in_the_checkpoint(tmp_path, trained, opened):
    """Writes asked for after a run are done before that run is saved."""

    class Halver(hookbus.SessionRunHook):
        def after_run(self, run_context):
            run_context.assign({"w": np.full(4, 0.5)})

    trained(tmp_path, 1, Halver())
    with opened(tmp_path) as session:
        assert session.run("w").tolist() == [0.5] * 4


def test_a_run_that_fails_is_not_saved(tmp_path, trained, names):
    """An error in any hook's after_run keeps that step from being saved."""

    class Breaker(hookbus.SessionRunHook):
        def after_run(self, run_values):
            assert run_values.global_step < 2

    with pytest.raises(AssertionError):
        trained(tmp_path, 3, Breaker())
    assert names(tmp_path) == ["ckpt-0", "ckpt-1"]


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_saves_nothing_at_the_end(error, tmp_path, trained, names):
    """After a failure nobody knows whether the state is any good."""
    with pytest.raises(type(error)):
        trained(tmp_path, 2, error=error, save_checkpoint_steps=100)
    assert names(tmp_path) == ["ckpt-0"]


def test_the_step_just_restored_is_not_saved_again(tmp_path, trained, killed):
    """It is safe already: a restart writes nothing until a step is done."""
    killed(tmp_path, 2)
    before = (tmp_path / "ckpt-2").stat()
    watcher = Stateful()
    trained(tmp_path, 0, watcher)
    after = (tmp_path / "ckpt-2").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert watcher.saved_at == []


def test_a_step_is_saved_once_though_asked_for_again(tmp_path, opened):
    """A run that advances no step asks in vain."""
    watcher = Stateful()
    with opened(tmp_path, Asker(), watcher) as session:
        session.run("train")
        session.run("w")
        session.run("w")
    assert watcher.saved_at == [0, 1]


def vetoing(**options):
    """Make a hook that refuses each checkpoint but that of step 0."""

    class Vetoer(hookbus.SessionRunHook):
        @hookbus.hookimpl(**options)
        def veto_save(self, global_step):
            return "the state is poisoned" if global_step else None

    return Vetoer()


@pytest.mark.parametrize("place", ["chief_only_hooks", "hooks"])
@pytest.mark.parametrize("options", [{}, {"tryfirst": True}, {"trylast": True}], ids=str)
def test_any_hook_may_refuse_a_checkpoint(place, options, tmp_path, opened, names, capsys):
    """Wherever the hook stands: nothing is written, the log says why, nobody is told."""
    told = []

    class Listener(hookbus.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            told.append(("before", global_step_value))

        def after_save(self, session, global_step_value):
            told.append(("after", global_step_value))

    saver = CheckpointSaverHook(save_steps=1, listeners=[Listener()])
    hooks = {"hooks": [saver], "chief_only_hooks": []}
    hooks[place].append(vetoing(**options))
    with opened(tmp_path, save_checkpoint_steps=0, **hooks) as session:
        session.run("train")
    assert names(tmp_path) == ["ckpt-0"]
    assert told == [("before", 0), ("after", 0)]
    logged = capsys.readouterr().err
    assert logged.count("checkpoint refused") == 2  # after the run and at the end
    assert "by=vetoer" in logged
    assert "the state is poisoned" in logged


def test_a_refusal_holds_for_one_save_only(tmp_path, trained, names):
    """The next one is asked about anew."""

    class Fussy(hookbus.SessionRunHook):
        @hookbus.hookimpl
        def veto_save(self, values):
            return "odd" if values["w"][0] % 2 else None

    trained(tmp_path, 5, Fussy())
    assert names(tmp_path) == ["ckpt-0", "ckpt-2", "ckpt-4"]


def test_veto_save_sees_the_values_about_to_be_saved(tmp_path, trained):
    """Every variable is there under its name, and the step."""
    seen = []

    class Looker(hookbus.SessionRunHook):
        @hookbus.hookimpl
        def veto_save(self, values, global_step, run_context):
            first = None if run_context is None else run_context.global_step
            seen.append((sorted(values), values["w"][0], global_step, first))

    trained(tmp_path, 1, Looker())
    assert seen == [(["seen", "w"], 0.0, 0, None), (["seen", "w"], 1.0, 1, 0)]


def test_an_object_that_cannot_be_saved_is_named(tmp_path, trained, names):
    """A hook's state with such an object fails the run; what was saved before stays."""

    class Greedy(Stateful):
        def state_dict(self):
            return {"best": object()} if self.seen else {"best": None}

    place = "/hooks/greedy/best has the type builtins.object"
    with pytest.raises(hookbus.CheckpointError, match=place):
        trained(tmp_path, 1, Greedy())
    assert names(tmp_path) == ["ckpt-0"]


def test_a_variable_that_cannot_be_saved_is_named(tmp_path, opened):
    """The first save, at the start, finds it: before any step was done in vain."""
    graph = hookbus.Graph()
    graph.variable("words", frozenset({"a", "b"}))
    with pytest.raises(hookbus.CheckpointError, match=r"/variables/words .*frozenset"):
        opened(tmp_path, graph=graph)


def test_a_directory_that_cannot_be_written_is_told_before_the_first_step(tmp_path, opened):
    """The session is not made, the message names the place, and nothing is left there."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        hookbus.CheckpointError, match=r"cannot write checkpoints into .*file"
    ):
        opened(tmp_path / "file" / "runs")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "in the way"


def test_without_the_saver_nothing_is_saved(tmp_path, opened, names):
    """-p no:checkpoint-saver means that no checkpoint is written, whichever party asks."""
    config = hookbus.Config(autoload=False).with_plugins("no:checkpoint-saver")
    with opened(tmp_path, Asker(), config=config) as session:
        session.run("train")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "period", [{"save_checkpoint_secs": 0}, {"save_checkpoint_secs": None}]
)
def test_a_session_that_is_not_to_save_does_not(period, tmp_path, trained, names):
    """No period, no checkpoints; not at the end either."""
    trained(tmp_path, 2, save_checkpoint_steps=None, **period)
    assert names(tmp_path) == []


def test_of_sessions_in_threads_one_saves_into_a_directory(tmp_path, counting):
    """However close they come; the others are told who does, and harm nothing."""
    together, over = threading.Barrier(6), threading.Barrier(6)

    def train(_):
        together.wait()
        try:
            with hookbus.MonitoredTrainingSession(
                counting(), checkpoint_dir=tmp_path, config=hookbus.Config(header=False)
            ):
                over.wait()
                return "saved"
        except hookbus.UsageError as error:
            over.wait()
            return str(error)

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(train, range(6)))
    assert found.count("saved") == 1
    others = {text for text in found if text != "saved"}
    assert len(others) == 1, others
    (message,) = others
    assert message.startswith(
        "another session of this process is already saving checkpoints into"
    )


def test_a_directory_that_was_removed_is_made_again_by_the_next_save(
    tmp_path, opened, names
):
    """And as before, no other session can save into it."""
    directory = tmp_path / "runs"
    with opened(directory) as session:
        session.run("train")
        shutil.rmtree(directory)
        session.run("train")
        assert names(directory) == ["ckpt-2"]
        before = (directory / ".writing").read_text()
        with pytest.raises(hookbus.UsageError, match="is already saving checkpoints into"):
            opened(directory)
    assert before == f"{os.getpid()}\n"


def test_a_directory_that_is_removed_after_the_last_save_gets_the_last_checkpoint(
    tmp_path, opened, names
):
    """A checkpoint that is gone does not count as saved."""
    directory = tmp_path / "runs"
    with opened(directory) as session:
        session.run("train")
        shutil.rmtree(directory)
    assert names(directory) == ["ckpt-1"]
    assert json.loads((directory / "outcome.json").read_text())["step"] == 1


class Counter(Asker):
    """Counts the runs that it has seen, those without a step too, and keeps the count."""

    def __init__(self, asks=True):
        self.asks, self.count, self.saves = asks, 0, []

    def after_run(self, run_context):
        self.count += 1
        if self.asks:
            run_context.request_save("a run")

    @hookbus.hookimpl
    def before_save(self):
        self.saves.append(self.count)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("asks", [True, False], ids=["asked", "at the end"])
def test_a_hooks_state_that_changed_is_saved_at_the_same_step(asks, tmp_path, opened):
    """Runs that advance no step change hooks; their states are saved anyway."""
    hook = Counter(asks)
    with opened(tmp_path, hook) as session:
        session.run("train")
        for _ in range(5):
            session.run("w")
    assert hook.saves == ([0, 1, 2, 3, 4, 5, 6] if asks else [0, 1, 6])

    again = Counter()
    with opened(tmp_path, again) as session:
        assert (session.global_step, again.count) == (1, 6)
    assert again.saves == []


def test_a_change_in_the_first_run_after_a_restore_is_saved(tmp_path):
    """Also if no plugin asked for a checkpoint before that run."""

    class Quiet(Counter):
        def begin(self, checkpoints):
            checkpoints.enable(tmp_path, max_to_keep=None)

    off = hookbus.Config(autoload=False)
    for count in (1, 2, 3):
        hook, graph = Quiet(), hookbus.Graph()
        graph.train_op(lambda: None, name="train")
        with hookbus.MonitoredSession(graph, hooks=[hook], config=off) as session:
            session.run("train" if count == 1 else "global_step")
        assert (session.global_step, hook.count) == (1, count)


def test_an_input_that_moved_is_saved_at_the_same_step(tmp_path, opened):
    """A run that only reads input asks for a checkpoint, and the next session reads on."""
    with contextlib.suppress(ZeroDivisionError), opened(tmp_path, Counter()) as session:
        session.run("train")
        session.run("batch")
        raise ZeroDivisionError
    with opened(tmp_path, Counter()) as session:
        session.run("train")
        assert session.run("seen") == 2


def test_a_checkpoint_replaced_by_an_idle_session_keeps_its_end(tmp_path, opened, trained):
    """A session that trains nothing leaves it noted how the one before ended."""
    trained(tmp_path, 3)
    with contextlib.suppress(ZeroDivisionError), opened(tmp_path, Counter()) as session:
        session.run("w")
        raise ZeroDivisionError
    assert kept_state(tmp_path, 3)["hooks"] == {"counter": {"count": 1}}
    manifest = json.loads((tmp_path / "ckpt-3" / "manifest.json").read_text())
    assert (manifest["saved_by"], manifest["ended"]) == ("counter", "completed")


def test_the_last_checkpoint_is_not_written_again(tmp_path, trained, opened):
    """If nothing changed since the last save, the end only notes how the session ended."""
    hook = Counter(asks=False)
    trained(tmp_path, 3, hook)
    assert hook.saves == [0, 1, 2, 3]
    inode = (tmp_path / "ckpt-3" / "state.json").stat().st_ino
    with opened(tmp_path, hook):
        pass
    assert hook.saves == [0, 1, 2, 3]
    assert (tmp_path / "ckpt-3" / "state.json").stat().st_ino == inode
