"""Tests that a session starts from the newest good checkpoint, or with an error."""

from __future__ import annotations

import contextlib
import re

import attrs
import numpy as np
import pytest

import hookbus
from hookbus import ChiefSessionCreator, Config, Graph, MonitoredSession
from hookbus.backend import EmbeddedSession
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store


def truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


FILES = ["state.json", "arrays.safetensors", "manifest.json"]
DAMAGES = [(d, name) for d in (truncate, empty, remove) for name in FILES]


@pytest.mark.parametrize(
    ("damage", "name"), [*DAMAGES, (flip, "state.json"), (flip, "arrays.safetensors")]
)
def test_the_one_before_a_bad_one_is_used(
    damage, name, tmp_path, killed, opened, names, capsys
):
    """A damaged checkpoint is reported and set aside, and training goes on before it."""
    killed(tmp_path, 3)
    damage(tmp_path / "ckpt-3" / name)
    capsys.readouterr()
    with opened(tmp_path) as session:
        assert session.global_step == 2
        assert session.run(["w", "seen"])[0].tolist() == [2.0] * 4
        session.run("train")
        assert session.run("seen") == 2
    assert names(tmp_path) == ["ckpt-0", "ckpt-1", "ckpt-2", "ckpt-3", "ckpt-3.bad"]
    logged = capsys.readouterr().err
    assert logged.count("bad checkpoint") == 1
    assert name in logged


def test_several_bad_ones_are_all_passed_over(tmp_path, killed, opened, names):
    """Each is set aside, until one is good."""
    killed(tmp_path, 3)
    for step in (3, 2, 1):
        empty(tmp_path / f"ckpt-{step}" / "state.json")
    with opened(tmp_path) as session:
        assert session.global_step == 0
    assert names(tmp_path)[0] == "ckpt-0"
    assert names(tmp_path)[1:] == ["ckpt-1.bad", "ckpt-2.bad", "ckpt-3.bad"]


def test_no_good_checkpoint_is_an_error_each_time(tmp_path, killed, opened, names):
    """Where there were checkpoints, no session starts anew, neither now nor later."""
    killed(tmp_path, 1)
    for step in (0, 1):
        remove(tmp_path / f"ckpt-{step}" / "manifest.json")
    for _ in range(3):
        with pytest.raises(
            hookbus.errors.NoGoodCheckpointError, match="none of them is good"
        ):
            opened(tmp_path)
        assert names(tmp_path) == ["ckpt-0.bad", "ckpt-1.bad"]


def test_a_checkpoint_that_was_being_replaced_is_restored(tmp_path, killed, opened):
    """A crash between the two renames of a second save leaves ckpt-STEP.old."""
    killed(tmp_path, 2)
    (tmp_path / "ckpt-2").rename(tmp_path / "ckpt-2.old")
    with opened(tmp_path) as session:
        assert session.global_step == 2
        session.run("train")
        assert session.run(["w", "seen"])[1] == 2


def test_an_unknown_format_stops_the_session(tmp_path, killed, opened, names):
    """A checkpoint of a later version is neither passed over nor renamed."""
    killed(tmp_path, 2)
    later = attrs.evolve(Manifest.read(tmp_path / "ckpt-2"), format=99)
    Store(tmp_path).rewrite_manifest(tmp_path / "ckpt-2", later)
    with pytest.raises(hookbus.UsageError, match=r"ckpt-2 has checkpoint format 99"):
        opened(tmp_path)
    assert names(tmp_path) == ["ckpt-0", "ckpt-1", "ckpt-2"]


def test_a_codec_that_is_not_installed_stops_the_session(tmp_path, killed, opened, names):
    """The message names it; the checkpoint is not taken for bad."""
    killed(tmp_path, 1)
    manifest = Manifest.read(tmp_path / "ckpt-1")
    Store(tmp_path).rewrite_manifest(
        tmp_path / "ckpt-1", attrs.evolve(manifest, codec="elsewhere")
    )
    with pytest.raises(hookbus.CheckpointError, match=r"'elsewhere' is not installed"):
        opened(tmp_path)
    assert names(tmp_path) == ["ckpt-0", "ckpt-1"]


def test_a_difference_inside_a_variable_is_told_by_the_backend(tmp_path, trained, opened):
    """Two trees look alike from outside; the backend knows where they differ."""

    class Strict(EmbeddedSession):
        def check(self, name, value, who):
            if name == "w":
                raise hookbus.GraphError(f"variable 'w' at [2] cannot take 0.5 from {who}")

    class StrictGraph(Graph):
        backend = Strict

    trained(tmp_path, 1)
    graph = StrictGraph()
    graph.variable("w", np.zeros(4))
    graph.variable("seen", 0)
    why = r"another graph: variable 'w' at \[2\] cannot take 0.5 from the checkpoint\. Give"
    with pytest.raises(hookbus.errors.CheckpointMismatchError, match=why):
        opened(tmp_path, graph=graph)


