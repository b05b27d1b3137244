"""Nothing is ever unpickled: a checkpoint is data, and reading one runs no code."""

from __future__ import annotations

import ast
from pathlib import Path

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


def test_no_source_can_unpickle():
    """None imports a pickler, uses a loader that can unpickle, or allows pickles."""
    found = {path.name: _picklers(path) for path in SOURCES}
    assert {name: names for name, names in found.items() if names} == {}


def _picklers(path: Path) -> set[str]:
    """Return all that could unpickle in a source."""
    used: set[str | None] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            used |= {alias.name.split(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            used |= {(node.module or "").split(".")[0]} & MODULES
        elif isinstance(node, ast.Call):
            told = {each.arg for each in node.keywords if not _refuses(each)}
            used |= told & {"allow_pickle"}
            if isinstance(node.func, ast.Attribute):
                used |= {ast.unparse(node.func)} & LOADERS
    return used


def _refuses(keyword: ast.keyword) -> bool:
    """Return whether an argument tells a library to refuse pickles."""
    return keyword.arg == "allow_pickle" and ast.unparse(keyword.value) == "False"


def test_the_sources_are_really_looked_at():
    """The rule above is about the whole of hookbus and its plugins."""
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
