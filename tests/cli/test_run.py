"""``hookbus run``: the script sees what it sees under Python; the exit code tells."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ABOUT = '''
"""Tells how it was started."""
import atexit, json, os, pickle, sys
from helper import WORD

class Thing:
    pass

def same():
    return sys.modules["__main__"].__dict__ is globals()

names = ["__name__", "__file__", "__package__", "__spec__", "__doc__", "__cached__"]
seen = {name: globals().get(name, "missing") for name in names}
seen["argv"], seen["path"], seen["word"] = sys.argv, sys.path[0], WORD
seen["main"] = same()
seen["pickled"] = type(pickle.loads(pickle.dumps(Thing()))) is Thing
seen["folder"] = os.getcwd()
print(json.dumps(seen, default=lambda spec: [spec.name, spec.origin, spec.parent]))
atexit.register(lambda: print("at exit", same(), pickle.dumps(Thing()) != b""))
'''


@pytest.mark.parametrize("name", ["about.py", "sub/about.py", "absolute", "link.py"])
def test_the_script_sees_what_it_sees_under_python(name, hookbus, process, script):
    """Arguments, path, ``__main__`` and what is there at exit are the same."""
    place = "sub/about.py" if name.startswith("sub") else "about.py"
    path = script(ABOUT, place, before="")
    script(
        "WORD = 'from the folder of the script'", str(path.parent / "helper.py"), before=""
    )
    if name == "absolute":
        path = path.absolute()
    elif name == "link.py":
        Path("links").mkdir()
        path = Path("links/link.py")
        path.symlink_to(Path("about.py").absolute())
    arguments = ("-v", "--epochs=3", "--", "-x", "a b", "")
    mine = hookbus("run", path, *arguments)
    theirs = process(path, *arguments)
    assert (mine.returncode, mine.stderr) == (0, "")
    first, *rest = mine.stdout.splitlines()
    expected, *more = theirs.stdout.splitlines()
    assert json.loads(first) == json.loads(expected)
    assert rest == more == ["at exit True True"]


@pytest.mark.parametrize("name", ["pack.about", "pack", "about"])
def test_a_module_sees_what_it_sees_under_python(name, hookbus, process, script):
    """So does a package with a ``__main__``; what follows the module is its arguments."""
    file = {"pack.about": "pack/about.py", "pack": "pack/__main__.py"}.get(name, "about.py")
    script("print('the package')", "pack/__init__.py", before="")
    script(ABOUT.replace("helper", "pack.helper"), file, before="")
    script("WORD = 'from the package'", "pack/helper.py", before="")
    arguments = ("-v", "--epochs=3", "--", "-x", "a b", "")
    mine = hookbus("run", "-p", "no:progress", "-m", name, *arguments)
    theirs = process("-m", name, *arguments)
    assert (mine.returncode, mine.stderr) == (theirs.returncode, theirs.stderr) == (0, "")
    told, first, *rest = mine.stdout.splitlines()
    assert [told, *rest] == ["the package", "at exit True True"]
    expected = json.loads(theirs.stdout.splitlines()[1])
    assert json.loads(first) == expected


@pytest.mark.parametrize("name", ["pack", "pack.zip"])
def test_a_script_may_be_a_folder_or_a_zip_file(name, hookbus, process, script):
    """Its ``__main__.py`` finds the modules beside it, as under Python."""
    path = script(ABOUT, "pack/__main__.py", before="")
    beside = script("WORD = 'beside it'", "pack/helper.py", before="")
    script("WORD = 'in the current folder'", "helper.py", before="")
    with zipfile.ZipFile("pack.zip", "w") as packed:
        packed.write(path, "__main__.py")
        packed.write(beside, "helper.py")
    mine, theirs = hookbus("run", name, "--epochs=3"), process(name, "--epochs=3")
    assert (mine.returncode, mine.stderr) == (0, "")
    first, *rest = mine.stdout.splitlines()
    expected, *more = theirs.stdout.splitlines()
    assert json.loads(first) == json.loads(expected)
    assert rest == more == ["at exit True True"]


def test_a_script_may_come_through_standard_input():
    """Its name is ``-``, as under Python."""
    source = "import sys; print(sys.argv, __name__, __file__); 1 / 0"
    mine, theirs = (
        subprocess.run(
            [sys.executable, *words, "-", "--epochs"],
            input=source,
            capture_output=True,
            text=True,
        )
        for words in (["-m", "hookbus", "run"], [])
    )
    assert mine.stdout == theirs.stdout == "['-', '--epochs'] __main__ <stdin>\n"
    assert (mine.returncode, mine.stderr) == (theirs.returncode, theirs.stderr)


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX closes it")
def test_a_closed_standard_input_is_an_empty_script():
    """Python runs nothing then, and hookbus prints nothing."""
    words = (sys.executable, "-m", "hookbus", "run", "-")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *words], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_folder_without_a_main_is_told(hookbus):
    """As Python does, with the name of the file that is missing."""
    Path("empty").mkdir()
    done = hookbus("run", "empty")
    assert done.returncode == 4
    assert "ERROR: empty has no __main__.py, which Python runs in a folder" in done.stderr


def test_a_module_trains_with_plugins(hookbus, script):
    """Flags stand before ``-m MODULE``, and a plugin may be a module beside it."""
    script(name="pack/train.py")
    script(HOOK.format(event="end", body="print('my end')"), "mine.py", before="")
    flags = ("--stop-at-step", "3", "-p", "mine:Hook", "-mpack.train")
    done = hookbus("run", *flags, "--stop-at-step", "9")
    assert (done.returncode, done.stdout) == (0, "my end\nsteps 3\n"), done.stderr
    assert "a flag after the script goes to the script" in done.stderr


def test_an_error_of_a_module_looks_as_under_python(hookbus, process, script):
    """Also one of a package around it, which is imported first."""
    script("", "pack/__init__.py", before="")
    script("def f():\n    raise ValueError('broken')\nf()\n", "pack/bad.py", before="")
    done = hookbus("run", "-m", "pack.bad")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1].endswith('bad.py", line 3, in <module>')
    script("1 / 0", "pack/__init__.py", before="")
    done = hookbus("run", "-m", "pack.bad")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1].endswith('__init__.py", line 1, in <module>')


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-m"], "-m needs a value after it"),
        (["-m", "pack.trian"], "there is no module 'pack.trian'"),
        (["-m", "pack"], "-m pack: it has no source to run, like pack/__main__.py"),
        (["-m", "train.py"], "-m takes the name of a module; to run the file: hookbus run"),
    ],
)
def test_a_module_that_cannot_be_run_is_told(flags, message, hookbus, script):
    """Before anything of it is imported: exit code 4."""
    for name in ("pack/train.py", "train.py", "pack/__init__.py"):
        script("print('imported')", name, before="")
    done = hookbus("run", *flags)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"ERROR: {message}")
    assert ("did you mean 'pack.train'?" in done.stderr) == ("trian" in message)


def test_a_safe_path_stays_safe(hookbus, process, script):
    """Where Python was told not to put the script's folder on the path, it is not there."""
    path = script("import sys; print(sys.path)", before="")
    mine = hookbus("run", path, PYTHONSAFEPATH="1")
    assert mine.stdout == process(path, PYTHONSAFEPATH="1").stdout


