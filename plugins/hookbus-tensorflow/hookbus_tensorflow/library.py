"""Teaches hookbus TensorFlow: its hooks and its values."""

from __future__ import annotations

from hookbus.backend import Library


class TFLibrary(Library):
    """Teaches hookbus TensorFlow."""
