"""Workloads and their checkers: what clients did to a group, and what it may answer."""
