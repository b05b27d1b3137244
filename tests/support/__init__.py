"""What several test modules make their hooks, buses, threads and handlers of."""
