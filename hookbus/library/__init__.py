"""Knows other libraries through plugins: their values, generators and objects."""
