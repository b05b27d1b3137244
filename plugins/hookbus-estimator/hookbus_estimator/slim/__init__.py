"""Supports training and evaluating in one call, in the style of TF-Slim."""
