"""Tests hookbus-mlflow with a server of MLflow that is killed, stopped and refusing."""

from __future__ import annotations

import http.server
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("mlflow.tracking")

from tests.support.in_mlflow import Found, Server, free_port, runs_in, served, weights_in
from tests.support.in_mlflow import started as start
from tests.support.running import started as thread_of

# MLflow's libraries warn of one another.
pytestmark = pytest.mark.filterwarnings("default")
STEPS = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server; it takes seconds to start."""
    with served(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, str]:
    """Return MLflow's run of an undisturbed program, and the output of the program."""
    done = train(server.uri, "whole", tmp_path_factory.mktemp("whole"))
    return run_in(server, "whole"), done


def train(uri: str, experiment: str, directory: Path, *flags: str, secs: float = 0) -> str:
    """Train to the end; return what was printed."""
    flags = ("--mlflow", uri, "--mlflow-experiment", experiment, *flags)
    process = start([STEPS, secs, directory], *flags)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def run_in(server: Server, experiment: str) -> Found:
    """Return the only run of an experiment."""
    [run] = runs_in(server.uri, experiment)
    return run


def until(process: subprocess.Popen[str], word: str) -> str:
    """Read the output of a process, up to a line with a word."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if word in line:
            return read
    raise AssertionError(read)


def test_a_server_gets_every_record_once(whole):
    """Evaluations and numbers that are not finite included."""
    run, output = whole
    assert [step for step, _ in run.points["loss"]] == [*range(1, STEPS + 1)]
    assert [step for step, value in run.points["loss"] if value == "nan"] == [6, 26, 46]
    assert [step for step, _ in run.points["val/accuracy"]] == [*range(10, STEPS + 1, 10)]
    assert run.status == "FINISHED"
    assert run.tags["hookbus.checkpoint_step"] == f"{STEPS}"
    assert "warning" not in output


def test_a_killed_training_goes_on_with_its_run(server, whole, tmp_path):
    """The server has each record once."""
    flags = ["--mlflow", server.uri, "--mlflow-experiment", "killed"]
    process = start([STEPS, 0.4, tmp_path], *flags)
    output = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, output
    output = train(server.uri, "killed", tmp_path)

    run = run_in(server, "killed")
    assert run.points == whole[0].points
    assert run.params == whole[0].params
    assert weights_in(output) == weights_in(whole[1])


def test_a_dead_server_ends_no_training(server, whole, tmp_path):
    """Unsent records are kept, and sent when the program is started again."""
    dead = f"http://127.0.0.1:{free_port()}"
    output = train(dead, "dead", tmp_path, "--mlflow-wait-secs", "3")
    assert weights_in(output) == weights_in(whole[1])
    assert "records cannot be sent for now; the training goes on" in output
    assert "records were not sent" in output
    assert f"{tmp_path}/tracking/mlflow.jsonl" in output
    train(server.uri, "dead", tmp_path)

    run = run_in(server, "dead")
    assert run.points == whole[0].points
    assert (run.params, run.status) == (whole[0].params, "FINISHED")


def test_a_server_that_dies_and_comes_back_gets_every_record_once(server, whole, tmp_path):
    """In one run, or the rest when the program is started again."""
    flags = ["--mlflow", server.uri, "--mlflow-experiment", "dying"]
    process = start([STEPS, 0, tmp_path], *flags)
    output = until(process, "step 20\n")
    server.kill()
    output += process.communicate()[0]
    assert process.returncode == 0, output
    assert weights_in(output) == weights_in(whole[1])
    server.start()
    train(server.uri, "dying", tmp_path)

    assert run_in(server, "dying").points == whole[0].points


def test_a_server_that_hangs_holds_no_step(server, whole, tmp_path):
    """The steps end before it answers; then it gets every record once."""
    flags = ["--mlflow", server.uri, "--mlflow-experiment", "hanging"]
    process = start([STEPS, 0, tmp_path], *flags)
    output = until(process, "step 5\n")
    server.signal(signal.SIGSTOP)
    try:
        output += until(process, f"step {STEPS - 1}\n")
    finally:
        server.signal(signal.SIGCONT)
    output += process.communicate()[0]
    assert process.returncode == 0, output
    assert weights_in(output) == weights_in(whole[1])
    assert run_in(server, "hanging").points == whole[0].points


@pytest.fixture
def slow(server: Server) -> Iterator[str]:
    """Return where the server is reached with answers that come after five seconds."""

    class Delays(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            time.sleep(5)
            asked = urllib.request.Request(
                server.uri + self.path, body or None, method=self.command
            )
            asked.add_header("Content-Type", "application/json")
            try:
                with urllib.request.urlopen(asked) as answer:
                    status, text = answer.status, answer.read()
            except urllib.error.HTTPError as error:  # an experiment that is not there
                status, text = error.code, error.read()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Delays)
    thread_of(proxy.serve_forever)
    yield f"http://127.0.0.1:{proxy.server_port}"
    proxy.shutdown()
    proxy.server_close()


@pytest.mark.slow
def test_a_slow_server_holds_no_step(slow, server, whole, tmp_path):
    """It gets every record once; the end waits for it as long as it is told to."""
    output = train(slow, "slow", tmp_path, "--mlflow-wait-secs", "200")
    assert weights_in(output) == weights_in(whole[1])
    assert run_in(server, "slow").points == whole[0].points


@pytest.fixture
def refusing() -> Iterator[Callable[[int], str]]:
    """Return a function that starts a server, which answers everything with a status."""
    servers: list[http.server.HTTPServer] = []

    def refuses(status: int) -> str:
        class Refuses(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_error(status)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Be quiet."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
        servers.append(server)
        thread_of(server.serve_forever)
        return f"http://127.0.0.1:{server.server_port}"

    yield refuses
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [403, 500])
def test_a_server_that_refuses_ends_no_training(status, refusing, whole, tmp_path):
    """The log has its answer."""
    output = train(refusing(status), "refused", tmp_path, "--mlflow-wait-secs", "3")
    assert weights_in(output) == weights_in(whole[1])
    assert "records cannot be sent for now; the training goes on" in output
    assert f"{status}" in output
    assert "records were not sent" in output
