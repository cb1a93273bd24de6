"""The fuzzer: calls and messages that nobody sane sends, at a live group under load."""
