"""Serves custom loops: the blocks of steps and evaluations."""
