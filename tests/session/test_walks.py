"""The way of a fetch and of a save through the code, counted call by call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)
from hookbus.backend.codegen import FILES


def calls_of(do: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the file and the function of each Python call, generated methods included."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls.append((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
    return calls[1:]  # without the call of *do* itself


class Fetcher(SessionRunHook):
    """Fetches a dict, in a new request for each run."""

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs({"loss": "loss", "w": "w"})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen = run_values.results


def test_a_fetch_enters_each_file_once_down_and_once_up() -> None:
    """In a repeated run: once to ask the hook, and once to execute and to tell it."""
    graph = Graph()
    graph.variable("w", 1.0)
    graph.op(lambda w: w * w, name="loss")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    hook = Fetcher()
    with MonitoredSession(graph, hooks=[hook], config=Config(autoload=False)) as session:
        for _ in range(2):
            session.run("train")
        calls = calls_of(lambda: session.run("train"))
    assert hook.seen == {"loss": 9.0, "w": 3.0}
    own = [_named(call) for call in calls if call[0] != __file__]
    request = [call for call in own if call[0] in ("hook.py", *MADE)]
    assert [call for call in own if call not in request] == [
        ("monitored.py", "run"),
        ("stepper.py", "open"),
        (FILES, "ask"),
        ("stepper.py", "close"),
        (FILES, "run"),
        (FILES, "tell"),
    ]
    assert len(request) == 1  # the hook makes a SessionRunArgs


def test_a_request_that_comes_again_needs_no_key() -> None:
    """After a run with another request, only the first one is looked up by its key."""
    graph = Graph()
    graph.variable("w", 1.0)
    graph.op(lambda w: w * w, name="loss")
    with MonitoredSession(graph, config=Config(autoload=False)) as session:
        for fetches in ("w", "loss") * 3:
            session.run(fetches)
        calls = [calls_of(lambda: session.run("w")) for _ in range(2)]
    looked_up = [("trace.py", "find") in map(_named, each) for each in calls]
    assert looked_up == [True, False]


def _named(call: tuple[str, str]) -> tuple[str, str]:
    """Return the name of a call's file, and that of its function."""
    return _file_of(call[0]), call[1]


def _file_of(file: str) -> str:
    """Return the name of a file without its folder, or its number among those made."""
    return FILES if file.startswith(FILES) else Path(file).name


MADE = [
    f"<attrs generated {what} hookbus.hooks.hook.SessionRunArgs>"
    for what in ("methods", "init")
]
"""The file of the constructor of a request, and its name in older versions of attrs."""


class Counting:
    """An object of a custom loop that counts how often its state is read."""

    def __init__(self) -> None:
        self.read = 0

    def state_dict(self) -> dict[str, Any]:
        self.read += 1
        return {"value": float(self.read)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["value"]


class SaveEachStep(SessionRunHook):
    """Asks for a checkpoint after each step, and looks at what is about to be saved."""

    def after_run(self, run_context: Any) -> None:
        run_context.request_save("each step")


class Looker(SaveEachStep):
    """Implements the veto as well, so that the values are needed twice."""

    @hookimpl
    def veto_save(self, values: Any) -> None:
        self.looked = dict(values)


def test_a_save_reads_each_tracked_state_once(tmp_path: Path) -> None:
    """A checkpoint needs one look at a tracked object, with a veto and without one."""
    for hook in (SaveEachStep(), Looker()):
        with MonitoredTrainingSession(
            checkpoint_dir=tmp_path / type(hook).__name__,
            hooks=[hook],
            save_checkpoint_steps=1000,
            config=Config(autoload=False),
        ) as session:
            model = session.track(model=Counting())
            with session.step():
                pass
            for _ in range(3):
                before = model.read
                with session.step():
                    pass
                assert model.read == before + 1
    assert hook.looked == {"model.value": model.read}


def test_writing_the_state_of_the_generators_takes_no_call_per_number(
    tmp_path: Path,
) -> None:
    """Python's generator is 625 numbers, and the codec writes them in one go."""
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path,
        hooks=[SaveEachStep()],
        save_checkpoint_steps=1000,
        config=Config(autoload=False),
    ) as session:
        for _ in range(2):
            with session.step():
                pass

        def one() -> None:
            with session.step():
                pass

        codec = [
            n
            for file, n in calls_of(one)
            if file.endswith("hookbus_safetensors/__init__.py")
        ]
    assert codec
    assert len(codec) < 300
