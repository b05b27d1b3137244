"""The tests of the core, and what they share with the tests of the plugins."""
