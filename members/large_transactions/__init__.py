"""Transactions that go through the log in pieces."""
