"""A thread writes a checkpoint while the training goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook, CheckpointSaverListener
from hookbus_safetensors import SafetensorsCodec

from hookbus import (
    CheckpointError,
    Config,
    EmbeddedSession,
    Graph,
    HookOptions,
    MonitoredTrainingSession,
    SessionRunHook,
    hookimpl,
    latest_checkpoint,
    list_checkpoints,
    load_tracked,
)
from hookbus.checkpoint.reader import part_of, read_checkpoint
from hookbus.saving import copies
from hookbus.saving.copies import Copies
from tests.support.saving import RUN, counting, quiet, saving
from tests.support.thread_library import ranked, thread_library

ELEMENTS = 200_000
"""The elements of a state that is worth a thread."""


@attrs.define(eq=False)
class Gate:
    """A disk that writes a checkpoint only when it is opened, after the first one.

    Attributes:
        opened: set to let the files be written.
        entered: set when a thread has come to it.
        error: raised in place of a write.
    """

    opened: threading.Event = attrs.field(factory=threading.Event)
    entered: threading.Event = attrs.field(factory=threading.Event)
    error: Exception | None = None
    writes: int = 0


@pytest.fixture
def gate(monkeypatch) -> Iterator[Gate]:
    gate, write = Gate(), SafetensorsCodec.write

    def gated(codec: SafetensorsCodec, state: Any, files: Any) -> None:
        if files.directory is not None and not _is_main():
            gate.writes += 1
            gate.entered.set()
            assert gate.opened.wait(60)
            if gate.error is not None:
                raise gate.error
        write(codec, state, files)

    monkeypatch.setattr(SafetensorsCodec, "write", gated)
    yield gate
    gate.opened.set()


def _is_main() -> bool:
    """Return whether this is the thread of a session, and not the one that writes."""
    return threading.current_thread().name != "hookbus-saving"


class Saved(SessionRunHook):
    """Notes the checkpoints that stand, and the global step by then."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, str, bool]] = []

    @hookimpl
    def after_save(self, session, global_step: int, path: Path) -> None:
        self.told.append((global_step, session.global_step, path.name, _is_main()))


class Patient(Saved):
    """Notes the same, whenever it is told."""

    options = HookOptions(can_wait=True)


def opened(*hooks: Any, background: bool | None = True, **options: Any) -> Any:
    """Open a session of a custom loop that saves in each second step."""
    config = quiet().with_options("checkpoint-saver", background=background, **options)
    return saving(RUN, 2, config, hooks=hooks)


def names() -> list[str]:
    return sorted(path.name for path in RUN.iterdir() if path.is_dir())


def test_the_loop_goes_on_and_the_checkpoint_has_the_state_of_its_step(gate):
    """Arrays change in place meanwhile."""
    saved = Saved()
    with opened(saved) as session:
        w = session.track(w=np.zeros(3))
        for i in session.iterate(range(6)):
            with session.step():
                w += 1
            if i == 3:  # step 4 is due, and waits for step 2
                gate.opened.set()
        assert load_tracked(RUN / "ckpt-2", "w").tolist() == [2, 2, 2]
    assert [load_tracked(info.path, "w")[0] for info in list_checkpoints(RUN)] == [
        info.global_step for info in list_checkpoints(RUN)
    ]
    assert {info.global_step for info in list_checkpoints(RUN)} == {0, 2, 4, 6}


def test_after_save_comes_in_the_thread_of_the_session_when_it_stands(gate):
    """With the step of the checkpoint, which is behind that of the session by then."""
    saved = Saved()
    with opened(saved) as session:
        w = session.track(w=np.zeros(3))
        for i in range(4):
            with session.step():
                w += 1
            if i == 2:
                assert saved.told == [(0, 0, "ckpt-0", True)]
                assert names() == ["ckpt-0", f"ckpt-2.tmp-{os.getpid()}"]
                gate.opened.set()
                while (
                    session._state.saver.writer.under_way and not session._state.has_written
                ):
                    pass
        assert saved.told[1] == (2, 3, "ckpt-2", True)
    assert [step for step, *_ in saved.told] == [0, 2, 4]


