"""Makes the hooks of fifteen callbacks, each beside the loop by hand that does the same.

The classes of eleven of them are those that docs/how-to/callbacks.md shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from hookbus_gradient_clipping import GradientClippingHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_monitor import MonitorHook
from hookbus_prediction_writer import PredictionWriterHook

from hookbus import SessionRunArgs, SessionRunHook, hookimpl
from hookbus.evaluating import evaluation_run
from tests.support.pages import ROOT, blocks_of
from tests.support.pictures import (
    BATCHES,
    EPOCHS,
    ROOM,
    SIZE,
    STEPS,
    Batch,
    PictureModel,
    batches_of,
)
from tests.support.trainings import Site

PAGE = ROOT / "docs" / "how-to" / "callbacks.md"
EVERY = 7
"""The period of hooks that measure, which no stop divides."""

Values = Mapping[str, Any]
Hooks = Sequence[Any]
Batches = Sequence[Batch]


@cache
def recipe(title: str) -> Mapping[str, Any]:
    """Return the names in a file that the page shows."""
    (text,) = [block.text for block in blocks_of(PAGE) if block.title == title]
    names: dict[str, Any] = {"__name__": title.removesuffix(".py")}
    exec(compile(text, f"{PAGE.name}: {title}", "exec"), names)
    return names


def every(batches: Batches) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of all epochs, each with its number from 0."""
    yield from enumerate([*batches] * EPOCHS)


def copies(model: PictureModel) -> dict[str, Any]:
    return deepcopy(dict(model.weights))


def plain(model: PictureModel, batches: Batches, _: Site) -> Values:
    """Train as if there were no hook."""
    for _, batch in every(batches):
        model.update(model.slope(batch)[1])
    return copies(model)


@attrs.frozen
class Notes:
    """Notes of hooks and of loops by hand, in files that a killed process leaves."""

    folder: Path

    def note(self, step: int, **values: Any) -> None:
        for name, value in values.items():
            np.save(self.folder / f"note {step} {name}.npy", np.asarray(value))

    def read(self) -> dict[str, Any]:
        return {path.stem: np.load(path) for path in self.folder.glob("note *.npy")}


def noted(_: Hooks, folder: Path) -> Values:
    return Notes(folder).read()


def name_of(name: str) -> str:
    """Return a name that a file can have."""
    return name.replace("/", " ")


@attrs.define(eq=False)
class NotesMeasured(SessionRunHook):
    """Notes what hooks measure."""

    notes: Notes
    only_names: bool = False

    @hookimpl
    def measured(self, values: Values, global_step: int) -> None:
        for name, value in values.items():
            assert np.isfinite(value)
            shown = {name_of(name): 0.0 if self.only_names else value}
            self.notes.note(global_step, **shown)


def clipping(site: Site, _: Path) -> Hooks:
    names = {"gradients": ["grad_w", "grad_b"]} if site.library.name == "numpy" else {}
    return [GradientClippingHook(0.05, **names)]


def clipped(model: PictureModel, batches: Batches, _: Site) -> Values:
    for _, batch in every(batches):
        model.update(model.clip(model.slope(batch)[1], 0.05))
    return copies(model)


def sized(model: PictureModel, batches: Batches, _: Site) -> Values:
    """Double the first batch while there is room, and train on it once as it is."""
    size, before = SIZE, model.beside()
    while size * 2 <= ROOM:
        size *= 2
    model.put_back(before)
    model.update(model.slope(batches[0])[1])
    return {**copies(model), "size": size}


def writing(site: Site, folder: Path) -> Hooks:
    batches = batches_of(site.library)[:2]

    def evaluate(session: Any) -> Values:
        for batch in batches:
            evaluation_run(session, "prediction", {"batch": batch})
        return {}

    writer = PredictionWriterHook(["prediction"], output_dir=str(folder))
    evaluator = InMemoryEvaluatorHook(evaluate, every_n_iter=BATCHES, name="val")
    return [writer] if site.custom_loop else [writer, evaluator]


def written(_: Hooks, folder: Path) -> Values:
    files = [folder / "predictions" / f"val-{n}.npz" for n in (BATCHES, STEPS)]
    found = {}
    for path in filter(Path.exists, files):  # a session that is stopped has some of them
        with np.load(path) as arrays:
            found[path.stem] = arrays["prediction"]
    return found


