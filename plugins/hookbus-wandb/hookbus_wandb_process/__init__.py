"""Runs wandb in a process of its own, which imports nothing of hookbus to start sooner."""
