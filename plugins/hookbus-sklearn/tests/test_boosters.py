"""Boosters of xgboost resume as xgboost itself continues; others are told their way."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from hookbus import CheckpointError, Config, MonitoredTrainingSession, UsageError
from tests.support.profiles import cases
from tests.support.saving import saving

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")

from hookbus_sklearn import trees, ubjson  # noqa: E402
from hookbus_sklearn.boosters import XgboostLibrary  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROUNDS = 8
DRAW = np.random.default_rng(4)
X = DRAW.normal(size=(300, 8))
Y = (X[:, 0] * X[:, 1] > 0).astype(float)
BASE = {"objective": "binary:logistic", "max_depth": 3, "seed": 5, "nthread": 1}
EXACT: list[dict[str, Any]] = [
    {},
    {"tree_method": "exact"},
    {"booster": "gblinear"},
    {"objective": "multi:softprob", "num_class": 3},
    {"multi_strategy": "multi_output_tree", "objective": "reg:squarederror"},
]
RANDOM: list[dict[str, Any]] = [
    {"subsample": 0.5},
    {"colsample_bytree": 0.5},
    {"booster": "dart", "rate_drop": 0.3},
]


def data_for(parameters: dict[str, Any]) -> Any:
    """Return new training data."""
    y = Y + (X[:, 2] > 1) if "num_class" in parameters else Y
    return xgboost.DMatrix(X, np.stack([y, -y], 1) if "multi_strategy" in parameters else y)


def whole(parameters: dict[str, Any], *parts: int) -> bytes:
    """Train with xgboost alone; before each next part it saves and loads its model."""
    model: bytes = b""
    first = 0
    for last in parts:
        data = data_for(parameters)
        booster = xgboost.Booster(BASE | parameters, [data])
        if model:
            booster.load_model(bytearray(model))
        for number in range(first, last):
            booster.update(data, number)
        model, first = bytes(booster.save_raw("ubj")), last
    return model


def hooked(parameters: dict[str, Any], directory: Path, last: int) -> bytes:
    """Train up to a round with hookbus, which resumes."""
    data = data_for(parameters)
    booster = xgboost.Booster(BASE | parameters, [data])
    with saving(directory, every=2) as session:
        assert session.track(model=booster) is booster
        while session.global_step < last:
            with session.step():
                booster.update(data, session.global_step)
    return bytes(booster.save_raw("ubj"))


@pytest.mark.parametrize("parameters", EXACT, ids=str)
def test_a_booster_that_is_stopped_again_and_again_ends_like_a_whole_one(
    parameters, tmp_path
):
    """Bit for bit, where xgboost draws no random numbers."""
    for last in (3, 5, ROUNDS):
        model = hooked(parameters, tmp_path, last)
    assert model == whole(parameters, ROUNDS)


@pytest.mark.parametrize("parameters", RANDOM, ids=str)
def test_a_booster_that_draws_continues_as_xgboost_itself_does(parameters, tmp_path):
    """A model of xgboost has no state of its generator, with hookbus or without."""
    for last in (3, 5, ROUNDS):
        model = hooked(parameters, tmp_path, last)
    assert model == whole(parameters, 3, 5, ROUNDS)
    assert model != whole(parameters, ROUNDS)


def tracked(parameters: dict[str, Any], rounds: int = 0, features: int = 8) -> Any:
    """Return how the plugin tracks a booster after some rounds."""
    data = data_for(parameters)
    if features != 8:
        data = xgboost.DMatrix(X[:, :features], Y)
    booster = xgboost.Booster(BASE | parameters, [data])
    for number in range(rounds):
        booster.update(data, number)
    return XgboostLibrary().tracked("model", booster)


def test_a_booster_that_trained_on_goes_back_in_place():
    """As a roll-back does."""
    told = tracked({}, 3)
    state = told.get()
    data = data_for({})
    told.value.update(data, 3)
    told.put(state)
    assert bytes(told.get()) == bytes(state)
    told.value.update(data, 3)
    assert bytes(told.get()) == whole({}, 4)


@pytest.mark.parametrize(
    ("there", "here", "told"),
    [
        ({}, {"features": 5}, "'model' has 5 features here and had 8"),
        ({"parameters": EXACT[3]}, {}, "has 0 classes here and had 3"),
        ({"parameters": EXACT[3]}, {}, "the objective of 'model' is binary:logistic here"),
        ({"parameters": RANDOM[2]}, {}, "the gradient booster of 'model' is gbtree here"),
    ],
)
def test_a_booster_with_other_data_or_parameters_does_not_fit(there, here, told):
    """xgboost would load it, and forget the parameters of today."""
    saved = tracked(there.get("parameters", {}), 2).get()
    assert told in "; ".join(tracked({}, 0, **here).faults(saved))


@pytest.mark.parametrize("parameters", [{}, RANDOM[2], EXACT[2], EXACT[4]], ids=str)
@pytest.mark.parametrize("seed", range(cases(1, 20)))
def test_a_forged_model_never_reaches_memory_that_it_does_not_have(parameters, seed):
    """It is refused before xgboost reads it, or xgboost can train on with it."""
    draw, whole = Random(seed), bytearray(tracked(parameters, 3).get())
    for _ in range(40):
        forged = bytearray(whole)
        if draw.random() < 0.2:
            del forged[draw.randrange(len(forged)) :]
        else:
            forged[draw.randrange(len(forged))] = draw.randrange(256)
        here = tracked(parameters)
        try:
            if [*here.faults(np.frombuffer(forged, np.uint8))]:
                continue
            here.put(np.frombuffer(forged, np.uint8))
            here.value.update(data_for(parameters), 3)
        except (CheckpointError, xgboost.core.XGBoostError):
            continue


@pytest.mark.parametrize("state", [3, np.zeros(3), "x"])
def test_a_state_that_is_no_array_of_bytes_does_not_fit(state):
    """Another object had this name."""
    (told,) = tracked({}).faults(state)
    assert told == "'model' is a Booster here and something else in the checkpoint"


def test_a_model_that_is_none_is_told_as_such():
    """With the reason."""
    with pytest.raises(CheckpointError, match=r"no model of xgboost .* it ends too early"):
        [*tracked({}).faults(np.frombuffer(b"{", np.uint8))]


@pytest.mark.parametrize(
    "data",
    [b"", b"?", b"[" * 99, b"[$", b"[$?#U\x01a", b"{U\x01", b"[#U\x05Z", b"SUx", b"ZZ"],
)
def test_bytes_that_are_no_json_are_refused(data):
    """A reader of xgboost's models never reads beyond their end."""
    with pytest.raises(
        ValueError, match=r"too early|begins no|no type|levels|after its end"
    ):
        ubjson.read(data)


