"""A whole group on this machine, and clients that work it."""
