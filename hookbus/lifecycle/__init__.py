"""Runs the life of a session: its start, its state, what hooks ask for, and its end."""
