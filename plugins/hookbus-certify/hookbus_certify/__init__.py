"""Certifies that a training script resumes exactly: the command ``hookbus certify``."""
