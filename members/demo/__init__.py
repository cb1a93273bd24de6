"""A whole group on this machine, or replicas of a server, and clients that work it."""
