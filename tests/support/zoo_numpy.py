"""Trainings with NumPy in the shapes in which people write them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.support.zoo import Run

LENGTH = 5
DATA = np.random.default_rng(0).normal(size=(40, 3))
TARGETS = DATA @ [1.0, -2.0, 0.5]


def generators() -> list[Any]:
    """Return the states of the generators of the process."""
    return [random.getstate(), list(np.random.get_state()[1]), np.random.get_state()[2]]


def gradient(w: Any, rows: Any) -> Any:
    """Return the gradient of a linear model."""
    x, y = DATA[rows], TARGETS[rows]
    return x.T @ (x @ w - y) / len(np.atleast_1d(y))


def batches(order: Any) -> list[Any]:
    """Return the rows of each batch."""
    return [order[start : start + 8] for start in range(0, len(order), 8)]


def shuffled() -> Iterator[Any]:
    """Yield batches in an order that is drawn when the first one is pulled."""
    yield from batches(np.random.permutation(len(DATA)))


def ordinary(run: Run) -> Any:
    """Epochs around passes, a schedule after each pass, and a validation."""
    w, state = np.zeros(3), {"lr": 0.1}
    with run.session() as session:
        session.track(w=w, state=state)
        for epoch in session.epochs(run.epochs):
            for rows in session.iterate(shuffled()):
                with session.step() as step:
                    w -= state["lr"] * gradient(w, rows)
                    step.report(loss=float(w.sum()))
            state["lr"] *= 0.9
            with session.evaluation("val") as evaluation:
                evaluation.report(noise=np.random.random(), loss=float(w @ w))
            run.say(epoch, evaluation.metrics["loss"], state["lr"], np.random.random())
    return w, state, generators()


def permuted(run: Run) -> Any:
    """The order is drawn between passes, outside of the iterable."""
    w = np.zeros(3)
    with run.session() as session:
        session.track(w=w)
        for epoch in session.epochs(run.epochs):
            for row in session.iterate(np.random.permutation(LENGTH)):
                with session.step():
                    w -= 0.1 * gradient(w, [row])
            run.say(epoch, w.tolist())
    return w, generators()


def in_range(run: Run) -> Any:
    """Epochs are counted by ``range``, and the order is drawn between passes."""
    w, order = np.zeros(3), list(range(LENGTH))
    with run.session() as session:
        session.track(w=w)
        for epoch in range(run.epochs):
            random.shuffle(order)  # in place: each epoch shuffles the order before
            for row in session.iterate(order):
                with session.step():
                    w -= 0.1 * gradient(w, [row]) + random.random()
            if not session.resuming:
                run.say(epoch, w.tolist(), order)
    return w, order, generators()


def warm_up(run: Run) -> Any:
    """The index of the batch sets the learning rate, and counters are the user's own."""
    w, seen = np.zeros(3), {"batches": 0, "average": 0.0}
    with run.session() as session:
        session.track(w=w, seen=seen)
        for epoch in session.epochs(run.epochs):
            for i, rows in session.enumerate(shuffled(), start=1):
                lr = 0.1 * min(1.0, i / 4)
                with session.step():
                    w -= lr * gradient(w, rows)
                if i % 2 == 0:
                    w *= 0.99
                seen["batches"] += 1
                seen["average"] = 0.9 * seen["average"] + 0.1 * float(w.sum())
            run.say(epoch, seen)
    return w, seen, generators()


def adversarial(run: Run) -> Any:
    """Two steps for one batch, with code between and behind them."""
    g, d = np.zeros(3), np.ones(3)
    with run.session() as session:
        session.track(generator=g, discriminator=d)
        for _ in session.epochs(run.epochs):
            for rows in session.iterate(shuffled()):
                noise = np.random.normal(size=3)
                with session.step() as step:
                    d += 0.1 * gradient(d, rows) - 0.01 * g * noise
                    step.report(d=float(d.sum()))
                g *= 0.999
                with session.step() as step:
                    g += 0.1 * d * noise
                    step.report(g=float(g.sum()))
                d *= 0.999
    return g, d, generators()


def accumulating(run: Run) -> Any:
    """The gradients of three batches make one update."""
    w, total = np.zeros(3), np.zeros(3)
    with run.session() as session:
        session.track(w=w, total=total)
        for _ in session.epochs(run.epochs):
            for i, rows in session.enumerate(shuffled()):
                with session.step():
                    total += gradient(w, rows)
                    if i % 3 == 2:
                        w -= 0.1 * total
                        total[...] = 0.0
    return w, total, generators()


