"""Replays a part of a run from its checkpoints, and checks that it is the same."""
