"""Tests opentelemetry: its spans in memory, and what a collector gets over HTTP."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk")

from hookbus_opentelemetry import OpenTelemetryHook
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import hookbus
from hookbus import MonitoredTrainingSession, UsageError
from hookbus.testing import run_steps
from tests.support.profiles import cases

MEMORY = InMemorySpanExporter()
COLLECTOR = Path(__file__).with_name("collector.py")


@pytest.fixture(scope="module", autouse=True)
def provider():
    """Set the provider of the program, which is possible once in a process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(MEMORY))
    trace.set_tracer_provider(provider)
    return provider


@pytest.fixture
def spans():
    """Return a function that gives the finished spans, the earliest first."""
    MEMORY.clear()
    return lambda: sorted(MEMORY.get_finished_spans(), key=lambda span: span.start_time)


def tree(spans) -> list[tuple[str, str | None]]:
    """Return the name of each span and of the one above it."""
    names = {span.context.span_id: span.name for span in spans}
    return [(s.name, s.parent and names[s.parent.span_id]) for s in spans]


def one(spans, name):
    """Return the only span of a name."""
    [span] = [span for span in spans if span.name == name]
    return span


class Asks(hookbus.SessionRunHook):
    """Takes part in each step, and fails or saves in one."""

    def __init__(self, fails=None, saves=None):
        self.fails, self.saves = fails, saves

    def before_run(self):
        pass

    def after_run(self, run_context, run_values):
        if run_values.global_step == self.saves:
            run_context.request_save("a good one")
        if run_values.global_step == self.fails:
            raise ValueError("no good batch")


def test_sampled_steps_have_a_span_with_those_of_their_hooks(spans):
    """The other steps have none."""
    run_steps(OpenTelemetryHook(every_n_steps=3), Asks(), steps=8)

    found = spans()
    steps = [
        span.attributes["hookbus.global_step"] for span in found if span.name == "step"
    ]
    assert steps == [1, 4, 7]
    count = Counter(tree(found))
    assert count["session", None] == 1
    assert count["step", "session"] == 3
    assert count["asks.before_run", "step"] == count["asks.after_run", "step"] == 3
    assert not any(name.startswith("opentelemetry.") for name, _ in count)


def test_a_span_contains_those_below_it(spans):
    """Its times are those of the calls."""
    before = time.time_ns()
    run_steps(OpenTelemetryHook(every_n_steps=2), Asks(), steps=4)
    after = time.time_ns()

    found = {span.context.span_id: span for span in spans()}
    assert len(found) > 6
    for span in found.values():
        assert before <= span.start_time <= span.end_time <= after
        if span.parent is not None:
            above = found[span.parent.span_id]
            assert above.start_time <= span.start_time
            assert span.end_time <= above.end_time


def test_a_call_has_its_plugin_and_its_event(spans):
    """And its own time."""
    run_steps(OpenTelemetryHook(), Asks(), steps=1)

    attributes = one(spans(), "asks.after_run").attributes
    assert attributes["hookbus.plugin"] == "asks"
    assert attributes["hookbus.event"] == "after_run"
    assert attributes["hookbus.own_seconds"] >= 0


def test_a_session_has_its_run_and_its_outcome(spans):
    """The id of the trace is that of the run."""
    run_steps(OpenTelemetryHook(), steps=2)

    session = one(spans(), "session")
    attributes = session.attributes
    assert f"{session.context.trace_id:032x}" == attributes["hookbus.run_id"]
    assert attributes["hookbus.is_resumed"] is False
    assert attributes["hookbus.hookbus"] == hookbus.__version__
    assert attributes["hookbus.last_step"] == 2
    assert attributes["hookbus.outcome.kind"] == "completed"
    assert session.status.status_code.name == "UNSET"


