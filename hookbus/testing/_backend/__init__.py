"""Contains the parts of the suite for backends."""
