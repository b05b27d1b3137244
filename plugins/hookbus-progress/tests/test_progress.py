"""Tests what progress shows, with and without a terminal."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
from hookbus_progress import ProgressHook
from hookbus_stop_at_step import StopAtStepHook

import hookbus
from hookbus import Graph, MonitoredSession, MonitoredTrainingSession

QUIET = hookbus.Config(autoload=False)

SCRIPT = """
import sys
import hookbus

graph = hookbus.Graph()
graph.variable("w", 0.0)
graph.op(lambda w: w / 4, name="loss")
INPUT
graph.train_op(lambda w, batch=None: w + 1, name="train", updates="w")

with hookbus.MonitoredSession(graph) as session:
    for _ in session.loop():
        if session.global_step == 2:
            sys.stdin.readline()
        if session.global_step == 20:
            END
"""


def script(end: str = "break", length: int | None = None) -> str:
    """Return a script that waits for a line at step 2 and ends at step 20."""
    given = "" if length is None else f"graph.input('batch', lambda: range({length}))"
    return SCRIPT.replace("END", end).replace("INPUT", given)


def toy() -> Graph:
    """Return a graph with a loss and a train op."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.op(lambda w: w / 4, name="loss")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    return graph


def bars(lines: list[str]) -> list[str]:
    """Return the lines that show a bar."""
    return [line for line in lines if line.startswith("training ━")]


def test_it_is_on_without_being_asked_for(show):
    """The plugin is autouse: a bar comes with no flag at all."""
    shown = show(script(), wait_for="1/?")
    assert shown.code == 0
    assert len(bars(shown.screen)) == 1


def test_it_can_be_switched_off(show):
    """-p no:progress leaves no bar."""
    assert bars(show(script(), "-p", "no:progress").screen) == []


@pytest.mark.long
def test_autoload_can_be_switched_off(show):
    """Without autoload it is off too; -p switches it on again."""
    flag = "--disable-plugin-autoload"
    assert bars(show(script(), flag).screen) == []
    assert len(bars(show(script(), flag, "-p", "progress").screen)) == 1


def test_the_bar_shows_step_rate_and_last_values(show):
    """In the end it shows the last step, the rate and the values logged last."""
    flags = ["--logging-tensor", "loss", "--logging-tensor-every-n-iter", "1"]
    shown = show(script(), *flags)
    (bar,) = bars(shown.screen)
    assert re.search(r"20/20 [\d.]+ steps/s .*loss 4\.75$", bar)


def test_the_total_is_where_stop_at_step_will_stop(show):
    """While it runs, the bar counts towards the step of the stop."""
    shown = show(script(), "--stop-at-step", "50", wait_for="1/50")
    assert shown.code == 0


@pytest.mark.long
def test_the_total_is_where_the_input_will_end(show):
    """An input that knows its length tells when it will be used up."""
    shown = show(script(length=30), wait_for="1/30")
    assert shown.code == 0


@pytest.mark.long
def test_the_nearest_end_is_the_total(show):
    """Of several ends the first counts."""
    shown = show(script(length=30), "--stop-at-step", "25", wait_for="1/25")
    assert shown.code == 0


@pytest.mark.long
def test_the_total_is_open_where_nobody_knows_it(show):
    """A loop without an announced end is counted without a total."""
    shown = show(script(), wait_for="1/?")
    assert shown.code == 0


CUSTOM = """
import sys
import hookbus

with hookbus.MonitoredSession() as session:
    for x in session.iterate(range(30)):
        with session.step() as step:
            step.report(loss=x / 4)
        if session.global_step == 2:
            sys.stdin.readline()
"""


@pytest.mark.long
def test_in_a_custom_loop_the_total_and_the_loss_are_shown(show):
    """``iterate`` knows the length, and the loss is reported."""
    shown = show(CUSTOM, wait_for="1/30")
    assert shown.code == 0
    (bar,) = bars(shown.screen)
    assert re.search(r"30/30 .*loss \d", bar)


