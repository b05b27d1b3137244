"""Answers the requests of the page: lists of runs, points of charts, and actions."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Protocol

import attrs
import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hookbus_live.requests import Asked, RefusedError, action_of
from hookbus_live.runs import Run, verified
from hookbus_live.series import Numbers, aligned, smoothed

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".LICENSE": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}
MOST_POINTS = 30_000
"""The most points of one chart, which a browser draws in one frame."""
_FEWEST_BUCKETS, _WIDEST = 50, 4000
_MOST_CHARTS = 64
_MOST_SMOOTHED = 256
_AXES = ("step", "hours", "time")
_WAIT_SECS, _LOOK_SECS = 2.0, 0.02


class Shown(Protocol):
    """The runs that a page shows."""

    @property
    def title(self) -> str:
        """The title of the page."""

    @property
    def left_out(self) -> int:
        """How many runs are not shown."""

    @property
    def is_read_only(self) -> bool:
        """Whether the page may ask for nothing."""

    def all(self) -> Mapping[str, Run]:
        """Return the runs by name. Somebody looks at them."""

    @property
    def submit(self) -> Callable[[Any], Asked] | None:
        """Takes actions; None if the page shows no live training."""


class _Mistake(Exception):
    """A request that cannot be answered; the text says why."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


@cache
def page_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the files of the page, each with its type."""
    return {
        each.name: (each.read_bytes(), _TYPES[PurePath(each.name).suffix])
        for each in files("hookbus_live").joinpath("page").iterdir()
        if PurePath(each.name).suffix in _TYPES
    }


def application(shown: Shown) -> Starlette:
    """Return the application that serves a page."""
    pages = _Pages(shown)
    return Starlette(
        routes=[
            Route("/", pages.file),
            Route("/{name}", pages.file),
            Route("/api/runs", pages.runs),
            Route("/api/details", pages.details),
            Route("/api/series", pages.series),
            Route("/api/verify", pages.verify, methods=["POST"]),
            Route("/api/requests", pages.ask, methods=["POST"]),
        ],
        exception_handlers={_Mistake: _mistaken, 404: _not_found},
    )


async def _not_found(_: Request, __: Exception) -> Response:
    return JSONResponse({"error": "there is no such page"}, 404)


async def _mistaken(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, _Mistake) else 500
    return JSONResponse({"error": str(error)}, status)


@attrs.define(eq=False)
class _Pages:
    """The answers of one page."""

    shown: Shown
    _smoothed: OrderedDict[tuple[Any, ...], Numbers] = attrs.field(factory=OrderedDict)

    async def file(self, request: Request) -> Response:
        """Answer with a file of the page."""
        name = request.path_params.get("name", "index.html")
        if name not in page_files():
            raise _Mistake("there is no such page", 404)
        data, kind = page_files()[name]
        return Response(data, media_type=kind)

    async def runs(self, request: Request) -> Response:
        """Answer with the list of runs, and who has which values."""
        runs = [*self.shown.all().values()]
        series: dict[str, list[int]] = {}
        for number, run in enumerate(runs):
            for name in run.names():
                series.setdefault(name, []).append(number)
        document = {
            "title": self.shown.title,
            "left_out": self.shown.left_out,
            "read_only": self.shown.is_read_only or self.shown.submit is None,
            "runs": [run.about() for run in runs],
            "series": series,
        }
        return _unless_known(request, _json(document))

    async def details(self, request: Request) -> Response:
        """Answer with the records of one run alone."""
        run = self._run(request.query_params.get("run"))
        return _unless_known(
            request, _json(run.details(request.query_params.getlist("part")))
        )

    async def series(self, request: Request) -> Response:
        """Answer with the points of some charts, over a common range of positions.

        The answer is the length of a header, the header in JSON, and the positions and the
        lines of each chart as doubles, all in the order of little-endian machines.
        """
        given = request.query_params
        runs = [self._run(name) for name in given.getlist("run")]
        names = given.getlist("name")
        axis = given.get("axis", "step")
        if axis not in _AXES or len(names) > _MOST_CHARTS:
            raise _Mistake(
                "there is no such axis" if axis not in _AXES else "too many charts"
            )
        weight = _number(given.get("smooth"), 0.0)
        low, high = (_number(given.get(key), None) for key in ("low", "high"))
        width = int(_number(given.get("width"), 600.0))
        if not 0 <= weight < 1 or not 0 < width <= _WIDEST:
            raise _Mistake("smooth has to be from 0 to less than 1, width from 1 to 4000")
        versions = [(run.name, run.version) for run in runs]
        tag = _tag(f"{versions}{request.url.query}".encode())
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304)
        charts, parts = [], []
        for name in names:
            chart, numbers = self._chart(runs, name, axis, weight, (low, high), width)
            charts.append(chart)
            parts += numbers
        header = json.dumps(charts).encode()
        header += b" " * (-(len(header) + 4) % 8)  # doubles begin at multiples of 8
        data = b"".join(np.ascontiguousarray(part, "<f8").tobytes() for part in parts)
        body = struct.pack("<I", len(header)) + header + data
        return Response(body, media_type="application/octet-stream", headers={"etag": tag})

    def _chart(
        self,
        runs: Sequence[Run],
        name: str,
        axis: str,
        weight: float,
        asked: tuple[float | None, float | None],
        width: int,
    ) -> tuple[dict[str, Any], list[Numbers]]:
        """Return the description of a chart, and its positions and lines."""
        curves, having = [], []
        for run in runs:
            found = run.curve(name, axis)
            if found is not None and len(found[0]):
                having.append(run.name)
                curves.append((found[0], self._smooth(run, name, axis, found[1], weight)))
        low, high = asked
        if low is None or high is None:
            low = min((float(x[0]) for x, _ in curves), default=0.0)
            high = max((float(x[-1]) for x, _ in curves), default=1.0)
        most = MOST_POINTS // (2 * len(curves) or 1)
        drawn = aligned(curves, low, high, max(_FEWEST_BUCKETS, min(width, most)))
        chart = {
            "name": name,
            "runs": having,
            "points": len(drawn.x),
            "exact": drawn.exact,
            "low": low,
            "high": high,
        }
        return chart, [drawn.x, *drawn.lines]

    def _smooth(
        self, run: Run, name: str, axis: str, values: Numbers, weight: float
    ) -> Numbers:
        """Return smoothed values; those of the last requests are kept."""
        if not weight:
            return values
        key = run.name, run.version, name, axis, weight
        found = self._smoothed.get(key)
        if found is None or len(found) != len(values):
            found = self._smoothed[key] = smoothed(values, weight)
        self._smoothed.move_to_end(key)
        while len(self._smoothed) > _MOST_SMOOTHED:
            self._smoothed.popitem(last=False)
        return found

    async def verify(self, request: Request) -> Response:
        """Hash the files of a checkpoint, and answer with the result."""
        document = await _document(request)
        run, name = self._run(document.get("run")), document.get("checkpoint")
        if run.directory is None:
            raise _Mistake("this run has no directory", 404)
        result = await run_in_threadpool(verified, run.directory, str(name))
        return JSONResponse({"checkpoint": name, "state": result})

    async def ask(self, request: Request) -> Response:
        """Hand an action to the training, and answer with what became of it so far."""
        submit = self.shown.submit
        if submit is None:
            raise _Mistake("this page shows files; no training listens to it", 403)
        if self.shown.is_read_only:
            raise _Mistake("this page is for reading only (--live-read-only)", 403)
        try:
            asked = submit(action_of(await _document(request)))
        except RefusedError as error:
            raise _Mistake(str(error)) from error
        deadline = time.monotonic() + _WAIT_SECS
        while not asked.future.done() and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECS)
        return JSONResponse(asked.document())

    def _run(self, name: Any) -> Run:
        found = self.shown.all().get(name) if isinstance(name, str) else None
        if found is None:
            raise _Mistake(f"there is no training {name!r}", 404)
        return found


async def _document(request: Request) -> Mapping[str, Any]:
    try:
        found = json.loads(await request.body())
    except ValueError as error:
        raise _Mistake("the request is no JSON") from error
    if not isinstance(found, dict):
        raise _Mistake("a request has to be a JSON object")
    return found


def _number(text: str | None, default: Any) -> Any:
    if not text:
        return default
    try:
        number = float(text)
    except ValueError as error:
        raise _Mistake(f"{text!r} is no number") from error
    if not np.isfinite(number):
        raise _Mistake(f"{text!r} is no finite number")
    return number


def _json(document: Any) -> bytes:
    """Return JSON as browsers read it, which have no NaN there."""
    try:
        return json.dumps(document, default=str, allow_nan=False).encode()
    except ValueError:
        return json.dumps(_without_nan(document), default=str).encode()


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def _tag(data: bytes) -> str:
    return f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'


def _unless_known(request: Request, body: bytes) -> Response:
    tag = _tag(body)
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304)
    return Response(body, media_type="application/json", headers={"etag": tag})