def test_a_tree_in_which_a_node_has_two_parents_is_refused():
    """xgboost would go in circles."""
    learner = trees.model_in(bytes(tracked({}, 2).get()))
    trees.check(learner, learner)
    tree = learner["gradient_booster"]["model"]["trees"][0]
    tree["left_children"][2] = tree["left_children"][0]
    with pytest.raises(ValueError, match="its parts do not fit each other"):
        trees.check(learner, learner)


def track(thing: Any) -> None:
    """Track a thing in a session."""
    config = Config(autoload=False, header=False)
    with MonitoredTrainingSession(config=config) as session:
        session.track(model=thing)


def test_objects_that_cannot_be_tracked_are_told_what_to_do():
    """Each message names the object, and its way."""
    data = lightgbm.Dataset(X, Y)
    booster = lightgbm.Booster({"objective": "binary", "verbosity": -1}, data)
    for thing, told in [
        (xgboost.Booster(), r"knows no number of features yet; .*Booster\(params, \[data"),
        (
            xgboost.XGBClassifier(),
            r"XGBClassifier has no partial_fit, .* update\(data, round",
        ),
        (lightgbm.LGBMRegressor(), "LGBMRegressor has no partial_fit, .* lightgbm.train"),
        (booster, r"a Booster of lightgbm loses its training data .*state\['model'\]"),
        (xgboost.DMatrix(X), "DMatrix and cannot be restored in place"),
        (data, "Dataset and cannot be restored in place"),
    ]:
        with pytest.raises(UsageError, match=f"cannot track 'model'.*{told}"):
            track(thing)


def lightgbm_rounds(state: dict[str, str], first: int, last: int) -> None:
    """Do rounds of lightgbm as the message says, each from the text of the model."""
    data = lightgbm.Dataset(X, Y, free_raw_data=False)
    params = {"objective": "binary", "verbosity": -1, "num_threads": 1}
    for _ in range(first, last):
        model = lightgbm.Booster(model_str=state["model"]) if state["model"] else None
        booster = lightgbm.train(params, data, 1, init_model=model)
        state["model"] = booster.model_to_string()


def test_the_text_of_a_model_of_lightgbm_continues_where_it_was(tmp_path):
    """The way that the message names ends like a run without an interruption."""
    plain = {"model": ""}
    lightgbm_rounds(plain, 0, 6)
    for last in (2, 6):
        state = {"model": ""}
        with MonitoredTrainingSession(
            checkpoint_dir=tmp_path, config=Config(autoload=False, header=False)
        ) as session:
            session.track(state=state)
            while session.global_step < last:
                with session.step():
                    lightgbm_rounds(state, session.global_step, session.global_step + 1)
    assert state == plain
