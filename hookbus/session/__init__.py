"""Runs a session, from its start to its end."""
