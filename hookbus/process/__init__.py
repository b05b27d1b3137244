"""Guards a session against signals to its process, and forks of it."""
