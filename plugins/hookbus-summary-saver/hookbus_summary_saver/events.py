"""Writes values, graphs and checkpoints as records that TensorBoard reads."""

from __future__ import annotations

import errno
import io
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING

import hookbus
from hookbus import Graph, UsageError
from hookbus.validation import number_in

_BINS = 30
_MOST_IMAGES = 3


class EventFile:
    """A new event file in a directory, which is created if needed.

    Args:
        directory: the directory of the file.
        first_step: the step from which on TensorBoard forgets the records of earlier
            files, because an interrupted session may have written beyond its checkpoint.
            None forgets nothing.

    Attributes:
        path: the file.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, directory: Path, first_step: int | None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names. They must differ even if two
        # sessions follow each other within a second.
        secs, nanos = divmod(time.time_ns(), 10**9)
        when = f"{secs:010d}.{socket.gethostname()}.{nanos:09d}.{os.getpid()}"
        self.path = directory / f"events.out.tfevents.{when}"
        self._file = self.path.open("xb")
        self._is_empty = True
        self._add(0, file_version="brain.Event:2")
        if first_step is not None:
            self._add(first_step, session_log=SessionLog(status=SessionLog.START))

    def show(self, kind: str, name: str, value: Any, step: int) -> None:
        """Add a value.

        Args:
            kind: ``scalar``, ``histogram``, ``image`` or ``text``.
            name: the name that TensorBoard shows.
            value: a value that fits the kind.
            step: the global step of the value.

        Raises:
            UsageError: the value does not fit the kind.
        """
        for summary in _SHOWN[kind](name, value):
            self._add(step, summary=Summary(value=[summary]))

    def show_graph(self, graph: Graph) -> None:
        """Add a graph: its nodes, and the nodes that each reads; skip one without ops.

        The nodes that collect values for hooks are left out.
        """
        nodes = [n for n in graph.nodes.values() if not n.name.startswith("hookbus.")]
        if any(node.kind == "op" for node in nodes):
            shown = [
                NodeDef(name=node.name, op=node.kind.capitalize(), input=node.reads)
                for node in nodes
            ]
            self._add(0, graph_def=GraphDef(node=shown).SerializeToString())

    def note_checkpoint(self, path: Path, step: int) -> None:
        """Add that a checkpoint was written, and sync all records up to here to disk."""
        log = SessionLog(status=SessionLog.CHECKPOINT, checkpoint_path=str(path))
        self._add(step, session_log=log)
        self.flush()
        os.fsync(self._file.fileno())

    def flush(self) -> None:
        """Make the added records visible to readers.

        Raises:
            OSError: the file cannot be written, or it was removed.
        """
        self._file.flush()
        check_there(self.path)  # what is written to a removed file is lost without an error
        self._is_empty = False

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def give_up(self) -> None:
        """Close a file that cannot be written; remove it if it has no complete record."""
        with suppress(OSError):
            self._file.close()
        if self._is_empty:
            with suppress(OSError):
                self.path.unlink()

    def _add(self, step: int, **what: Any) -> None:
        data = Event(wall_time=time.time(), step=step, **what).SerializeToString()
        length = struct.pack("<Q", len(data))
        self._file.write(length + _checksum(length) + data + _checksum(data))


def check_there(path: Path) -> None:
    """Raise FileNotFoundError if a file was removed."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "the event file was removed", str(path))


def _checksum(data: bytes) -> bytes:
    """Return the checksum of a part of a record, masked as in all files of records."""
    crc = crc32c(data)
    masked = (crc >> 15 | crc << 17) + 0xA282EAD8
    return struct.pack("<I", masked & 0xFFFFFFFF)


def _scalar(name: str, value: Any) -> Iterator[Summary.Value]:
    number = number_in(value)
    if number is None:
        wanted = "name scalars with --summary-saver-tensors"
        raise _misfit("scalar", name, value, wanted)
    yield Summary.Value(tag=name, simple_value=number)


def _histogram(name: str, value: Any) -> Iterator[Summary.Value]:
    values = _array("histogram", name, value).astype(np.float64).reshape(-1)
    finite = values[np.isfinite(values)]
    if finite.size:
        yield Summary.Value(tag=name, histo=_bins_of(finite))
    if finite.size < values.size:
        left_out = values.size - finite.size
        hookbus.log.warning(
            "left out values that are not finite", histogram=name, values=left_out
        )


