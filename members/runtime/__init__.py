"""Runs a member from start to stop: reads the log, writes the store, answers who waits."""
