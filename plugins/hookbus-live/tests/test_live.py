"""Tests the page of a live run: its contents, and the effects of its requests."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hookbus_live import LiveHook
from hookbus_live.command import view
from hookbus_live.requests import action_of

import hookbus
from hookbus import Config, DrivenSession, Graph, MonitoredSession, MonitoredTrainingSession
from tests.support.live_pages import page_of, training, until
from tests.support.watching import lines as lines

QUIET = Config(autoload=False, header=False)
STOP = action_of({"action": "stop-after-epoch"})


@pytest.mark.long
def test_a_running_training_is_told():
    """Values, progress, hyperparameters, log lines, checkpoints and hooks."""
    with training("--checkpoint-saver-save-steps", "50") as page:
        until(lambda: page.run()["step"] > 200)
        run = page.run()
        assert (run["state"], run["is_live"], run["epoch"]) == ("running", True, 0)
        assert run["last_step"] == 1_000_000
        assert run["rate"] > 0
        assert run["secs_left"] > 0
        x, y = page.points("loss")
        assert x[:3].tolist() == [1, 11, 21]
        assert y[0] > y[-1] > 0
        assert set(page.points("model.lr")[1]) == {0.05}
        hooks = until(lambda: seen_hooks(page.details("hooks")).get("live"))
        assert hooks["seconds"] > 0
        details = page.details("checkpoints", "log")
        assert details["params"]["layers"] == [4, 2]
        assert details["variables"] == {"model.lr": 0.05}
        assert details["checkpoints"][-1]["why"] == "every 50 steps"
        assert "checkpoint saved" in {line["event"] for line in details["log"]}


def seen_hooks(details) -> dict[str, dict[str, object]]:
    """Return the details of each watched hook."""
    return {each["name"]: each for each in details["hooks"]["plugins"]}


def test_the_page_asks_and_the_training_does():
    """Each request is answered, logged, and told in the outcome."""
    with training() as page:
        until(lambda: page.run()["step"] > 20)
        assert "is saved" in page.ask(action="save", keep=True)["told"]
        saved = until(
            lambda: [c for c in page.details("checkpoints")["checkpoints"] if c["kept"]]
        )
        assert saved[0]["saved_by"] == "live"
        assert saved[0]["why"] == "asked for on the page"
        assert page.ask(action="assign", name="model.lr", value=0.5)["state"] == "done"
        until(lambda: page.points("model.lr")[1][-1] == 0.5)
        assert page.ask(action="stop", why="it is enough")["state"] == "done"
        assert page.process.wait(30) == 0
    outcome = json.loads(Path("runs/toy/outcome.json").read_text())
    assert (outcome["kind"], outcome["who"]) == ("stopped", "live")
    assert outcome["why"] == "asked for on the page: it is enough"
    assert "asked on the page what='set model.lr to 0.5'" in page.text()


@pytest.mark.long
def test_a_stop_after_the_epoch_waits_for_its_end():
    """The epoch is done as a whole."""
    with training(steps=300) as page:
        until(lambda: page.run()["step"] > 20)
        asked = page.ask(action="stop-after-epoch")
        assert asked["told"] == "stopping when epoch 0 ends"
        assert page.process.wait(30) == 0
    outcome = json.loads(Path("runs/toy/outcome.json").read_text())
    assert (outcome["kind"], outcome["step"]) == ("stopped", 300)


@pytest.mark.parametrize("shape", ["linear", "cosine", "exponential"])
@pytest.mark.long
def test_a_schedule_takes_a_variable_to_its_value(shape):
    """It is told, and can be ended."""
    with training(directory=None) as page:
        until(lambda: page.run()["step"] > 20)
        asked = page.ask(action="follow", name="model.lr", to=0.01, steps=1500, shape=shape)
        assert asked["told"].startswith("0.05 to 0.01, step")
        until(lambda: page.points("model.lr")[1][-1] == pytest.approx(0.01))
        rates = page.points("model.lr")[1]
        assert any(0.01 < rate < 0.05 for rate in rates)
        assert (np.diff(rates) <= 0).all()
        until(lambda: page.details()["schedules"] == {})
        page.ask(action="follow", name="model.lr", to=1.0, steps=10**6)
        refused = page.ask(action="assign", name="model.lr", value=2.0)
        assert refused["told"] == "model.lr has a schedule; end it first"
        assert page.ask(action="hold", name="model.lr")["state"] == "done"
        assert page.details()["schedules"] == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"action": "save"}, "no plugin saves checkpoints"),
        (
            {"action": "assign", "name": "model.w", "value": 1},
            "no scalar variable 'model.w'",
        ),
        ({"action": "hold", "name": "model.lr"}, "model.lr has no schedule"),
        (
            {
                "action": "follow",
                "name": "model.lr",
                "to": 0,
                "steps": 5,
                "shape": "exponential",
            },
            "values above 0",
        ),
    ],
)
def test_what_the_session_cannot_do_is_refused_with_the_reason(asked, why):
    """The answer, the list of requests and the log say why; the training goes on."""
    with training(directory=None) as page:
        until(lambda: page.run()["step"] > 20)
        answer = page.ask(**asked)
        assert answer["state"] == "refused"
        assert why in answer["told"]
        assert page.details()["requests"][0]["told"] == answer["told"]
        assert "a request of the page was refused" in page.text()
        assert page.run()["state"] == "running"


def test_a_loop_without_epochs_cannot_stop_after_one(lines):
    """A graph has none."""
    graph = Graph()
    graph.variable("w", 8.0)

    @graph.train_op(updates="w")
    def train(w):
        return w / 2

    hook = LiveHook()
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("train")
        asked = hook._live.inbox.submit(STOP)
        while not asked.future.done():
            session.run("train")
    assert "no epochs" in str(asked.future.exception())


SAVED = {True: "a checkpoint of step", False: "the trainer of another package"}


@pytest.mark.parametrize("saves", [True, False])
def test_the_loop_of_a_trainer_does_what_the_page_asks(saves):
    """It stops, and saves or is the reason why not, as every adapter has it."""
    hook, saved = LiveHook(), []

    def save() -> None:
        saved.append(driven.state_dict()["global_step"])
        driven.saved(Path(f"own-{saved[-1]}"))

    driven = DrivenSession(
        hooks=[hook], config=QUIET, loop="the trainer", save=save if saves else None
    )
    with driven:
        driven.begin()
        driven.created()
        model = driven.track(model={"w": np.ones(2), "lr": 0.5})

        def answer(**document: object) -> str:
            asked = hook._live.inbox.submit(action_of(document))
            while not asked.future.done():
                driven.before_step()
                driven.after_step({"loss": 1.0})
            return asked.document()["told"]

        assert SAVED[saves] in answer(action="save")
        assert len(saved) == saves
        assert driven.stop is None
        assert "set after step" in answer(action="assign", name="model.lr", value=0.25)
        assert "stopping after step" in answer(action="stop", why="enough")
        assert model["lr"] == 0.25
        assert (driven.stop.who, driven.stop.why) == (
            "live",
            "asked for on the page: enough",
        )


def test_a_request_behind_the_end_is_refused():
    """Nothing would do it."""
    hook = LiveHook()
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        for _ in session.iterate(range(3)):
            with session.step():
                pass
    asked = hook._live.inbox.submit(STOP)

    assert str(asked.future.exception()) == "the training has ended"


@pytest.mark.long
def test_a_resumed_training_shows_what_came_before():
    """The lines of the page begin where the training began."""
    flags = ("-p", "summary-saver", "--summary-saver-save-steps", "10")
    flags += ("--checkpoint-saver-save-steps", "100")
    with training(*flags) as page:
        until(lambda: page.run()["step"] > 250)
        page.process.send_signal(signal.SIGTERM)
        assert page.process.wait(30) == 75
        stopped = json.loads(Path("runs/toy/outcome.json").read_text())["step"]
    with training(*flags, log="again.log") as page:
        until(lambda: page.run()["step"] > stopped + 50)
        x, _ = page.points("loss")
        assert x[0] == 1
        assert x[-1] > stopped
        assert (np.diff(x) > 0).all()


@pytest.mark.long
def test_a_schedule_goes_on_in_a_resumed_training():
    """Checkpoints have it."""
    with training() as page:
        until(lambda: page.run()["step"] > 20)
        page.ask(action="follow", name="model.lr", to=1.0, steps=10**6)
        schedules = until(lambda: page.details()["schedules"])
        page.process.send_signal(signal.SIGTERM)
        assert page.process.wait(30) == 75
    with training(log="again.log") as page:
        assert until(lambda: page.details()["schedules"]) == schedules


@pytest.mark.long
def test_two_trainings_with_one_port_have_two_pages():
    """The second one says that it took another port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with training("--live", str(port), directory=None) as page:
            assert page.port != port
            assert f"another program listens at port {port}" in page.text()
            assert page.run()["state"] == "running"


