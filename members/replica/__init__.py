"""Follows a member's binary log and executes it on a target."""
