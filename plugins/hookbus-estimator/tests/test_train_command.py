"""``hookbus train``: an Estimator is found, trained with plugins, and the code tells."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

SAVED = Path("runs/model")


def steps_saved(place=SAVED):
    return sorted(int(path.name[5:]) for path in place.glob("ckpt-*"))


def test_it_trains_to_a_step_and_no_farther(estimator, about):
    """The second time there is nothing to train: no session, and a success."""
    estimator()
    first, second = (about("train", "--max-steps", "3") for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert steps_saved() == [0, 3]
    assert "who=Estimator.train() why='step 3 is reached' step=3" in first.stderr
    (line,) = second.stderr.splitlines()
    assert "nothing to train" in line


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("flags", "last"), [((), [10, 20]), (("--steps", "2"), [2, 4])])
def test_it_goes_on_from_the_newest_checkpoint(flags, last, estimator, about):
    """Without a number to the end of the input, with --steps so many more."""
    estimator()
    for step in last:
        assert about("train", *flags).returncode == 0
        assert steps_saved()[-1] == step


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "made", "source"),
    [
        ("model.py", "model.py:estimator", "model.py:numbers"),
        ("model.py", "./model.py:estimator", "model:numbers"),
        ("model.py", "model:make", "model:numbers"),
        ("sub/model.py", "sub/model.py:make", "sub.model:numbers"),
        ("sub/model.py", "sub.model:estimator", "other:numbers"),
        ("sub/model.py", "sub/model.py:estimator", "other:numbers"),
        ("sub/model.py", "sub/model.py:estimator", "model.py:numbers"),
        ("sub/random.py", "sub/random.py:estimator", "sub/random.py:numbers"),
        ("model", "./model:estimator", "other:numbers"),
    ],
)
def test_modules_and_files_can_be_named(name, made, source, estimator, hookbus):
    """A module is found as under python -m, a file by its path, whatever it is called."""
    estimator(name=name)
    for other in ("other.py", "model.py") if name != "model.py" else ():
        Path(other).write_text(
            "import numpy as np\ndef numbers():\n"
            "    return [({'x': np.ones(2)}, np.ones(2))]\n"
        )
    done = hookbus("train", made, "--input", source, "--steps", "1")
    assert (done.returncode, steps_saved()) == (0, [0, 1]), done.stderr


@pytest.mark.long
def test_modules_beside_a_file_are_found(hookbus, estimator):
    """The folder of the file comes first, as it does for a script; then the current one."""
    estimator("from word import WORD\nprint(WORD)\n", "sub/model.py")
    Path("sub/word.py").write_text("WORD = 'beside the file'")
    Path("word.py").write_text("WORD = 'in the current folder'")
    Path("data.py").write_text("from model import numbers\n")
    named = ("sub/model.py:estimator", "--input", "data:numbers", "--steps", "1")
    done = hookbus("train", *named)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("beside the file\n")
    assert done.stdout.count("beside the file") == 1


def test_the_directory_can_be_told(hookbus, estimator):
    """A function with a parameter model_dir gets --model-dir."""
    estimator()
    named = ("model:make", "--input", "model:numbers", "--model-dir", "runs/other")
    assert hookbus("train", *named, "--steps", "1").returncode == 0
    assert steps_saved(Path("runs/other")) == [0, 1]
    assert not SAVED.exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", range(3))
def test_flags_of_plugins_act_wherever_they_stand(place, estimator, hookbus, watcher):
    """Before the Estimator, between, and behind, told apart from the command's own."""
    estimator()
    words = ["model.py:estimator", "--input=model.py:numbers", "--max-steps=3"]
    words.insert(place, "--watcher=here")
    done = hookbus("train", *words)
    assert done.returncode == 0
    assert "here 3 stopped" in done.stderr


@pytest.mark.long
def test_a_flag_of_a_plugin_may_end_the_training(estimator, about):
    """Flags are stronger than what an Estimator switches on, and add to it."""
    estimator()
    flags = ("--stop-at-step", "4", "--checkpoint-saver-save-steps", "2")
    assert about("train", *flags).returncode == 0
    assert steps_saved() == [0, 2, 4]


