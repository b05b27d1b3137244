"""Estimators are saved by rule, restored in place, and refused where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_sklearn.library import SklearnLibrary
from sklearn.base import BaseEstimator
from sklearn.cluster import Birch, KMeans, MiniBatchKMeans
from sklearn.decomposition import IncrementalPCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hookbus import (
    CheckpointError,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
)
from hookbus.errors import CheckpointMismatchError
from tests.support.saving import saving

DRAW = np.random.default_rng(4)
X, Y = DRAW.normal(size=(40, 6)), np.arange(40) % 3


def tracked(model: Any) -> Any:
    """Return how the plugin tracks a model."""
    return SklearnLibrary().tracked("model", model)


def trained(model: Any, directory: Path, steps: int = 2, **given: Any) -> Any:
    """Train a model in a session up to a step; return it."""
    with saving(directory, every=2) as opened:
        opened.track(model=model)
        while opened.global_step < steps:
            with opened.step():
                model.partial_fit(X, Y, **given)
    return model


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (KMeans, "KMeans has no partial_fit, so there is no step"),
    (RandomForestClassifier, "RandomForestClassifier has no partial_fit"),
    (lambda: LogisticRegression(warm_start=True), "LogisticRegression has no partial_fit"),
    (lambda: make_pipeline(StandardScaler(), SGDClassifier()), "track the parts of it"),
    (lambda: OneVsRestClassifier(LogisticRegression()), "has no partial_fit"),
    (
        Birch,
        "the attribute 'root_' of Birch is of type _CFNode, and no checkpoint can hold",
    ),
]


@pytest.mark.parametrize(("make", "told"), REFUSED)
def test_an_estimator_without_steps_is_refused_and_told_what_to_do(make, told, tmp_path):
    """The message names the class, and the two ways that are left."""
    with (
        saving(tmp_path, every=2) as opened,
        pytest.raises(UsageError, match=f"^cannot track 'model': .*{told}.*") as caught,
    ):
        opened.track(model=make())
    assert "pair of functions (get, set)" in str(caught.value)


def test_a_frozen_estimator_is_refused(tmp_path):
    """It learns nothing, and its copies are the estimator itself."""
    frozen = pytest.importorskip("sklearn.frozen").FrozenEstimator(SGDClassifier())
    for model in (frozen, OneVsRestClassifier(frozen)):
        with pytest.raises(UsageError, match="a FrozenEstimator does not learn; track the"):
            tracked(model)


def test_a_sparse_matrix_is_refused_with_its_attribute():
    """A model made sparse cannot learn on anyway."""
    model = SGDClassifier().partial_fit(X, Y, classes=[0, 1, 2])
    told = tracked(model)
    model.sparsify()
    with pytest.raises(CheckpointError, match=r"'coef_' .* sparse matrix .* densify\(\)"):
        told.get()


def test_an_attribute_of_another_class_is_refused_with_its_name():
    """A subclass may keep anything, and only what is data comes into a checkpoint."""

    class Odd(SGDClassifier):
        def partial_fit(self, *given: Any, **named: Any) -> Any:
            self.seen_ = {1, 2}
            return super().partial_fit(*given, **named)

    model = Odd()
    told = tracked(model)
    model.partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(
        CheckpointError, match="'seen_' of Odd is of type set, and no check"
    ):
        told.get()


def test_arrays_that_share_a_part_of_their_memory_are_refused():
    """Restored apart, they would no longer change together."""
    model = SGDClassifier().partial_fit(X, Y, classes=[0, 1, 2])
    model.first_ = model.coef_[1:]
    with pytest.raises(UsageError, match=r"'first_' .* a part of its memory with 'coef_'"):
        tracked(model)


ITSELF: list[Any] = []
ITSELF.append(ITSELF)
ODD: list[tuple[Any, str]] = [
    (ITSELF, "contains itself"),
    ({(1, 2): 3}, "is a dict with keys that are no plain values"),
    (np.array([{}], object), "is an array of Python objects"),
    (np.random.RandomState(np.random.PCG64(1)), "draws from the generator PCG64"),
    (np.ma.zeros(2), "is of type MaskedArray"),
]


@pytest.mark.parametrize(("value", "told"), ODD, ids=lambda each: str(type(each)))
def test_an_attribute_that_no_checkpoint_holds_is_told_with_the_reason(value, told):
    """Also inside of others."""
    model = SGDClassifier().partial_fit(X, Y, classes=[0, 1, 2])
    model.odd_ = [value] if value is not ITSELF else value
    with pytest.raises(
        UsageError, match=f"attribute 'odd_.*0' of SGDClassifier {told}, and"
    ):
        tracked(model)


def test_what_has_a_state_of_its_own_keeps_it(tmp_path):
    """A class with state_dict says what its state is, and old checkpoints fit it."""

    class Own(SGDClassifier):
        def state_dict(self) -> dict[str, Any]:
            return {"mine": np.ones(2)}

        def load_state_dict(self, state: Any) -> None:
            self.loaded = state

    trained(Own(), tmp_path, 2, classes=[0, 1, 2])
    again = trained(Own(), tmp_path, 2)
    assert [*again.loaded] == ["mine"]


def test_a_restored_model_is_the_same_object_with_memory_of_its_own(tmp_path):
    """Attributes are set, and what the estimator writes into can be written."""
    origin = trained(SGDClassifier(random_state=1), tmp_path, classes=[0, 1, 2])
    model = SGDClassifier(random_state=1)
    with saving(tmp_path, every=2) as opened:
        assert opened.track(model=model) is model
    assert model.coef_.tobytes() == origin.coef_.tobytes()
    assert model.coef_.flags.owndata
    assert model.coef_.flags.writeable


def test_labels_and_names_of_features_may_be_strings():
    """Arrays of Python's strings are saved as strings, and nothing is pickled."""
    names = np.array(["a", "b", "c"], object)
    model = SGDClassifier().partial_fit(X, names[Y], classes=names)
    model.feature_names_in_ = np.array([*"uvwxyz"], object)  # as from a table with names
    again = SGDClassifier()
    assert [*tracked(again).faults(tracked(model).get())] == []
    tracked(again).put(tracked(model).get())
    for key in ("classes_", "feature_names_in_"):
        one, other = getattr(model, key), getattr(again, key)
        assert (one.tolist(), one.dtype) == (other.tolist(), other.dtype)