def test_a_save_is_below_its_step(spans):
    """One of a step without a span is below the session."""
    saving = {"directory": "saved", "save_checkpoint_steps": 100}
    run_steps(OpenTelemetryHook(every_n_steps=3), Asks(saves=4), steps=5, **saving)

    found = spans()
    saves = [
        (span.attributes["hookbus.global_step"], above)
        for span, (_, above) in zip(found, tree(found), strict=True)
        if span.name == "save"
    ]
    assert saves == [(0, "session"), (4, "step"), (5, "session")]
    last = [span for span in found if span.name == "save"][-1]
    assert Path(last.attributes["hookbus.path"]).name == "ckpt-5"


def test_an_evaluation_is_below_the_hook_that_evaluates(spans):
    """In a step without a span it is below the session."""
    run_steps(OpenTelemetryHook(every_n_steps=2), steps=2, evaluates=True)

    found = [above for name, above in tree(spans()) if name == "evaluation"]
    assert found == ["evaluator.after_run", "session"]
    assert spans()[-1].attributes["hookbus.evaluation"] == "val"


def test_an_evaluation_of_a_loop_is_below_the_step_before_it(spans):
    """Both belong to one pass of the loop."""
    with MonitoredTrainingSession(hooks=[OpenTelemetryHook(every_n_steps=2)]) as session:
        for _ in session.iterate(range(2)):
            with session.step():
                pass
            with session.evaluation() as evaluation:
                evaluation.report(loss=1.0)

    found = [above for name, above in tree(spans()) if name == "evaluation"]
    assert found == ["step", "session"]


def test_an_error_is_recorded_where_it_was_raised(spans):
    """The hook, its step and the session have it; the session names the plugin."""
    run_steps(OpenTelemetryHook(every_n_steps=1), Asks(fails=2), steps=3, reraise=False)

    found = spans()
    failed = [span for span in found if span.status.status_code.name == "ERROR"]
    assert [span.name for span in failed] == ["session", "step", "asks.after_run"]
    for span in failed:
        assert span.status.description == "ValueError: no good batch"
        assert span.events[0].attributes["exception.type"] == "ValueError"
    attributes = failed[0].attributes
    assert attributes["hookbus.outcome.kind"] == "failed"
    assert attributes["hookbus.outcome.who"] == "asks"
    assert failed[1].attributes["hookbus.global_step"] == 2


def test_an_error_that_on_error_suppressed_is_recorded_at_its_call(spans):
    """The training goes on."""

    class Careless(Asks):
        options = hookbus.HookOptions(on_error="warn")

    run_steps(OpenTelemetryHook(every_n_steps=1), Careless(fails=2), steps=3)

    failed = [span.name for span in spans() if span.status.status_code.name == "ERROR"]
    assert failed == ["careless.after_run"]


class GoesBack(hookbus.SessionRunHook):
    """Asks for one roll-back."""

    options = hookbus.HookOptions(rolls_back=True)
    is_done = False

    def after_run(self, run_context, run_values):
        if run_values.global_step == 3 and not self.is_done:
            self.is_done = True
            run_context.request_rollback("a spike", skip_inputs=False)


def test_a_step_after_a_roll_back_is_a_new_one(spans):
    """It has a span again."""
    saving = {"directory": "saved", "save_checkpoint_steps": 1}
    run_steps(OpenTelemetryHook(every_n_steps=1), GoesBack(), steps=4, **saving)

    steps = [s.attributes["hookbus.global_step"] for s in spans() if s.name == "step"]
    assert steps == [1, 2, 3, 3, 4]


def test_a_step_after_a_roll_back_of_a_custom_loop_is_a_new_one(spans):
    """The backend session stays the same there."""
    hooks = [OpenTelemetryHook(every_n_steps=1), GoesBack()]
    saving = {"checkpoint_dir": "saved", "save_checkpoint_steps": 1}
    with MonitoredTrainingSession(hooks=hooks, **saving) as session:
        for _ in session.iterate(range(4)):
            with session.step():
                pass

    steps = [s.attributes["hookbus.global_step"] for s in spans() if s.name == "step"]
    assert steps == [1, 2, 3, 3, 4]


