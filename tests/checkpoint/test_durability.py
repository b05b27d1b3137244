"""Tests what survives a process killed at any moment of a save, and a full disk.

A process is killed before each call that changes the disk or makes it safe, which is also
after the call before it. It is also killed inside each write: from then on the kernel lets
it write files of a few bytes, and kills it at the next one. That reaches the writes of any
library, those of safetensors included.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

import hookbus
from hookbus.checkpoint.store import Store
from tests.support.profiles import cases

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="forks, kills, limits files"
)

COMMON = '''
import io, json, os, resource, shutil, signal, sys
from pathlib import Path

import numpy as np

import hookbus
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from hookbus_checkpoint_saver import CheckpointSaverHook
from tests.support.stored import write


def graph(size=4):
    graph = hookbus.Graph()
    graph.input("batch", lambda: iter(range(1000)))
    graph.variable("w", np.zeros(size))
    graph.variable("seen", -1)
    graph.train_op(lambda w, batch: (w + 1, batch), name="train", updates=["w", "seen"])
    return graph


def put(store, content):
    def fill(files):
        for name in ("a", "b"):
            with files.open(name) as file:
                file.write(content.encode() * 100)

    write(store, Manifest(2, "codec", "who", "why", {}, {}), fill)


def opened(directory, size=4, keep=2, *hooks, background=False):
    saver = CheckpointSaverHook(
        str(directory), save_steps=1, max_to_keep=keep, background=background
    )
    return hookbus.MonitoredSession(
        graph(size),
        hooks=[saver, *hooks],
        config=hookbus.Config(autoload=False),
    )


def watch(tell):
    """Call *tell* with event and path before whatever changes the disk or makes it safe."""
    fsync, opening = os.fsync, io.open

    def synced(descriptor):
        tell("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def empty(path, mode="r", *arguments, **settings):
        file = opening(path, mode, *arguments, **settings)
        if "r" not in mode:  # there, and nothing is written yet
            tell("empty", str(path))
        return file

    def audit(event, arguments):
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir"):
            tell(event, str(arguments[0]))

    os.fsync, io.open = synced, empty
    sys.addaudithook(audit)
'''

KILLED = (
    COMMON
    + """
def train(directory, report):
    with opened(directory, keep=1) as session:
        for _ in range(3):
            session.run("train")
            os.write(report, b"x")


def train_in_background(directory, report):
    with opened(directory, keep=1, background=True) as session:
        for _ in range(3):
            session.run("train")
            os.write(report, b"x")


class Chooses(hookbus.SessionRunHook):
    # Keeps step 3 for good, and the one with the largest number.

    def begin(self, checkpoints):
        self.checkpoints = checkpoints

    def after_run(self, run_context, run_values):
        step = run_values.global_step
        if step == 3:
            run_context.request_save("good", keep=True)
        self.checkpoints.record_values({"score": {4: 9.0}.get(step, 0.0)}, step)

    @hookbus.hookimpl
    def pruning(self, global_step, stored):
        scores = {info.global_step: info.values.get("score", 0.0) for info in stored}
        return "the best" if global_step == max(scores, key=scores.get) else None


def choose(directory, report):
    with opened(directory, 4, 1, Chooses()) as session:
        while session.global_step < 5:
            session.run("train")
            os.write(report, b"x")


def replace(directory, report):
    store = Store(directory)
    store.prepare()
    put(store, "new")
    os.write(report, b"x")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_writing():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))


def kill_at(number, kill):
    left = [number]

    def tell(event, path):
        left[0] -= 1
        if left[0] == 0:
            kill()

    watch(tell)


def killed(work, template, directory, number, kill):
    shutil.copytree(template, directory)
    reading, report = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # a thread could not do it
            kill_at(number, kill)
            globals()[work](directory, report)
            os._exit(0)
        except hookbus.errors.NoGoodCheckpointError:
            os._exit(3)
        finally:
            os._exit(1)
    os.close(report)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([directory.name, code, len(os.read(reading, 100))]), flush=True)
    os.close(reading)
    return code


