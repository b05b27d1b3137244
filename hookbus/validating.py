"""Which numbers a setting may be, and which number a value holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import attrs

from hookbus.errors import UsageError


def number_in(value: Any) -> float | None:
    """Return a number, or the one that an array of any library holds, as a float.

    None for all else: an array of more or fewer numbers, text, what is too large.

    >>> number_in(3), number_in("3"), number_in([3])
    (3.0, None, None)
    """
    try:
        plain = value.item() if hasattr(value, "item") else value
        return None if isinstance(plain, str | bytes) else float(plain)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def numeric(
    *, above: float | None = None, least: float | None = None
) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Return an attrs validator for settings that are numbers; None always passes.

    NaN does not: a period of NaN would never be over.

    Args:
        above: the number is to be more than this.
        least: the number is to be this or more.

    >>> @attrs.define
    ... class Hook:
    ...     every_secs: float = attrs.field(default=60.0, validator=numeric(above=0))
    >>> Hook(every_secs=0)
    Traceback (most recent call last):
    hookbus.errors.UsageError: invalid every_secs=0. It is a number above 0.
    """
    wanted = "a number"
    if above is not None:
        wanted += f" above {above:g}"
    elif least is not None:
        wanted += f" from {least:g} on"

    def check(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        fits = isinstance(value, Real) and not isinstance(value, bool)
        fits = fits and not math.isnan(value)
        fits = (
            fits and (above is None or value > above) and (least is None or value >= least)
        )
        if not fits:
            raise UsageError(f"invalid {field.name}={value!r}. It is {wanted}.")

    return check