@pytest.mark.long
def test_a_host_that_cannot_be_used_ends_no_training():
    """The log says why there is no page."""
    Path("train.py").write_text(
        "from hookbus import MonitoredSession\n"
        "with MonitoredSession() as session:\n"
        "    for _ in session.iterate(range(5)):\n"
        "        with session.step():\n            pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "hookbus", "run", "--live-host", "192.0.2.1", "train.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the page is not shown; the training goes on" in done.stderr
    assert "cannot listen at port 0 of 192.0.2.1" in done.stderr


def test_other_machines_need_a_flag_and_get_a_warning():
    """The page is then refused to no address of this machine."""
    with training("--live-host", "0.0.0.0", directory=None) as page:
        assert "can be reached from other machines" in page.text()
        port = page.base.rpartition(":")[2]
        token = {"Authorization": f"Bearer {page.token}"}
        assert page.send("/api/runs", token)[0] == 200
        for host, status in (("192.0.2.7", 200), ("evil.example", 421)):
            given = {**token, "Host": f"{host}:{port}"}
            assert page.send("/api/runs", given)[0] == status


def trained(*hooks) -> dict[str, object]:
    """Train with global generators; return the end, and their states."""
    random.seed(1)
    np.random.seed(1)
    config = Config(autoload=False, header=False)
    with MonitoredTrainingSession(hooks=[*hooks], config=config) as session:
        model = session.track(model={"w": np.ones(4), "lr": 0.1})
        for _ in session.iterate(range(200)):
            with session.step() as step:
                model["w"] -= model["lr"] * np.random.normal(size=4) * random.random()
                step.report(loss=float((model["w"] ** 2).mean()))
    return {
        "w": model["w"].tolist(),
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
    }


def test_the_page_changes_nothing_in_the_training(capsys):
    """Neither the weights, nor the generators, nor stdout, nor the handlers of signals."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    plain = trained()

    assert trained(LiveHook(every_n_steps=1)) == plain
    assert capsys.readouterr().out == ""
    assert {each: signal.getsignal(each) for each in before} == before


def test_the_thread_of_the_page_does_not_hold_the_program():
    """It is a daemon, and ends with the session."""
    before = {*threading.enumerate()}
    with MonitoredSession(hooks=[LiveHook()], config=QUIET) as session:
        for _ in session.iterate(range(1)):
            with session.step():
                (thread,) = {*threading.enumerate()} - before
                assert thread.daemon
    assert {*threading.enumerate()} - before == set()


def test_a_training_of_several_processes_changes_no_variable():
    """The others would not."""

    class Serving(LiveHook):
        def begin(self, graph, checkpoints, requests):
            super().begin(graph, checkpoints, 2, requests)

    hook = Serving()
    action = action_of({"action": "assign", "name": "model.lr", "value": 1.0})
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        model, asked = session.track(model={"lr": 0.5}), None
        for _ in session.iterate(range(100_000)):
            with session.step():
                pass
            asked = asked or hook._live.inbox.submit(action)
            if asked.future.done():
                break
    assert "2 processes train together" in str(asked.future.exception())
    assert model["lr"] == 0.5


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "hookbus view takes one directory"),
        (["a", "b"], "hookbus view takes one directory"),
        (["nothing"], "'nothing' does not exist"),
        (["file"], "'file' is a file"),
        (["empty"], "there is no training in 'empty'"),
        (["--prot", "1", "empty"], "has no flag '--prot'"),
        (["--port"], "--port needs a value"),
        (["--port", "70000", "runs"], "give a number from 0 to 65535"),
    ],
)
def test_wrong_words_for_view_are_told(words, why):
    """With what to do."""
    Path("file").touch()
    Path("empty").mkdir()
    Path("runs").mkdir()
    Path("runs/metrics.jsonl").touch()
    with pytest.raises(hookbus.UsageError) as caught:
        view(words)
    assert why in str(caught.value)


@pytest.mark.long
def test_view_shows_trainings_side_by_side():
    """A finished one and a running one, which it follows; Ctrl-C ends it."""
    with training(epochs=1, steps=50, secs=0.0, directory="runs/a", log="a.log") as page:
        page.process.wait(30)
    with (
        training("-p", "summary-saver", directory="runs/b", log="b.log"),
        page_of(["view", "--port=0", "runs"]) as page,
    ):
        until(lambda: len(page.get("/api/runs")["runs"]) == 2)
        one, other = page.get("/api/runs")["runs"]
        assert (one["name"], one["state"], one["step"]) == ("a", "completed", 50)
        assert (other["name"], other["is_live"]) == ("b", False)
        page.process.send_signal(signal.SIGINT)
        assert page.process.wait(30) == 0


def test_view_says_that_a_port_is_taken():
    """Somebody is there to give another one."""
    Path("runs").mkdir()
    Path("runs/metrics.jsonl").touch()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        with pytest.raises(hookbus.UsageError, match=f"listens at port {port}"):
            view(["--port", port, "runs"])
