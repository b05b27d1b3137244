"""Lists fifteen callbacks, and where each of them is compared with a loop by hand.

docs/tables.py writes the table of docs/how-to/callbacks.md from these rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hookbus_batch_size_finder import BatchSizeFinderHook

from hookbus import HookbusError
from tests.support import callback_loops as loops
from tests.support.pictures import (
    EPOCHS,
    STEPS,
    batches_of,
)
from tests.support.trainings import Library, Row, Site


@attrs.frozen
class Callback(Row):
    """A callback, and the training that it promises.

    Attributes:
        title: the name that people know it by.
        link: where the page has it, or the page of the plugin.
        void: the sites where it has no meaning, with the reason.
        once: why its training is not resumed; empty where it is.
        notes: what to know of a site where it works.
        steps: the steps of the training.
    """

    title: str = attrs.field(kw_only=True)
    link: str = attrs.field(kw_only=True)
    void: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    once: str = attrs.field(default="", kw_only=True)
    notes: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    steps: int = attrs.field(default=STEPS, kw_only=True)

    def batches(self, library: Library) -> list[Any]:
        """Return the data of an epoch."""
        return batches_of(library)

    def loop(self, session: Any, model: Any, batches: loops.Batches) -> None:
        """Train a model in a custom loop, and evaluate it after each epoch."""
        session.track(**model.objects)
        for _ in session.epochs(EPOCHS):
            for batch in session.iterate(batches, name="batch"):
                model.watch(session.global_step + 1)
                with session.step() as step:
                    model.step(batch, step)
            with session.evaluation("val") as evaluation:
                for batch in batches[:2]:
                    with evaluation.step() as step:
                        step.report(prediction=model.predict(batch))

    def check_trains_like_by_hand(self, site: Site, place: Path) -> None:
        """Assert that its training equals its loop by hand, and no loop without it."""
        _, values = self.train(site, place)
        assert values == self.plainly(site)
        without = attrs.evolve(self, by_hand=loops.plain).plainly(site)
        assert values != without

    def check_resumes(self, site: Site, place: Path, first: int, number: int) -> None:
        """Assert that it ends the same if it is cut at *first*, and at each tenth step."""
        cuts = range(first, self.steps + 1, 10)
        _, values = self.train_cut(site, place, cuts, number)
        assert values == self.plainly(site)

    def check_is_refused(self, site: Site, place: Path) -> None:
        """Assert that its training ends with the error that the row names."""
        with pytest.raises(HookbusError, match=re.escape(self.refused[str(site)])):
            self.train(site, place)


def plugin(name: str) -> str:
    return f"../reference/plugins/{name}.md"


IN_GRAPHS = "A step of a graph cannot be undone, and neither can the trial of a size"
GRAPHS = "numpy-graph", "torch-graph"
LOOPS = "numpy-loop", "torch-loop"
BY_STEP = "By step, because a graph counts no epochs"
ALONE = "In one process; another test has three"
NAMES = "What is measured differs from run to run, so the tests compare its names and steps"

ROWS = [
    Callback(
        "gradient-clipping",
        loops.clipping,
        loops.clipped,
        title="gradient clipping",
        link=plugin("gradient-clipping"),
    ),
    Callback(
        "batch-size-finder",
        lambda *_: [BatchSizeFinderHook()],
        loops.sized,
        also=lambda hooks, _: {"size": hooks[0].size},
        refused=dict.fromkeys(GRAPHS, "batch-size-finder tries the steps of a custom loop"),
        title="batch size finder",
        link=plugin("batch-size-finder"),
        void=dict.fromkeys(GRAPHS, IN_GRAPHS),
        once="It ends at its first step, and saves nothing to resume from",
    ),
    Callback(
        "prediction-writer",
        loops.writing,
        loops.predicted,
        also=loops.written,
        title="prediction writer",
        link=plugin("prediction-writer"),
    ),
    Callback(
        "monitor",
        loops.measuring,
        loops.measured,
        also=loops.noted,
        title="monitor of norms",
        link=plugin("monitor"),
    ),
    Callback(
        "freezing",
        loops.freezing,
        loops.frozen,
        title="fine-tuning, freezing by epoch",
        link="#freeze-weights-until-an-epoch",
        notes=dict.fromkeys(GRAPHS, BY_STEP),
    ),
    Callback(
        "sharpness",
        loops.sharpening,
        loops.sharp,
        title="sharpness-aware minimization",
        link="#sharpness-aware-minimization",
    ),
    Callback(
        "lengths",
        loops.seeded(lambda: loops.recipe("lengths.py")["LengthHook"](2, steps=20)),
        loops.changed(loops.cut),
        title="sequence length warm-up",
        link="#lengthen-sequences",
    ),
    Callback(
        "sizes",
        loops.seeded(lambda: loops.recipe("sizes.py")["SizeHook"](3, steps=20)),
        loops.changed(loops.resized),
        title="progressive resizing",
        link="#enlarge-images",
    ),
    Callback(
        "mixing",
        loops.seeded(lambda: loops.recipe("mixing.py")["MixUpHook"](0.4)),
        loops.changed(loops.mixed),
        title="MixUp",
        link="#mixup",
    ),
    Callback(
        "pasting",
        loops.seeded(lambda: loops.recipe("pasting.py")["CutMixHook"](0.4)),
        loops.changed(loops.pasted),
        title="CutMix",
        link="#cutmix",
    ),
    Callback(
        "histograms",
        loops.showing,
        loops.shown,
        also=loops.noted,
        title="histograms",
        link="#histograms-of-weights-and-gradients",
    ),
    Callback(
        "best",
        lambda *_: [loops.recipe("best.py")["BestWeightsHook"]("model.*")],
        loops.best,
        title="best weights at the end",
        link="#best-weights-at-the-end",
    ),
    Callback(
        "device",
        loops.watching,
        loops.watched,
        also=loops.noted,
        title="statistics of the device",
        link="#statistics-of-the-device",
        notes=dict.fromkeys([*GRAPHS, *LOOPS], NAMES),
    ),
    Callback(
        "ranks",
        loops.comparing,
        loops.compared,
        also=loops.noted,
        title="slow ranks",
        link="#find-a-slow-rank",
        notes=dict.fromkeys([*GRAPHS, *LOOPS], ALONE),
    ),
    Callback(
        "trials",
        loops.pruning,
        loops.pruned,
        also=loops.noted,
        title="pruning of Optuna",
        link="#prune-trials-of-optuna",
        steps=loops.LAST,
    ),
]


def trainings_of(library: Library, resumed: bool = False) -> list[Any]:
    """Return the parameters of tests: each callback, and each site where it works.

    Args:
        library: the library.
        resumed: whether to leave out those whose training is not resumed.
    """
    return [
        pytest.param(row, site, id=f"{row}-{site}")
        for row in ROWS
        for site in (Site(library, False), Site(library, True))
        if str(site) not in row.void and not (resumed and row.once)
    ]


def refusals_of(library: Library) -> list[Any]:
    """Return each callback, and each site where it raises an error instead."""
    return [
        pytest.param(row, site, id=f"{row}-{site}")
        for row in ROWS
        for site in (Site(library, False), Site(library, True))
        if str(site) in row.void
    ]