def test_several_labels_and_numbers_come_back(tmp_path):
    """A network may learn columns, of classes or of numbers."""
    for name, kind, y in [
        ("labels", MLPClassifier, np.eye(3, dtype=int)[Y]),
        ("numbers", MLPRegressor, X[:, :2]),
    ]:
        for steps in (1, 2):
            model = kind(hidden_layer_sizes=(5, 3, 2), random_state=0)
            given = {"classes": [0, 1, 2]} if name == "labels" else {}
            with saving(tmp_path / name, every=2) as opened:
                opened.track(model=model)
                assert opened.global_step == steps - 1
                with opened.step():
                    model.partial_fit(X, y, **given)


def test_features_with_values_of_their_own_come_back():
    """How many values a feature has follows from the data."""
    model = CategoricalNB().partial_fit(np.array([[0, 7], [5, 1]]), [0, 1], classes=[0, 1])
    assert [*tracked(CategoricalNB()).faults(tracked(model).get())] == []


def test_a_rolled_back_model_is_unfitted_again(tmp_path):
    """Attributes that the first step has set go when the state before it comes back."""
    model = SGDClassifier()
    told = tracked(model)
    before = told.get()
    model.partial_fit(X, Y, classes=[0, 1, 2])
    told.put(before)
    assert not hasattr(model, "coef_")
    model.partial_fit(X, Y, classes=[0, 1, 2])


def test_hooks_read_and_write_what_a_model_has_learned(tmp_path):
    """Its arrays are variables of the loop, by their names."""

    class Shrink(SessionRunHook):
        def before_run(self) -> Any:
            return SessionRunArgs(["model.coef_", "model.t_"])

        def after_run(self, run_context: Any, run_values: Any) -> None:
            coef, self.t = run_values.results
            run_context.assign({"model.coef_": coef * 0, "model.t_": 7.0})

    model, hook = SGDClassifier(random_state=0), Shrink()
    with saving(tmp_path, hooks=[hook], every=2) as opened:
        opened.track(model=model)
        with opened.step():
            model.partial_fit(X, Y, classes=[0, 1, 2])
    assert not model.coef_.any()
    assert (hook.t, model.t_) == (41.0, 7.0)


