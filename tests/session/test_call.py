"""The session of one call: its hooks, its plugins, and how the next call goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import (
    CallSession,
    ChiefSessionCreator,
    Config,
    Graph,
    ImpliedPlugin,
    ImpliedSetting,
    MonitoredTrainingSession,
    NewestIn,
    Scaffold,
    SessionRunHook,
    StopSession,
    UsageError,
    load_variables,
)
from hookbus.errors import CheckpointError

OFF = Config(autoload=False, header=False)
RUN = Path("run")


class Calls(SessionRunHook):
    """Notes its name in a list when it is called."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def after_run(self):
        self.calls.append(self.name)


class StopsAt(SessionRunHook):
    """Stops at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_run(self, run_context, run_values):
        if run_values.global_step >= self.step:
            run_context.request_stop("far enough")


def reading() -> Graph:
    """Return a graph whose train op adds up what its input gives: 1, 2, 3 ..."""
    graph = Graph()
    graph.variable("total", 0)
    graph.input("batch", lambda: range(1, 10))
    graph.train_op(lambda total, batch: total + batch, name="train", updates="total")
    return graph


def call(steps: int, config: Config = OFF, **more: Any) -> CallSession:
    """Train for some steps in one call, with checkpoints; return its session."""
    saver = ImpliedPlugin(
        "checkpoint-saver", "call", {"save_steps": ImpliedSetting(1)}, required=True
    )
    session = CallSession(
        ChiefSessionCreator(reading(), checkpoint_dir=RUN),
        "train",
        plugins=[saver],
        own_hooks={"call()": StopsAt(steps)},
        config=config,
        **more,
    )
    with session:
        while not session.should_stop():
            session.run("train")
    return session


def total() -> int:
    """Return the variable in the newest checkpoint."""
    return load_variables(RUN)["total"]


def test_a_new_call_reads_its_input_from_the_start():
    """After one that returned; the variables go on."""
    call(3)
    assert total() == 1 + 2 + 3
    call(5)
    assert total() == 1 + 2 + 3 + 1 + 2


def test_a_call_that_was_cut_short_goes_on_in_its_input():
    """As after a preemption."""

    class Preempted(SessionRunHook):
        def after_run(self, run_context):
            run_context.request_stop("the machine is needed", kind="preempted")

    with pytest.raises(SystemExit):
        call(5, hooks={"hooks": [Preempted()]})
    call(5)
    assert total() == 1 + 2 + 3 + 4 + 5


def test_its_hooks_are_called_in_order():
    """First ones, those of the argument, own ones."""
    calls: list[str] = []
    graph = reading()
    with CallSession(
        ChiefSessionCreator(graph),
        "train",
        hooks={"hooks": [Calls("given", calls)]},
        first_hooks={"chief_hooks": [Calls("first", calls)]},
        own_hooks={"call()": Calls("own", calls)},
        config=OFF,
    ) as session:
        session.run("train")
    assert calls == ["first", "given", "own"]


def test_no_flag_switches_an_own_hook_off():
    """A flag names hooks of the other arguments."""
    calls: list[str] = []
    with CallSession(
        ChiefSessionCreator(reading()),
        "train",
        hooks={"hooks": [Calls("given", calls)]},
        own_hooks={"call()": Calls("own", calls)},
        config=OFF.with_plugins("no:calls"),
    ) as session:
        session.run("train")
    assert calls == ["own"]


def test_an_error_of_an_own_hook_names_the_promise():
    """And where it comes from."""

    class Fails(SessionRunHook):
        def after_run(self):
            raise OSError("disk")

    creator = ChiefSessionCreator(reading())
    with (
        pytest.raises(OSError, match="disk") as caught,
        CallSession(creator, "train", own_hooks={"call()": Fails()}, config=OFF) as session,
    ):
        session.run("train")
    [note] = caught.value.__notes__
    assert note == "hookbus: raised by plugin 'call()' (the call itself) in after_run()"


def test_a_session_for_training_has_own_hooks_too():
    """They are called last there as well."""
    calls: list[str] = []
    with MonitoredTrainingSession(
        reading(),
        hooks=[Calls("given", calls)],
        own_hooks={"call()": Calls("own", calls)},
        config=OFF,
    ) as session:
        session.run("train")
    assert calls == ["given", "own"]


def test_a_flag_replaces_the_setting_of_a_plugin_and_a_file_only_a_default(tmp_path):
    """So the call has its say, and the user the last word."""

    def stops(config: Config, **given: Any) -> int:
        stop = ImpliedPlugin(
            "stop-at-step", "call(steps=2)", {"last_step": ImpliedSetting(2, **given)}
        )
        with CallSession(
            ChiefSessionCreator(reading()), "train", plugins=[stop], config=config
        ) as session:
            while not session.should_stop():
                session.run("train")
        return session.global_step

    file = tmp_path / "hookbus.toml"
    file.write_text("autoload = false\n[stop-at-step]\nlast_step = 4\n", "utf-8")
    from_file = Config.from_environment({"HOOKBUS_ADDOPTS": f"-c {file}"})
    assert stops(OFF) == 2
    assert stops(OFF.with_plugins("no:stop-at-step")) == 9
    assert stops(from_file) == 2
    assert stops(from_file, is_default=True) == 4


def test_a_required_plugin_that_is_missing_is_an_error():
    """One that is not required is left out."""
    creator = ChiefSessionCreator(reading())
    wanted = ImpliedPlugin("no-such", "x=1")
    with CallSession(creator, "train", plugins=[wanted], config=OFF) as session:
        session.run("train")
    needed = ImpliedPlugin("no-such", "x=1", required=True)
    with pytest.raises(UsageError, match="x=1 needs the plugin 'no-such'"):
        CallSession(creator, "train", plugins=[needed], config=OFF)


def test_an_exception_that_stops_the_session_is_a_good_end():
    """Its text is the reason; nothing leaves the block."""
    with CallSession(ChiefSessionCreator(reading()), "train", config=OFF) as session:
        session.run("train")
        raise StopSession("good enough")
    assert session.outcome is not None
    assert (session.outcome.kind, session.outcome.why) == ("stopped", "good enough")


def test_the_newest_checkpoint_is_chosen_when_it_is_read():
    """One that appears after the creator is made counts."""
    call(2)
    creator = ChiefSessionCreator(reading(), checkpoint_filename_with_path=NewestIn(RUN))
    call(3)
    with CallSession(creator, "eval", config=OFF) as session:
        assert session.run("global_step") == 3


def test_a_directory_without_a_checkpoint_has_no_newest_one():
    """The error names the directory."""
    creator = ChiefSessionCreator(
        reading(), checkpoint_filename_with_path=NewestIn("empty")
    )
    with (
        pytest.raises(CheckpointError, match="empty"),
        CallSession(creator, "eval", config=OFF),
    ):
        pass


def test_a_scaffold_starts_with_the_variables_of_a_checkpoint():
    """Those that both have; its own init_fn comes after that."""
    call(3)
    graph = reading()
    graph.variable("other", 7)
    seen = []
    own = Scaffold(graph, init_fn=lambda _, session: seen.append(session.run("total")))
    with hookbus.SingularMonitoredSession(
        graph, scaffold=own.warm_started(RUN), config=OFF
    ) as session:
        assert session.run(["total", "other"]) == [6, 7]
    assert seen == [6]


def test_a_scaffold_needs_a_checkpoint_to_start_with():
    """It is read when the scaffold is made."""
    with pytest.raises(CheckpointError, match="nowhere"):
        Scaffold(reading()).warm_started("nowhere")
