"""Splits the predictions of batches into predictions of examples."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookbus import UsageError
from hookbus.errors import ArgumentTypeError, did_you_mean
from hookbus.evaluating import RandomStream, undisturbed


def choose_predictions(predictions: Any, keys: Sequence[str] | str | None) -> Any:
    """Return the predictions to fetch.

    Args:
        predictions: a node, or a dict key to node.
        keys: the keys to choose from a dict; None or empty for all.

    Raises:
        UsageError: a key is unknown, or the predictions are not a dict.
        ArgumentTypeError: *keys* is not a list.
    """
    if not keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise UsageError(
            "predict_keys argument is not valid in case of non-dict predictions."
        )
    if not isinstance(keys, Iterable):
        raise ArgumentTypeError(f"predict_keys must be a list of keys, given: {keys!r}")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    for key in wanted:
        if key not in predictions:
            raise UsageError(
                f"predict_keys has {key!r}, which is not a prediction; there are "
                f"{', '.join(map(repr, predictions))}{did_you_mean(key, predictions)}"
            )
    return {key: predictions[key] for key in wanted}


def rows_of(batch: Any) -> Iterator[Any]:
    """Yield the rows of a batch, or dicts of them.

    Raises:
        UsageError: the values have no rows, or different numbers of rows.
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
    """Return a list of the batch as a whole."""
    return [batch]


def each_prediction(
    batches: Generator[Any, None, None], split: Callable[[Any], Iterable[Any]]
) -> Generator[Any, None, None]:
    """Yield the parts of each batch, without any effect on the random generators.

    The batches have a stream of random numbers of their own. However the iteration ends,
    *batches* is closed or receives the error.

    Args:
        batches: yields batches; keeps a session open in between.
        split: splits one batch.
    """
    stream = RandomStream()

    def close() -> None:
        with contextlib.suppress(ValueError):  # another thread is running it
            batches.close()

    atexit.register(close)  # after this point, hooks could not do much
    try:
        while True:
            with stream.drawing():
                batch = next(batches, _END)
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