def test_the_loss_that_the_loop_fetches_is_shown(run_without_terminal):
    """Nothing is computed for it."""
    fetching = script().replace("session.loop()", "session.loop('loss')")
    done = run_without_terminal(fetching, "--progress", "0")
    assert "progress step=5 " in done.stderr
    assert "last='loss 1'" in done.stderr
    assert "last=" not in run_without_terminal(script(), "--progress", "0").stderr


def test_the_loss_that_training_computes_is_shown(lines):
    """The run has an output of its train op anyway."""
    graph = Graph()
    graph.variable("w", 0.0)
    given = {"updates": "w", "outputs": "loss"}
    graph.train_op(lambda w: (w + 1, {"loss": w / 4}), name="train", **given)
    hook = ProgressHook(every_secs=0)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for _ in range(2):
            session.run("train")
    shown = [line["last"] for line in lines if line["event"] == "progress"]
    assert shown == ["loss 0", "loss 0.25"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("end", "word"),
    [
        ("import signal; signal.raise_signal(signal.SIGINT)", "interrupted"),
        ("import signal; signal.raise_signal(signal.SIGTERM)", "preempted"),
        ("raise ValueError", "failed"),
    ],
)
def test_a_bar_that_was_cut_short_stays_where_it_is(end, word, show):
    """It says how the session ended, and does not jump to its end."""
    screen = show(script(end, length=30)).screen
    (bar,) = [line for line in screen if line.startswith(f"{word} ━")]
    assert re.search(r" \d+/30 ", bar)


def test_log_lines_are_not_torn(show):
    """Each log line stands whole above the bar, in order, and the bar comes once."""
    flags = ["--logging-tensor", "loss", "--logging-tensor-every-n-iter", "1"]
    screen = show(script(), *flags, wait_for="1/?").screen
    logged = [line for line in screen if "logged" in line]
    expected = r"\d\d:\d\d:\d\d \[info +\] logged step={} values=\{{'loss': {}\}}.*"
    assert len(logged) == 20
    for step, line in enumerate(logged, 1):
        assert re.fullmatch(expected.format(step, (step - 1) / 4), line)
    (bar,) = bars(screen)
    assert screen.index(bar) > screen.index(logged[-1])


@pytest.mark.long
def test_printed_lines_are_not_torn(show):
    """Output of the script to the same terminal also stands above the bar."""
    loop = "for _ in session.loop():"
    source = script().replace(loop, f"{loop}\n        print('at', session.global_step)")
    screen = show(source, wait_for="1/?").screen
    assert [line for line in screen if line.startswith("at ")] == [
        f"at {step}" for step in range(1, 21)
    ]
    assert len(bars(screen)) == 1


@pytest.mark.long
def test_stdout_is_left_alone(show):
    """The bar is drawn on stderr: a stdout that goes elsewhere has only what is printed."""
    source = script(end="print('result: 42'); break")
    shown = show(source, wait_for="1/?", stdout_too=False)
    assert shown.stdout == "result: 42\n"
    assert len(bars(shown.screen)) == 1


def test_a_failure_takes_the_bar_down(show):
    """It shows the last step. The traceback is whole, and the cursor is visible again."""
    shown = show(script(end="raise RuntimeError('on purpose')"), wait_for="1/?")
    assert shown.code == hookbus.ExitCode.FAILED
    screen = shown.screen
    assert screen[-1] == "RuntimeError: on purpose"
    (bar,) = [line for line in screen if line.startswith("failed ━")]
    assert "20/?" in bar
    assert screen.index(bar) < screen.index("Traceback (most recent call last):")
    assert shown.text.rindex("\x1b[?25h") > shown.text.rindex("\x1b[?25l")


@pytest.mark.long
def test_two_sessions_draw_two_bars(show):
    """Each session of a script has a bar of its own, one after the other."""
    source = script()
    body = source[source.index("with ") :]
    shown = show(source + body.replace("readline()", "flush"), wait_for="1/?")
    assert shown.code == 0
    assert len(bars(shown.screen)) == 2


