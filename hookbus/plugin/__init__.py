"""Which plugins are on and why, and how they become the hooks of a session."""
