"""Tests the records of event files that are no values, and the files of later sessions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hookbus_step_counter import StepCounterHook
from hookbus_summary_saver import SummarySaverHook

from hookbus import (
    AbortedError,
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.testing import run_steps

QUIET = Config(autoload=False)


def saver(period: int = 1, **settings) -> SummarySaverHook:
    """Make a hook that records every so many steps."""
    return SummarySaverHook(save_steps=period, output_dir="out", **settings)


def train(graph: Graph, *hooks: SessionRunHook, runs: int = 1) -> None:
    """Run so often."""
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(runs):
            session.run("train")


def cut(runs: int, *hooks: SessionRunHook, custom_loop: bool = False, **settings) -> None:
    """Train on from the last checkpoint; an error ends it after so many steps."""
    arguments = {"directory": "saved", "save_checkpoint_steps": 5, **settings}
    errors = {runs + 1: OSError("cut short")}
    run_steps(
        *hooks,
        steps=runs + 1,
        errors=errors,
        reraise=False,
        custom_loop=custom_loop,
        **arguments,
    )


def starts(files) -> list[list[int]]:
    """Return the steps of the START records in each file."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    return [[event.step for event in logs(file, SessionLog.START)] for file in files]


def logs(file, status: int) -> list:
    """Return a file's records of a session with some status."""
    return [event for event in file if event.session_log.status == status]


class Evaluates(SessionRunHook):
    """Says that it has evaluated the model, at the start and then every so many steps."""

    def __init__(self, every: int = 1, name: str | None = None):
        self.every, self.name = every, name

    def after_create_session(self, session):
        self.first = session.global_step

    def before_run(self, run_context):
        step = run_context.global_step
        if (step - self.first) % self.every == 0:
            metrics = {"loss": float(step)}
            run_context.emit("evaluated", metrics=metrics, global_step=step, name=self.name)


class FailsOnce(SessionRunHook):
    """Is preempted once after a run, behind the saver."""

    def __init__(self, at: int):
        self.at = at

    def after_run(self, run_values):
        if run_values.global_step == self.at:
            self.at = -1
            raise AbortedError("preempted")


def test_a_file_begins_with_its_version_and_the_start(model, records):
    """The step is the first that the session does."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    train(model(), saver())
    ((version, start, *_),) = records()
    assert (version.file_version, version.step) == ("brain.Event:2", 0)
    assert (start.session_log.status, start.step) == (SessionLog.START, 1)


def test_records_are_there_for_readers_at_once(model, steps_in):
    """While the training goes on."""
    found = []
    with MonitoredSession(model(), hooks=[saver(2)], config=QUIET) as session:
        for _ in range(4):
            session.run("train")
            found.append(steps_in())
    assert found == [[1], [1], [1, 3], [1, 3]]


def test_the_graph_has_each_node_and_what_it_reads(read_all):
    """And none of those by which hooks collect values."""
    graph = Graph()
    graph.placeholder("x")
    graph.variable("w", 1.0)
    graph.input("batch", lambda: [1.0])
    graph.op(lambda w: (w, w), name="pair", outputs=("left", "right"))
    graph.op(lambda w, batch: w * batch, name="loss")
    graph.train_op(
        lambda loss: (loss, {"change": loss}), name="train", updates="w", outputs="change"
    )
    graph.summary.scalar("right", "pair.right")
    train(graph, saver())
    nodes = {node.name: (node.op, list(node.input)) for node in read_all().Graph().node}
    assert nodes == {
        "global_step": ("Variable", []),
        "x": ("Placeholder", []),
        "w": ("Variable", []),
        "batch": ("Input", []),
        "pair": ("Op", ["w"]),
        "pair.left": ("Output", ["pair"]),
        "pair.right": ("Output", ["pair"]),
        "loss": ("Op", ["w", "batch"]),
        "train": ("Op", ["loss"]),
        "change": ("Output", ["train"]),
    }


def test_the_graph_has_what_hooks_add_to_it(model, read_all):
    """Wherever they stand; it is written when all have begun."""

    class Adds(SessionRunHook):
        def begin(self, graph):
            graph.op(lambda w: -w, name="minus")

    train(model(), saver(), Adds())
    assert "minus" in [node.name for node in read_all().Graph().node]


@pytest.mark.parametrize("custom_loop", [False, True])
def test_what_computes_nothing_has_no_graph(read_all, custom_loop):
    """A graph of variables alone, or that of a custom loop."""
    graph = Graph()
    graph.variable("w", 1.0)
    parts = {} if custom_loop else {"graph": graph}
    with MonitoredSession(hooks=[saver()], config=QUIET, **parts) as session:
        if custom_loop:
            with session.step() as step:
                step.summary.scalar("x", 1.0)
        else:
            session.run("w")
    assert not read_all().Tags()["graph"]


def test_each_checkpoint_is_noted(records):
    """With its step and its path, the last one too, which comes after the last end."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    run_steps(saver(), steps=5, directory="saved", save_checkpoint_steps=3)
    (file,) = records()
    noted = logs(file, SessionLog.CHECKPOINT)
    assert [event.step for event in noted] == [0, 3, 5]
    paths = [Path(event.session_log.checkpoint_path) for event in noted]
    assert paths == [Path(f"saved/ckpt-{step}").absolute() for step in (0, 3, 5)]


