"""Teaches hookbus JAX: its arrays and the keys of its random generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from hookbus import UsageError
from hookbus.backend import Library, Packed, Tracked
from hookbus_jax import trees, values


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
                f"restored in place. Hold it, and replace it there: held = "
                f"session.hold({name}={name}); held.{name} = ..."
            )
        return None

    def check(self, tracked: Mapping[str, Any]) -> None:
        """Check that no variable of flax.nnx is tracked twice.

        Raises:
            UsageError: one is; it names both.
        """
        names: dict[int, str] = {}
        for name, thing in tracked.items():
            for inside, variable in trees.variables_in(name, thing):
                other = names.setdefault(id(variable), inside)
                if other.partition(".")[0] != name:
                    raise UsageError(
                        f"{inside!r} is the same variable as {other!r}: a module is "
                        "tracked twice, or two that share it; track it under one name"
                    )

    def parts(self, value: Any) -> Mapping[str, Any] | None:
        """Return the parts of a pytree, one level, by the names of their fields."""
        return trees.parts_of(value)

    def put_together(self, value: Any, parts: Mapping[str, Any]) -> Any:
        """Return a pytree like *value* with other parts."""
        return trees.put_together(value, parts)

    def is_immutable(self, value: Any) -> bool:
        """Return whether a value is an array; no array of JAX can change."""
        return isinstance(value, jax.Array)

    def why_not_saved(self, value: Any) -> str | None:
        """Return why an array cannot be saved: it is traced, deleted, or elsewhere."""
        return values.why_not_saved(value)

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
