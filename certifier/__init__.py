"""The certification rule: log records in, outcomes out, the same bytes on every member."""
