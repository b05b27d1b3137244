"""What the user said, on the command line, in the environment, in a file."""
