"""Forks for each ``hookbus`` command that it is asked for; commands.py asks it.

A script for any Python that has hookbus, with no other thread and nothing of pytest::

    python command_server.py DESCRIPTOR [MODULE ...]

The descriptor is a socket. Each request is its length, with the two streams of the
command beside it, and then JSON; the answers are the fork's process id and its exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

import structlog

import hookbus
import hookbus.cli
from hookbus.discovery import installed_plugins

ALWAYS = ("email.feedparser", "packaging.requirements")
"""What nearly every command imports while it runs."""
PATH = sys.path[0 if sys.flags.safe_path else 1 :]
"""The path without the folder of this script."""


def import_all(modules: Sequence[str]) -> None:
    """Import what commands need: all of the core, what they import later, and modules."""
    for module in pkgutil.iter_modules(hookbus.cli.__path__, "hookbus.cli."):
        importlib.import_module(module.name)
    structlog.dev  # noqa: B018 (it is imported when it is asked for)
    for name in (*ALWAYS, *modules):
        importlib.import_module(name)
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")  # NumPy imports it when it is asked for
    installed_plugins()  # importlib.metadata keeps what is in each folder
    gc.collect()
    gc.freeze()  # so that no fork has to copy what it only looks at


def serve(requests: socket.socket) -> dict[str, Any]:
    """Answer requests until nobody asks any more; return only in a fork, its request."""
    while True:
        size, streams, _, _ = socket.recv_fds(requests, 4, 2)
        if not size:
            os._exit(0)
        text = b""
        while len(text) < int.from_bytes(size):
            text += requests.recv(int.from_bytes(size) - len(text))
        child = os.fork()
        if not child:
            requests.close()
            for number, stream in enumerate(streams, 1):
                os.dup2(stream, number)
                os.close(stream)
            request: dict[str, Any] = json.loads(text)
            return request
        for stream in streams:
            os.close(stream)
        requests.sendall(child.to_bytes(4))
        _, status = os.waitpid(child, 0)
        requests.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))


def become(request: dict[str, Any]) -> None:
    """Make this process what ``python -m hookbus ...`` is when it has started."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    given = os.environ.get("PYTHONPATH", "")
    folders = map(os.path.abspath, given.split(os.pathsep) if given else ())
    here = [] if sys.flags.safe_path else [os.getcwd()]  # noqa: PTH109 (as Python has it)
    sys.path[:] = [*here, *dict.fromkeys(folders), *PATH]
    sys.path_importer_cache.clear()
    if "numpy" in sys.modules:  # Python's own generator is seeded in every fork
        sys.modules["numpy"].random.seed()
    sys.argv[:] = ["-m", *request["words"]]
    sys.modules["__main__"] = types.ModuleType("__main__")
    vars(sys.modules["__main__"])["__builtins__"] = __builtins__


def leave(code: int) -> None:
    """End this process as Python does, but leave its memory to the system.

    Python would take every module apart, and so copy all that the fork shares. Return only
    if something could not be written: then Python itself is to end, and to tell.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code & 0xFF)


if __name__ == "__main__":
    server = sys.modules["__main__"]  # or its names would be gone with its place
    import_all(sys.argv[2:])
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
    try:
        # As Python itself does for -m. What leaves it ends this process as it ends any.
        runpy._run_module_as_main("hookbus")  # type: ignore[attr-defined]
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            leave(ending.code or 0)
        raise
    leave(0)
