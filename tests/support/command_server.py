"""Forks for each command that it is asked for; commands.py asks it.

A script for any Python that has hookbus, with no other thread and nothing of pytest::

    python command_server.py DESCRIPTOR [MODULE ...]

The descriptor is a listening socket. A fork serves each connection, until nobody is left.
Each request is its length, with the two streams of the command beside it, and then JSON;
the answers are the process id of the command's fork and its exit code.
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
from pathlib import Path
from typing import Any

import structlog

import hookbus
import hookbus.cli
from hookbus.discovery import installed_plugins

ALWAYS = ("email.feedparser", "packaging.requirements")
"""The modules that nearly every command imports while it runs."""
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


def accepted(listener: socket.socket) -> socket.socket:
    """Fork for each connection and return it there; end when the last one is closed."""
    listener.settimeout(0.2)
    clients: set[int] = set()
    while True:
        try:
            requests, _ = listener.accept()
        except TimeoutError:
            clients = {one for one in clients if not os.waitpid(one, os.WNOHANG)[0]}
            if not clients:
                os._exit(0)
            continue
        client = os.fork()
        if not client:
            listener.close()
            requests.setblocking(True)
            return requests
        clients.add(client)
        requests.close()


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
    """Make this process what Python is when it has started with the words of a request."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    given = os.environ.get("PYTHONPATH", "")
    folders = map(os.path.abspath, given.split(os.pathsep) if given else ())
    words = request["words"]
    here = [] if sys.flags.safe_path else [_first_folder(words[0])]
    sys.path[:] = [*here, *dict.fromkeys(folders), *PATH]
    sys.path_importer_cache.clear()
    if "numpy" in sys.modules:  # Python's own generator is seeded in every fork
        sys.modules["numpy"].random.seed()
    # -m hookbus ARGUMENTS, -c CODE ARGUMENTS, or SCRIPT ARGUMENTS
    sys.argv[:] = [words[0], *words[2 if words[0] in ("-m", "-c") else 1 :]]
    sys.modules["__main__"] = types.ModuleType("__main__")
    vars(sys.modules["__main__"])["__builtins__"] = __builtins__


def _first_folder(first: str) -> str:
    """Return the first entry on the path of a Python whose first argument this is."""
    if first in ("-m", "-c"):
        return os.getcwd() if first == "-m" else ""  # noqa: PTH109 (as Python has it)
    return str(Path(first).resolve().parent)


def execute(words: Sequence[str]) -> None:
    """Run the module, the code or the script that was asked for."""
    if words[0] == "-m":
        # As Python itself does for -m. What leaves it ends this process as it ends any.
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    main, file = vars(sys.modules["__main__"]), "<string>"
    if words[0] == "-c":
        code: str | bytes = words[1]
    else:
        file = main["__file__"] = str(Path(words[0]).absolute())
        code = Path(file).read_bytes()
    try:
        exec(compile(code, file, "exec", dont_inherit=True), main)
    finally:
        if sys.version_info >= (3, 14):
            forget_file()


def forget_file() -> None:
    """Remove the file of ``__main__``, as Python does when a script has ended.

    Before 3.14, Python does so after it has printed an error, and not after an exit.
    """
    vars(sys.modules["__main__"]).pop("__file__", None)


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
    asked = serve(accepted(socket.socket(fileno=int(sys.argv[1]))))
    become(asked)
    try:
        execute(asked["words"])
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            leave(ending.code or 0)
        raise
    except Exception as error:
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next  # those of this module are no part of the program
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        if asked["words"][0] != "-m":
            forget_file()
        leave(1)
    if asked["words"][0] != "-m":
        forget_file()
    leave(0)
