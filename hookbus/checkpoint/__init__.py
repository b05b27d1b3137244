"""Checkpoints: the state of a session is written to disk, and restored, as a whole."""
