"""Trains, evaluates and predicts with a model function."""
