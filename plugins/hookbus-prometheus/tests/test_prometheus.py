"""Tests prometheus: real scrapes of training runs in this and in other processes."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from hookbus_prometheus import PrometheusHook
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

import hookbus
from hookbus import MonitoredSession, MonitoredTrainingSession, UsageError
from hookbus.testing import run_steps
from tests.support.live_pages import until
from tests.support.profiles import cases
from tests.support.thread_library import ranked, thread_library

SCRIPT = """
import time
from pathlib import Path
from hookbus import MonitoredTrainingSession

with MonitoredTrainingSession(checkpoint_dir="runs") as session:
    for number in session.iterate(range(100_000)):
        with session.step() as step:
            step.report(loss=1.0 / (number + 1))
        if number % 10 == 9:
            with session.evaluation("val") as evaluation:
                evaluation.report(accuracy=number / 10)
        if number >= 20:
            Path("ready").touch()
            time.sleep(0.02)
        if Path("enough").exists():
            break
"""


ENDS = """
import sys, time
from hookbus import MonitoredTrainingSession

with MonitoredTrainingSession(
    checkpoint_dir=sys.argv[1], save_checkpoint_steps=5
) as session:
    state = session.track(state={"w": 1.0})
    for number in session.iterate(range(300)):
        with session.step() as step:
            state["w"] *= 0.99
            step.report(loss=state["w"])
        if number % 50 == 49:
            with session.evaluation("val") as evaluation:
                evaluation.report(accuracy=1 - state["w"])
        time.sleep(0.01)
"""
"""A run that comes to an end."""


def scraped(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Ask as Prometheus does; return each value by its name and labels."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def one(values, name):
    """Return the labels of the only value of a name."""
    [labels] = [dict(labels) for found, labels in values if found == name]
    return labels


class Scrapes(hookbus.SessionRunHook):
    """Scrapes at the end of some steps, in the session itself."""

    def __init__(self, lines, *steps):
        self.lines, self.steps, self.values = lines, steps, {}

    def after_run(self, run_values):
        if run_values.global_step in self.steps:
            self.values[run_values.global_step] = scraped(url_in(self.lines))


def url_in(lines) -> str:
    """Return the newest address in the log."""
    return [line["url"] for line in lines if line["event"] == "metrics are served"][-1]


def hook(**settings) -> PrometheusHook:
    """Return a hook at a free port."""
    return PrometheusHook(port=0, every_n_steps=1, **settings)


def bound(port=0) -> socket.socket:
    """Return a socket that listens at a port, as a server that is started again."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", port))
    taken.listen()
    return taken


