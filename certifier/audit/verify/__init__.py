"""Verify: every verdict, GTID and stamp of a history, derived again."""
