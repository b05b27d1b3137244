"""``hookbus export`` writes a trained object into a file for programs without hookbus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_weight_average import WeightAverageHook
from safetensors import safe_open
from safetensors.numpy import load_file

from hookbus import Config, Graph, MonitoredTrainingSession, load_tracked
from hookbus.testing import fake_dist
from tests.support.in_process import run_here

QUIET = Config(autoload=False, header=False)
OUT = Path("out.safetensors")
OTHER = """
class TextCodec:
    def write(self, state, files): ...
    def read(self, directory): ...
    def export(self, values, metadata, file):
        for name, value in values.items():
            file.write(f"{name} {value}\\n".encode())
        file.write(f"{sorted(metadata)}\\n".encode())

class RacingCodec(TextCodec):
    def export(self, values, metadata, file):
        open("out.race", "w").write("first")

class FailingCodec(TextCodec):
    def export(self, values, metadata, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

class OldCodec:
    def write(self, state, files): ...
    def read(self, directory): ...
"""


def saved(*hooks, **things):
    """Train two steps that add one to each array; save at the end."""
    with MonitoredTrainingSession(
        checkpoint_dir="runs",
        hooks=[CheckpointSaverHook("runs", save_steps=2), *hooks],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        session.track(**things)
        for _ in range(2):
            with session.step():
                for thing in things.values():
                    if isinstance(thing, dict):
                        thing["w"] += 1
                    elif isinstance(thing, np.ndarray):
                        thing += 1


def net():
    """Return a dict with arrays, numbers, and what is neither."""
    return {
        "w": np.zeros((2, 3), np.float32),
        "layers": [{"b": np.arange(4)}, {"b": np.ones(1)}],
        "bias": 0.5,
        "steps": 3,
        "on": True,
        "large": 2**80,
        "name": "line",
    }


def graph():
    """Save the variables of a graph after one step."""
    graph = Graph()
    graph.variable("w", np.zeros(2))
    graph.variable("layer/b", 1.5)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with MonitoredTrainingSession(
        graph, checkpoint_dir="runs", hooks=[WeightAverageHook(0.5)], config=QUIET
    ) as session:
        session.run("train")
        session.run("train")


def files():
    """Return the names in the current folder."""
    return sorted(path.name for path in Path().iterdir())


def export(*words):
    """Return the exit code of the command, and what it prints."""
    return run_here(["export", *map(str, words)])


def metadata():
    """Return the metadata of the file."""
    with safe_open(OUT, framework="np") as file:
        return file.metadata()


def test_it_writes_the_arrays_and_numbers_of_an_object():
    """Under the keys to them; what is neither is named."""
    saved(net=net())
    assert export("runs/ckpt-2", "--tracked", "net", OUT) == (
        0,
        "wrote 'net' in runs/ckpt-2 to out.safetensors\n"
        "  arrays        6\n"
        "  left out      large, name\n",
    )
    found = load_file(OUT)
    assert found["w"].dtype == np.float32
    assert {name: value.tolist() for name, value in found.items()} == {
        "w": [[2, 2, 2], [2, 2, 2]],
        "layers.0.b": [0, 1, 2, 3],
        "layers.1.b": [1],
        "bias": 0.5,
        "steps": 3,
        "on": True,
    }
    assert metadata() == {"step": "2", "source": "runs/ckpt-2", "tracked": "net"}


def test_of_a_directory_it_takes_the_newest():
    """The metadata names the one that it took; a bare array has the name of the object."""
    saved(rate=np.zeros(2))
    code, shown = export("--tracked=rate", "runs", OUT)
    assert (code, shown) == (
        0,
        "wrote 'rate' in runs/ckpt-2 to out.safetensors\n  arrays        1\n",
    )
    assert load_file(OUT)["rate"].tolist() == [2, 2]
    assert metadata()["source"] == "runs/ckpt-2"


def test_it_writes_averages():
    """Those of the plugin weight-average, in the same form."""
    saved(WeightAverageHook(0.5), net=net())
    assert export("runs", "--averages", "--tracked", "net", OUT)[1].startswith(
        "wrote the averages of 'net' in runs/ckpt-2"
    )
    found = load_file(OUT)
    assert found["w"].tolist() == load_tracked("runs", "net", averages=True)["w"].tolist()
    assert (found["w"][0, 0], found["w"].dtype) == (1.5, np.float32)
    assert metadata()["averages"] == "true"


@pytest.mark.parametrize("flags", [[], ["--variables"]])
def test_of_a_graph_it_writes_the_variables(flags):
    """Under their names, with the flag or without it."""
    graph()
    code, shown = export("runs", OUT, *flags)
    assert (code, shown.splitlines()[0]) == (
        0,
        "wrote the variables in runs/ckpt-2 to out.safetensors",
    )
    found = load_file(OUT)
    assert {name: value.tolist() for name, value in found.items()} == {
        "w": [2, 2],
        "layer/b": 1.5,
    }
    assert metadata() == {"step": "2", "source": "runs/ckpt-2"}


def test_an_object_may_have_fractions_alone():
    saved(line={"w": 8.0})
    assert export("runs", OUT, "--tracked", "line")[0] == 0
    assert load_file(OUT)["w"] == 10


def test_the_variables_of_a_graph_have_averages():
    graph()
    assert export("runs", OUT, "--averages")[0] == 0
    assert load_file(OUT)["w"].tolist() == [1.5, 1.5]


def test_a_file_that_exists_stays():
    """Without --force, which replaces the file that a link leads to."""
    saved(rate=np.zeros(2))
    OUT.write_text("precious")
    assert export("runs", "--tracked", "rate", OUT) == (
        4,
        "ERROR: 'out.safetensors' exists, and is not replaced without --force\n",
    )
    assert OUT.read_text() == "precious"
    link = Path("link.safetensors")
    link.symlink_to(OUT)
    assert export("runs", "--tracked", "rate", link)[0] == 4
    assert export("runs", "--tracked", "rate", link, "--force")[0] == 0
    assert link.is_symlink()
    assert load_file(OUT)["rate"].tolist() == [2, 2]


def test_it_leaves_nothing_but_the_file():
    """And reads only."""
    saved(rate=np.zeros(2))
    before = {p: p.stat().st_mtime_ns for p in Path("runs").rglob("*")}
    export("runs", "--tracked", "rate", "nested.name.safetensors")
    assert files() == ["nested.name.safetensors", "runs"]
    assert {p: p.stat().st_mtime_ns for p in Path("runs").rglob("*")} == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["runs", OUT],
            "no variables of a graph; it has the tracked objects 'net', 'draw'",
        ),
        (
            ["runs", OUT, "--tracked", "nett"],
            "no tracked object 'nett'; it has the tracked objects 'net'",
        ),
        (["runs", OUT, "--tracked", "draw"], "'draw' has no array to write: name a model"),
        (["runs", OUT, "--tracked", "twice"], "'twice' has two values with the name 'a.w'"),
        (
            ["runs", OUT, "--tracked", "net", "--averages"],
            "ckpt-2 has no averages: no plug",
        ),
        (["runs", OUT, "--tracked", "net", "--variables"], "give one of the two flags"),
        (["runs", OUT, "--tracked"], "--tracked"),
        (["runs"], "needs a checkpoint and a file: hookbus export CHECKPOINT"),
        (["runs", OUT, "more"], "hookbus export does not take 'more'; it takes --tracked"),
        (["runs", OUT, "--trackd", "net"], "unrecognized flag --trackd"),
        (
            ["runs", "out.safetensor", "--tracked", "net"],
            "is installed; a file '.safetensors' needs hookbus-che",
        ),
        (["runs", "out", "--tracked", "net"], "a file needs a suffix"),
        (
            ["runs", "no/out.safetensors", "--tracked", "net"],
            "cannot write 'no/out.safeten",
        ),
        (
            ["runs", OUT, "--tracked", "complex"],
            "has the dtype complex128, which a safeten",
        ),
        (["runs", OUT, "--tracked", "named"], "cannot hold an array named '__metadata__'"),
    ],
)
def test_a_mistake_is_exit_code_4(words, told):
    """It says what is wrong, and no file appears."""
    things = {
        "net": net(),
        "draw": np.random.default_rng(1),
        "twice": {"w": np.zeros(1), "a": {"w": np.zeros(1)}, "a.w": np.zeros(1)},
        "complex": np.zeros(2, complex),
        "named": {"w": np.zeros(1), "__metadata__": np.zeros(1)},
    }
    saved(**things)
    code, shown = export(*words)
    assert (code, shown[:7]) == (4, "ERROR: ")
    assert told in shown
    assert not OUT.exists()
    assert files() == ["runs"]


def test_a_checkpoint_that_is_missing_or_damaged_is_exit_code_1():
    code, shown = export("runs", "--tracked", "net", OUT)
    assert (code, shown) == (1, "ERROR: there is no checkpoint in 'runs'\n")
    saved(net=net())
    Path("runs/ckpt-2/state.json").write_text("{}")
    code, shown = export("runs/ckpt-2", "--tracked", "net", OUT)
    assert (code, shown) == (
        1,
        "ERROR: cannot restore runs/ckpt-2: its file state.json has 2 bytes instead of "
        f"{shown.split()[-1]}\n",
    )
    assert not OUT.exists()


def test_a_big_endian_array_is_written_in_the_order_of_the_format():
    saved(w=np.arange(3, dtype=">i4"))
    assert export("runs", "--tracked", "w", OUT)[0] == 0
    assert load_file(OUT)["w"].tolist() == [2, 3, 4]


def test_an_array_in_another_order_keeps_its_values():
    """A transposed one, which the library safetensors itself would scramble."""
    saved(w=np.asfortranarray(np.arange(6.0).reshape(2, 3)), e=np.zeros((0, 3)))
    for name in ("w", "e"):
        assert export("runs", "--tracked", name, OUT, "--force")[0] == 0
        assert load_file(OUT)[name].shape == ((2, 3) if name == "w" else (0, 3))
        if name == "w":
            assert load_file(OUT)["w"].tolist() == [[2, 3, 4], [5, 6, 7]]


def test_its_help_names_every_flag():
    code, shown = export("--help")
    assert code == 0
    assert shown.startswith("usage: hookbus export CHECKPOINT --tracked NAME FILE [flags]")
    for flag in ("--tracked NAME", "--variables", "--averages", "--force", "-h, --help"):
        assert f"\n  {flag} " in shown


@pytest.fixture
def codecs(site):
    """Install a distribution with codecs of its own."""
    entries = {
        "txt": "fake_codec:TextCodec",
        "race": "fake_codec:RacingCodec",
        "fail": "fake_codec:FailingCodec",
        "old": "fake_codec:OldCodec",
    }
    fake_dist(site, "fake-codec", {"hookbus.codec": entries}, modules={"fake_codec": OTHER})


def test_another_codec_writes_files_of_its_own_suffix(codecs, hookbus):
    """Any distribution may offer one, in the group hookbus.codec."""
    saved(rate=np.zeros(2))
    done = hookbus("export", "runs", "--tracked", "rate", "out.txt")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("out.txt").read_text() == ("rate [2. 2.]\n['source', 'step', 'tracked']\n")


def test_a_codec_may_only_write_checkpoints(codecs, hookbus):
    saved(rate=np.zeros(2))
    done = hookbus("export", "runs", "--tracked", "rate", "out.old")
    assert done.returncode == 4
    assert "the codec 'old' (fake_codec:OldCodec) writes checkpoints only" in done.stderr


def test_a_file_that_comes_meanwhile_stays(codecs, hookbus):
    """Two commands may write the same file."""
    saved(rate=np.zeros(2))
    done = hookbus("export", "runs", "--tracked", "rate", "out.race")
    assert (done.returncode, "exists, and is not replaced" in done.stderr) == (4, True)
    assert files() == ["out.race", "runs"]
    assert Path("out.race").read_text() == "first"


def test_half_a_file_never_appears(codecs, hookbus):
    """The old one stays if the disk is full."""
    saved(rate=np.zeros(2))
    Path("out.fail").write_text("old")
    done = hookbus("export", "runs", "--tracked", "rate", "out.fail", "--force")
    assert (done.returncode, done.stderr) == (
        4,
        "ERROR: cannot write 'out.fail': No space left on device\n",
    )
    assert Path("out.fail").read_text() == "old"
    assert files() == ["out.fail", "runs"]


def test_it_imports_no_plugin(process, install):
    """Not even one that is on, nor those whose hooks have a state in the checkpoint."""
    install("loud", "raise SystemExit('imported')", autouse=True)
    saved(WeightAverageHook(0.5), net=net())
    code = (
        "import sys; from hookbus.cli import main; "
        "main(['export', 'runs', '--averages', '--tracked', 'net', 'out.safetensors']); "
        "print(*sys.modules)"
    )
    done = process("-c", code, HOOKBUS_PLUGINS="loud")
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert "hookbus_safetensors" in modules
    assert not modules & {"hookbus_weight_average", "hookbus_checkpoint_saver", "torch"}
    assert OUT.exists()
