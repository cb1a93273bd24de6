"""Profile: how much of a history can run at once, and what stands in the way."""
