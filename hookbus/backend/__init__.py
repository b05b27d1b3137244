"""What runs a graph: the Session protocol, and the backend that is built in."""
