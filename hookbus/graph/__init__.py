"""The graph that a user builds: nodes and ops, and what fetches and feeds name in it."""
