"""Nothing is ever unpickled: a checkpoint is data, and reading one runs no code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hookbus

ROOT = Path(hookbus.__file__).parents[1]
SOURCES = [
    path
    for folder in (Path(hookbus.__file__).parent, ROOT / "plugins")
    for path in sorted(folder.rglob("*.py"))
    if "tests" not in path.relative_to(folder).parts
]
MODULES = {
    "pickle", "_pickle", "cPickle", "pickletools", "marshal", "shelve", "dbm",
    "dill", "cloudpickle", "joblib", "copyreg", "jsonpickle",
}  # fmt: skip
LOADERS = {"np.load", "numpy.load", "np.fromfile", "np.memmap", "torch.load", "torch.save"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_imports_a_pickler(path):
    """Neither hookbus nor a plugin imports a module that makes objects of bytes."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert not imported & MODULES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_lets_a_library_unpickle(path):
    """Loaders that can unpickle are not used, nor is any told to allow pickles."""
    used = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            used |= {each.arg for each in node.keywords if not _refuses(each)}
            used.add(ast.unparse(node.func))
    assert not used & LOADERS
    assert "allow_pickle" not in used


def _refuses(keyword: ast.keyword) -> bool:
    """Return whether an argument tells a library to refuse pickles."""
    return keyword.arg == "allow_pickle" and ast.unparse(keyword.value) == "False"


def test_the_sources_are_really_looked_at():
    """The two rules above are about the whole of hookbus and its plugins."""
    names = {"/".join(path.parts[-2:]) for path in SOURCES}
    codec = "hookbus_safetensors/__init__.py"
    assert {"checkpoint/store.py", "saving/saver.py", codec} <= names
    assert len(SOURCES) > 30


def test_saving_and_restoring_unpickles_nothing(tmp_path, python):
    """The interpreter, which reports each unpickling, reports none."""
    done = python(WATCHED, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["watching", "0", "2"]


WATCHED = """
import pickle, sys

import numpy as np

import hookbus

seen = []
sys.addaudithook(lambda event, about: event == "pickle.find_class" and seen.append(about))
pickle.loads(pickle.dumps(np.float64))
assert seen
print("watching")
seen.clear()


class Odd(hookbus.SessionRunHook):
    def state_dict(self):
        return {"one": np.float32(1), "dates": np.array(["NaT"], "M8[s]"), 3: (None, b"x")}

    def load_state_dict(self, state):
        pass


for _ in range(2):
    graph = hookbus.Graph()
    graph.variable("w", np.zeros((2, 3), order="F"))
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with hookbus.MonitoredTrainingSession(
        graph, checkpoint_dir=sys.argv[1], hooks=[Odd()], save_summaries_steps=None,
        log_step_count_steps=None, config=hookbus.Config(autoload=False),
    ) as session:
        print(session.global_step) if not seen else sys.exit(f"unpickled {seen}")
        session.run("train")
        session.run("train")
assert not seen, seen
"""