def test_another_graph_is_refused_and_every_difference_named(
    tmp_path, trained, opened, names
):
    """Missing, additional and differently shaped variables all stand in the message."""
    trained(tmp_path, 1)
    graph = Graph()
    graph.variable("w", np.zeros((2, 2)))
    graph.variable("bias", 0.0)
    with pytest.raises(hookbus.errors.CheckpointMismatchError) as caught:
        opened(tmp_path, graph=graph)
    told = str(caught.value)
    assert "'bias' is only in the graph" in told
    assert "'seen' is only in the checkpoint" in told
    assert re.search(r"'w' .*\(2, 2\) in the graph .*\(4,\) in the checkpoint", told)
    assert names(tmp_path) == ["ckpt-0", "ckpt-1"]


def test_a_variable_of_another_kind_is_another_graph(tmp_path, opened):
    """Where a text was saved, a number cannot be restored: the message names it."""
    opened(tmp_path, graph=holding("a")).close()
    with pytest.raises(hookbus.errors.CheckpointMismatchError, match="'v'"):
        opened(tmp_path, graph=holding(0))


def test_evaluation_may_lack_variables(tmp_path, trained):
    """An evaluation restores what its own graph has."""
    trained(tmp_path, 2)
    graph = Graph()
    graph.variable("w", np.zeros(4))
    creator = ChiefSessionCreator(graph, checkpoint_dir=tmp_path)
    config = Config(autoload=False)
    with MonitoredSession(session_creator=creator, config=config, kind="eval") as session:
        assert session.run("w").tolist() == [2.0] * 4


def test_reading_does_not_need_the_saver(tmp_path, trained, opened, names):
    """-p no:checkpoint-saver stops saving, never reading."""
    trained(tmp_path, 2)
    with opened(
        tmp_path, config=Config(autoload=False).with_plugins("no:checkpoint-saver")
    ) as session:
        assert session.global_step == 2
        session.run("train")
        assert session.run("w").tolist() == [3.0] * 4
    assert names(tmp_path) == ["ckpt-0", "ckpt-1", "ckpt-2"]


def test_variables_are_restored_with_the_type_that_they_had(tmp_path, opened):
    """The checkpoint's dtype counts, not that of the initial value."""
    opened(tmp_path, graph=holding(np.zeros(3, np.float32))).close()
    with opened(tmp_path, graph=holding(np.zeros(3))) as session:
        assert session.run("v").dtype == np.float32


def holding(value):
    """Return a graph with one variable."""
    graph = Graph()
    graph.variable("v", value)
    return graph


class Recorder(hookbus.SessionRunHook):
    """Notes in which order things come back."""

    def __init__(self):
        self.told = []
        self.ended = "not told"

    def begin(self):
        self.told.append("begin")

    def after_create_session(self, session):
        values = session.run(["w", "global_step"])
        self.told.append(("session", values[0][0], values[1]))

    def state_dict(self):
        return {"notes": len(self.told)}

    def load_state_dict(self, state, ended):
        self.told.append(("state", state))
        self.ended = ended


class Counter:
    """An iterator that can be told where to go on, and says so."""

    def __init__(self, told):
        self.told, self.next = told, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.next += 1
        return self.next - 1

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.told.append(("input", state))
        self.next = state["next"]


def recorded(told):
    """Return a graph that trains on a Counter."""
    graph = Graph()
    graph.variable("w", np.zeros(1))
    graph.input("batch", lambda: Counter(told))
    graph.train_op(lambda w, batch: w + batch, name="train", updates="w")
    return graph


def test_state_comes_back_in_a_fixed_order(tmp_path, killed, trained):
    """begin; variables, step and input; hooks' states; after_create_session."""
    killed(tmp_path, 2, Recorder(), graph=recorded([]))
    hook = Recorder()
    trained(tmp_path, 0, hook, graph=recorded(hook.told))
    assert hook.told == [
        "begin",
        ("input", {"next": 2}),
        ("state", {"notes": 2}),
        ("session", 1.0, 2),
    ]


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_a_hook_learns_how_the_session_before_ended(error, tmp_path, trained):
    """load_state_dict may name `ended`: the kind of outcome, or None after a crash."""
    with contextlib.suppress(ZeroDivisionError):
        trained(tmp_path, 1, Recorder(), error=error)
    hook = Recorder()
    trained(tmp_path, 0, hook)
    assert hook.ended == ("completed" if error is None else None)


def test_hooks_that_are_gone_or_new_are_reported(tmp_path, trained, capsys):
    """Neither keeps the session from starting."""
    trained(tmp_path, 1, Recorder())
    other = type("Newcomer", (Recorder,), {})()
    trained(tmp_path, 0, other)
    logged = capsys.readouterr().err
    assert "the state of a hook that is not on hook=recorder" in logged
    assert "no state for this hook" in logged
    assert "hook=newcomer" in logged
    assert other.ended == "not told"


def test_another_dtype_is_told_and_taken_over(tmp_path, opened, capsys):
    """Training may have changed it: the checkpoint is no other graph's for that."""

    def graph(dtype):
        graph = Graph()
        graph.variable("w", np.zeros(4, dtype))
        return graph

    opened(tmp_path, graph=graph("f8")).close()
    with opened(tmp_path, graph=graph("f4")) as session:
        assert session.run_step_fn(
            lambda step_context: step_context.session.run("w").dtype
        ) == np.dtype("f8")
    assert "restored with another dtype variable=w graph=float32 saved=float64" in (
        capsys.readouterr().err
    )
