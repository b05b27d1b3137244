"""Takes the state of a session for a checkpoint, and gives it back, as a whole."""