def predicted(model: PictureModel, batches: Batches, _: Site) -> Values:
    found = {}
    for number, batch in every(batches):
        model.update(model.slope(batch)[1])
        if (number + 1) % BATCHES == 0:
            both = [model.predict(each) for each in batches[:2]]
            found[f"val-{number + 1}"] = np.concatenate(both)
    return {**copies(model), **found}


LAYERS = ("body.0", "body.1", "head")
GRADIENTS = {
    "numpy": {"model.w": "grad_w", "model.b": "grad_b"},
    "torch": {
        f"model.{layer}.{leaf}": f"model.{layer}.{leaf}:grad"
        for layer in LAYERS
        for leaf in ("weight", "bias")
    },
}
"""The name of each weight in sessions, with that of its gradient."""


def names_at(site: Site) -> list[str]:
    gradients = GRADIENTS[site.library.name]
    return [*gradients, *gradients.values()]


def measuring(site: Site, folder: Path) -> Hooks:
    hook = MonitorHook(names_at(site), every_n_steps=EVERY)
    return [hook, NotesMeasured(Notes(folder))]


@attrs.define(eq=False)
class NotesHistograms(SessionRunHook):
    """Notes what a writer of summaries gets."""

    notes: Notes
    graph: Any = None

    def begin(self, graph: Any) -> None:
        self.graph = graph

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        is_due = run_context.global_step % EVERY == 0
        return SessionRunArgs(self.graph.summaries) if is_due else None

    def after_run(self, run_values: Any) -> None:
        if run_values.results is not None:
            self.notes.note(run_values.global_step, **run_values.results["histogram"])


def showing(site: Site, folder: Path) -> Hooks:
    hook = recipe("histograms.py")["HistogramHook"](names_at(site))
    return [hook, NotesHistograms(Notes(folder))]


