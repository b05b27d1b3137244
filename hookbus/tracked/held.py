"""Holds values that a loop replaces, so that the session can save and restore them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from hookbus.errors import UsageError, spelled


class Held:
    """Values that a loop replaces, each an attribute; see :meth:`MonitoredSession.hold`."""

    __slots__ = ()

    if TYPE_CHECKING:  # the attributes are those that hold() gets

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __repr__(self) -> str:
        names: tuple[str, ...] = self.__slots__
        return f"Held({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@attrs.frozen(eq=False)
class Place:
    """The place of one value: an attribute of an object, like a :class:`Held`."""

    holder: Any
    name: str

    def get(self) -> Any:
        """Return the value that is there now."""
        return getattr(self.holder, self.name)

    def put(self, value: Any) -> None:
        """Replace the value."""
        setattr(self.holder, self.name, value)


def holder_of(things: Mapping[str, Any]) -> tuple[Held, dict[str, Place]]:
    """Return an object with these attributes and no others, and the place of each.

    Raises:
        UsageError: a name is no name of an attribute.
    """
    for name in things:
        if not name.isidentifier() or name.startswith("__"):
            raise UsageError(
                f"hold() makes an attribute of each name, and {spelled(name)} cannot be one"
            )
    # Slots: the loop reads and writes them in each step, and a wrong name is an error.
    held = type("Held", (Held,), {"__slots__": (*things,)})()
    places = {name: Place(held, name) for name in things}
    for name, value in things.items():
        places[name].put(value)
    return held, places
