"""Runs graphs: the Session protocol, and the built-in backend."""