def test_a_stop_waits_and_writes_the_last_one_at_once(gate):
    """When the block is left, all checkpoints stand."""
    saved = Saved()
    threading.Timer(0.2, gate.opened.set).start()
    with opened(saved) as session:
        w = session.track(w=np.zeros(3))
        for _ in range(3):
            with session.step():
                w += 1
    assert saved.told[1:] == [(2, 3, "ckpt-2", True), (3, 3, "ckpt-3", True)]
    assert latest_checkpoint(RUN).ended == "completed"
    assert gate.writes == 1


@pytest.mark.parametrize("wait", [True, False], ids=["next step", "end"])
def test_an_error_of_the_disk_reaches_the_loop_or_its_end(wait, gate):
    """The saved state stays good. At its end the session still tries to save its state."""
    gate.error = OSError(28, "No space left on device")
    steps = 0

    def train() -> None:
        nonlocal steps
        with opened() as session:
            w = session.track(w=np.zeros(3))
            for _ in range(4 if wait else 2):
                with session.step():
                    w += 1
                steps += 1
                if steps == 2:
                    gate.opened.set()
                    if wait:
                        session._state.saver.writer.under_way._thread.join()

    with pytest.raises(CheckpointError, match=r"step 2 .*No space left") as raised:
        train()
    assert steps == 2
    assert "earlier checkpoints are still there" in str(raised.value)
    assert names() == (["ckpt-0"] if wait else ["ckpt-0", "ckpt-2"])
    kind = json.loads((RUN / "outcome.json").read_text())["kind"]
    assert kind == ("failed" if wait else "completed")


def test_a_failing_session_waits_for_its_checkpoint(gate):
    """The checkpoint is as good as if the step after it had not failed."""
    threading.Timer(0.2, gate.opened.set).start()

    def train() -> None:
        with opened() as session:
            w = session.track(w=np.zeros(3))
            for i in range(3):
                with session.step():
                    w += 1 // (2 - i)

    with pytest.raises(ZeroDivisionError):
        train()
    assert latest_checkpoint(RUN).global_step == 2


def test_numbers_for_its_step_are_recorded_when_it_stands(gate):
    """A hook has them while the thread writes."""

    class Records(SessionRunHook):
        def begin(self, checkpoints) -> None:
            self.checkpoints = checkpoints

        def after_run(self, run_context, run_values) -> None:
            if run_values.global_step == 3:
                self.checkpoints.record_values({"loss": 0.5}, 2)
                gate.opened.set()

    with opened(Records()) as session:
        w = session.track(w=np.zeros(3))
        for _ in range(4):
            with session.step():
                w += 1
    values = {info.global_step: dict(info.values) for info in list_checkpoints(RUN)}
    assert values[2] == {"loss": 0.5}


def test_a_roll_back_waits_and_goes_to_it(gate):
    """It is the newest one."""

    class Back(SessionRunHook):
        done = False

        def after_run(self, run_context, run_values) -> None:
            if run_values.global_step == 3 and not self.done:
                self.done = True
                threading.Timer(0.2, gate.opened.set).start()
                run_context.request_rollback("spike", skip_inputs=True)

    with opened(Back()) as session:
        w = session.track(w=np.zeros(1))
        seen = []
        for value in session.iterate(range(5)):
            with session.step():
                w += 1
            seen.append((value, session.global_step))
    assert seen == [(0, 1), (1, 2), (2, 3), (3, 3), (4, 4)]
    assert w.tolist() == [4]


@pytest.mark.long
def test_a_killed_writer_loses_only_its_own_checkpoint(tmp_path):
    """The next session clears its files away, and resumes from the one before."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os, signal, sys, threading
import numpy as np
from hookbus_safetensors import SafetensorsCodec
from hookbus import Config, MonitoredTrainingSession

write = SafetensorsCodec.write

def killed(codec, state, files):
    write(codec, state, files)
    if threading.current_thread().name == "hookbus-saving" and sys.argv[1:]:
        os.kill(os.getpid(), signal.SIGKILL)

SafetensorsCodec.write = killed
config = Config(autoload=False).with_options(
    "checkpoint-saver", save_steps=2, background=True
)
with MonitoredTrainingSession(checkpoint_dir="run", config=config) as session:
    w = session.track(w=np.zeros(3))
    print("from", session.global_step)
    for i in session.iterate(range(5)):
        with session.step():
            w += i
print("w", w.tolist())
""",
        "utf-8",
    )
    command = [sys.executable, str(script)]
    first = subprocess.run([*command, "kill"], capture_output=True, text=True)
    assert first.returncode == -9
    assert "ckpt-0" in names()
    assert any(".tmp-" in name for name in names())
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.stdout == "from 0\nw [10.0, 10.0, 10.0]\n", again.stderr
    assert not any(".tmp-" in name for name in names())


