"""Runs the ``hookbus`` command in this process, for tests that run it very often."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import structlog

from hookbus.cli import main


def run_here(
    words: Sequence[str], environ: Mapping[str, str] | None = None
) -> tuple[object, str]:
    """Run the command; return its exit code, and what it wrote to both streams.

    What leaves the command leaves this function. The environment has the variables given
    and none of hookbus besides.
    """
    # As Python opens stderr: it writes whatever it is given.
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    code: object
    with (
        _put_back(environ or {}),
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        try:
            code = main(words)
        except SystemExit as ending:
            code = ending.code
    stream.flush()
    return code, stream.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined]


@contextlib.contextmanager
def _put_back(environ: Mapping[str, str]) -> Iterator[None]:
    """Undo what a command does to its process."""
    before, own = {**os.environ}, sys.modules["__main__"]
    argv, path = [*sys.argv], [*sys.path]
    for name in [name for name in os.environ if name.startswith("HOOKBUS_")]:
        del os.environ[name]
    os.environ.update(environ)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 (as ``python -m`` has it)
    try:
        yield
    finally:
        structlog.reset_defaults()
        sys.argv[:], sys.path[:], sys.modules["__main__"] = argv, path, own
        os.environ.clear()
        os.environ.update(before)
