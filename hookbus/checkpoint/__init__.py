"""How checkpoints are kept: one protocol for all, so that nothing saved is ever lost."""
