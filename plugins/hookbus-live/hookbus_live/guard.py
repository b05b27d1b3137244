"""Lets only the page itself reach the server: no other site, and nobody without the token.

The token is in the part of the page's address that browsers send to no server. The page
sends it with each request in a header, which no other site can do. There is no cookie.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/api/"
MOST_BYTES = 65_536
"""The size of the largest request."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every answer: nothing is loaded from elsewhere, or shown in a frame."""


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    return host in _LOOPBACK


@attrs.frozen(eq=False)
class Guard:
    """Checks each request before the application gets it.

    Attributes:
        app: the application.
        token: the token.
        host: the address at which the server listens.
        port: its port.
    """

    app: ASGIApp
    token: str
    host: str
    port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] += [
                    (name.encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.encode() not in own
                ]
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            status, why = refused
            await JSONResponse({"error": why}, status)(scope, receive, send_with_headers)
            return
        await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason with which a request is refused; or None."""
        headers = {
            name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]
        }
        if not self._is_own(headers.get("host", "")):
            return 421, "this server does not have that name: open the address from the log"
        origin = headers.get("origin")
        if origin is not None and not self._is_own_origin(origin):
            return 403, "a page of another site has sent this request"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET and POST are answered"
        if not scope["path"].startswith(API):
            return None if scope["method"] != "POST" else (405, "only GET is answered here")
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return 401, "the token is missing or wrong: open the address from the log"
        if scope["method"] == "POST":
            return _refusal_of_post(headers)
        return None

    def _is_own(self, given: str) -> bool:
        """Return whether a Host header names this server.

        A site whose name is made to lead here (DNS rebinding) has another name.
        """
        try:
            parts = urlsplit(f"//{given}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port:
            return False
        if name in _LOOPBACK or name == self.host:
            return True
        return not is_loopback(self.host) and _is_of_machine(name)

    def _is_own_origin(self, origin: str) -> bool:
        scheme, _, rest = origin.partition("://")
        return scheme == "http" and self._is_own(rest)


def _is_of_machine(name: str) -> bool:
    """Return whether a name is an address, or that of this machine."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in (socket.gethostname().lower(), socket.getfqdn().lower())
    return True


def _refusal_of_post(headers: Mapping[str, Any]) -> tuple[int, str] | None:
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return 415, "the content type of a request has to be application/json"
    size = headers.get("content-length", "")
    if not size.isascii() or not size.isdigit() or int(size) > MOST_BYTES:
        return 413, f"a request needs a content-length of at most {MOST_BYTES}"
    return None
