"""Replays a part of the training from its checkpoints, and checks that it is the same."""