@pytest.mark.long
def test_a_hook_of_the_model_is_switched_off_by_its_name(estimator, about):
    """-p no:NAME holds for what a model_fn returns; also where nothing is trained."""
    estimator()
    with_it = about("train", "--max-steps", "1")
    assert "watched" in with_it.stdout
    for _ in range(2):
        without = about("train", "-p", "no:watch", "--max-steps", "2")
        assert (without.returncode, "watched" in without.stdout) == (0, False)


MISTAKES = [
    ([], "hookbus train needs an Estimator: hookbus train [flags] MODULE:ESTIMATOR"),
    (["model:estimator"], "hookbus train needs --input MODULE:FN"),
    (["model:estimator", "--input"], "--input needs a value after it"),
    (["model.py", "--input=model:numbers"], "the Estimator is MODULE:NAME"),
    (["model:estimator", "--input=numbers"], "--input is MODULE:NAME"),
    (["modle:estimator", "--input=model:numbers"], "module 'modle'", "'model'?"),
    (["modle.py:estimator", "--input=model:numbers"], "file modle.py", "'model.py'?"),
    (["sub.modle:estimator", "--input=model:numbers"], "'sub.modle'", "'sub.model'?"),
    (["sbu.model:estimator", "--input=model:numbers"], "'sbu.model'", "'sub.model'?"),
    (["model.sub:estimator", "--input=model:numbers"], "no module 'model.sub'"),
    (["./sub:estimator", "--input=model:numbers"], "the file sub is a directory"),
    (["model:estimtor", "--input=model:numbers"], "no 'estimtor'", "'estimator'?"),
    (["model:estimator", "--input=model:numbrs"], "no 'numbrs'", "'numbers'?"),
    (["model:np", "--input=model:numbers"], "model:np is a module; expected an Estimator"),
    (["model:numbers", "--input=model:numbers"], "model:numbers returned a generator"),
    (["model:model_fn", "--input=model:numbers"], "with no arguments", "'features'"),
    (
        ["model:estimator", "--input=model:np"],
        "--input model:np is a module; expected a function",
    ),
    (["model:estimator", "--input=model:model_fn"], "input_fn has a parameter 'features'"),
    (["--watcher", "model:estimator", "--input=model:numbers"], "the value of --watcher"),
    (["model:make", "model:make", "--input=model:numbers"], "but also got 'model:make'"),
    (
        ["model:make", "--input=model:numbers", "--steps=1", "--max-steps=1"],
        "give one of the two",
    ),
    (["model:make", "--input=model:numbers", "--steps=soon"], "'soon' is not a whole"),
    (["model:make", "--input=model:numbers", "--steps=0"], "Must specify steps > 0"),
    (
        ["model:make", "--input=model:numbers", "--max-step=1"],
        "did you mean '--max-steps'?",
    ),
    (["model:make", "--input=model:numbers", "--watchr=1"], "mean '--watcher'?"),
    (["model:make", "--inptu=model:numbers"], "'--input'?", "hookbus train --help"),
    (["model:estimator", "--input=model:numbers", "--model-dir=x"], "--model-dir needs"),
    (["other:make", "--input=model:numbers", "--model-dir=x"], "argument 'model_dir'"),
    (["model:make", "--input=model:numbers", "-p", "no:progres"], "'-p no:progress'?"),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("arguments", "parts"), [(m[0], m[1:]) for m in MISTAKES])
