"""The tests of the certifier package."""