@pytest.mark.parametrize(
    ("name", "folder"), [(None, "eval"), ("valid", "eval_valid"), ("a/b", "eval_a/b")]
)
def test_an_evaluation_is_a_run_of_its_own(name, folder, read_back):
    """In a folder below, so that its loss does not mix with that of the training."""
    run_steps(saver(2), Evaluates(every=2, name=name), steps=4)
    assert read_back(f"out/{folder}") == {"loss": [(0, 0.0), (2, 2.0)]}
    assert [step for step, _ in read_back("out")["loss"]] == [1, 3]


@pytest.mark.parametrize(("name", "folder"), [("a", "eval_a"), ("a/b", "eval_a")])
def test_an_evaluation_is_written_into_no_linked_folder(name, folder):
    """It may be that of another run."""
    Path("other/b").mkdir(parents=True)
    Path("out").mkdir()
    Path("out", folder).symlink_to("../other")
    told = f"summary-saver does not write to .*out/{folder}, which is a link"
    with pytest.raises(UsageError, match=told):
        run_steps(saver(2), Evaluates(every=2, name=name), steps=4)
    assert not [path for path in Path("other").rglob("*") if path.is_file()]


def test_several_evaluations_do_not_mix(read_back):
    """Each name has a folder."""
    run_steps(saver(), Evaluates(2, "a"), Evaluates(3, "b"), steps=4)
    steps = {name: [s for s, _ in read_back(f"out/eval_{name}")["loss"]] for name in "ab"}
    assert steps == {"a": [0, 2], "b": [0, 3]}


def test_where_nothing_is_evaluated_there_is_no_folder():
    """Files of runs below are made when there is something for them."""
    run_steps(saver(), steps=2)
    assert all(path.is_file() for path in Path("out").iterdir())


@pytest.mark.parametrize("custom_loop", [False, True])
def test_each_session_has_a_file_and_says_where_it_starts(records, steps_in, custom_loop):
    """TensorBoard forgets what the one before did beyond its checkpoint."""
    for _ in range(3):
        cut(8, saver(), custom_loop=custom_loop)
    assert starts(records()) == [[1], [6], [11]]
    assert steps_in() == list(range(1, 19))


def test_a_resumed_session_does_not_repeat_an_evaluation(read_back, records):
    """Also where it evaluates the very step that it resumes at."""
    cut(8, saver(), Evaluates(every=5))
    cut(8, saver(), Evaluates(every=5))
    assert [step for step, _ in read_back("out/eval")["loss"]] == [0, 5, 10]
    assert starts(records("out/eval")) == [[0], [5]]


def test_a_resumed_session_keeps_the_evaluation_that_it_does_not_repeat(read_back):
    """An evaluation at the checkpoint counts, where it is not done anew."""
    cut(8, saver(), Evaluates(every=5))

    class Later(Evaluates):
        def after_create_session(self, session):
            self.first = session.global_step + 1

    cut(8, saver(), Later(every=5))
    assert [step for step, _ in read_back("out/eval")["loss"]] == [0, 5, 6, 11]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("period", [1, 2, 3, 7])