FORKS = """
import gc, os, threading, time
from rich.progress import Progress

(bar,) = [thing for thing in gc.get_objects() if isinstance(thing, Progress)]
held, ended = threading.Event(), []

def prints():  # what a thread that prints may be in when another one forks
    with bar.live._lock, bar.console._lock:
        held.set()
        deadline = time.monotonic() + 10
        while not ended and time.monotonic() < deadline:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
                ended.extend([status] if pid else [])
            except ChildProcessError:  # no child exists yet
                pass
            time.sleep(0.01)

thread = threading.Thread(target=prints)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    print("from the child", file=sys.stderr, flush=True)
    os._exit(7)
thread.join()
if not ended:
    os.kill(child, 9)
    ended.append(os.waitpid(child, 0)[1])
print("child:", os.waitstatus_to_exitcode(ended[0]))
break
"""


def in_the_loop(code: str) -> str:
    """Return code as it stands where the script of these tests ends."""
    return code.strip().replace("\n", "\n" + 12 * " ")


@pytest.mark.long
def test_a_forked_child_prints_past_the_bar(show):
    """Its line does not wait for a thread of the parent that prints above the bar.

    From Python 3.12 on, the parent warns of that thread, above the bar as well.
    """
    shown = show(script(end=in_the_loop(FORKS)), wait_for="1/?")
    assert shown.code == 0, shown.text
    assert "child: 7" in shown.screen
    assert any("from the child" in line for line in shown.screen)
    assert "20/20" in bars(shown.screen)[-1]
    warned = [line for line in shown.screen if "multi-threaded" in line]
    assert len(warned) == (sys.version_info >= (3, 12)), shown.text


FORKS_ALONE = """
import os, threading

print("threads:", threading.active_count())
child = os.fork()
if child == 0:
    os._exit(7)
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
break
"""


@pytest.mark.long
def test_the_bar_has_no_thread(show):
    """So Python warns of no fork while the bar is there."""
    shown = show(script(end=in_the_loop(FORKS_ALONE)), wait_for="1/?")
    assert shown.code == 0, shown.text
    assert {"threads: 1", "child: 7"} <= {*shown.screen}, shown.text
    assert "Warning" not in shown.text
    assert "20/20" in bars(shown.screen)[-1]


def test_without_a_terminal_it_is_a_line_per_interval(run_without_terminal):
    """A plain line on stderr for each interval, with 0 seconds for each run."""
    done = run_without_terminal(script(), "--progress-every-secs", "0")
    lines = [line for line in done.stderr.splitlines() if " progress " in line]
    assert len(lines) == 20
    assert re.search(r"\[info +\] progress step=1 steps_per_sec=[\d.e+]+$", lines[0])
    assert "\x1b" not in done.stderr
    assert done.stdout == ""


def test_the_lines_have_total_time_left_and_last_values(run_without_terminal):
    """As fields of the line, so that JSON logs have them as numbers."""
    flags = ["--progress", "0", "--log-format", "json", "--stop-at-step", "12"]
    done = run_without_terminal(script(), *flags, "-p", "logging-tensor")
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    lines = [entry for entry in entries if entry["event"] == "progress"]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert {line["of"] for line in lines} == {12}
    assert lines[-1]["secs_left"] == 0
    assert lines[-1]["last"] == "loss 0"


def test_a_short_run_prints_no_line(run_without_terminal):
    """The first line comes after the first interval, of ten seconds by default."""
    assert " progress " not in run_without_terminal(script()).stderr


def progress_lines(lines) -> list[dict]:
    """Return the lines of progress, among all log lines."""
    return [line for line in lines if line["event"] == "progress"]


def test_the_interval_is_kept(lines, clock):
    """A line comes with the first run after the interval is over."""
    hooks = [ProgressHook(every_secs=10)]
    with MonitoredSession(toy(), hooks=hooks, config=QUIET) as session:
        for _ in range(12):
            clock[0] += 4
            session.run("train")
    assert [line["step"] for line in progress_lines(lines)] == [3, 6, 9, 12]


