"""Runs Python in a process: a new one, or one forked where hookbus is imported already.

Imports are most of what a short command costs. So ``python -m hookbus ...`` is run by a
server: a process that has made these imports, has one thread, and forks for each command.
The fork gets the arguments, variables, folder and streams of the command, and its Python
ends as any does: it prints the same bytes and leaves the same exit code as a new process,
which ``tests/cli/test_processes.py`` compares.

There is one for each Python, for the variables that Python reads when it starts, and for
the libraries that commands import besides. Scripts and other modules are run by a new
process; with the profile ``full`` everything is.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
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
    "tensorboardX",
    "PIL.Image",
    "rich.progress",
)
"""What a training with checkpoints, summaries and a bar imports besides hookbus."""
EXAMPLES = (
    *FILES,
    "sklearn.datasets",
    "sklearn.linear_model",
    "sklearn.metrics",
    "sklearn.model_selection",
)
"""What the examples import."""
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
    libraries: Sequence[str] = (),
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
    if FULL or words[1:3] != ["-m", "hookbus"]:
        done = run_new(words, env=variables, cwd=cwd, timeout=timeout, together=together)
    else:
        server = _server([words[0], *libraries], variables)
        done = server.run(words, variables, Path(cwd).absolute(), timeout, together)
    if check:
        done.check_returncode()
    return done


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
    first = ("PYTHON", "LC_", "LANG")
    start = {k: v for k, v in variables.items() if k.startswith(first)} | {"PYTHONPATH": ""}
    key = (*words, *sorted(start.items()))
    if key not in _servers:
        rest = {k: v for k, v in os.environ.items() if not k.startswith(first)}
        _servers[key] = _Server.start(words, rest | start)
    return _servers[key]


@attrs.frozen
class _Server:
    """A server, as the only process that asks it sees it."""

    process: subprocess.Popen[bytes]
    requests: socket.socket

    @classmethod
    def start(cls, words: Sequence[str], variables: Mapping[str, str]) -> _Server:
        """Start one."""
        requests, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [words[0], str(_SCRIPT), str(theirs.fileno()), *words[1:]],
                env=variables,
                cwd=_SCRIPT.parent,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        server = cls(process, requests)
        atexit.register(server.stop)
        return server

    def stop(self) -> None:
        """End it."""
        self.requests.close()
        self.process.wait()

    def run(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        folder: Path,
        timeout: float,
        together: bool,
    ) -> Done:
        """Have a fork run ``python -m hookbus ...``."""
        request = {"words": words[3:], "variables": variables, "folder": str(folder)}
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
