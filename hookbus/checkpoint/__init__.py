"""Writes the state of a session to disk, and restores it, as a whole."""
