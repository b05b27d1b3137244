"""Holds the graph that a user builds: its nodes, ops and summaries, fetches and feeds."""
