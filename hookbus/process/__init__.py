"""Guards a session against what happens to its process: signals, and forks."""
