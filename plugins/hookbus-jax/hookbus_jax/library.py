"""Teaches hookbus JAX: its arrays and the keys of its random generators."""

from __future__ import annotations

from typing import Any

import jax

from hookbus import UsageError
from hookbus.backend import Library, Packed, Tracked
from hookbus_jax import values


class JaxLibrary(Library):
    """Teaches hookbus JAX, which has no generators that programs use without a name."""

    on_host = staticmethod(values.on_host)

    def tracked(self, name: str, thing: Any) -> Tracked | None:
        """Refuse a bare array; anything else of JAX is tracked like any other object.

        Raises:
            UsageError: it is an array, which cannot change.
        """
        if isinstance(thing, jax.Array):
            raise UsageError(
                f"cannot track {name!r}: a jax.Array cannot change, so it cannot be "
                "restored in place. Track a dict that holds it, and replace it there: "
                f'state = {{"{name}": {name}}}; session.track(state=state)'
            )
        return None

    def device_memory(self) -> int | None:
        """Return the bytes in use on devices that count them; None if none does."""
        stats = [each.memory_stats() for each in jax.local_devices()]
        used = [int(each["bytes_in_use"]) for each in stats if each]
        return sum(used) if used else None

    def pack(self, value: Any) -> Packed | None:
        """Return an array or a key as bytes on the host.

        Raises:
            CheckpointError: it was deleted, or other processes hold parts of it.
        """
        return values.pack(value)

    def itemsize(self, dtype: str) -> int | None:
        """Return the bytes of an element of a dtype, or of a key."""
        return values.itemsize(dtype)

    def unpack(self, packed: Packed) -> jax.Array:
        """Return a packed array, on the default device.

        Raises:
            UsageError: its dtype is switched off.
        """
        return values.unpack(packed)

    def placed(self, value: Any, like: Any) -> Any:
        """Return a new array on the devices of the array that it replaces.

        A hook may assign an array of another library.
        """
        if not isinstance(like, jax.Array):
            return value
        if not isinstance(value, jax.Array):
            value = jax.numpy.asarray(value, like.dtype)
        return values.placed(value, like)