def test_a_forked_child_leaves_it_to_the_parent(gate):
    """The child has no such thread, and waits for none."""
    with opened() as session:
        w = session.track(w=np.zeros(3))
        for _ in range(2):
            with session.step():
                w += 1
        child = os.fork()
        if not child:
            os._exit(0 if session._state.saver.writer.under_way is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        gate.opened.set()
    assert {info.global_step for info in list_checkpoints(RUN)} == {0, 2}


LARGE = {"w": np.zeros(ELEMENTS)}


@pytest.mark.parametrize(
    ("state", "background", "hooks", "is_late"),
    [
        pytest.param(LARGE, None, [], True, id="large"),
        pytest.param({"w": np.zeros(3)}, None, [], False, id="small"),
        pytest.param({"w": np.zeros(3)}, True, [], True, id="small, asked for"),
        pytest.param(LARGE, False, [], False, id="switched off"),
        pytest.param(LARGE, None, [Saved()], False, id="a hook acts on saves"),
        pytest.param(LARGE, True, [Saved()], True, id="a hook acts, asked for"),
        pytest.param(LARGE, None, [Patient()], True, id="a hook that can wait"),
    ],
)
def test_by_default_a_thread_writes_what_is_worth_it(
    state, background, hooks, is_late, gate
):
    """The rest is written at once, and so is whatever hooks act on."""
    gate.opened.set()
    with opened(*hooks, background=background) as session:
        held = session.track(state={"w": state["w"].copy()})
        for _ in range(4):
            with session.step():
                held["w"] += 1
    assert (gate.writes > 0) == is_late


def test_a_copy_that_takes_too_long_is_not_made(gate, monkeypatch):
    """The checkpoint is written at once instead."""
    monkeypatch.setattr(copies, "MOST_COPIED", 8 * ELEMENTS - 1)
    gate.opened.set()
    with opened(background=None) as session:
        held = session.track(state={"w": np.zeros(ELEMENTS)})
        for _ in range(4):
            with session.step():
                held["w"] += 1
    assert gate.writes == 0


def test_a_saver_with_listeners_writes_at_once(gate):
    """They act on a checkpoint at its own step."""
    saver = CheckpointSaverHook(save_steps=2, listeners=[CheckpointSaverListener()])
    with MonitoredTrainingSession(
        checkpoint_dir=RUN,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        hooks=[saver],
        config=Config(autoload=False, header=False),
    ) as session:
        held = session.track(state={"w": np.zeros(ELEMENTS)})
        for _ in range(4):
            with session.step():
                held["w"] += 1
    assert gate.writes == 0


def test_the_committed_variables_of_a_graph_are_not_copied(monkeypatch):
    """A run replaces them, and changes none of them."""
    graph = Graph()
    graph.variable("w", np.zeros(ELEMENTS))
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    session = EmbeddedSession(graph)
    session.run("train")
    contents = {"variables": session.snapshot(), "hooks": {"x": {"a": np.zeros(5)}}}
    made = Copies()
    monkeypatch.setattr(copies, "LEAST_WRITTEN", 8 * ELEMENTS + 40)
    monkeypatch.setattr(copies, "MOST_COPIED", 40)
    assert made.is_cheap(contents)
    monkeypatch.setattr(copies, "MOST_COPIED", 39)
    assert not made.is_cheap(contents)
    monkeypatch.setattr(copies, "MOST_COPIED", 40)
    monkeypatch.setattr(copies, "LEAST_WRITTEN", 8 * ELEMENTS + 41)
    assert not made.is_cheap(contents)
    copied = made.copy(contents)
    assert copied["variables"]["w"] is contents["variables"]["w"]
    for _ in range(3):
        session.run("train")
    assert copied["variables"]["w"][0] == 1
    assert copied["hooks"]["x"]["a"] is not contents["hooks"]["x"]["a"]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6.0)[::-1],
        np.arange(6)[::2],
        np.float32([1]).reshape(()),
        np.zeros((0, 3)),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=lambda array: f"{array.dtype} {array.shape} {array.strides}",
)
def test_a_copy_has_the_order_of_the_array_and_its_memory_is_used_again(array, tmp_path):
    """So the file of a copy is that of the array, bit for bit."""
    made = Copies()
    first = made.copy({"tracked": {"a": array}})["tracked"]["a"]
    assert files_of({"a": first}, tmp_path / "1") == files_of({"a": array}, tmp_path / "2")
    array = array.copy("K")
    array[...] = np.ones((), array.dtype)
    second = made.copy({"tracked": {"a": array}})["tracked"]["a"]
    assert second is first
    assert files_of({"a": second}, tmp_path / "3") == files_of({"a": array}, tmp_path / "4")


