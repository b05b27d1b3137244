"""Calls hooks: the events, the order of hooks, and the policies for errors."""
