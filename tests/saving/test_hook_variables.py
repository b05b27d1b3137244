"""Variables that hooks add: a checkpoint can be read with and without the hook."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

import hookbus
from hookbus import SessionRunArgs, SessionRunHook
from hookbus.checkpoint.manifest import FileRecord, Manifest
from hookbus.checkpoint.store import Store
from tests.support.watching import lines as lines

LEFT = "variables of a hook are left out"
NEW = "variables of a hook are new"


class AverageHook(SessionRunHook):
    """Keeps a moving average of ``w`` in a variable, and counts in an input of its own."""

    def __init__(self, shape: int = 4, name: str = "average/w") -> None:
        self.shape, self.name = shape, name

    def begin(self, graph):
        average = graph.variable(self.name, np.zeros(self.shape))
        graph.input("tick", lambda: iter(range(100)))
        self.op = graph.train_op(
            lambda w, average, tick: average + w[: self.shape] + 0 * tick,
            name="average/update",
            reads={"average": average},
            updates=average,
            increment=0,
        )

    def before_run(self):
        return SessionRunArgs(self.op)

    def after_create_session(self, session):
        self.restored = session.variables()[self.name].tolist()
        self.step = session.global_step


def texts(lines, event):
    """Return the log lines of an event, without event and level."""
    return [
        {key: value for key, value in line.items() if key not in ("event", "log_level")}
        for line in lines
        if line["event"] == event
    ]


def test_a_checkpoint_is_read_without_the_hook(tmp_path, trained, opened, lines):
    """The variables of the hook are left, and a line names them."""
    trained(tmp_path, 2, AverageHook())
    lines.clear()
    with opened(tmp_path) as session:
        assert session.global_step == 2
        assert session.run("w").tolist() == [2.0] * 4
    assert texts(lines, LEFT) == [{"hook": "average", "variables": ["average/w"]}]
    assert texts(lines, NEW) == []


def test_a_checkpoint_is_read_with_a_new_hook(tmp_path, trained, lines):
    """Its variables get their initial values, and a line names them."""
    trained(tmp_path, 2)
    lines.clear()
    hook = AverageHook()
    trained(tmp_path, 1, hook)
    assert (hook.step, hook.restored) == (2, [0.0] * 4)
    assert texts(lines, NEW) == [{"hook": "average", "variables": ["average/w"]}]
    assert texts(lines, LEFT) == []


def test_the_variables_of_a_hook_come_back_with_it(tmp_path, trained, lines):
    """With the hook on in both sessions nothing is left or new."""
    trained(tmp_path, 3, AverageHook())
    hook = AverageHook()
    trained(tmp_path, 1, hook)
    assert hook.restored == [3.0] * 4
    assert texts(lines, LEFT) == texts(lines, NEW) == []


def test_a_hook_that_was_off_begins_anew(tmp_path, trained):
    """A checkpoint that is written without the hook does not carry its variables on."""
    trained(tmp_path, 2, AverageHook())
    trained(tmp_path, 1)
    hook = AverageHook()
    trained(tmp_path, 1, hook)
    assert (hook.step, hook.restored) == (3, [0.0] * 4)


def test_a_variable_that_the_hook_gave_up_is_left(tmp_path, trained, lines):
    """A hook may rename its variables between two versions."""
    trained(tmp_path, 2, AverageHook(name="old"))
    hook = AverageHook(name="new")
    trained(tmp_path, 1, hook)
    assert hook.restored == [0.0] * 4
    assert texts(lines, LEFT) == [{"hook": "average", "variables": ["old"]}]
    assert texts(lines, NEW) == [{"hook": "average", "variables": ["new"]}]


def test_the_users_own_variables_must_still_match(tmp_path, trained, opened, counting):
    """A variable that belongs to no hook is refused, and only that is named."""
    trained(tmp_path, 1, AverageHook())
    graph = counting()
    graph.variable("bias", 0.0)
    with pytest.raises(hookbus.errors.CheckpointMismatchError) as caught:
        opened(tmp_path, graph=graph)
    assert "'bias' is only in the graph" in str(caught.value)
    assert "average/w" not in str(caught.value)


def test_a_hooks_variable_of_another_shape_is_refused(tmp_path, trained, opened):
    """The message names the plugin, which can be switched off."""
    trained(tmp_path, 1, AverageHook())
    with pytest.raises(
        hookbus.errors.CheckpointMismatchError,
        match=r"'average/w' of plugin 'average' has the shape \(2,\) in the graph",
    ):
        opened(tmp_path, AverageHook(shape=2))


def test_a_users_variable_may_become_that_of_a_hook(tmp_path, trained, counting):
    """Variables are matched by name, whichever hook adds them."""
    graph = counting()
    graph.variable("average/w", np.full(4, 7.0))
    trained(tmp_path, 1, graph=graph)
    hook = AverageHook()
    trained(tmp_path, 1, hook)
    assert hook.restored == [7.0] * 4


def test_a_checkpoint_that_names_no_owner_is_restored(tmp_path, trained, opened):
    """As older versions wrote them: with the hook they match, without it they do not."""
    trained(tmp_path, 2, AverageHook())
    path = tmp_path / "ckpt-2"
    state = json.loads((path / "state.json").read_text())
    assert state.pop("owners") == {"average/w": "average"}
    (path / "state.json").write_text(json.dumps(state))
    manifest = Manifest.read(path)
    files = {name: FileRecord.of(path / name) for name in manifest.files}
    Store(tmp_path).rewrite_manifest(path, attrs.evolve(manifest, files=files))
    hook = AverageHook()
    opened(tmp_path, hook).close()
    assert hook.restored == [1.0] * 4
    with pytest.raises(
        hookbus.errors.CheckpointMismatchError, match="'average/w' is only in"
    ):
        opened(tmp_path)


def test_an_evaluation_takes_part_with_hooks_of_its_own(tmp_path, trained, lines):
    """It restores what it has, and no line mentions the leftovers of training hooks."""
    trained(tmp_path, 2, AverageHook())
    lines.clear()
    graph = hookbus.Graph()
    graph.variable("w", np.zeros(4))

    class Spread(SessionRunHook):
        options = hookbus.HookOptions(kinds=("eval",))

        def begin(self, graph):
            graph.variable("spread", 1.0)

    creator = hookbus.ChiefSessionCreator(graph, checkpoint_dir=tmp_path)
    config = hookbus.Config(autoload=False)
    with hookbus.MonitoredSession(
        session_creator=creator, hooks=[Spread()], config=config, kind="eval"
    ) as session:
        assert session.run("w").tolist() == [2.0] * 4
        assert session.run("spread") == 1.0
    assert texts(lines, LEFT) == []


def test_a_custom_loop_resumes_without_the_hook(tmp_path, lines):
    """A hook may also add variables to its empty graph."""

    class Counts(SessionRunHook):
        def begin(self, graph):
            graph.variable("counts", 3.0)

    def run(*hooks):
        with hookbus.MonitoredTrainingSession(
            checkpoint_dir=tmp_path, hooks=hooks, config=hookbus.Config(autoload=False)
        ) as session:
            session.track(model=np.zeros(2))
            with session.step():
                pass
        return session.global_step

    assert [run(Counts()), run(), run(Counts())] == [1, 2, 3]
    assert texts(lines, LEFT) == [{"hook": "counts", "variables": ["counts"]}]
    assert texts(lines, NEW) == [{"hook": "counts", "variables": ["counts"]}]