def test_processes_that_the_script_spawns_find_its_functions(hookbus, script):
    """A pool of fresh processes works as in any script."""
    code = """
        import multiprocessing

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """
    done = hookbus("run", script(code, before=""))
    assert (done.stdout, done.returncode) == ("[2, 4]\n", 0)


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    raise ValueError('broken')\nf()\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    import no_such_module\n",
        "error = ValueError('broken')\nerror.add_note('a note')\nraise error\n",
        "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])\n",
        "x = = 3\n",
        "def f():\nreturn\n",
    ],
)
def test_an_error_of_the_script_looks_as_under_python(code, hookbus, process, script):
    """The traceback starts in the script; exit code 1."""
    path = script(code, before="")
    mine, theirs = hookbus("run", path), process(path)
    assert mine.stderr == theirs.stderr
    assert mine.returncode == theirs.returncode == 1


def test_an_excepthook_of_the_script_is_called(hookbus, process, script):
    """A script that shows errors in its own way does so here too."""
    code = """
        import sys, traceback

        def show(kind, error, trace):
            print(kind.__name__, error, [f.name for f in traceback.extract_tb(trace)])

        sys.excepthook = show
        raise ValueError("broken")
    """
    path = script(code, before="")
    mine, theirs = hookbus("run", path), process(path)
    assert mine.stdout == theirs.stdout == "ValueError broken ['<module>']\n"
    assert (mine.returncode, mine.stderr) == (1, "")


