"""Who is called in which event, in which order, and what becomes of their errors."""
