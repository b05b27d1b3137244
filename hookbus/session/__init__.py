"""MonitoredSession and its life: open, run, act, recover, end."""
