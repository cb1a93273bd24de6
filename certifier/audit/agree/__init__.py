"""Agree: the members' histories against each other, position by position."""
