"""Tests what hookbus-keras needs, and says when it is not there."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import hookbus_keras
import pytest
from hookbus_keras import BusCallback

from hookbus import UsageError

HERE = Path(hookbus_keras.__file__).parents[1]


@pytest.mark.parametrize("missing", ["keras", "numpy"])
def test_without_keras_the_import_tells_what_to_install(missing: str) -> None:
    """Also without something that Keras needs."""
    hidden = f"import sys; sys.path.append({str(HERE)!r}); sys.modules[{missing!r}] = None"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}; import hookbus_keras"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: hookbus-keras needs Keras 3, which cannot be")
    assert f"import of {missing} halted" in last
    assert "pip install keras and the backend that KERAS_BACKEND names" in last


@pytest.mark.parametrize("version", ["2.15.0", "3.6.0", "4.0.0"])
def test_a_version_out_of_range_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Before the training begins."""
    real = importlib.metadata.version
    fake = {"keras": version}
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: fake.get(name) or real(name)
    )
    with pytest.raises(UsageError, match=rf"works with keras.*, and keras {version} is"):
        BusCallback()
