"""Puts checkpoints onto the disk, and reads them, each as a whole."""