@pytest.mark.parametrize("value", ["", "0", "None", "3", "True", "77", "'no disk left'"])
def test_the_exit_code_of_the_script_is_kept(value, hookbus, process, script):
    """``sys.exit`` does what it does under Python, its text included."""
    path = script(f"import sys\nsys.exit({value})\n", before="")
    mine, theirs = hookbus("run", path), process(path)
    assert (mine.returncode, mine.stderr) == (theirs.returncode, theirs.stderr)


def test_a_session_that_completes_is_a_success(hookbus, script):
    """Exit code 0, and what the script prints is all of stdout."""
    done = hookbus("run", script())
    assert (done.returncode, done.stdout) == (0, "steps 5\n")
    assert "completed" in done.stderr


def test_a_session_that_is_stopped_is_a_success(hookbus, script):
    """A plugin that was switched on by its flag stops the script's session: 0."""
    done = hookbus("run", "--stop-at-step", "3", script())
    assert (done.returncode, done.stdout) == (0, "steps 3\n")
    assert "who=stop-at-step" in done.stderr


def test_a_script_without_a_session_is_a_success(hookbus, script):
    """A script does not have to train."""
    done = hookbus("run", script("print('hello')", before=""))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_flags_for_a_script_without_a_session_are_not_lost_without_a_word(hookbus, script):
    """It may be one that is to be watched as it is, with --attach."""
    done = hookbus("run", "--stop-at-step", "3", script("print('hello')", before=""))
    assert (done.returncode, done.stdout) == (0, "hello\n")
    told = "the script has opened no session, so no plugin took part plugins=stop-at-step"
    assert told in done.stderr


def test_an_error_in_a_step_is_a_failure_with_a_note(hookbus, script):
    """Exit code 1; the traceback starts in the script and names the op."""
    code = """
        @graph.op
        def bad(w):
            raise ArithmeticError("no good")

        with MonitoredTrainingSession(graph) as session:
            session.run("bad")
    """
    done = hookbus("run", script(code))
    assert done.returncode == 1
    trace = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert "train.py" in trace[1]
    assert trace[-2:] == ["ArithmeticError: no good", "hookbus: raised in op 'bad'"]
    for inner in ("hookbus/cli", "runpy"):
        assert inner not in done.stderr


LOOP = """
with MonitoredTrainingSession(graph) as session:
    session.run("train")
print("trained")
"""


HOOK = """
import hookbus

class Hook(hookbus.SessionRunHook):
    def {event}(self):
        {body}
"""


FULL_DISK = """
import resource

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
with MonitoredTrainingSession(graph, checkpoint_dir="runs") as session:
    session.run("train")
"""


def test_a_disk_that_is_full_at_the_start_is_told_in_one_line(hookbus, script):
    """The error names the directory, the reason and the ways out: exit code 4."""
    pytest.importorskip("resource", reason="the size of files has no limit here")
    done = hookbus("run", "-q", "-p", "no:summary-saver", script(FULL_DISK))
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        f"ERROR: cannot write checkpoints into {Path('runs').absolute()}: File too large; "
        "give a checkpoint_dir that can be written, or -p no:checkpoint-saver"
    ]


def test_an_error_in_a_plugin_is_a_failure_with_a_note(hookbus, install, script):
    """The note has the plugin, its distribution and version, and the event."""
    install("weak", HOOK.format(event="after_run", body="raise OSError('disk')"), "Hook")
    done = hookbus("run", "-p", "weak", script())
    assert done.returncode == 1
    assert "OSError: disk" in done.stderr
    assert "raised by plugin 'weak' (fake-weak 1.0) in after_run()" in done.stderr


