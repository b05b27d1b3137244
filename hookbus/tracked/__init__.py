"""Tracks the objects of a custom loop: how each is saved, restored and compared."""