def test_rate_and_time_left_are_those_of_the_session(lines, clock, tmp_path):
    """A resumed session counts its own steps, and goes on at the restored one."""
    for target in (6, 20):
        clock[0] += 1000
        with MonitoredTrainingSession(
            toy(),
            checkpoint_dir=tmp_path,
            save_summaries_steps=None,
            log_step_count_steps=None,
            hooks=[ProgressHook(every_secs=0), StopAtStepHook(last_step=target)],
            config=QUIET,
        ) as session:
            clock[0] += 0.5
            session.run("train")
            clock[0] += 0.5
            while not session.should_stop():
                session.run("train")
    resumed = [line for line in progress_lines(lines) if line["of"] == 20]
    assert resumed[0]["step"] == 7
    assert (resumed[0]["steps_per_sec"], resumed[0]["secs_left"]) == (2, 6)
    assert (resumed[1]["steps_per_sec"], resumed[1]["secs_left"]) == (2, 6)


def test_time_left_is_never_negative(lines, clock):
    """A session that runs on beyond the step that a hook plans has nothing left."""

    class PlanHook(hookbus.SessionRunHook):
        @hookbus.hookimpl
        def planned_last_step(self):
            return 2

    hooks = [ProgressHook(every_secs=0), PlanHook()]
    with MonitoredSession(toy(), hooks=hooks, config=QUIET) as session:
        for _ in range(4):
            clock[0] += 1
            session.run("train")
    assert progress_lines(lines)[-1]["step"] == 4
    assert progress_lines(lines)[-1]["secs_left"] == 0


@pytest.mark.long
@pytest.mark.parametrize("end", ["sys.stderr.close(); break", "sys.stderr = None; break"])
def test_a_bar_whose_terminal_is_closed_ends_no_training(show, end):
    """The script closes the stream below the bar; the session ends well anyway."""
    shown = show(script(end) + "\nprint('behind', session.outcome.kind)", stdout_too=False)
    assert shown.code == 0
    assert shown.stdout == "behind completed\n"


SHOWN = {
    "complex": (np.complex64(1 + 2j), "x 1+2j"),
    "an array": (np.zeros((2, 3)), "x float64[2, 3]"),
    "one number": (np.array([0.25]), "x 0.25"),
    "words": ("a\nb", "x a b"),
    "many words": ("word " * 99, "x word word word word word word word wo..."),
    "a huge number": (10**400, f"x 1{'0' * 36}..."),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", SHOWN)
def test_a_value_that_is_no_number_is_short(case, lines):
    """Whatever another hook logs fits beside the bar, and warns of nothing."""
    value, shown = SHOWN[case]
    hook = ProgressHook(every_secs=0)
    with MonitoredSession(toy(), hooks=[hook], config=QUIET) as session:
        hook.logged({"x": value})
        session.run("train")
    assert progress_lines(lines)[0]["last"] == shown


ASKING = """
from hookbus import MonitoredSession

with MonitoredSession() as session:
    for number in session.iterate(range(400)):
        with session.step() as step:
            step.report(loss=1.0)
            if number == 200:
                ASK
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("ask", "prompt", "types"),
    [
        ("print('hello', input('your name? '))", "your name? ", "Ada"),
        ("breakpoint()", "(Pdb) ", "continue"),
    ],
)
def test_a_prompt_pauses_the_bar(show, ask, prompt, types):
    """The prompt is shown, nothing is drawn over it, and the bar goes on afterwards."""
    shown = show(ASKING.replace("ASK", ask), wait_for=prompt, types=types)
    assert shown.code == 0
    before, _, after = shown.text.partition(prompt)
    assert "training" in before
    assert bars(shown.screen)[-1].split()[2] == "400/400"
    assert ("hello Ada" in after) == (types == "Ada")


def test_the_lines_count_the_steps_of_all_epochs(run_without_terminal):
    """The end is that of the training, and not of the epoch."""
    text = """
from hookbus import MonitoredSession

with MonitoredSession() as session:
    for _ in session.epochs(3):
        for _ in session.iterate(range(4)):
            with session.step():
                pass
"""
    done = run_without_terminal(text, "--progress-every-secs", "0")
    lines = [line for line in done.stderr.splitlines() if "] progress " in line]
    assert len(lines) == 12
    assert all("of=12" in line for line in lines)
