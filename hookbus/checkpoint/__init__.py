"""How a session's state gets onto the disk and back, whole or not at all."""