def _bins_of(values: NDArray[np.float64]) -> HistogramProto:
    """Return the histogram of finite values, without the empty bins at its ends."""
    with np.errstate(over="ignore", invalid="ignore"):  # sums may be infinite
        counts, limits = np.histogram(values, _limits(values))
        filled = np.flatnonzero(counts)
        first, last = filled[0], filled[-1]
        return HistogramProto(
            min=values.min(),
            max=values.max(),
            num=values.size,
            sum=values.sum(),
            sum_squares=values.dot(values),
            # A record has the right limits only, so an empty bin has the leftmost one.
            bucket_limit=limits[first : last + 2],
            bucket=[0, *counts[first : last + 1]],
        )


def _limits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the limits of the bins, even if values hardly differ or are huge."""
    low, high = float(values.min()), float(values.max())
    scale, form = max(abs(low), abs(high)), np.finfo(np.float64)
    most = float(form.max)
    if high - low <= max(1e-9 * scale, float(form.tiny)):
        room = max(0.5, scale / 10)
        low, high = max(low - room, -most), min(high + room, most)
    # Halves, because the difference of two finite numbers may be infinite.
    limits: NDArray[np.float64] = np.linspace(low / 2, high / 2, _BINS + 1) * 2
    limits[0], limits[-1] = low, high
    return limits


def _image(name: str, value: Any) -> Iterator[Summary.Value]:
    array = _array("image", name, value)
    if array.ndim == 2:
        array = array[..., np.newaxis]
    height, width, channels = array.shape[-3:] if array.ndim in (3, 4) else (0, 0, 0)
    if not (height and width and channels in (1, 3, 4)):
        wanted = "(height, width), (height, width, 1, 3 or 4), or a batch of the latter"
        raise _misfit("image", name, value, f"its shape is {wanted}")
    if array.ndim == 3:
        yield Summary.Value(tag=name, image=_encoded(_pixels(array)))
        return
    for number, one in enumerate(array[:_MOST_IMAGES]):
        yield Summary.Value(tag=f"{name}/{number}", image=_encoded(_pixels(one)))


def _text(name: str, value: Any) -> Iterator[Summary.Value]:
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    parts = [plain] if isinstance(plain, str | bytes) else plain
    if not isinstance(parts, list | tuple):
        raise _misfit("text", name, value, "give a str, or a sequence of them")
    words = [p.decode(errors="replace") if isinstance(p, bytes) else p for p in parts]
    if not all(isinstance(word, str) for word in words):
        raise _misfit("text", name, value, "give a str, or a sequence of them")
    yield Summary.Value(
        tag=name,
        metadata=SummaryMetadata(plugin_data={"plugin_name": "text"}),
        tensor=TensorProto(
            dtype=DT_STRING,
            string_val=["\n\n".join(words).encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        ),
    )


_SHOWN: Mapping[str, Callable[[str, Any], Iterator[Summary.Value]]] = {
    "scalar": _scalar,
    "histogram": _histogram,
    "image": _image,
    "text": _text,
}


def _array(kind: str, name: str, value: Any) -> NDArray[Any]:
    """Return the numbers of a value as an array."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _misfit(kind, name, value, f"give an array of numbers ({error})") from error
    if array.dtype.kind not in "biuf":
        raise _misfit(kind, name, value, "give an array of numbers")
    return array


def _pixels(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Turn floats from 0 to 1, bools, and whole numbers from 0 to 255 into bytes."""
    numbers = np.nan_to_num(array.astype(np.float64))  # 255 does not fit into int8
    if array.dtype.kind in "fb":
        numbers = np.clip(numbers, 0, 1) * 255
    pixels: NDArray[np.uint8] = np.clip(numbers, 0, 255).round().astype(np.uint8)
    return pixels


def _encoded(pixels: NDArray[np.uint8]) -> Summary.Image:
    from PIL import Image  # imported late: most runs show no images

    height, width, channels = pixels.shape
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels).save(file, "PNG")
    return Summary.Image(
        height=height,
        width=width,
        colorspace=channels,
        encoded_image_string=file.getvalue(),
    )


def _misfit(kind: str, name: str, value: Any, wanted: str) -> UsageError:
    shape = tuple(getattr(value, "shape", ()))
    return UsageError(
        f"summary-saver: {name!r} is not a valid {kind} (type {type(value).__name__}, "
        f"shape {shape}); {wanted}"
    )
