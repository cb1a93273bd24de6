"""A donor's state in the place of a member's own."""