def files_of(state: Any, folder: Path) -> Any:
    """Return the hashes of the files that the codec writes."""
    from hookbus import CheckpointFiles

    folder.mkdir()
    files = CheckpointFiles(folder)
    SafetensorsCodec().write(state, files)
    return files.records


def test_an_array_of_another_form_gets_memory_of_its_own():
    """The state may have changed since the last checkpoint."""
    made = Copies()
    first = made.copy({"tracked": {"a": np.zeros(3)}})["tracked"]["a"]
    for other in (np.zeros(4), np.zeros(3, "f4"), np.zeros((3, 1)).T):
        assert made.copy({"tracked": {"a": other}})["tracked"]["a"] is not first


@pytest.fixture
def ranks(tmp_path):
    with thread_library(tmp_path / "library"):
        yield ranked


STEPS_OF_RANKS = 60
"""In short steps the ranks exchange requests only every sixteen."""


def train_as(rank: int) -> tuple[list[Any], float]:
    """Train as one of several ranks; return what after_save told, and the state."""
    saved = Saved()
    saved.options = HookOptions(ranks="all")
    with opened(saved) as session:
        w = session.track(w=np.zeros(3))
        for _ in range(STEPS_OF_RANKS):
            with session.step():
                w += rank + 1
    return saved.told, w[0]


def test_a_checkpoint_of_several_ranks_counts_when_all_have_written(gate, ranks):
    """Each writes its part in a thread of its own; all hear of it at the same step."""
    seen = []

    def look() -> None:
        assert gate.entered.wait(30)
        seen.extend(names())
        gate.opened.set()

    with ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        told = ranks(2, train_as)
        looking.result()
    assert told[0][0] == told[1][0]
    steps = [step for step, *_ in told[0][0]]
    assert {*steps} >= {info.global_step for info in list_checkpoints(RUN)}
    assert (steps[0], steps[-1]) == (0, STEPS_OF_RANKS)
    assert seen == ["ckpt-0", f"ckpt-{steps[1]}.tmp-{os.getpid()}"]
    assert gate.writes >= 2
    assert list_checkpoints(RUN)[-1].global_step == STEPS_OF_RANKS
    for info in list_checkpoints(RUN):
        restored = read_checkpoint(info.path)
        own = {f"rank-1/{path.name}" for path in (info.path / "rank-1").iterdir()}
        assert {name for name in restored.manifest.files if "/" in name} == own
        parts = [restored.state, part_of(restored, 1)]
        assert [part["tracked"]["w"][0] for part in parts] == [
            info.global_step,
            2 * info.global_step,
        ]


def test_the_error_of_one_rank_is_that_of_all(gate, ranks):
    """None goes on with a checkpoint that lacks the part of another."""
    gate.error = OSError(28, "No space left on device")
    gate.opened.set()

    def train(rank: int) -> str:
        with pytest.raises(CheckpointError) as raised:
            train_as(rank)
        return str(raised.value)

    errors = ranks(2, train)
    assert "cannot write the checkpoint of step" in errors[0]
    assert re.search(r"cannot write .*rank-1: .*No space left on device", errors[1])
    assert not any(".tmp-" in name for name in names())


def test_a_graph_saves_in_the_background_and_resumes(gate):
    """With the session of a graph as with a custom loop."""
    threading.Timer(0.2, gate.opened.set).start()
    graph = counting()
    config = Config(autoload=False, header=False).with_options(
        "checkpoint-saver", save_steps=2, background=True
    )
    with MonitoredTrainingSession(graph, checkpoint_dir=RUN, config=config) as session:
        while session.global_step < 5:
            session.run("train")
    assert gate.writes >= 1
    with MonitoredTrainingSession(counting(), checkpoint_dir=RUN, config=config) as session:
        assert session.run("n") == 5
