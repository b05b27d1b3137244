"""Calls hooks: the events, their order, and what happens to errors."""
