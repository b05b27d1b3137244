"""Shows runs in the browser, and takes requests from there."""

from hookbus_live.hook import LiveHook as LiveHook

__all__ = ["LiveHook"]
