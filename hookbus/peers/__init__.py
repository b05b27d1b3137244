"""Joins the processes of a training run: the ranks exchange data and agree on actions."""
