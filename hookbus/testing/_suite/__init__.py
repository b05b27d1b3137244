"""Contains the parts of the conformance suite."""