def test_a_mistake_is_told_in_one_line(arguments, parts, estimator, hookbus, watcher):
    """Exit code 4, one message without a traceback, and nothing is trained."""
    estimator()
    estimator(name="sub/__init__.py")
    estimator(name="sub/model.py")
    estimator("def make(): return estimator", name="other.py")
    done = hookbus("train", *arguments)
    assert (done.returncode, done.stdout) == (4, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("ERROR: ")
    for part in parts:
        assert part in line
    assert not SAVED.exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    raise ValueError('broken')\nf()\n",
        "import no_such_module\n",
        "x = =\n",
    ],
)
@pytest.mark.parametrize("target", ["broken.py:x", "broken:x"])
def test_an_error_at_import_looks_as_under_python(
    code, target, estimator, hookbus, process
):
    """The traceback starts in the user's file; exit code 1."""
    estimator()
    path = Path("broken.py").absolute()
    path.write_text(code)
    mine, theirs = hookbus("train", target, "--input=model:numbers"), process(path)
    assert mine.stderr == theirs.stderr
    assert mine.returncode == theirs.returncode == 1


def test_an_error_in_the_model_starts_where_the_users_code_does(estimator, about):
    """Frames of hookbus that led to a model_fn are left out; exit code 1."""
    estimator(
        "def model_fn(features, labels): raise ValueError('broken')\nestimator = make()\n"
    )
    done = about("train")
    assert done.returncode == 1
    _, first, *_, last = done.stderr.splitlines()
    assert "model.py" in first
    assert last == "ValueError: broken"
    assert "hookbus/" not in done.stderr


def test_an_error_of_hookbus_names_the_line_of_the_user(estimator, about):
    """Without a traceback; what was asked of a graph wrongly is found there."""
    estimator(
        "def model_fn(features, labels):\n    features.graph.variable('x', 1.0)\n"
        "    features.graph.variable('x', 1.0)\n"
        "estimator = make()\n"
    )
    done = about("train")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    last = len(Path("model.py").read_text().splitlines())
    assert f"model.py:{last - 1} (model_fn)" in done.stderr


def test_an_error_of_a_plugin_before_the_first_step(estimator, about, install):
    """Exit code 3, as in any other run; the plugin is named."""
    code = "import hookbus\n@hookbus.hookimpl\ndef begin(): raise OSError('disk')\n"
    install("weak", code)
    estimator()
    done = about("train")
    assert done.returncode == 3
    assert "raised by plugin 'weak' (fake-weak 1.0) in begin()" in done.stderr


def test_an_input_without_a_batch_is_a_mistake(estimator, hookbus):
    """Found when the input is looked at: exit code 4."""
    estimator("def none(): return []\n")
    done = hookbus("train", "model:estimator", "--input", "model:none")
    assert done.returncode == 4
    assert "input_fn gave no batch" in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "code", "kind"),
    [(signal.SIGTERM, 75, "preempted"), (signal.SIGINT, 2, "interrupted")],
)
def test_a_signal_saves_and_is_told_by_the_exit_code(number, code, kind, estimator, about):
    """The step that it came in is done; the same command does the rest of the steps."""
    estimator()
    done = about("train", "--steps", "8", SIGNAL=str(int(number)))
    assert done.returncode == code
    assert f"kind={kind}" in done.stderr
    assert steps_saved() == [0, 5]
    assert about("train", "--steps", "8").returncode == 0
    assert steps_saved()[-1] == 8


def test_a_signal_with_nothing_saved_is_a_failure(estimator, about):
    """75 is a promise that the next run goes on from there."""
    estimator()
    flags = ("-p", "no:checkpoint-saver")
    done = about("train", *flags, SIGNAL=str(int(signal.SIGTERM)))
    assert (done.returncode, "nothing was saved" in done.stderr) == (1, True)


def test_help_shows_own_flags_and_those_of_plugins(hookbus, watcher):
    """No Estimator has to be named for it."""
    done = hookbus("train", "--help", "-p", "watcher")
    assert done.returncode == 0
    first, *lines = done.stdout.splitlines()
    assert first == "usage: hookbus train [flags] MODULE:ESTIMATOR --input MODULE:FN"
    names = [re.split("  +", line.strip())[0] for line in lines if line.startswith("  -")]
    flags = [word.rstrip(",") for name in names for word in name.split()]
    for flag in (
        "--input",
        "--steps",
        "--max-steps",
        "--model-dir",
        "-p",
        "--watcher-word",
    ):
        assert flags.count(flag) == 1, flag
