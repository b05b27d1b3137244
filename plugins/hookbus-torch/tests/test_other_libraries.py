"""Tests that a run with NumPy imports nothing heavy, though PyTorch is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import numpy as np
import hookbus

graph = hookbus.Graph()
graph.variable("w", np.zeros(3))
graph.op(lambda w: float(w.sum()), name="loss")
graph.train_op(lambda w: w + 1, name="train", updates="w")
with hookbus.MonitoredTrainingSession(graph, checkpoint_dir="run") as session:
    for _ in session.loop():
        if session.global_step == 5:
            break
standard = {*sys.stdlib_module_names, *sys.builtin_module_names}
standard |= {"sitecustomize", "usercustomize"}  # Python imports them, where they are
print(*sorted({name.partition(".")[0] for name in sys.modules} - standard))
"""
OURS = ("hookbus", "__", "_")
"""How the names of modules begin that are hookbus's own, or those of an installer."""
WANTED = {
    "attr": "all of hookbus",
    "attrs": "all of hookbus",
    "crc32c": "the records for TensorBoard",
    "cython_runtime": "numpy",
    "google": "the records for TensorBoard: protobuf",
    "numpy": "the script",
    "packaging": "the versions of plugins",
    "pluggy": "the bus",
    "pygments": "rich",
    "rich": "the bar",
    "safetensors": "the checkpoint",
    "structlog": "log lines",
    "tensorboard": "the records for TensorBoard",
    "typing_extensions": "attrs and rich",
}
"""The modules that a run may import, with the reasons."""


def test_a_training_imports_what_it_uses():
    """With a checkpoint, summaries and progress; PyTorch and all else stay out of it."""
    Path("script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hookbus", "run", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "summary-saver" in done.stderr
    found = {name for name in done.stdout.split() if not name.startswith(OURS)}
    assert found - set(WANTED) == set()