def seen(
    model: PictureModel, batches: Batches, site: Site
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Train, and yield the weights and gradients of the steps that hooks look at."""
    gradient_names = GRADIENTS[site.library.name]
    for number, batch in every(batches):
        weights = copies(model)
        _, gradients = model.slope(batch)
        found = {gradient_names[name]: deepcopy(g) for name, g in gradients.items()}
        model.update(gradients)
        # A graph's variable is fetched as it is before the update; an object's after it.
        values = weights if str(site) == "numpy-graph" else copies(model)
        if number % EVERY == 0:
            yield number + 1, {**{n: values[n] for n in gradient_names}, **found}


def shown(model: PictureModel, batches: Batches, site: Site) -> Values:
    found = {}
    for step, values in seen(model, batches, site):
        found |= {f"note {step} {name}": value for name, value in values.items()}
    return {**copies(model), **found}


def measured(model: PictureModel, batches: Batches, site: Site) -> Values:
    found = {}
    for step, values in seen(model, batches, site):
        for name, value in values.items():
            array = np.asarray(value, np.float64).ravel()
            found[f"note {step} monitor norm {name}"] = float(np.linalg.norm(array))
    return {**copies(model), **found}


PATTERN = {"numpy": "model.b", "torch": "model.body.*"}


def freezing(site: Site, _: Path) -> Hooks:
    first, by = (1, "epoch") if site.custom_loop else (BATCHES, "step")
    return [recipe("freezing.py")["FreezeHook"]({PATTERN[site.library.name]: first}, by)]


def frozen(model: PictureModel, batches: Batches, site: Site) -> Values:
    start = PATTERN[site.library.name].removesuffix("*")
    kept = {name: w for name, w in copies(model).items() if name.startswith(start)}
    for number, batch in every(batches):
        model.update(model.slope(batch)[1])
        for name, weight in kept.items() if number < BATCHES else ():
            model.weights[name][...] = weight
    return copies(model)


def sharpening(site: Site, _: Path) -> Hooks:
    return [recipe("sharpness.py")["SharpnessHook"](GRADIENTS[site.library.name])]


def sharp(model: PictureModel, batches: Batches, _: Site) -> Values:
    """Take two passes over each batch: one to climb, and one for the update."""
    for _, batch in every(batches):
        before = model.beside()
        _, gradients = model.slope(batch)
        norm = sum((g * g).sum() for g in gradients.values()) ** 0.5
        climb = {name: 0.05 * g / norm for name, g in gradients.items()}
        model.put_back(before)
        for name, up in climb.items():
            model.weights[name][...] = model.weights[name] + up
        model.update(model.slope(batch)[1])
        for name, up in climb.items():
            model.weights[name][...] = model.weights[name] - up
    return copies(model)


def changed(change: Callable[[Batch, int], Batch]) -> Callable[..., Values]:
    """Return the loop by hand that trains on changed batches."""

    def by_hand(model: PictureModel, batches: Batches, _: Site) -> Values:
        random.seed(3)
        for number, batch in every(batches):
            model.update(model.slope(change(batch, number))[1])
        return copies(model)

    return by_hand


def seeded(make: Callable[[], Any]) -> Callable[..., Hooks]:
    """Return how to make a hook, whose draws are those of the loop by hand."""

    def hooks(*_: Any) -> Hooks:
        random.seed(3)
        return [make()]

    return hooks


def cut(batch: Batch, step: int) -> Batch:
    x, y = batch
    return x[:, : 2 + 4 * min(step, 20) // 20], y


def resized(batch: Batch, step: int) -> Batch:
    x, y = batch
    size = 3 + 3 * min(step, 20) // 20
    pixels = [number * 6 // size for number in range(size)]
    return x[:, pixels][:, :, pixels], y


def mixed(batch: Batch, _: int) -> Batch:
    x, y = batch
    share = random.betavariate(0.4, 0.4)
    other = random.sample(range(SIZE), SIZE)
    return share * x + (1 - share) * x[other], share * y + (1 - share) * y[other]


def pasted(batch: Batch, _: int) -> Batch:
    x, y = batch
    side = (1 - random.betavariate(0.4, 0.4)) ** 0.5
    length = int(6 * side)
    top, left = random.randint(0, 6 - length), random.randint(0, 6 - length)
    other = random.sample(range(SIZE), SIZE)
    new = deepcopy(x)
    for row in range(top, top + length):
        for column in range(left, left + length):
            new[:, row, column] = x[other][:, row, column]
    share = 1 - length * length / 36
    return new, share * y + (1 - share) * y[other]


def best(model: PictureModel, batches: Batches, _: Site) -> Values:
    lowest, kept = float("inf"), copies(model)
    for _, batch in every(batches):
        before = copies(model)
        loss, gradients = model.slope(batch)
        model.update(gradients)
        if float(loss) < lowest:
            lowest, kept = float(loss), before
    assert lowest < float("inf")
    return kept


def watching(_: Site, folder: Path) -> Hooks:
    hook = recipe("device.py")["DeviceHook"](every=EVERY)
    return [hook, NotesMeasured(Notes(folder), only_names=True)]


def watched(model: PictureModel, batches: Batches, site: Site) -> Values:
    steps = range(EVERY, STEPS + 1, EVERY)
    names = "device cpu_seconds", "device largest_memory"
    found = {f"note {step} {name}": 0.0 for step in steps for name in names}
    return {**plain(model, batches, site), **found}


def comparing(_: Site, folder: Path) -> Hooks:
    hook = recipe("ranks.py")["SlowRankHook"](every=EVERY, seconds="loss")
    return [hook, NotesMeasured(Notes(folder))]


def compared(model: PictureModel, batches: Batches, site: Site) -> Values:
    """A single process is the slowest, and the fastest."""
    values = {"rank": 0.0, "times": 1.0}
    steps = range(EVERY, STEPS + 1, EVERY)
    found = {f"note {s} slow_rank {name}": v for s in steps for name, v in values.items()}
    return {**plain(model, batches, site), **found}


LAST = 25
"""The step after which a trial is pruned."""


@attrs.define
class Trial:
    """Stands for a trial of Optuna."""

    notes: Notes
    step: int = 0

    def report(self, value: float, step: int) -> None:
        self.step = step
        self.notes.note(step, loss=value)

    def should_prune(self) -> bool:
        return self.step == LAST


def pruning(_: Site, folder: Path) -> Hooks:
    return [recipe("trials.py")["PruneHook"](Trial(Notes(folder)))]


def pruned(model: PictureModel, batches: Batches, _: Site) -> Values:
    found = {}
    for number, batch in every(batches):
        if number == LAST:
            break
        loss, gradients = model.slope(batch)
        model.update(gradients)
        found[f"note {number + 1} loss"] = float(loss)
    return {**copies(model), **found}