NESTED = """
from hookbus import SessionRunHook

def fail():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise OSError("the disk is full") from error

class InnerHook(SessionRunHook):
    def after_run(self):
        fail()

class OuterHook(SessionRunHook):
    def after_run(self):
        try:
            with MonitoredTrainingSession(graph, hooks=[InnerHook()]) as session:
                session.run("train")
        except OSError as error:
            raise ExceptionGroup("outer", [error]) from error

with MonitoredTrainingSession(graph, hooks=[OuterHook()]) as session:
    session.run("train")
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("flags", "shown"), [((), False), (("-v",), True)])
def test_a_traceback_has_the_frames_of_the_user(flags, shown, hookbus, process, script):
    """So have its causes, in Python's order; -v also shows hookbus' frames between them.

    From Python 3.13 on, the cause of an error in a group stands in the group.
    """
    path = script(NESTED)
    done, plain = hookbus("run", *flags, path), process(path)
    assert done.returncode == plain.returncode == 1
    frames, of_python = frames_in(done.stderr), frames_in(plain.stderr)
    mine = [where for file, where in frames if file == "train.py"]
    assert mine == [where for file, where in of_python if file == "train.py"]
    once = ["after_run", "after_run", "fail"]
    assert sorted(mine) == sorted(["fail", *once, "<module>", "after_run", *once])
    assert any(file == "caller.py" for file, _ in frames) is shown
    for text in ("ZeroDivisionError: division by zero", "OSError: the disk is full"):
        assert text in done.stderr
    assert "direct cause" in done.stderr


def frames_in(text: str) -> list[tuple[str, str]]:
    """Return the file and the function of each frame that tracebacks show."""
    return re.findall(r'File ".*/(\w+\.py)", line \d+, in (\w+|<module>)', text)


@pytest.mark.parametrize(("flags", "shown"), [((), False), (("-v",), True)])
def test_a_traceback_hides_the_compiled_step_too(flags, shown, hookbus, script):
    """With -v it shows the line of that, which is in no file."""
    code = """
        from hookbus import SessionRunHook

        class FailingHook(SessionRunHook):
            def after_run(self, run_values):
                if run_values.global_step == 5:
                    raise OSError("the disk is full")

        with MonitoredTrainingSession(graph, hooks=[FailingHook()]) as session:
            while True:
                session.run("train")
    """
    done = hookbus("run", *flags, script(code))
    assert done.returncode == 1
    assert "OSError: the disk is full" in done.stderr
    assert ("hookbus, compiled" in done.stderr) is shown
    assert ("\n    answer = c0(run_values)\n" in done.stderr) is shown


def test_the_step_that_was_compiled_is_shown(hookbus, script):
    """--show-step prints its source as it is, and as one string of a JSON line."""
    code = """
        with MonitoredTrainingSession(graph) as session:
            for _ in range(5):
                session.run("train")
    """
    done = hookbus("run", "--show-step", script(code))
    assert "compiled step\n# Compiled after two steps" in done.stderr
    assert "\ndef run(feeds):\n" in done.stderr
    done = hookbus("run", "--show-step", "--log-format", "json", script(code))
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["event"].startswith("compiled step\n# Compiled after two steps")


def test_a_traceback_shows_where_hookbus_itself_fails(hookbus, script):
    """The last frames stay if they are those of hookbus."""
    code = """
        session = MonitoredTrainingSession(graph)
        session._state = None
        session.run("train")
    """
    done = hookbus("run", script(code))
    assert done.returncode == 1
    assert "session/monitored.py" in done.stderr


def test_the_text_of_a_failure_is_printed_once(hookbus, script):
    """The line about the end of the session names its type; outcome.json has the text."""
    code = """
        with MonitoredTrainingSession(graph, checkpoint_dir="runs") as session:
            session.run("no such node")
    """
    done = hookbus("run", script(code))
    assert done.stderr.count("the graph has no node 'no such node'") == 1
    assert "session ended kind=failed who=caller why=UnknownNodeError" in done.stderr
    outcome = json.loads(Path("runs/outcome.json").read_text())
    assert "the graph has no node 'no such node'" in outcome["why"]


def test_an_error_of_a_plugin_before_the_first_step(hookbus, install, script):
    """A plugin that fails while the session is made: exit code 3."""
    install("weak", HOOK.format(event="begin", body="raise OSError('disk')"), "Hook")
    done = hookbus("run", "-p", "weak", script())
    assert done.returncode == 3
    assert "raised by plugin 'weak' (fake-weak 1.0) in begin()" in done.stderr


@pytest.mark.parametrize("error", ["SessionInterruptedError", "SessionStoppedError"])
@pytest.mark.parametrize(("event", "code"), [("begin", 3), ("after_run", 1), ("end", 1)])
def test_an_error_of_the_session_is_no_success_if_a_hook_raises_it(
    event, code, error, hookbus, script
):
    """Without a signal or a stop it is a failure of the hook."""
    hook = (
        "import hookbus\n"
        "class Confused(hookbus.SessionRunHook):\n"
        f"    def {event}(self):\n"
        f"        raise hookbus.errors.{error}('no reason')\n"
    )
    loop = (
        "with MonitoredTrainingSession(graph, hooks=[Confused()]) as session:\n"
        "    session.run('train')\n"
        "print('went on')\n"
    )
    path = script(hook + loop)
    done = hookbus("run", path)
    assert (done.returncode, done.stdout) == (code, "")
    assert "ERROR: no reason" in done.stderr
    assert "raised by plugin 'confused'" in done.stderr


def test_a_plugin_that_misbehaves_after_steps_were_done_is_a_failed_run(
    hookbus, install, script
):
    """Exit code 3 means that nothing was trained; later it is 1."""
    body = "self.n = getattr(self, 'n', 0) + 1; return None if self.n < 3 else 5"
    install("late", HOOK.format(event="before_run", body=body), "Hook")
    done = hookbus("run", "-p", "late", script())
    assert "'late'" in done.stderr
    assert done.returncode == 1


def test_an_error_that_hookbus_raises_is_one_message(hookbus, script):
    """A refusal is shown without a traceback, with the line of the script."""
    code = """
        with MonitoredTrainingSession(graph) as session:
            session.run("tran")
    """
    path = script(code)
    lines = path.read_text().splitlines()
    place = next(i for i, line in enumerate(lines, 1) if "session.run" in line)
    done = hookbus("run", path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "ERROR: the graph has no node 'tran'" in done.stderr
    assert "did you mean 'train'?" in done.stderr
    assert f"train.py:{place}" in done.stderr


def test_a_keyboard_interrupt_is_told_in_a_word(hookbus, script):
    """Exit code 2 without a traceback."""
    code = """
        with MonitoredTrainingSession(graph) as session:
            session.run("train")
            raise KeyboardInterrupt
    """
    done = hookbus("run", script(code))
    assert done.returncode == 2
    assert done.stderr.endswith("interrupted\n")
    assert "Traceback" not in done.stderr


def test_a_failure_that_the_script_handled_is_a_success(hookbus, script):
    """Exit code 0, with one warning that says why the session failed."""
    code = """
        try:
            with MonitoredTrainingSession(graph) as session:
                session.run("train")
                raise ValueError("broken")
        except ValueError:
            print("handled")
    """
    done = hookbus("run", script(code))
    assert (done.returncode, done.stdout) == (0, "handled\n")
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert "ValueError: broken" in warning


SESSION = "\nwith MonitoredTrainingSession(graph{}) as session:\n    {}\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (SESSION.format("", "pass"), 5),
        (SESSION.format("", "session.run('loss')"), 5),
        (SESSION.format("", "pass") * 2, 5),
        (SESSION.format("", "pass") + SESSION.format("", "session.run('train')"), 0),
    ],
)
def test_sessions_without_a_step_have_an_exit_code_of_their_own(
    code, exit_code, hookbus, script
):
    """A job that opened sessions and trained nothing is told by 5."""
    done = hookbus("run", script(code))
    assert done.returncode == exit_code
    assert ("no session ran a step" in done.stderr) is (exit_code == 5)


TRAINS = SESSION.format(", checkpoint_dir='runs'", "{}")
EVALUATES = """
from hookbus.evaluation import evaluate_once
evaluate_once("runs/ckpt-{}", graph=graph, eval_ops="loss", hooks=[StopsHook()])
"""
STOPS = """
import os, signal
from hookbus import SessionRunHook
class StopsHook(SessionRunHook):
    def after_run(self, run_context):
        {}
