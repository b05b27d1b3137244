"""Every estimator with partial_fit, killed and resumed, ends as if nothing had been."""

from __future__ import annotations

import inspect
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import (
    PassiveAggressiveClassifier,
    Perceptron,
    SGDClassifier,
    SGDOneClassSVM,
    SGDRegressor,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.utils import all_estimators

from tests.support.profiles import cases
from tests.support.saving import saving

STEPS, EVERY = 9, 3
REFUSED = {"Birch"} | ({"FrozenEstimator"} if find_spec("sklearn.frozen") else set())

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def listed() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a function that makes each estimator with partial_fit, by its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from found()


def found() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield them with whatever they warn of."""
    for name, kind in all_estimators():
        takes = inspect.signature(kind.__init__).parameters
        given: dict[str, Any] = {}
        if "estimator" in takes:
            given = {
                "estimator": (SGDRegressor if "Regressor" in name else SGDClassifier)()
            }
        if "n_components" in takes and name != "HashingVectorizer":
            given["n_components"] = 3
        try:
            model = kind(**given)
            has = hasattr(model, "partial_fit")
        except (AttributeError, TypeError):  # it needs more, or is not there
            continue
        if has:
            yield name, partial(kind, **given)


ZOO: dict[str, Callable[[], Any]] = {
    **dict(listed()),
    "SelectFromModel": lambda: SelectFromModel(SGDClassifier()),
    "averaged": lambda: SGDClassifier(average=True),
    "averaged later": lambda: SGDClassifier(average=100),
    "averaged with many classes": lambda: SGDClassifier(average=True),
    "averaged later with many classes": lambda: SGDClassifier(average=100),
    "averaged regression": lambda: SGDRegressor(average=100),
    "averaged for one class": lambda: SGDOneClassSVM(average=100),
    "averaged perceptron": lambda: PassiveAggressiveClassifier(average=100),
    "perceptron with many classes": lambda: Perceptron(penalty="l1"),
    "momentum": lambda: MLPClassifier((6, 4), solver="sgd", learning_rate="invscaling"),
    "momentum in regression": lambda: MLPRegressor(hidden_layer_sizes=(6, 4), solver="sgd"),
    "layers with many classes": lambda: MLPClassifier((6, 4)),
}
SAMPLE = [
    "GaussianNB",
    "IncrementalPCA",
    "LatentDirichletAllocation",
    "MLPClassifier",
    "MiniBatchKMeans",
    "OneVsRestClassifier",
    "SGDClassifier",
    "averaged",
    "averaged later with many classes",
]
NAMES = cases(SAMPLE, sorted(ZOO.keys() - REFUSED))


class Trained:
    """A run on a model: its batches, one step of it, and all bits of the model."""

    def __init__(self, name: str, random: Any) -> None:
        np.random.seed(5)
        self.model = ZOO[name]()
        takes = self.model.get_params(deep=True)
        for key in [k for k in takes if k.rpartition("__")[2] == "random_state"]:
            self.model.set_params(**{key: random})
        draw, classes = np.random.default_rng(2), 4 if "many" in name else 2
        x = draw.integers(0, 4, (STEPS, 30, 6)).astype(float)
        y = np.stack([draw.permutation(30) % classes for _ in range(STEPS)])
        self.given: dict[str, Any] = {}
        labels: Any = range(classes)
        if name.startswith("MultiOutput"):
            y, labels = np.stack([y, 1 - y], axis=2), [labels] * 2
        if "classes" in self._takes():
            self.given = {"classes": labels}
        self.batches = [*zip(x, y, strict=True)]

    def _takes(self) -> Any:
        inner = getattr(self.model, "estimator", self.model)
        both = (
            (self.model, inner)
            if isinstance(self.model, SelectFromModel)
            else (self.model,)
        )
        return {k for each in both for k in inspect.signature(each.partial_fit).parameters}

    def step(self, x: Any, y: Any) -> None:
        self.model.partial_fit(x, y, **self.given)

    def bits(self) -> Any:
        return bits(self.model), bits(np.random.mtrand._rand)


def bits(value: Any) -> Any:
    """Return all that a value consists of, in a form that can be compared."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return (value.shape, value.tolist())
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, np.random.RandomState):
        return bits(value.get_state(legacy=False))
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [type(value), *map(bits, value)]
    if type(value).__module__.startswith("sklearn."):
        return [type(value), bits(dict(sorted(getattr(value, "__dict__", {}).items())))]
    return (type(value), repr(value))


def plainly(name: str, random: Any) -> Any:
    """Train without hookbus."""
    trained = Trained(name, random())
    for x, y in trained.batches:
        trained.step(x, y)
    return trained.bits()


class FellError(Exception):
    """The training fell over."""


def hooked(name: str, random: Any, directory: Path, fall: Any = None) -> Any:
    """Train the same with hookbus, which resumes; *fall* is called in each step."""
    trained = Trained(name, random())
    with saving(directory, every=2) as session:
        session.track(model=trained.model)
        for x, y in session.iterate(trained.batches):
            with session.step():
                trained.step(x, y)
                if fall is not None:
                    fall(session.global_step)
    return trained.bits()


def killed(train: Callable[[], Any]) -> int:
    """Train in a forked process; return the status with which it ended."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            train()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


RANDOMS: dict[str, Callable[[], Any]] = {
    "global": lambda: None,
    "number": lambda: 3,
    "RandomState": lambda: np.random.RandomState(3),
}


@pytest.mark.parametrize("random", RANDOMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_training_that_falls_over_again_and_again_ends_like_the_plain_one(
    name, random, tmp_path
):
    """Each attribute has the same bits, whatever the estimator draws its numbers from."""
    make = RANDOMS[random]
    plain = plainly(name, make)
    assert hooked(name, make, tmp_path / "whole") == plain

    def fall(step: int, last: int) -> None:
        if step == last:
            raise FellError

    for last in range(EVERY - 1, STEPS, EVERY):
        with pytest.raises(FellError):
            hooked(name, make, tmp_path / "fallen", partial(fall, last=last))
    assert hooked(name, make, tmp_path / "fallen") == plain


@pytest.mark.parametrize("name", cases(["MLPClassifier", "averaged"], NAMES))
def test_a_training_that_is_killed_again_and_again_ends_like_the_plain_one(name, tmp_path):
    """A signal that nobody can catch ends its process in every third step."""
    make = RANDOMS["global"]

    def fall(step: int, last: int) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    for last in range(EVERY - 1, STEPS, EVERY):
        train = partial(hooked, name, make, tmp_path, partial(fall, last=last))
        assert os.WTERMSIG(killed(train)) == signal.SIGKILL
    assert hooked(name, make, tmp_path) == plainly(name, make)


def test_the_table_has_all_estimators_that_learn_in_steps():
    """The refused ones are a tree in memory, and one that does not learn, since 1.6."""
    assert ZOO.keys() >= REFUSED
    assert len(ZOO.keys() - REFUSED) > 30
