"""What can be set, its unit, its default, and why."""
