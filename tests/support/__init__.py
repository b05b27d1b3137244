"""Provides the hooks, buses, threads and handlers that several test modules use."""
