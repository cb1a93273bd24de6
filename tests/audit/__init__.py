"""The audit, on histories that are known to be right, and on ones that are wrong in a known way."""
