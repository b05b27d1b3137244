"""Forges checkpoints of estimators: the one before is used, or an error says why."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hookbus_sklearn.library import SklearnLibrary
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier

from hookbus import CheckpointError, Config, MonitoredTrainingSession
from tests.support.forging import check_outcome, mutate_state, places
from tests.support.profiles import cases

LAST = 3
DRAW = np.random.default_rng(4)
X, Y = DRAW.normal(size=(40, 6)), np.arange(40) % 3
MODELS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: SGDClassifier(average=100, random_state=np.random.RandomState(1)),
    "clusters": lambda: MiniBatchKMeans(3, random_state=1),
    "layers": lambda: MLPClassifier((5, 4), random_state=1),
    "copies": lambda: OneVsRestClassifier(SGDClassifier(random_state=1)),
}


def train(directory: Path, last: int, name: str) -> int:
    """Train up to a step; return the step at which it began."""
    model = MODELS[name]()
    with MonitoredTrainingSession(
        checkpoint_dir=directory,
        save_checkpoint_steps=1,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False),
    ) as session:
        session.track(model=model)
        before = session.global_step
        while session.global_step < last:
            with session.step():
                given = {} if name == "clusters" else {"classes": [0, 1, 2]}
                model.partial_fit(X, Y, **given)
    return before


def outcome(directory: Path, name: str) -> str | int:
    """Train on; return where the training began, or the error that it may end with."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numbers may be anything
            return train(directory, LAST + 2, name)
    except CheckpointError as error:
        return str(error)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(cases(1, 20)))
@pytest.mark.parametrize("name", MODELS)
def test_a_forged_part_does_no_more_than_make_a_checkpoint_bad(name, seed, tmp_path):
    """Whatever stands in the state of an estimator, no later step fails on it."""
    draw, origin = Random(seed), tmp_path / "origin"
    train(origin, LAST, name)
    tree = json.loads((origin / f"ckpt-{LAST}/state.json").read_text())
    ways = [way for way in places(tree) if way[:1] == ("tracked",) and len(way) > 2]
    for number in range(40):
        directory = tmp_path / str(number)
        shutil.copytree(origin, directory)
        done = mutate_state(directory / f"ckpt-{LAST}", draw.choice(ways), draw)
        check_outcome(partial(outcome, directory, name), LAST, done)
        shutil.rmtree(directory)


FORGED: list[tuple[str, Any, str]] = [
    ("_average_coef", np.zeros((3, 9)), "has the shape (3, 9), and (3, 6) fits"),
    ("_average_coef", None, "is an array of numbers with 2 axes here and a NoneType in"),
    ("coef_", None, "the value of _standard_coef is no array that shares its memory with"),
    (
        "coef_",
        {"(same)": {"as": "nobody", "shape": [1]}},
        "no array that shares its memory",
    ),
    ("classes_", {"(objects)": {"shape": [9], "items": ["a"]}}, "no array of objects"),
    ("classes_", np.zeros((2, 2)), "'model.classes_' is no list of classes"),
    ("n_features_in_", -1, "'model.n_features_in_' is no number of features"),
    ("t_", "x", "'model.t_' is a number here and a str in the checkpoint"),
    ("t_", {"(numbers)": 5}, "the value of t_ is no list of numbers"),
    ("t_", {"(dict)": 5}, "the value of t_ is no dict"),
    ("t_", {"(unknown)": 5}, "the value of t_ is not one that an estimator has"),
    ("t_", {"(estimator)": {}}, "the value of t_ is no attribute of this class"),
    ("t_", {"(random)": "nobody"}, "the value of t_ is no random generator"),
    ("t_", {"(LabelBinarizer)": 3}, "the value of t_ is no LabelBinarizer"),
    ("t_", {"(LabelBinarizer)": {"fit": 3}}, "the value of t_ is no LabelBinarizer"),
    ("alpha", 3, "the value of alpha is no attribute that training sets"),
    ("partial_fit", 3, "the value of partial_fit is no attribute that training sets"),
    ("random_state", {"(random)": {}}, "random_state is no state of a random generator"),
]


@pytest.mark.parametrize(("key", "value", "told"), FORGED, ids=str)
def test_a_state_that_no_estimator_has_is_told_by_its_place(key, value, told):
    """Before anything is restored."""
    model = MODELS["sgd"]().partial_fit(X, Y, classes=[0, 1, 2])
    tracked = SklearnLibrary().tracked("model", model)
    state = tracked.get()
    assert [*tracked.faults(state)] == []
    before = dict(vars(model))
    try:
        found = "; ".join(tracked.faults({**state, key: value}))
    except CheckpointError as error:
        found = str(error)
    assert told in found
    assert vars(model) == before


@pytest.mark.parametrize("threads", [0, -1, 2**40])
def test_a_number_of_threads_that_no_machine_has_is_told(threads):
    """The next step would fail on it."""
    tracked = SklearnLibrary().tracked("model", MODELS["clusters"]().partial_fit(X))
    state = {**tracked.get(), "_n_threads": threads}
    assert "no number of threads" in "; ".join(tracked.faults(state))


def test_a_position_beyond_the_words_of_a_generator_is_told():
    """NumPy would read beyond its memory."""
    tracked = SklearnLibrary().tracked("model", MODELS["sgd"]())
    state = tracked.get()
    state["random_state"]["(random)"]["state"]["pos"] = 10**6
    with pytest.raises(CheckpointError, match="no state of a random generator"):
        [*tracked.faults(state)]
