"""Provides the commands ``hookbus train``, ``evaluate`` and ``predict``."""
