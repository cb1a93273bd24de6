"""Makes a PostgreSQL server a primary of the group: its triggers, and the companion beside it."""