@contextmanager
def training(*flags):
    """Train in another process; yield its address, when it is well under way."""
    Path("train.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "--prometheus", "0", *flags]
    command += ["--prometheus-every-n-steps", "1", "train.py"]
    with Path("log.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not Path("ready").exists():
            assert process.poll() is None, Path("log.txt").read_text("utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        [url] = re.findall(r"url=(\S+)", Path("log.txt").read_text("utf-8"))
        yield process, url
    finally:
        process.kill()
        process.wait()
        Path("ready").unlink(missing_ok=True)


def test_a_running_training_can_be_scraped():
    """Its values are those of the moment, and go on from one scrape to the next."""
    with training() as (_, url):
        first, step = scraped(url), ("hookbus_global_step", ())
        time.sleep(0.3)
        second = scraped(url)

    assert second[step] > first[step] > 20
    assert first["hookbus_steps_total", ()] == first[step]
    assert first["hookbus_running", ()] == 1
    assert first["hookbus_checkpoints_total", ()] >= 1
    assert second["hookbus_training_seconds_total", ()] > 0
    loss = first["hookbus_metric", (("name", "loss"),)]
    assert loss == pytest.approx(1 / first[step], rel=0.2)
    accuracy = (("evaluation", "val"), ("name", "accuracy"))
    assert first["hookbus_evaluation_metric", accuracy] >= 0.9
    assert one(first, "hookbus_run_info")["hookbus"] == hookbus.__version__
    plugins = {dict(labels).get("plugin") for name, labels in first if "plugin" in name}
    assert {"prometheus", "checkpoint-saver"} <= plugins


def test_a_killed_run_goes_on_under_its_id():
    """Its counters begin again, as those of any restarted program."""
    with training("--checkpoint-saver-save-steps", "5") as (process, url):
        first = scraped(url)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with training() as (_, url):
        second = scraped(url)

    was, now = (one(values, "hookbus_run_info") for values in (first, second))
    assert (was.pop("is_resumed"), now.pop("is_resumed")) == ("False", "True")
    assert was == now
    done, step = second["hookbus_steps_total", ()], second["hookbus_global_step", ()]
    assert 0 < done < step


def started(directory: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a run whose end waits for a scrape."""
    Path("ends.py").write_text(ENDS, "utf-8")
    flags = ["--prometheus", "0", "--prometheus-every-n-steps", "1"]
    flags += ["--prometheus-wait-secs", "60", "-p", "no:step-counter"]
    command = [sys.executable, "-m", "hookbus", "run", *flags, "ends.py", directory]
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


def address_in(log: Path) -> str:
    """Wait until a run tells its address."""
    return until(lambda: re.findall(r"url=(\S+)", log.read_text("utf-8")))[0]


def last_scrape(process: subprocess.Popen[bytes], log: Path):
    """Scrape a run until it has ended; return the values but those of this process."""
    url = address_in(log)

    def at_the_end():
        values = scraped(url)
        return None if values["hookbus_running", ()] else values

    values = until(at_the_end)
    assert process.wait(30) == 0
    kept = "hookbus_global_step", "hookbus_metric", "hookbus_evaluation_metric"
    ended = one(values, "hookbus_outcome_info")["kind"]
    return {key: value for key, value in values.items() if key[0] in kept}, ended


def test_killed_at_any_moment_the_last_scrape_is_that_of_an_uninterrupted_run(tmp_path):
    """Its step, its values and its outcome; only counters are those of the process."""
    log, draw = tmp_path / "log.txt", random.Random(3)
    expected = last_scrape(started("whole", log), log)
    for _ in range(cases(2, 10)):
        process = started("killed", log)
        address_in(log)
        time.sleep(draw.uniform(0.0, 0.4))
        assert process.poll() is None, log.read_text("utf-8")
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert last_scrape(started("killed", log), log) == expected


def test_the_last_scrape_has_the_outcome():
    """The end waits for it, and then the port is closed."""
    with training("--prometheus-wait-secs", "60") as (process, url):
        Path("enough").touch()
        deadline = time.monotonic() + 60
        while (values := scraped(url))["hookbus_running", ()]:
            assert time.monotonic() < deadline
        assert process.wait(30) == 0

    assert one(values, "hookbus_outcome_info")["kind"] == "completed"
    with pytest.raises(OSError, match="refused"):
        scraped(url)


def test_a_stop_is_told_with_its_label(lines):
    """It is that of the plugin that asked for it."""

    class Stops(hookbus.SessionRunHook):
        def after_run(self, run_context):
            run_context.request_stop("enough", label="pruned")

    found = []

    def ask():
        while not (found and found[-1]["hookbus_running", ()] == 0):
            found.append(scraped(url_in(lines)))

    class Begins(hookbus.SessionRunHook):
        def before_run(self):
            asker.start()

    asker = threading.Thread(target=ask)
    run_steps(hook(wait_secs=60), Begins(), Stops())
    asker.join()

    assert one(found[-1], "hookbus_outcome_info") == {
        "kind": "stopped",
        "who": "stops",
        "label": "pruned",
    }


def test_names_are_labels(lines):
    """A name may have any sign; NaN and infinity are values."""
    reports = {'a "b"\n\\c': 1.5, "é/ü": float("inf"), "nan": float("nan"), "text": "no"}
    scrapes = Scrapes(lines, 1)
    hooks = [hook(names=[*reports]), scrapes]
    with MonitoredSession(hooks=hooks) as session, session.step() as step:
        step.report(**reports)

    found = scrapes.values[1]
    named = {dict(k[1])["name"]: v for k, v in found.items() if k[0] == "hookbus_metric"}
    assert named.pop("nan") != 0
    assert named == {'a "b"\n\\c': 1.5, "é/ü": float("inf")}


class GoesBack(hookbus.SessionRunHook):
    """Asks for one roll-back, and scrapes before each step."""

    options = hookbus.HookOptions(rolls_back=True)

    def __init__(self, lines):
        self.lines, self.found, self.again = lines, [], False

    def before_run(self, run_context):
        values = scraped(url_in(self.lines))
        total = values["hookbus_steps_total", ()]
        self.found.append((run_context.global_step, total))

    def after_run(self, run_context, run_values):
        if run_values.global_step == 5 and not self.again:
            self.again = True
            run_context.request_rollback("a spike", skip_inputs=False)


def test_a_counter_never_falls(lines):
    """Steps that are repeated after a roll-back count again."""
    goes = GoesBack(lines)
    run_steps(hook(), goes, steps=7, directory="saved", save_checkpoint_steps=2)

    assert goes.found == [
        (0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (4, 5), (5, 6), (6, 7),
    ]  # fmt: skip


def test_a_counter_never_falls_in_a_custom_loop(lines):
    """A roll-back leaves the backend session as it is there."""
    goes = GoesBack(lines)
    saving = {"checkpoint_dir": "saved", "save_checkpoint_steps": 2}
    with MonitoredTrainingSession(hooks=[hook(), goes], **saving) as session:
        for number in session.iterate(range(7)):
            with session.step() as step:
                step.report(loss=float(number))

    assert goes.found == [
        (0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (4, 5), (5, 6), (6, 7),
    ]  # fmt: skip


def test_a_recovery_from_a_preemption_counts_on(lines):
    """The new backend session begins at an earlier step; the port stays the same."""
    found = []

    class Watches(hookbus.SessionRunHook):
        def before_run(self, run_context):
            values = scraped(url_in(lines))
            found.append((run_context.global_step, values["hookbus_steps_total", ()]))

    run_steps(
        hook(),
        Watches(),
        steps=4,
        errors={3: hookbus.AbortedError("gone")},
        directory="saved",
        save_checkpoint_steps=100,
    )

    assert found == [(0, 0), (1, 1), (2, 2), (0, 2), (1, 3), (2, 4), (3, 5)]
    assert len([line for line in lines if line["event"] == "metrics are served"]) == 1


def test_a_port_that_is_taken_is_an_error_before_the_first_step():
    """It says what to do, and the script ends with the exit code of a wrong usage."""
    Path("train.py").write_text(SCRIPT, "utf-8")
    with bound() as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "hookbus", "run", "--prometheus", str(port)]
        done = subprocess.run([*command, "train.py"], capture_output=True, text=True)

    assert done.returncode == hookbus.ExitCode.USAGE
    assert (
        f"prometheus cannot listen at 127.0.0.1 port {port}: Address already in use; give "
        "another --prometheus-port, 0 for any free one, or -p no:prometheus"
    ) in done.stderr
    assert not Path("ready").exists()


def test_an_address_that_nobody_has_is_an_error():
    """It may be a slip."""
    with pytest.raises(
        UsageError, match=r"cannot listen at no-such-host\.invalid port 0: "
    ):
        run_steps(hook(address="no-such-host.invalid"))


@pytest.mark.parametrize("error", [None, ValueError("bad batch")])
def test_the_port_is_free_when_the_session_is_over(lines, error):
    """Even if a process that was forked meanwhile still runs, as one that loads data."""
    children = []

    class Forks(hookbus.SessionRunHook):
        def after_create_session(self):
            children.append(os.fork())
            if not children[-1]:
                signal.pause()

    run_steps(hook(), Forks(), errors={2: error} if error else None, reraise=False)
    try:
        with bound(int(url_in(lines).split(":")[2].partition("/")[0])):
            pass
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_two_sessions_can_follow_each_other_at_one_port():
    """A hook begins anew in each."""
    with bound() as free:
        port = free.getsockname()[1]
    again = PrometheusHook(port=port)
    for _ in range(2):
        with MonitoredTrainingSession(hooks=[again]) as session, session.step() as step:
            step.report(loss=1.0)
            found = scraped(f"http://127.0.0.1:{port}/metrics")
            assert found["hookbus_steps_total", ()] == 0


def test_the_global_registry_stays_as_it_is():
    """It belongs to the program."""
    before = {family.name for family in REGISTRY.collect()}
    run_steps(hook())

    assert {family.name for family in REGISTRY.collect()} == before


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_a_local_address_is_not_warned_of(lines, address):
    """Nobody else reaches it."""
    with MonitoredSession(hooks=[hook(address=address)]) as session:
        with session.step() as step:
            step.report(loss=1.0)
        assert scraped(url_in(lines))["hookbus_global_step", ()] == 1

    assert not [line for line in lines if line["log_level"] == "warning"]


def test_an_address_for_other_machines_is_warned_of(lines):
    """There is no password."""
    run_steps(hook(address="0.0.0.0"))

    [warning] = [line for line in lines if line["log_level"] == "warning"]
    assert warning["event"] == (
        "the metrics can be read from other machines, without a password"
    )
    assert warning["address"] == "0.0.0.0"


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_is_a_number_of_a_port(port):
    """Others are refused before the session."""
    with pytest.raises(UsageError, match=f"invalid port={port}"):
        PrometheusHook(port=port)


def test_a_missing_package_is_named(monkeypatch):
    """The error says how to get it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"prometheus needs prometheus_client, which can"):
        run_steps(hook())


def test_one_of_several_ranks_has_the_port(tmp_path):
    """It serves its own values; a second server at this port would fail."""
    with bound() as free:
        port = free.getsockname()[1]

    def train(rank):
        served = PrometheusHook(port=port, every_n_steps=1)
        with MonitoredSession(hooks=[served]) as session:
            for _ in range(3):
                with session.step() as step:
                    step.report(loss=float(rank))
            return scraped(f"http://127.0.0.1:{port}/metrics") if rank == 0 else None

    with thread_library(tmp_path / "library"):
        found, _ = ranked(2, train)

    assert found["hookbus_metric", (("name", "loss"),)] == 0.0
    assert found["hookbus_global_step", ()] == 3
