"""Runs Python in a process: a new one, or one forked where hookbus is imported already.

Imports are most of what a short command costs. So ``python -m hookbus ...``, a script and
``-c`` are run by a server: a process that has made these imports, has one thread, and forks
for each command. The fork gets the arguments, variables, folder and streams of the command,
and its Python ends as any does: it prints the same bytes and leaves the same exit code as a
new process, which ``tests/cli/test_processes.py`` compares.

There is one for each Python, for the variables that Python reads when it starts, and for
the libraries that commands import besides; the workers of a run share it. Other modules
are run by a new process; with the profile ``full`` everything is.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from tests.support.profiles import FULL

Done = subprocess.CompletedProcess[str]

FILES = (
    "numpy",
    "numpy.typing",
    "safetensors.numpy",
    "tensorboard.compat.proto.event_pb2",
    "PIL.Image",
    "rich.progress",
)
"""The modules that a run with checkpoints, summaries and a bar imports besides hookbus."""
EXAMPLES = (
    *FILES,
    "sklearn.datasets",
    "sklearn.linear_model",
    "sklearn.metrics",
    "sklearn.model_selection",
)
"""The modules that the examples import."""
_FIRST = ("PYTHON", "LC_", "LANG")
"""How variables begin that Python reads when it starts."""
ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = Path(__file__).with_name("command_server.py")
_servers: dict[tuple[object, ...], _Server] = {}


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = ".",
    timeout: float = 120,
    check: bool = False,
    together: bool = False,
    libraries: Sequence[str] = FILES,
) -> Done:
    """Run Python and return what it printed, as text, and its exit code.

    Args:
        command: which Python, and its arguments.
        env: all variables; by default this process's.
        cwd: the folder.
        timeout: the seconds after which it is killed.
        check: whether it is an error that the exit code is not 0.
        together: whether what goes to stderr is part of stdout.
        libraries: what a fork finds imported besides hookbus, where the command imports
            it in any case.

    Raises:
        subprocess.CalledProcessError: it is.
        subprocess.TimeoutExpired: it was killed.
    """
    words = [str(word) for word in command]
    variables = dict(os.environ if env is None else env)
    if FULL or not _can_fork(words[1:]):
        done = run_new(words, env=variables, cwd=cwd, timeout=timeout, together=together)
    else:
        server = _server([words[0], *libraries], variables)
        done = server.run(words, variables, Path(cwd).absolute(), timeout, together)
    if check:
        done.check_returncode()
    return done


def finding_tests(**more: str) -> dict[str, str]:
    """Return the variables for a process that imports ``tests``: this one's, and more."""
    paths = filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def _can_fork(words: Sequence[str]) -> bool:
    """Return whether the server knows how to do what Python does with these arguments."""
    return words[:2] == ["-m", "hookbus"] or words[0] == "-c" or words[0][0] != "-"


def run_new(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = ".",
    timeout: float = 120,
    together: bool = False,
) -> Done:
    """Do what :func:`run` does, in a new process whatever the command is."""
    return subprocess.run(
        [str(word) for word in command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=False,
    )


def _server(words: Sequence[str], variables: Mapping[str, str]) -> _Server:
    """Return the server with a Python, libraries, and variables that Python reads first."""
    start = {k: v for k, v in variables.items() if k.startswith(_FIRST)}
    start |= {"PYTHONPATH": ""}
    key = (*words, *sorted(start.items()))
    if key not in _servers:
        _servers[key] = _Server.reached(words, start)
    return _servers[key]


def _started(
    address: Path, words: Sequence[str], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a server that can be reached from now on."""
    rest = {k: v for k, v in os.environ.items() if not k.startswith(_FIRST)}
    address.unlink(missing_ok=True)  # of one that has ended
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        return subprocess.Popen(
            [words[0], str(_SCRIPT), str(listener.fileno()), *words[1:]],
            env=rest | variables,
            cwd=_SCRIPT.parent,
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )


@attrs.frozen
class _Server:
    """A connection to a server, as the only process that uses it sees it.

    Attributes:
        requests: the connection.
        address: where others reach the server.
        process: the server, if this process has started it.
    """

    requests: socket.socket
    address: Path
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def reached(cls, words: Sequence[str], variables: Mapping[str, str]) -> _Server:
        """Connect to the server for some words and variables, or start it."""
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")
        folder = Path(tempfile.gettempdir()) / f"commands-{run[:12]}"
        folder.mkdir(mode=0o700, exist_ok=True)
        name = hashlib.sha256(repr((*words, *sorted(variables.items()))).encode())
        address, process = folder / name.hexdigest()[:12], None
        requests = socket.socket(socket.AF_UNIX)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # or two workers start two servers
            try:
                requests.connect(str(address))
            except OSError:
                process = _started(address, words, variables)
                requests.connect(str(address))
        server = cls(requests, address, process)
        atexit.register(server.stop)
        return server

    def stop(self) -> None:
        """Leave it; it ends when everyone has."""
        self.requests.close()
        if self.process is not None:
            self.process.wait()
            shutil.rmtree(self.address.parent, ignore_errors=True)

    def run(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        folder: Path,
        timeout: float,
        together: bool,
    ) -> Done:
        """Have a fork run ``python -m hookbus ...``."""
        request = {"words": words[1:], "variables": variables, "folder": str(folder)}
        text = json.dumps(request).encode()
        reading, writing = zip(os.pipe(), os.pipe(), strict=True)
        with (
            os.fdopen(reading[0]) as out,
            os.fdopen(reading[1]) as err,
            ThreadPoolExecutor(2) as readers,
        ):
            streams = [writing[0], writing[0 if together else 1]]
            socket.send_fds(self.requests, [len(text).to_bytes(4)], streams)
            for stream in writing:
                os.close(stream)
            self.requests.sendall(text)
            texts = [readers.submit(stream.read) for stream in (out, err)]
            child = int.from_bytes(self._answer())
            if not select.select([self.requests], [], [], timeout)[0]:
                os.kill(child, signal.SIGKILL)
                self._answer()
                raise subprocess.TimeoutExpired(list(words), timeout)
            code = int.from_bytes(self._answer(), signed=True)
            out_text, err_text = (text.result() for text in texts)
            return Done(list(words), code, out_text, None if together else err_text)

    def _answer(self) -> bytes:
        """Return the four bytes that come next."""
        answer = self.requests.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, "the server of commands is gone"
        return answer
