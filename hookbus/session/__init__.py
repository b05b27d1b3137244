"""Provides the sessions that programs use."""