@pytest.mark.parametrize("increment", [1, 2, 5])
def test_a_session_that_was_cut_short_goes_on_with_the_period(
    model, steps_in, period, increment
):
    """It records the steps that one without a break does, whatever a run adds."""
    settings = {
        "checkpoint_dir": "saved",
        "summary_dir": "out",
        "save_summaries_steps": period,
        "save_checkpoint_steps": 3 * increment,
        "log_step_count_steps": None,
        "config": QUIET,
    }

    def go_on(runs: int) -> None:
        with MonitoredTrainingSession(model(increment), **settings) as session:
            for _ in range(runs):
                session.run("train")
            raise OSError("cut short")

    for _ in range(4):
        with pytest.raises(OSError, match="cut short"):
            go_on(5)  # of which 3 are saved
    whole = SummarySaverHook(save_steps=period, output_dir="whole")
    train(model(increment), whole, runs=14)
    assert steps_in("out") == steps_in("whole")


def test_a_period_in_seconds_goes_on_without_the_pause(model, steps_in, clock):
    """The rest of it at the time of the checkpoint is left of it."""
    settings = {"save_summaries_steps": None, "log_step_count_steps": None}

    def go_on(*hooks) -> None:
        with MonitoredTrainingSession(
            model(),
            checkpoint_dir="saved",
            save_checkpoint_steps=1,
            hooks=hooks,
            config=QUIET,
            **settings,
        ) as session:
            for _ in range(3):
                session.run("train")
                clock[0] += 1.0
            raise OSError("cut short")

    for _ in range(3):
        hook = SummarySaverHook(save_secs=4, output_dir="out")
        with pytest.raises(OSError, match="cut short"):
            go_on(hook)
        clock[0] += 1000
    # Of the third second of each session nothing was saved: it came after the run.
    assert steps_in() == [1, 6]


def test_after_a_session_that_was_over_the_first_run_is_recorded(model, steps_in):
    """The period begins anew."""
    for _ in range(2):
        run_steps(saver(7), steps=4, directory="saved", save_checkpoint_steps=9)
    assert steps_in() == [1, 5]


@pytest.mark.parametrize("directory", ["saved", None])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_recovery_leaves_one_file_without_duplicates(directory, at, records, steps_in):
    """Records from before it stay, and are not recorded again."""
    settings = {} if directory is None else {"save_checkpoint_steps": 4}
    run_steps(saver(3), FailsOnce(at), steps=8, directory=directory, **settings)
    assert steps_in() == [1, 4, 7]
    assert starts(records()) == [[1]]


@pytest.mark.parametrize("directory", ["saved", None])
def test_a_recovery_repeats_no_evaluation(read_back, records, directory):
    """Repeated evaluations stay as they were, in the one file that there is."""
    settings = {} if directory is None else {"save_checkpoint_steps": 2}
    hooks = [saver(), Evaluates(every=2), FailsOnce(6)]
    run_steps(*hooks, steps=8, directory=directory, **settings)
    assert starts(records("out/eval")) == [[0]]
    assert [step for step, _ in read_back("out/eval")["loss"]] == [0, 2, 4, 6]


def test_a_step_that_is_evaluated_twice_counts_once(read_back):
    """By metric and by name: one hook may well give what another one does not."""

    class Twice(SessionRunHook):
        def after_run(self, run_context, run_values):
            step = run_values.global_step
            for metrics in ({"a": 1.0}, {"a": 2.0, "b": 3.0}):
                for name in (None, "other"):
                    run_context.emit(
                        "evaluated", metrics=metrics, global_step=step, name=name
                    )

    run_steps(saver(), Twice(), steps=2)
    expected = {"a": [(1, 1.0), (2, 1.0)], "b": [(1, 3.0), (2, 3.0)]}
    assert [read_back("out/eval"), read_back("out/eval_other")] == [expected] * 2


