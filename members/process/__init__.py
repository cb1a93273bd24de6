"""A member as a process: one runtime after another, until its operator ends it."""
