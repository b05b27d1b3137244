"""Tests that the steps in the pages work, and print the output that the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import PAGES, PUBLISHES, ROOT

LANGUAGES = {"python", "console", "output", "ini", "toml"}
MAKES_ENVIRONMENT = "makes a whole environment; the continuous run does it"
INSTALLS = "installs from an index; tests/wheels/test_following.py does it"
MEASURES = "installs all peers and measures for minutes"
SERVES = "serves a browser until somebody stops it"
SENDS = "needs an account"
LASTS = "trains for minutes; plugins/hookbus-live/tests/test_browser.py does it"
OF_A_CLONE = "pip install -r plugins/requirements.txt -e plugins/hookbus-torch scikit-learn"
EXEMPT = {
    "python3 .ci/tox.py -e demo": MAKES_ENVIRONMENT,
    "python3 .ci/tox.py -e tests": MAKES_ENVIRONMENT,
    "python3 -m venv .venv": INSTALLS,
    ". .venv/bin/activate": INSTALLS,
    'pip install "hookbus[all]" hookbus-jax flax optax equinox orbax-checkpoint '
    "scikit-learn": INSTALLS,
    OF_A_CLONE: INSTALLS,
    'pip install "hookbus[all]" hookbus-sklearn': INSTALLS,
    "pip install hookbus-lightning": INSTALLS,
    "pip install hookbus-mlflow": INSTALLS,
    "pip install hookbus-wandb": INSTALLS,
    "mlflow ui --backend-store-uri sqlite:///mlflow.db": SERVES,
    "wandb sync wandb/offline-run-*": SENDS,
    'pip install "hookbus[all]" hookbus-live': INSTALLS,
    "pip install hookbus-ignite": INSTALLS,
    "pip install hookbus-opentelemetry": INSTALLS,
    "pip install hookbus-optuna": INSTALLS,
    "pip install hookbus-prometheus": INSTALLS,
    'pip install "hookbus[all]" hookbus-keras': INSTALLS,
    "pip install hookbus-tensorflow": INSTALLS,
    "pip install hookbus-torch": INSTALLS,
    "pip install hookbus-transformers": INSTALLS,
    'pip install "hookbus[all]" numpy tensorboard': INSTALLS,
    "python benchmarks/peers.py": MEASURES,
    "tensorboard --logdir runs/line": SERVES,
    "tensorboard --logdir runs/digits": SERVES,
    "hookbus view runs": SERVES,
    "hookbus run -p live train.py": LASTS,
}


LONG = {
    "README.md",
    "docs/explanation/performance.md",
    "docs/how-to/callbacks.md",
    "docs/how-to/certify.md",
    "docs/how-to/custom-loop.md",
    "docs/how-to/read-the-summaries.md",
    "docs/how-to/recipes.md",
    "docs/how-to/resume-after-a-kill.md",
    "docs/how-to/run-without-the-command.md",
    "docs/how-to/see-every-evaluation.md",
    "docs/how-to/switch-plugins.md",
    "docs/how-to/test-a-hook.md",
    "docs/how-to/train-in-the-style-of-slim.md",
    "docs/how-to/use-an-estimator.md",
    "docs/how-to/write-a-backend.md",
    "docs/how-to/write-a-hook.md",
    "docs/reference/backends.md",
    "docs/tutorial/follow-one-run.md",
    "plugins/hookbus-time-limit/README.md",
}


NEEDS = {
    "README.md": pytest.mark.torch,
    "docs/how-to/ignite.md": pytest.mark.ignite,
    "docs/how-to/jax.md": pytest.mark.jax,
    "docs/how-to/lightning.md": pytest.mark.lightning,
    "docs/how-to/keras.md": pytest.mark.keras,
    "docs/how-to/many-processes.md": pytest.mark.torch,
    "docs/how-to/pytorch.md": pytest.mark.torch,
    "docs/how-to/scikit-learn.md": pytest.mark.xgboost,
    "docs/how-to/tensorflow-hooks.md": pytest.mark.tensorflow,
    "docs/how-to/transformers.md": pytest.mark.transformers,
    "docs/how-to/use-the-trained-model.md": pytest.mark.torch,
    "docs/how-to/watch-a-script.md": pytest.mark.torch,
    "docs/tutorial/find-the-batch.md": pytest.mark.torch,
}
TRACKERS = ("mlflow", "opentelemetry", "optuna", "prometheus", "wandb")
OF_TRACKERS = ("docs/how-to/{}.md", "plugins/hookbus-{}/README.md")
NEEDS |= {p.format(n): pytest.mark.trackers for n in TRACKERS for p in OF_TRACKERS}
"""Pages that are followed where a library is installed: tox -e torch, and so on."""


def followed():
    """Yield each page that needs no index, those that take long with their mark."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        marks = [pytest.mark.page] if name in LONG else []
        if name in NEEDS:
            marks.append(NEEDS[name])
        if page != PUBLISHES:
            yield pytest.param(page, id=name, marks=marks)


@pytest.mark.parametrize("page", [*followed()], indirect=True)
def test_a_page_can_be_followed(page, blocks, reader):
    """Every block of a page works, in order, and shows the output that stands there."""
    for block in blocks(page):
        reader.follow(block, EXEMPT)
    assert reader.printed == "", f"{page}: the last block prints what is not shown"


def test_blocks_are_of_a_known_language(pages, blocks):
    """Every fenced block is of a language that is run, shown as output, or a file."""
    for block in (block for page in pages for block in blocks(page)):
        assert block.language in LANGUAGES, block.place
        if block.language in ("ini", "toml"):
            assert block.title is not None, f"{block.place}: a file without a name"
        if block.language == "console":
            assert block.text.startswith("$ "), f"{block.place}: no command"


def test_files_that_are_shown_are_used(pages, blocks):
    """A file that a page has its reader write is named in a command that comes later.

    A module may stand there as ``module:attribute``, or be imported by a later file.
    """
    for found in map(blocks, pages):
        for place, block in enumerate(found):
            if block.title is not None and block.language == "python":
                assert _is_used(Path(block.title), found[place:]), block.place


def _is_used(path, later):
    """Return whether a block that comes later runs or imports a file."""
    words = (path.name, f" {path.stem}:", path.parent.name or path.name)
    commands = "".join(b.text for b in later if b.language == "console")
    imported = f"from {path.stem} import"
    used = any(imported in b.text for b in later if b.language == "python")
    return used or any(word in commands for word in words)


def test_only_commands_that_stand_somewhere_are_exempt(pages, blocks):
    """The list of commands that are not run holds none that no page has any more."""
    told = {c for page in pages for b in blocks(page) for c, _ in b.commands}
    assert set(EXEMPT) <= told


def test_pages_leave_nothing_in_the_checkout(root):
    """Commands are run in a folder of their own, which is not inside the checkout."""
    assert root not in [Path.cwd(), *Path.cwd().parents]
