"""How predictions of a batch become predictions of its examples."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookbus.backend import random_state
from hookbus.backend.random_state import undisturbed
from hookbus.errors import ArgumentTypeError, UsageError, did_you_mean


def choose_predictions(predictions: Any, keys: Sequence[str] | str | None) -> Any:
    """Return what to fetch of the predictions.

    Args:
        predictions: a node, or a dict key to node.
        keys: which of a dict's; None or empty for all.

    Raises:
        UsageError: a key is unknown, or the predictions are no dict.
        ArgumentTypeError: *keys* is no list.
    """
    if not keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise UsageError(
            "predict_keys argument is not valid in case of non-dict predictions."
        )
    if not isinstance(keys, Iterable):
        raise ArgumentTypeError(f"predict_keys is a list of keys, given: {keys!r}")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    for key in wanted:
        if key not in predictions:
            raise UsageError(
                f"predict_keys has {key!r}, which is no prediction"
                f"{did_you_mean(key, predictions)}; there are "
                f"{', '.join(map(repr, predictions))}"
            )
    return {key: predictions[key] for key in wanted}


def rows_of(batch: Any) -> Iterator[Any]:
    """Yield the rows of a batch, or dicts of them.

    Raises:
        UsageError: the values have not the same number of rows, or no rows.
    """
    if not isinstance(batch, Mapping):
        _count("predictions", batch)
        yield from batch
        return
    counts = {key: _count(key, value) for key, value in batch.items()}
    for key, count in counts.items():
        if count != next(iter(counts.values())):
            raise UsageError(
                "Batch length of predictions should be same. "
                f"{key} has different batch length than others."
            )
    for row in range(next(iter(counts.values()), 0)):
        yield {key: value[row] for key, value in batch.items()}


def whole_batch(batch: Any) -> list[Any]:
    """Return a batch as the one thing to yield."""
    return [batch]


def each_prediction(
    batches: Generator[Any, None, None], split: Callable[[Any], Iterable[Any]]
) -> Generator[Any, None, None]:
    """Yield what becomes of each batch, and leave no trace in the random generators.

    What is drawn for one batch follows what was drawn for the one before. Whatever ends
    it, the generator of batches is told.

    Args:
        batches: yields batches; keeps a session open in between.
        split: takes one apart.
    """
    drawn: Mapping[str, Any] = {}

    def close() -> None:
        with contextlib.suppress(ValueError):  # a thread is in the middle of it
            batches.close()

    atexit.register(close)  # later than that, hooks can do next to nothing
    try:
        while True:
            with undisturbed():
                random_state.restore(drawn)
                batch = next(batches, _END)
                drawn = random_state.capture()
            if batch is _END:
                return
            yield from split(batch)
    except GeneratorExit:
        raise
    except BaseException as error:
        with undisturbed(), contextlib.suppress(StopIteration):
            batches.throw(error)
    finally:
        atexit.unregister(close)
        with undisturbed():
            batches.close()


_END = object()


def _count(key: str, value: Any) -> int:
    shape = getattr(value, "shape", None)
    if shape == () or not hasattr(value, "__len__"):
        raise UsageError(
            f"the prediction {key!r} has no rows; give yield_single_examples=False for "
            "whole batches"
        )
    return len(value)
