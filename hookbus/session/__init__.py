"""The life of a session: start, run, recover, finish."""
