"""Tells arrays whose elements share memory from others, which can be restored in place."""

from __future__ import annotations

from collections.abc import Sequence


def overlaps(shape: Sequence[int], strides: Sequence[int], itemsize: int = 1) -> bool:
    """Return whether elements of an array share memory, as those of a broadcast one do.

    True also for a layout that slicing and transposing a dense array never makes.

    Args:
        shape: the shape of the array.
        strides: how far the elements along each axis are apart.
        itemsize: the size of an element, in the unit of *strides*.

    >>> overlaps((2, 3), (3, 1)), overlaps((2, 3), (-1, 2)), overlaps((3,), (0,))
    (False, False, True)
    """
    if 0 in shape:
        return False
    extent = itemsize
    for stride, count in sorted(zip(map(abs, strides), shape, strict=True)):
        if count > 1:
            if stride < extent:
                return True
            extent += stride * (count - 1)
    return False
