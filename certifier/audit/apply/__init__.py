"""Apply: which transactions a member's applier ran at once, and how long they took."""
