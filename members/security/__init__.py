"""Who somebody is, and what they may call."""