def test_the_saver_knows_a_thousand_evaluations(read_back):
    """Evaluations that come again after more of them are written again."""

    class Many(SessionRunHook):
        def after_run(self, run_context):
            for step in (*range(1025), 1, 0):
                run_context.emit(
                    "evaluated", metrics={"a": 1.0}, global_step=step, name=None
                )

    run_steps(saver(), Many(), steps=1)
    assert [step for step, _ in read_back("out/eval")["a"]] == [*range(1025), 0]


def test_a_session_that_is_preempted_at_its_start_has_one_file(records, steps_in):
    """It is opened once, however often the backend session is."""

    class FailsAtFirst(SessionRunHook):
        left = 2

        def after_create_session(self):
            self.left -= 1
            if self.left >= 0:
                raise AbortedError("preempted")

    run_steps(saver(), FailsAtFirst(), steps=2, recovery=Recovery(first_wait=0))
    assert starts(records()) == [[1]]
    assert steps_in() == [1, 2]


def test_what_is_measured_when_the_session_is_made_is_recorded(read_back, records):
    """By a hook of any place: the file is open, and has its start, before it is told."""

    class Measures(SessionRunHook):
        @hookimpl
        def addhooks(self, bus):
            self.bus = bus

        def after_create_session(self, session):
            step = session.global_step
            self.bus.emit("measured", values={"free": 7.0}, global_step=step)

    cut(8, saver())
    cut(8, Measures(), saver())
    assert read_back()["free"] == [(5, 7.0)]
    assert starts(records()) == [[1], [6]]


def open_files() -> list[str]:
    """Return the event files that this process holds open."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            targets.append(os.readlink(descriptor))  # noqa: PTH115 (it may be gone)
        except OSError:
            continue
    return [target for target in targets if "tfevents" in target]


@pytest.mark.parametrize("fails", [False, True])
def test_no_file_is_left_open(fails):
    """However the session ends, and however many runs it wrote."""
    errors = {3: OSError()} if fails else {}
    hooks = [saver(), Evaluates(), Evaluates(name="b")]
    run_steps(*hooks, steps=3, errors=errors, reraise=False)
    assert open_files() == []


@pytest.mark.parametrize("same_hook", [True, False])
def test_sessions_one_after_the_other_have_a_file_each(model, records, same_hook):
    """Also those of one hook object, which forgets what it knew of the first."""
    first = saver(5)
    second = first if same_hook else saver(5)
    graph = model()
    train(graph, first, runs=3)
    train(graph, second, runs=7)
    files = [[event.step for event in file if event.step] for file in records()]
    assert files == [[1, 1], [1, 1, 6]], "the start, then what was recorded"


@pytest.mark.parametrize("place", ["file", "file/out"])
def test_a_file_in_the_place_of_the_directory_is_told_before_the_first_step(place, model):
    """As is all that keeps it from being written, and how to go on without."""
    Path("file").write_text("in the way", "utf-8")
    hook = SummarySaverHook(save_steps=1, output_dir=place)
    told = r"cannot write to .*/file.*: .*--summary-saver-output-dir, or -p no:summary"
    with pytest.raises(UsageError, match=told):
        MonitoredSession(model(), hooks=[hook], config=QUIET)
    assert Path("file").read_text("utf-8") == "in the way"


def test_a_folder_of_evaluations_that_cannot_be_written_is_a_warning(lines, steps_in):
    """A summary that is unknown before the first step does not end the training."""
    Path("out").mkdir()
    Path("out/eval").write_text("in the way", "utf-8")
    run_steps(saver(), Evaluates(), steps=3)
    assert steps_in() == [1, 2, 3]
    warnings = [line for line in lines if line["event"].startswith("hook failed")]
    assert [(line["plugin"], line["bus_event"]) for line in warnings] == [
        ("summary-saver", "evaluated")
    ]


def test_what_step_counter_measures_is_of_this_session(read_back):
    """After a resume its clock starts anew, so that no rate spans the pause."""
    cut(8, StepCounterHook(every_n_steps=2), saver(9))
    cut(8, StepCounterHook(every_n_steps=2), saver(9))
    steps = [step for step, _ in read_back("out")["global_step/sec"]]
    assert steps == [3, 5, 8, 10, 12]
