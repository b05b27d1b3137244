"""Selects plugins, loads them and makes them the hooks of a session."""
