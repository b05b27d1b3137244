"""``hookbus run --names`` prints what names a run has, after one step."""

from __future__ import annotations

from pathlib import Path

LOOP = """
import sys
import numpy as np
from hookbus import MonitoredTrainingSession

w, seen = np.zeros((2, 3)), []
with MonitoredTrainingSession(checkpoint_dir="runs", save_checkpoint_steps=1) as session:
    session.track(w=w, model={"b": 0.5})
    for x in session.iterate(range(9), name="batch"):
        with session.step() as step:
            step.report(loss=float(w.sum()), accuracy=lambda: 1)
print("steps", session.global_step, *sys.argv[1:])
"""
OF_LOOP = """\
state
  w            float64 (2, 3)
  model.b      float
  global_step  int
input
  batch  no value in this step
report
  accuracy  int
  loss      float
steps 1 --names x
"""
GRAPH = """
from hookbus import Graph, MonitoredTrainingSession

graph = Graph()
graph.input("batch", lambda: range(9))
graph.placeholder("x")
graph.variable("w", 1.0)
graph.op(lambda w, x: w * x, name="y")
graph.train_op(lambda w, batch: w + batch, name="train", updates="w")
with MonitoredTrainingSession(graph, checkpoint_dir="runs") as session:
    for _ in session.loop():
        pass
"""
OF_GRAPH = """\
parameter
  w  float
output
  y  no value in this step
state
  global_step  int
input
  batch  int
  x      no value in this step
"""


def test_a_custom_loop_is_listed_by_role(hookbus, script):
    """The arguments of the script stay its own; it ends well, and nothing is written."""
    done = hookbus("run", "-q", "--names", script(LOOP, before=""), "--names", "x")

    assert (done.returncode, done.stdout) == (0, OF_LOOP)
    assert not Path("runs").exists()


def test_a_graph_is_listed_by_role(hookbus, script):
    """A value that the step does not have is listed without a shape."""
    done = hookbus("run", "-q", "--names", script(GRAPH, before=""))

    assert (done.returncode, done.stdout) == (0, OF_GRAPH)
    assert not Path("runs").exists()


def test_a_training_that_has_begun_is_left_alone(hookbus, script):
    """The names are those of a new run; the checkpoints stay as they are."""
    path = script(LOOP, before="")
    hookbus("run", "-q", "--stop-at-step", "3", path)
    before = {each: each.stat().st_mtime_ns for each in Path("runs").rglob("*")}
    done = hookbus("run", "-q", "--names", path)

    assert done.stdout.endswith("steps 1\n")
    assert {each: each.stat().st_mtime_ns for each in Path("runs").rglob("*")} == before


def test_the_help_has_the_flag(hookbus):
    """It is a flag of this command alone."""
    done = hookbus("run", "--names", "--help")

    assert "hookbus run --names [flags] SCRIPT" in done.stdout
    assert hookbus("plugins", "--names").returncode == 4
