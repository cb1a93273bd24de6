"""Makes a PostgreSQL server a primary of the group: its triggers, and the member beside it."""
