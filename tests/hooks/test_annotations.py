"""Annotations may have names that only a type checker knows, with and without the import.

Without ``from __future__ import annotations``, Python 3.14 evaluates an annotation when
somebody reads it, and earlier ones evaluate it at once, so such code is for 3.14.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from hookbus import Config, MonitoredSession, MonitoredTrainingSession
from hookbus.config.settings import schema_of

SOURCE = """
from typing import TYPE_CHECKING

import attrs
from hookbus import Graph, SessionRunArgs, SessionRunHook, hookimpl

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from nowhere import Thing


def graph() -> Graph:
    made = Graph()
    made.variable("w", 1.0)

    @made.op
    def loss(w: NDArray[Thing]) -> Thing:
        return 2 * w

    @made.op
    def keyword_only(*, w: Thing) -> Thing:
        return w

    @made.train_op(updates="w")
    def train(w: Thing) -> NDArray[Thing]:
        return w + 1

    def halved(value: Thing, global_step: Thing) -> Thing:
        return value / 2

    made.wrap("loss", halved)
    return made


class PlainHook(SessionRunHook):
    def __init__(self, every: int = 5, other: Thing = None) -> None:
        self.every, self.seen, self.restored = every, [], None

    def before_run(self, run_context: Thing) -> Thing:
        return SessionRunArgs("loss")

    def after_run(self, run_values: Thing) -> Thing:
        self.seen.append(run_values.results)

    @hookimpl
    def finished(self, outcome: Thing) -> None:
        self.seen.append(outcome.kind)

    def state_dict(self) -> Thing:
        return {"seen": len(self.seen)}

    def load_state_dict(self, state: Thing, ended: Thing) -> None:
        self.restored = state


@attrs.define(eq=False)
class FieldsHook(SessionRunHook):
    every: int | None = 5
    names: list[str] = attrs.field(factory=list)
    other: Thing | None = None
    others: list[Thing] = attrs.field(factory=list)


def step_fn(step_context: Thing) -> Thing:
    return step_context.session.run("keyword_only")
"""
FUTURE = "from __future__ import annotations\n"
QUIET = Config(autoload=False, header=False)


@pytest.fixture(params=[FUTURE, ""], ids=["future", "lazy"])
def annotated(request, tmp_path, monkeypatch) -> ModuleType:
    """A module with functions and hooks whose annotations Python cannot evaluate."""
    if not request.param and sys.version_info < (3, 14):
        pytest.skip("this Python evaluates annotations at once")
    tmp_path.joinpath("annotated.py").write_text(request.param + SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "annotated", raising=False)
    return importlib.import_module("annotated")


def test_ops_wraps_and_step_functions_may_have_them(annotated):
    """Only the names of the parameters count."""
    with MonitoredSession(annotated.graph(), config=QUIET) as session:
        assert session.run(["loss", "train"]) == [1.0, None]
        assert session.run_step_fn(annotated.step_fn) == 2.0


def test_events_and_states_of_hooks_may_have_them(annotated):
    """Each gets the arguments that it names, also in a session that resumes."""
    for seen in ([1.0, 2.0, "completed"], [3.0, 4.0, "completed"]):
        hook = annotated.PlainHook()
        with MonitoredTrainingSession(
            annotated.graph(), checkpoint_dir="runs", hooks=[hook], config=QUIET
        ) as session:
            session.run("train")
            session.run("train")
        assert hook.seen == seen
    assert hook.restored == {"seen": 2}


def test_settings_may_have_them(annotated):
    """Text becomes the types that can be evaluated; the others are like any object."""
    plain = schema_of(annotated.PlainHook, "plain")
    assert plain.fields["every"] == (int, 5)
    assert list(plain.fields) == ["every", "other"]
    fields = schema_of(annotated.FieldsHook, "fields").fields
    assert fields["every"][0] == int | None
    assert fields["names"][0] == list[str]
    assert list(fields) == ["every", "names", "other", "others"]