work, template, target, stride = sys.argv[1:]
number, over = 1, False
while not over:
    for kill in (die_writing, die):
        directory = Path(target) / f"{number}-{kill.__name__}"
        code = killed(work, template, directory, number, kill)
    over = code != -signal.SIGKILL
    number += int(stride)
"""
)

MOMENTS = pytest.mark.parametrize(
    "stride", [23, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"]
)
"""Whether a process is killed at some or at every change of the disk."""


@pytest.fixture
def killed_at_each(tmp_path, python):
    """Do some work in processes that are killed, each a moment later than the one before.

    Yields the directory that each left, and how far it said it had come.
    """

    def killed_at_each(work, template, stride, ends=0):
        target = tmp_path / "killed"
        done = python(KILLED, work, template, target, stride)
        assert done.returncode == 0, done.stderr
        results = [json.loads(line) for line in done.stdout.splitlines()]
        before = [code for name, code, _ in results if name.endswith("die")]
        inside = [code for name, code, _ in results if name.endswith("die_writing")]
        assert len(before) > 15 // stride
        assert before == [-signal.SIGKILL] * (len(before) - 1) + [ends]
        assert set(inside) <= {-signal.SIGXFSZ, ends}
        for name, _, reported in results:
            yield target / name, reported

    return killed_at_each


FILES = {"arrays.safetensors", "state.json", "manifest.json"}
OTHERS = {".writing", "outcome.json"}


@pytest.mark.sampled(1)
@MOMENTS
@pytest.mark.parametrize(
    ("work", "late"),
    [
        pytest.param("train", 0, id="at once"),
        pytest.param("train_in_background", 1, id="later"),
    ],
)
def test_a_kill_at_any_moment_of_training_loses_at_most_one_step(
    work, late, stride, tmp_path, killed, opened, names, killed_at_each
):
    """The newest checkpoint is whole, and that of the last step done or of the next.

    In the background it may be the one before.
    """
    killed(tmp_path / "before", 2)
    stride *= cases(2, 1)
    for directory, reported in killed_at_each(work, tmp_path / "before", stride):
        for found in Store(directory).found():
            found.manifest()
        with opened(directory) as session:
            step = session.global_step
            assert 2 + reported - late <= step <= 3 + reported
            assert session.run("w").tolist() == [step] * 4
            session.run("train")
            assert session.run("seen") == step or (reported == 3 and step == 5)
        left = names(directory)
        assert all(re.fullmatch(r"ckpt-\d+", name) for name in left), left
        assert left[-1] == f"ckpt-{step + 1}"
        assert {path.name for path in directory.glob("*/*")} == FILES
        assert {path.name for path in directory.iterdir()} - {*left} == OTHERS


@pytest.mark.parametrize(
    "stride", [61, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.long
def test_a_kill_at_any_moment_of_pruning_changes_nothing_about_what_stays(
    stride, tmp_path, killed, python, names, killed_at_each
):
    """The session that goes on ends with the checkpoints that one would have kept."""
    killed(tmp_path / "before", 2)
    every = [*killed_at_each("choose", tmp_path / "before", stride)]
    done = python(
        f"{KILLED.partition('work, template, target')[0]}{GO_ON}", *[d for d, _ in every]
    )
    assert done.returncode == 0, done.stderr
    for directory, _ in every:
        assert names(directory) == ["ckpt-3", "ckpt-4", "ckpt-5"]
        for found in Store(directory).found():
            found.manifest()


GO_ON = """
for directory in sys.argv[1:]:
    choose(Path(directory), os.open(os.devnull, os.O_WRONLY))
