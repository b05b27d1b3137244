"""Training in many processes: what the ranks tell each other, and what they agree on."""