"""


@pytest.mark.parametrize(
    ("body", "saved", "exit_code"), [("pass", 0, 5), ("session.run('train')", 1, 0)]
)
def test_an_evaluation_is_no_training_without_a_step(
    body, saved, exit_code, hookbus, script
):
    """It has no step to run; a run beside it is judged by its own."""
    stops = STOPS.format("run_context.request_stop()")
    done = hookbus("run", script(stops + TRAINS.format(body) + EVALUATES.format(saved)))
    assert done.returncode == exit_code
    assert hookbus("run", script(stops + EVALUATES.format(saved))).returncode == 0


def test_a_preempted_evaluation_has_nothing_to_save(hookbus, script):
    """So it has lost nothing, and is to be run again."""
    kill = "os.kill(os.getpid(), signal.SIGTERM)"
    trains = TRAINS.format("session.run('train')")
    path = script(STOPS.format(kill) + trains + EVALUATES.format(1))
    assert hookbus("run", path).returncode == 75


EXITS = """
import sys
def main():
    arguments = {{"checkpoint_dir": "runs", "hooks": [StopsHook()]}}
    try:
        with MonitoredTrainingSession(graph, **arguments) as session:
            while True:
                session.run("train")
    except (KeyboardInterrupt, SystemExit) as error:
        print("left by", type(error).__name__)
    return {}
