"""Knows how far a program has come in its passes over inputs."""