CHANGED: list[tuple[Any, Any, str]] = [
    (SGDClassifier(), GaussianNB(), "'model' is GaussianNB here and SGDClassifier in the"),
    (MiniBatchKMeans(3), MiniBatchKMeans(4), "'model.cluster_centers_' has the shape"),
    (IncrementalPCA(3), IncrementalPCA(4), "'model.n_components_' is 3, and 4 fits"),
    (MLPClassifier((5,)), MLPClassifier((6,)), "'model.coefs_.0' has the shape"),
    (MLPClassifier((5,)), MLPClassifier((5, 5)), "'model.coefs_' has 2 parts, and 3 fit"),
    (MLPClassifier(), MLPClassifier(solver="sgd"), "'model._optimizer' is of the kind"),
    (SGDClassifier(), SGDClassifier(average=True), "'model._standard_coef' is not in the"),
    (
        MiniBatchKMeans(3, random_state=1),
        MiniBatchKMeans(3, random_state=np.random.RandomState(1)),
        "'model.random_state' is a RandomState here and not in the checkpoint",
    ),
    (
        MultiOutputClassifier(SGDClassifier()),
        MultiOutputClassifier(GaussianNB()),
        "is SGDClassifier here|is no GaussianNB",
    ),
]


@pytest.mark.parametrize(("was", "model", "told"), CHANGED)
def test_other_parameters_that_change_the_state_do_not_fit(was, model, told, tmp_path):
    """Nothing is restored: the model stays unfitted."""
    y = np.stack([Y, Y], 1) if isinstance(was, MultiOutputClassifier) else Y
    labels: Any = [[0, 1, 2]] * 2 if y.ndim == 2 else [0, 1, 2]
    with saving(tmp_path, every=2) as opened:
        opened.track(model=was)
        with opened.step():
            if (
                hasattr(was, "predict_proba")
                or isinstance(was, SGDClassifier | MLPClassifier)
                or y.ndim == 2
            ):
                was.partial_fit(X, y, classes=labels)
            else:
                was.partial_fit(X)
    before = dict(vars(model))
    with saving(tmp_path, every=2) as opened, pytest.raises(CheckpointError, match=told):
        opened.track(model=model)
    assert vars(model) == before


def test_a_generator_that_is_a_parameter_is_part_of_the_state(tmp_path):
    """It stays the same object, also for other code that draws from it."""
    kept = np.random.RandomState(3)
    trained(SGDClassifier(random_state=kept), tmp_path, classes=[0, 1, 2])
    here = np.random.RandomState(3)
    trained(SGDClassifier(random_state=here), tmp_path)
    assert here.rand() == kept.rand()


def test_a_settled_parameter_stays_that_of_today():
    """A checkpoint has what training made, and no parameters."""
    origin = SGDRegressor(alpha=0.1).partial_fit(X, X[:, 0])
    model = SGDRegressor(alpha=0.5)
    tracked(model).put(tracked(origin).get())
    assert model.alpha == 0.5


def test_an_estimator_of_the_program_is_tracked_by_its_attributes(tmp_path):
    """A user's own class needs no more than partial_fit."""

    class Mean(BaseEstimator):
        def __init__(self, rate: float = 0.5) -> None:
            self.rate = rate

        def partial_fit(self, x: Any, y: Any = None) -> Mean:
            old = getattr(self, "mean_", np.zeros(x.shape[1]))
            self.mean_ = old + self.rate * (x.mean(0) - old)
            return self

    whole = trained(Mean(), tmp_path / "whole", 4)
    trained(Mean(), tmp_path / "parts", 2)
    assert trained(Mean(), tmp_path / "parts", 4).mean_.tobytes() == whole.mean_.tobytes()


def test_a_mismatch_is_of_its_own_class(tmp_path):
    """Programs tell it from a checkpoint that somebody has changed."""
    trained(SGDClassifier(), tmp_path, classes=[0, 1, 2])
    with saving(tmp_path, every=2) as opened, pytest.raises(CheckpointMismatchError):
        opened.track(model=GaussianNB())