def evaluating_inside(run: Run) -> Any:
    """An evaluation before every third step, as in many loops over iterations."""
    w, best = np.zeros(3), {"loss": 1e9}
    with run.session() as session:
        session.track(w=w, best=best)
        passes = [batches(np.arange(40))] * run.epochs
        for i, rows in session.enumerate(list(itertools.chain(*passes))):
            if i % 3 == 0:
                with session.evaluation() as evaluation:
                    evaluation.report(loss=float(w @ w))
                best["loss"] = min(best["loss"], evaluation.metrics["loss"])
            with session.step():
                w -= 0.1 * gradient(w, rows)
    return w, best, generators()


def nested(run: Run) -> Any:
    """Passes inside a pass: some tasks, each with its own data."""
    w, lr = np.zeros(3), {"lr": 0.1}
    with run.session() as session:
        session.track(w=w, lr=lr)
        for _ in session.epochs(run.epochs):
            for task in session.iterate(random.sample(range(3), 3)):
                scale = 1.0 + random.random()
                for rows in session.iterate(batches(np.random.permutation(16))):
                    with session.step():
                        w -= lr["lr"] * scale * gradient(w, rows + task)
                lr["lr"] *= 0.95
    return w, lr, generators()


def counting_epochs(run: Run) -> Any:
    """A ``while`` over a counter that is tracked."""
    w, progress = np.zeros(3), {"epoch": 0}
    with run.session() as session:
        session.track(w=w, progress=progress)
        while progress["epoch"] < run.epochs:
            for rows in session.iterate(shuffled()):
                with session.step():
                    w -= 0.1 * gradient(w, rows)
            progress["epoch"] += 1
    return w, progress, generators()


class Trainer:
    """A class with a ``fit`` method, as people write their own."""

    def __init__(self, run: Run) -> None:
        self.w, self.run, self.losses = np.zeros(3), run, list[float]()

    def fit(self, session: Any) -> None:
        """Train all epochs."""
        session.track(w=self.w, losses=self.losses)
        for epoch in session.epochs(self.run.epochs):
            self.train_one_epoch(session)
            self.losses.append(self.validate(session))
            self.run.say(epoch, self.losses)

    def train_one_epoch(self, session: Any) -> None:
        """Train on all batches."""
        for rows in session.iterate(shuffled()):
            self.train_step(session, rows)

    def train_step(self, session: Any, rows: Any) -> None:
        """Train on a batch, mixed up with another one."""
        weight = np.random.beta(0.5, 0.5)
        other = np.random.permutation(rows)
        with session.step():
            mixed = weight * gradient(self.w, rows) + (1 - weight) * gradient(self.w, other)
            self.w -= 0.1 * mixed

    def validate(self, session: Any) -> float:
        """Return the loss."""
        with session.evaluation("val") as evaluation:
            for rows in batches(np.arange(16)):
                evaluation.report(loss=float(gradient(self.w, rows).sum()))
        return float(evaluation.metrics["loss"])


def with_a_class(run: Run) -> Any:
    """All of it is inside the methods of a class."""
    trainer = Trainer(run)
    with run.session() as session:
        trainer.fit(session)
    return trainer.w, trainer.losses, generators()


def endless(run: Run) -> Any:
    """An endless generator, and an end by the number of steps."""

    def examples() -> Iterator[Any]:
        while True:
            yield from shuffled()

    w = np.zeros(3)
    with run.session() as session:
        session.track(w=w)
        for rows in session.iterate(examples()):
            if session.global_step >= run.epochs * LENGTH:
                break
            with session.step():
                w -= 0.1 * gradient(w, rows)
    return w


def cycling(run: Run) -> Any:
    """``itertools.cycle`` over one shuffled epoch, and an end by the number of steps."""
    w = np.zeros(3)
    with run.session() as session:
        session.track(w=w)
        for rows in session.iterate(itertools.cycle(shuffled())):
            if session.global_step == run.epochs * LENGTH:
                break
            with session.step():
                w -= 0.1 * gradient(w, rows)
    return w, generators()


def zipped(run: Run) -> Any:
    """Two inputs in one pass, one of them shorter."""
    w = np.zeros(3)
    with run.session() as session:
        session.track(w=w)
        for _ in session.epochs(run.epochs):
            labelled, others = shuffled(), batches(np.random.permutation(24))
            for rows, more in session.iterate(zip(labelled, others, strict=False)):
                with session.step():
                    w -= 0.1 * gradient(w, rows) + 0.01 * gradient(w, more)
    return w, generators()


def own_generator(run: Run) -> Any:
    """A sampler with a generator of its own, which is tracked."""
    w, draw = np.zeros(3), np.random.default_rng(5)

    def samples() -> Iterator[Any]:
        yield from batches(draw.permutation(len(DATA)))

    with run.session() as session:
        session.track(w=w, draw=draw)
        for epoch in session.epochs(run.epochs):
            for rows in session.iterate(samples()):
                with session.step():
                    w -= 0.1 * gradient(w, rows) + np.random.normal(scale=0.01)
            run.say(epoch, draw.random())
    return w, draw.random(), generators()


