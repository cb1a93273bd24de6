"""What makes companions wrong is for processes that a test starts, not for its own."""

collect_ignore = ["mutant", "sql/mutant"]
