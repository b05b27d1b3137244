"""Gives these tests a graph that counts, and ways to train it."""

from tests.support.counting import counting, killed, names, opened, python, trained

__all__ = ["counting", "killed", "names", "opened", "python", "trained"]
