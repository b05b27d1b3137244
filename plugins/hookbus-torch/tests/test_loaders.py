"""Loaders of all kinds: a resumed pass gives what the uninterrupted one gave."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from hookbus import Config, MonitoredTrainingSession
from tests.support.profiles import cases

# torchdata calls it.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

PASSES, BATCHES, SIZE = 3, 5, 4


class Numbers(Dataset):
    """Numbers, and a count of how many of them were read."""

    def __init__(self, length: int = BATCHES * SIZE) -> None:
        self.length = length
        self.reads = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        return torch.tensor(float(index))


class Drawn(Numbers):
    """Numbers with noise from two of the generators that programs do not name."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(()) + random.random()


class OwnNoise(Numbers):
    """Numbers with noise from a generator that only the data set knows."""

    def __init__(self, length: int = BATCHES * SIZE) -> None:
        super().__init__(length)
        self.noise = random.Random(5)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + self.noise.random()


class Stream(IterableDataset):
    """Numbers without a length, shared by the workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        start, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(torch.arange(float(BATCHES * SIZE))[start::step])


class Groups(Sampler):
    """Batches that are drawn when they are due."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(BATCHES):
            yield torch.randint(BATCHES * SIZE, (SIZE,)).tolist()

    def __len__(self) -> int:
        return BATCHES


def prepared(loader: DataLoader, **settings: Any) -> DataLoader:
    """Return a loader as accelerate prepares it."""
    config = DataLoaderConfiguration(**settings)
    return Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def shuffled(workers: int, cls: Any = DataLoader, data: Any = Numbers, **more: Any) -> Any:
    """Return a loader that shuffles."""
    return cls(data(), batch_size=SIZE, shuffle=True, num_workers=workers, **more)


def own(workers: int, **more: Any) -> Any:
    """Return a loader with a generator of its own."""
    return shuffled(workers, generator=torch.Generator().manual_seed(9), **more)


Make = Callable[[int], Any]

KINDS: dict[str, Make] = {
    "shuffled": shuffled,
    "in order": lambda workers: DataLoader(Numbers(), SIZE, num_workers=workers),
    "one by one": lambda workers: DataLoader(Numbers(7), None, num_workers=workers),
    "own generator": own,
    "drawing": lambda workers: shuffled(workers, data=Drawn),
    "own noise": lambda workers: shuffled(workers, data=OwnNoise),
    "drawn groups": lambda workers: DataLoader(
        Numbers(), batch_sampler=Groups(), num_workers=workers
    ),
    "stream": lambda workers: DataLoader(Stream(), SIZE, num_workers=workers),
    "persistent": lambda workers: shuffled(workers, persistent_workers=True),
    "persistent, own generator": lambda workers: own(workers, persistent_workers=True),
    "persistent stream": lambda workers: DataLoader(
        Stream(), SIZE, num_workers=workers, persistent_workers=True
    ),
    "persistent stateful": lambda workers: shuffled(
        workers, StatefulDataLoader, persistent_workers=True
    ),
    "stateful": lambda workers: shuffled(workers, StatefulDataLoader),
    "stateful, own generator": lambda workers: own(workers, cls=StatefulDataLoader),
    "stateful stream": lambda workers: StatefulDataLoader(
        Stream(), SIZE, num_workers=workers
    ),
    "prepared": lambda workers: prepared(shuffled(workers)),
    "prepared, drawing": lambda workers: prepared(shuffled(workers, data=Drawn)),
    "prepared, seedable": lambda workers: prepared(
        shuffled(workers), use_seedable_sampler=True
    ),
    "prepared, own generator": lambda workers: prepared(own(workers)),
    "prepared, dispatching": lambda workers: prepared(
        shuffled(workers), dispatch_batches=True
    ),
    "prepared stateful": lambda workers: prepared(
        shuffled(workers, StatefulDataLoader), use_stateful_dataloader=True
    ),
    "prepared stream": lambda workers: prepared(
        DataLoader(Stream(), SIZE, num_workers=workers)
    ),
    "prepared, persistent": lambda workers: prepared(
        shuffled(workers, persistent_workers=True)
    ),
}


class Cut(Exception):
    """Cuts a run short, so that it saves nothing at its end."""


def trained(
    make: Make, workers: int, directory: Path, cut: int | None = None
) -> tuple[list[Any], int]:
    """Go on with a run in a directory, in a process of its own.

    Args:
        make: takes the number of workers; returns the input of each pass.
        workers: how many there are.
        directory: where the checkpoints are.
        cut: the global step after which a checkpoint is written, and an error ends the
            training.

    Returns:
        The batches that its steps got, and how many items were read for them.
    """
    answer = directory / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            _train(make, workers, directory, cut, answer)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    batches, reads = json.loads(answer.read_text())
    return batches, reads


