"""Defines hooks, and the objects that they get: context, outcome, timer, coordinator."""
