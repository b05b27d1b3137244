"""Serves the page from a thread of the program, which it holds in no way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import uvicorn
from starlette.types import ASGIApp

from hookbus import UsageError, log
from hookbus_live.guard import Guard, is_loopback

_TOKEN_BYTES = 24
_JOIN_SECS = 3.0
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class PortTakenError(UsageError):
    """Another program listens at the port."""


class _Quiet(uvicorn.Server):
    """Waits for requests or its end; uvicorn's own wakes up ten times a second.

    Each time it would take the interpreter from the training.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._over.wait()

    def end(self) -> None:
        """End serving, from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._over.set)


@attrs.frozen(eq=False)
class Server:
    """A page that is being served.

    Attributes:
        url: its address, with the token.
        port: its port.
        token: the token.
    """

    url: str
    port: int
    token: str
    _server: _Quiet
    _thread: threading.Thread

    @classmethod
    def started(cls, app: ASGIApp, host: str, port: int, who: str) -> Server:
        """Serve an application from now on, in a thread.

        Args:
            app: the application.
            host: the address to listen at.
            port: the port; 0 for one that is free.
            who: who serves it, for messages.

        Raises:
            PortTakenError: another program listens there.
            UsageError: there is no such address, or it may not be used.
        """
        listener = _listener(host, port, who)
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        if not is_loopback(host):
            log.warning(
                "the page can be reached from other machines, unencrypted; anyone who "
                "reads the token can use it",
                host=host,
                by=who,
            )
        server = _Quiet(
            uvicorn.Config(
                Guard(app, token, host, port),
                log_config=None,  # the log of the program stays as it is
                log_level="critical",
                access_log=False,
                lifespan="off",
                loop="asyncio",
                http="h11",
                ws="none",
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        run: Callable[..., Any] = server.run

        def serve() -> None:
            with listener:  # a server that ends early leaves it open
                run([listener])

        thread = threading.Thread(target=serve, name=f"{who} page", daemon=True)
        thread.start()
        shown = {"": "127.0.0.1", "0.0.0.0": socket.gethostname()}.get(host, host)
        shown = f"[{shown}]" if ":" in shown else shown
        return cls(f"http://{shown}:{port}/#{token}", port, token, server, thread)

    def wait(self) -> None:
        """Wait until it is stopped."""
        while self._thread.is_alive():
            self._thread.join(0.5)  # so that Ctrl-C comes through

    def stop(self) -> None:
        """Stop serving."""
        self._server.end()
        self._thread.join(_JOIN_SECS)


def _listener(host: str, port: int, who: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # else a port stays taken for a minute after a run
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except (OSError, OverflowError) as error:
        listener.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise PortTakenError(
                f"{who}: another program listens at port {port} of {host}; give another "
                "port, or 0 for one that is free"
            ) from error
        raise UsageError(
            f"{who}: cannot listen at port {port} of {host} ({error}); give another one"
        ) from error
    _sockets.add(listener)
    return listener


def _close_in_child() -> None:
    """Leave the port to the parent, or it stays taken as long as a worker lives."""
    for each in [*_sockets]:
        with contextlib.suppress(OSError):
            os.close(each.detach())
    _sockets.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