def _cut_at(session: Any, cut: int | None) -> None:
    """Cut a run short when the body of the last value is complete."""
    if session.global_step == cut:
        raise Cut


def _train(
    make: Make, workers: int, directory: Path, cut: int | None, answer: Path
) -> None:
    random.seed(3)
    torch.manual_seed(3)
    loader, seen = make(workers), list[Any]()
    session = MonitoredTrainingSession(
        checkpoint_dir=directory,
        save_checkpoint_steps=1000 if cut is None else cut,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    )
    with contextlib.suppress(Cut), session:
        for _ in range(PASSES):
            for batch in session.iterate(loader):
                _cut_at(session, cut)
                with session.step():
                    seen.append(batch.tolist())
                    torch.rand(1)  # as dropout does
            _cut_at(session, cut)
    answer.write_text(json.dumps((seen, int(getattr(loader.dataset, "reads", 0)))))
    os._exit(0)  # to wait for the workers of a pass that was cut takes seconds


@functools.cache
def uninterrupted(kind: str, workers: int, directory: Path) -> list[Any]:
    """Return all batches of a run that nothing interrupts."""
    directory.mkdir()
    return trained(KINDS[kind], workers, directory)[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


MATRIX = [
    (kind, workers, number, place)
    for kind in KINDS
    for workers in (0, 2)
    for number in (1, 2)
    for place in ("first", "middle", "last")
    if workers or "persistent" not in kind
    # Nothing restores a generator that only the data set knows in a second pass.
    if number == 1 or kind != "own noise"
]


WITH_WORKERS = ("shuffled", "persistent", "stateful", "prepared")
SAMPLE = [
    (kind, workers, number, place)
    for kind, workers, number, place in MATRIX
    if (number, place) == (2, "middle") and (not workers or kind in WITH_WORKERS)
]


@pytest.mark.parametrize(("kind", "workers", "number", "place"), cases(SAMPLE, MATRIX))
def test_a_resumed_pass_gives_what_the_uninterrupted_one_gave(
    kind: str,
    workers: int,
    number: int,
    place: str,
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Whatever the loader is, however many workers, and wherever the training was cut."""
    expected = uninterrupted(kind, workers, whole / f"{kind}-{workers}")
    length = len(expected) // PASSES
    cut = (number - 1) * length + {"first": 1, "middle": length // 2, "last": length}[place]

    begun, _ = trained(KINDS[kind], workers, tmp_path, cut)
    resumed, _ = trained(KINDS[kind], workers, tmp_path)

    assert begun == expected[:cut]
    assert resumed == expected[cut:]
    told = capfd.readouterr().err
    assert "restored" in told
    assert "gives other values" not in told


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_pass_reads_the_items_that_are_left(workers: int, tmp_path: Path) -> None:
    """It reads the first batch as well, which shows whether the data is the same."""
    length = 40 * SIZE

    def make(workers: int) -> Any:
        return DataLoader(Numbers(length), SIZE, shuffle=True, num_workers=workers)

    whole, reads = trained(make, workers, tmp_path)
    assert reads == PASSES * length
    (tmp_path / "cut").mkdir()
    trained(make, workers, tmp_path / "cut", 2 * 40 + 35)
    resumed, reads = trained(make, workers, tmp_path / "cut")
    assert resumed == whole[2 * 40 + 35 :]
    # Each worker gets the batches that it got before, so up to one more for each.
    assert 5 * SIZE <= reads <= (5 + max(1, workers)) * SIZE


@pytest.mark.parametrize(
    ("data", "workers"), [(Drawn, 2), (OwnNoise, 0), (OwnNoise, 2), (Drawn, 0)]
)
def test_what_reading_depends_on_is_read_again(
    data: Any, workers: int, tmp_path: Path
) -> None:
    """Workers that drew numbers, and a data set with its own generator, read all again.

    Without workers, an item draws from generators that the checkpoint restores.
    """

    def make(workers: int) -> Any:
        return DataLoader(data(), SIZE, num_workers=workers)

    trained(make, workers, tmp_path, BATCHES - 1)
    _, reads = trained(make, workers, tmp_path)
    again = 1 if (data, workers) == (Drawn, 0) else BATCHES - 1
    rest = 1 + (PASSES - 1) * BATCHES
    assert reads == (again + rest) * SIZE