def test_a_session_is_below_the_span_of_the_program(spans, provider):
    """Its trace is that of the program then."""
    with provider.get_tracer("program").start_as_current_span("search"):
        run_steps(OpenTelemetryHook(), steps=1)

    found = spans()
    assert tree(found)[:2] == [("search", None), ("session", "search")]
    assert len({span.context.trace_id for span in found}) == 1


def test_the_global_generator_is_left_alone():
    """Spans and metrics have ids; those of the SDK are drawn from it."""
    random.seed(3)
    run_steps(OpenTelemetryHook(every_n_steps=1, endpoint="http://127.0.0.1:9"), steps=5)
    run_steps(OpenTelemetryHook(every_n_steps=1), steps=5)
    drawn = random.random()

    random.seed(3)
    assert drawn == random.random()


def test_an_address_without_a_scheme_is_an_error():
    """It would fail at each message."""
    with pytest.raises(UsageError, match="endpoint='localhost:4318' is not the address"):
        OpenTelemetryHook(endpoint="localhost:4318")


def test_a_missing_package_is_named(monkeypatch):
    """The error says how to get it."""
    monkeypatch.setitem(sys.modules, "hookbus_opentelemetry.export", None)
    with pytest.raises(UsageError, match=r"opentelemetry needs packages that cannot be"):
        run_steps(OpenTelemetryHook())


SCRIPT = """
import os, random, sys, time
from pathlib import Path
from hookbus import MonitoredTrainingSession

random.seed(5)
model, pause = {"w": 1.0}, float(sys.argv[1])
with MonitoredTrainingSession(checkpoint_dir=sys.argv[2]) as session:
    session.track(model=model)
    for number in session.iterate(range(60)):
        with session.step() as step:
            model["w"] += random.gauss(0.0, model["w"])
            step.report(loss=model["w"])
        if number % 20 == 19:
            with session.evaluation("val") as evaluation:
                evaluation.report(accuracy=number / 60)
        time.sleep(pause)
        Path("ready").touch()
print(model["w"])
"""


@contextmanager
def collecting(answer="200"):
    """Start a collector in another process; yield the process and its address."""
    command = [sys.executable, str(COLLECTOR), "collected.jsonl", answer]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def collected(what):
    """Return the spans, or the metrics, that the collector got."""
    lines = Path("collected.jsonl").read_text("utf-8").splitlines()
    return [found for line in lines if what in (found := json.loads(line))]


def command(*flags, pause=0.0, directory="runs"):
    """Return the command that trains."""
    Path("train.py").write_text(SCRIPT, "utf-8")
    off = ["-p", "no:summary-saver", "-p", "no:progress"]
    start = [sys.executable, "-m", "hookbus", "run", *flags, *off]
    return [*start, "train.py", str(pause), directory]


def trained(*flags, pause=0.0, directory="runs"):
    """Train in another process."""
    words = command(*flags, pause=pause, directory=directory)
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def test_a_collector_gets_spans_and_metrics():
    """Of a script that knows nothing of them."""
    with collecting() as (_, url):
        done = trained("--opentelemetry", url, "--opentelemetry-every-n-steps", "20")

    assert done.returncode == 0, done.stderr
    assert "spans" not in done.stderr
    found = collected("span")
    by_id = {span["id"]: span for span in found}
    session = one_of(found, "session")
    assert session["service"] == "hookbus"
    assert session["trace"] == session["attributes"]["hookbus.run_id"]
    assert {span["trace"] for span in found} == {session["trace"]}
    steps = [span for span in found if span["span"] == "step"]
    assert [span["attributes"]["hookbus.global_step"] for span in steps] == [1, 21, 41]
    assert {by_id[span["parent"]]["span"] for span in steps} == {"session"}
    names = Counter(span["span"] for span in found)
    assert names["evaluation"] == 3
    assert names["save"] == 2

    points = {
        (point["metric"], *sorted(point["attributes"].items())): point["value"]
        for point in collected("metric")
    }
    assert points["hookbus.global_step",] == 60
    assert points["hookbus.checkpoints",] == 2
    assert ("hookbus.metric", ("name", "loss")) in points
    key = ("hookbus.evaluation.metric", ("evaluation", "val"), ("name", "accuracy"))
    assert points[key] == 59 / 60


