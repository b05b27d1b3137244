"""Runs Python in a process: a new one, or one forked where hookbus is imported already.

Imports are most of what a short command costs. So ``python -m hookbus ...`` is run by a
server: a process that has made these imports, has one thread, and forks for each command.
The fork gets the arguments, variables, folder and streams of the command, and its Python
ends as any does: it prints the same bytes and leaves the same exit code as a new process,
which ``tests/cli/test_processes.py`` compares.

What a fork cannot do is done by a new process: scripts and other modules, and variables
that Python reads when it starts. With the profile ``full`` everything is.
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

_SCRIPT = Path(__file__).with_name("command_server.py")
_servers: dict[str, _Server] = {}
_at_start = {
    name: value
    for name, value in os.environ.items()
    if name.startswith(("PYTHON", "LC_", "LANG")) and name != "PYTHONPATH"
}


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = ".",
    timeout: float = 120,
    check: bool = False,
) -> Done:
    """Run Python and return what it printed, as text, and its exit code.

    Args:
        command: which Python, and its arguments.
        env: all variables; by default this process's.
        cwd: the folder.
        timeout: the seconds after which it is killed.
        check: whether it is an error that the exit code is not 0.

    Raises:
        subprocess.CalledProcessError: it is.
        subprocess.TimeoutExpired: it was killed.
    """
    words = [str(word) for word in command]
    variables = dict(os.environ if env is None else env)
    if FULL or words[1:3] != ["-m", "hookbus"] or not _starts_alike(variables):
        done = run_new(words, env=variables, cwd=cwd, timeout=timeout)
    else:
        if words[0] not in _servers:
            _servers[words[0]] = _Server.start(words[0])
        done = _servers[words[0]].run(words, variables, Path(cwd).absolute(), timeout)
    if check:
        done.check_returncode()
    return done


def run_new(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = ".",
    timeout: float = 120,
) -> Done:
    """Do what :func:`run` does, in a new process whatever the command is."""
    return subprocess.run(
        [str(word) for word in command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _starts_alike(variables: Mapping[str, str]) -> bool:
    """Return whether Python would start with these variables as it did here."""
    names = {name for name in variables if name.startswith(("PYTHON", "LC_", "LANG"))}
    names -= {"PYTHONPATH"}
    return {name: variables[name] for name in names} == _at_start


@attrs.frozen
class _Server:
    """A server, as the only process that asks it sees it."""

    process: subprocess.Popen[bytes]
    requests: socket.socket

    @classmethod
    def start(cls, executable: str) -> _Server:
        """Start one with some Python."""
        requests, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [executable, str(_SCRIPT), str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": ""},
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
        self, words: Sequence[str], variables: dict[str, str], folder: Path, timeout: float
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
            socket.send_fds(self.requests, [len(text).to_bytes(4)], writing)
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
            return Done(list(words), code, *[text.result() for text in texts])

    def _answer(self) -> bytes:
        """Return the four bytes that come next."""
        answer = self.requests.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, "the server of commands is gone"
        return answer