def recurrent(run: Run) -> Any:
    """A state is carried from batch to batch, and begins anew in each epoch."""
    w, carried = np.zeros(3), {"hidden": np.zeros(3)}
    with run.session() as session:
        session.track(w=w, carried=carried)
        for _ in session.epochs(run.epochs):
            carried["hidden"][...] = 0.0
            for rows in session.iterate(batches(np.arange(40))):
                hidden = np.tanh(carried["hidden"] + DATA[rows].mean(axis=0) * w)
                with session.step():
                    w -= 0.1 * gradient(w, rows) + 0.05 * hidden
                carried["hidden"][...] = hidden
    return w, carried, generators()


def full_batch(run: Run) -> Any:
    """One step for each epoch, without any input."""
    w = np.zeros(3)
    with run.session() as session:
        session.track(w=w)
        for epoch in session.epochs(run.epochs * 2):
            with session.step():
                w -= 0.1 * gradient(w, np.arange(40)) + random.random()
            w *= 0.99
            run.say(epoch, w.tolist())
    return w, generators()


def left_early(run: Run) -> Any:
    """A pass is left by ``break`` where the loss is small, which code behind it sees."""
    w, left = np.zeros(3), list[int]()
    with run.session() as session:
        session.track(w=w, left=left)
        for _ in session.epochs(run.epochs):
            for i, rows in session.enumerate(shuffled()):
                with session.step():
                    w -= 0.1 * gradient(w, rows)
                if i == 3:
                    break
            left.append(i)
            w *= 0.9
    return w, left, generators()


def two_passes(run: Run) -> Any:
    """Each epoch has two passes, with code between them."""
    w, lr = np.zeros(3), {"lr": 0.1}
    with run.session() as session:
        session.track(w=w, lr=lr)
        for epoch in session.epochs(run.epochs):
            for rows in session.iterate(shuffled()):
                with session.step():
                    w -= lr["lr"] * gradient(w, rows)
            lr["lr"] *= 0.5
            order = np.random.permutation(16)
            for rows in session.iterate(batches(order)):
                with session.step():
                    w -= lr["lr"] * gradient(w, rows) * np.random.random()
            lr["lr"] *= 1.9
            run.say(epoch, w.tolist())
    return w, lr, generators()


def scikit(run: Run) -> Any:
    """A model of scikit-learn, tracked as a pair of functions."""
    from sklearn.linear_model import SGDClassifier  # takes seconds to import

    model = SGDClassifier(random_state=0)
    names = ("classes_", "coef_", "intercept_", "t_", "n_features_in_")

    def learned() -> dict[str, Any]:
        return {name: getattr(model, name) for name in names if hasattr(model, name)}

    with run.session() as session:
        session.track(model=(learned, vars(model).update))
        for epoch in session.epochs(run.epochs):
            for rows in session.iterate(shuffled()):
                with session.step() as step:
                    model.partial_fit(DATA[rows], TARGETS[rows] > 0, classes=[False, True])
                    step.report(score=lambda: model.score(DATA, TARGETS > 0))
            run.say(epoch, model.score(DATA, TARGETS > 0))
    return learned(), generators()


def averaged(run: Run) -> Any:
    """An average of the weights, moved after each step."""
    w, average = np.zeros(3), np.zeros(3)
    with run.session() as session:
        session.track(w=w, average=average)
        for epoch in session.epochs(run.epochs):
            for rows in session.iterate(shuffled()):
                with session.step():
                    w -= 0.1 * gradient(w, rows)
                average += 0.1 * (w - average)
            with session.evaluation("average") as evaluation:
                evaluation.report(loss=float(average @ average))
            with session.evaluation("last") as evaluation:
                evaluation.report(loss=float(w @ w))
            run.say(epoch, average.tolist())
    return w, average, generators()


def cancelled(run: Run) -> Any:
    """Some batches are skipped, by ``continue``, and some steps are left out."""
    w = np.zeros(3)
    with run.session() as session:
        session.track(w=w)
        for _ in session.epochs(run.epochs):
            for rows in session.iterate(shuffled()):
                if np.random.random() < 0.3:
                    continue
                with session.step():
                    w -= 0.1 * gradient(w, rows)
    return w, generators()


TRAININGS: dict[str, Callable[[Run], Any]] = {
    each.__name__: each
    for each in (
        ordinary,
        permuted,
        in_range,
        warm_up,
        adversarial,
        accumulating,
        evaluating_inside,
        nested,
        counting_epochs,
        with_a_class,
        endless,
        cycling,
        zipped,
        own_generator,
        recurrent,
        full_batch,
        left_early,
        two_passes,
        scikit,
        averaged,
        cancelled,
    )
}