def one_of(found, name):
    """Return the only span of a name that a collector got."""
    [span] = [span for span in found if span["span"] == name]
    return span


def test_a_killed_run_goes_on_in_its_trace():
    """The spans of the process that was killed are those that had been sent."""
    flags = ["--checkpoint-saver-save-steps", "5", "--opentelemetry-every-n-steps", "1"]
    with collecting() as (_, url):
        words = command("--opentelemetry", url, *flags, pause=0.2)
        process = subprocess.Popen(
            words,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "50"},
        )
        deadline = time.monotonic() + 60
        while not Path("collected.jsonl").exists() or len(collected("span")) < 30:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = trained("--opentelemetry", url, *flags)

    assert done.returncode == 0, done.stderr
    found = collected("span")
    session = one_of(found, "session")
    assert session["attributes"]["hookbus.is_resumed"] is True
    assert {span["trace"] for span in found} == {session["trace"]}
    steps = [s["attributes"]["hookbus.global_step"] for s in found if s["span"] == "step"]
    assert set(range(session["attributes"]["hookbus.first_step"] + 1, 61)) <= set(steps)
    before = [s for s in found if s["span"] == "step" and s["parent"] != session["id"]]
    assert before


def test_killed_at_any_moment_each_step_has_its_span():
    """All are in one trace, each span once; the values at the end are those without."""
    flags = ["--checkpoint-saver-save-steps", "5", "--opentelemetry-every-n-steps", "1"]
    whole, draw, kills = trained(directory="whole"), random.Random(5), 0
    with collecting() as (_, url):
        for _ in range(cases(2, 10)):
            words = command("--opentelemetry", url, *flags, pause=0.02)
            process = subprocess.Popen(
                words,
                stderr=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "20"},
            )
            time.sleep(draw.uniform(0.3, 0.9))
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        done = trained("--opentelemetry", url, *flags)

    assert (done.returncode, kills > 0) == (0, True), done.stderr
    found = collected("span")
    assert len({span["id"] for span in found}) == len(found)
    assert len({span["trace"] for span in found}) == 1
    # The spans of the last steps before a kill may be lost with the process.
    last = max(found, key=lambda span: span["attributes"].get("hookbus.first_step", -1))
    first = last["attributes"]["hookbus.first_step"]
    steps = {s["attributes"]["hookbus.global_step"] for s in found if s["span"] == "step"}
    assert set(range(first + 1, 61)) <= steps
    assert done.stdout == whole.stdout


@pytest.mark.parametrize("answer", ["dead", "503", "400", "slow"])
def test_a_collector_that_fails_leaves_the_training_alone(answer):
    """The weights are the same, the exit code is 0, and the log tells what was lost."""
    plain = trained(directory="plain")
    flags = ["--opentelemetry-wait-secs", "2", "--opentelemetry-every-n-steps", "1"]
    flags += ["--opentelemetry-metrics-secs", "0.1"]
    with collecting("200" if answer == "dead" else answer) as (process, url):
        if answer == "dead":
            process.kill()
            process.wait()
        done = trained("--opentelemetry", url, *flags, pause=0.02)

    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert "spans were not sent by=opentelemetry" in done.stderr
    if answer != "slow":
        assert done.stderr.count("spans cannot be sent for now; the training goes on") == 1


def test_a_collector_that_dies_in_the_middle_is_told_of():
    """One that comes back would get what waits."""
    flags = ["--opentelemetry-every-n-steps", "1", "--opentelemetry-metrics-secs", "0.1"]
    with collecting() as (collector, url):
        words = command("--opentelemetry", url, *flags, pause=0.1)
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not Path("ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        collector.kill()
        _, log = process.communicate(timeout=120)

    assert process.returncode == 0
    assert log.count("spans cannot be sent for now; the training goes on") == 1
    assert "spans were not sent by=opentelemetry" in log
