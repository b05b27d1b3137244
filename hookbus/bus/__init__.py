"""The events: which hooks are called, in which order, and what happens to their errors."""
