"""What the conformance suite is made of."""