sys.exit(main())
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("code", "number", "exit_code"),
    [
        ("None", "SIGTERM", 75),
        ("0", "SIGTERM", 75),
        ("0", "SIGHUP", 75),
        ("None", "SIGINT", 2),
        ("3", "SIGTERM", 3),
    ],
)
def test_an_exit_with_success_hides_no_signal(code, number, exit_code, hookbus, script):
    """`sys.exit(main())` is how scripts end; only their other codes are kept."""
    stops = STOPS.format(f"os.kill(os.getpid(), signal.{number})")
    done = hookbus("run", script(stops + EXITS.format(code)))
    assert done.returncode == exit_code, done.stderr
    assert done.stdout.startswith("left by ")
    assert "Traceback" not in done.stderr


def test_a_resumed_session_may_do_no_step(hookbus, script):
    """Started at a later step than 0, there was just nothing left to do."""
    loop = "[session.run('train') for _ in range(3 - session.global_step)]"
    path = script(SESSION.format(", checkpoint_dir='runs'", loop))
    assert [hookbus("run", path).returncode for _ in range(2)] == [0, 0]


def test_plugins_that_cannot_be_imported_are_told_all_at_once(hookbus, install, script):
    """Exit code 3 before the first step, three lines a plugin, no traceback."""
    install("broken-one", "import no_such_module_anywhere")
    install("broken-two", "", "MissingHook")
    done = hookbus("run", "-p", "broken-two", script("print('before')\n" + LOOP))
    assert (done.returncode, done.stdout) == (3, "before\n")
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    for name, why in (("broken-one", "No module named"), ("broken-two", "MissingHook")):
        (place,) = [
            i for i, line in enumerate(lines) if f"cannot load plugin '{name}'" in line
        ]
        assert f"fake-{name} 1.0" in lines[place]
        assert why in lines[place + 1]
        assert f"-p no:{name}" in lines[place + 2]


def test_a_broken_plugin_that_is_blocked_harms_nobody(hookbus, install, script):
    """The advice in the message of a broken plugin does help."""
    install("broken-one", "import no_such_module_anywhere")
    done = hookbus("run", "-p", "no:broken-one", script(LOOP))
    assert (done.returncode, done.stdout) == (0, "trained\n")


def test_a_plugin_that_leaves_python_does_not_look_like_success(hookbus, install, script):
    """``sys.exit(0)`` at import is a plugin that does not load."""
    install("leaver", "import sys; sys.exit(0)")
    done = hookbus("run", script(LOOP))
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot load plugin 'leaver'" in done.stderr


NOISY = """
import hookbus
with MonitoredTrainingSession(graph) as session:
    for _ in session.loop():
        hookbus.log.warning("two\\nlines", value={}, thing=sys)
"""


def test_log_lines_can_be_json(hookbus, script):
    """With ``--log-format json`` each line on stderr is one JSON object."""
    flags = ("--log-format=json", "--stop-at-step", "3", "--logging-tensor", "loss,w")
    done = hookbus("run", *flags, script(NOISY.format("1.5")))
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    noisy = [line for line in lines if line["event"] == "two\nlines"]
    assert [line["value"] for line in noisy] == [1.5] * 3
    ended = next(line for line in lines if line["event"] == "session ended")
    assert (ended["kind"], ended["step"]) == ("stopped", 3)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_json_log_lines_are_json_for_every_number(number, hookbus, script):
    """JSON has no NaN and no infinity; a loss that is one must not spoil the line."""
    flags = ("--log-format", "json", "--stop-at-step", "1")
    done = hookbus("run", *flags, script(NOISY.format(f"float('{number}')")))

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    for line in done.stderr.splitlines():
        assert json.loads(line, parse_constant=refuse)
