"""Configures plugins from the command line, the environment and a file."""
