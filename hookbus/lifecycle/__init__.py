"""Runs the life of a session: its start, its state, the requests of hooks, its end."""