"""


@pytest.mark.long
@MOMENTS
def test_a_kill_at_any_moment_of_a_second_save_leaves_one_of_both(
    stride, tmp_path, python, killed_at_each
):
    """While a checkpoint is replaced, the old one or the new one can be found, whole."""
    done = python(f"{COMMON}\nput(Store(sys.argv[1]), 'old')", tmp_path / "before")
    assert done.returncode == 0, done.stderr
    for directory, reported in killed_at_each("replace", tmp_path / "before", stride):
        for _ in range(2):
            found = Store(directory).found()[0]
            assert found.manifest().global_step == 2
            contents = {(found.path / name).read_text() for name in ("a", "b")}
            assert contents == {"new" * 100} or (contents == {"old" * 100} and not reported)
            Store(directory).prepare()  # as the next session does
            Store(directory).clear()
            assert [path.name for path in directory.iterdir()] == ["ckpt-2"]


@MOMENTS
@pytest.mark.long
def test_a_kill_while_bad_ones_are_set_aside_does_not_make_them_good(
    stride, tmp_path, killed, opened, killed_at_each
):
    """However far it came: the next start knows too that no checkpoint is good."""
    saver = CheckpointSaverHook(save_steps=1, max_to_keep=0)
    killed(tmp_path / "before", 20, saver, save_checkpoint_steps=0)
    for path in (tmp_path / "before").glob("ckpt-*"):
        (path / "state.json").write_text("")
    for directory, _ in killed_at_each("train", tmp_path / "before", stride, ends=3):
        with pytest.raises(hookbus.errors.NoGoodCheckpointError):
            opened(directory)


def test_everything_is_synced_before_it_counts(tmp_path, killed, python):
    """Files, manifest and folder before the rename, the parent after it, removal last."""
    killed(tmp_path / "runs", 2)
    done = python(TRACED, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    trace = [tuple(event) for event in json.loads(done.stdout)]
    place = re.compile(r".*/ckpt-3\.tmp-\d+")
    rename = next(
        i
        for i, (e, p) in enumerate(trace)
        if (e, bool(place.fullmatch(p))) == ("os.rename", True)
    )
    temporary = Path(trace[rename][1])
    before, after = trace[:rename], trace[rename + 1 :]
    synced = [Path(path).relative_to(temporary) for e, path in before if e == "fsync"]
    names = [str(path) for path in synced]
    assert sorted(names[:2]) == ["arrays.safetensors", "state.json"]
    assert names[2:] == ["manifest.json", "."]
    opened = [i for i, (e, p) in enumerate(before) if e == "open"]
    assert opened[-1] < before.index(("fsync", str(temporary / "manifest.json")))
    assert after[0] == ("fsync", str(temporary.parent))
    assert any(event == "os.remove" for event, _ in after)
    assert not any(event == "os.remove" for event, _ in before)


TRACED = (
    COMMON
    + """
with opened(sys.argv[1]) as session:
    trace = []
    watch(lambda *event: trace.append(event))
    session.run("train")
    print(json.dumps(trace))
    os._exit(0)
"""
)


@pytest.mark.long
@pytest.mark.parametrize("limit", [1_000, 100_000], ids=["the tree", "the arrays"])
@pytest.mark.parametrize("background", cases([True], [False, True]))
def test_a_full_disk_is_a_checkpoint_error(background, limit, tmp_path, python, names):
    """The save fails as a whole, with the reason; what was saved before restores."""
    done = python(FULL, tmp_path / "runs", limit, background)
    assert done.stdout.startswith("CheckpointError: ")
    assert "File too large" in done.stdout
    assert names(tmp_path / "runs") == ["ckpt-1", "ckpt-2"]
    again = python(FULL, tmp_path / "runs", 1_000_000, background)
    assert again.stdout == "2.0 at step 2\ndone\n", again.stderr


FULL = (
    COMMON
    + """
directory, limit = Path(sys.argv[1]), int(sys.argv[2])
size = 50_000
if not directory.exists():
    with opened(directory, size) as session:
        session.run("train")
        session.run("train")
background = sys.argv[3] == "True"
with opened(directory, size, background=background) as session:
    if limit == 1_000_000:
        print(session.run("w").mean(), "at step", session.global_step)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        session.run("train")
        if background:
            session._state.saver.writer.under_way._thread.join()
            session.run("train")
        print("done")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        os._exit(1)
"""
)
