"""Runs steps: what a step asks for, whom it calls, and what repeats."""
