"""Benchmarks; they import the real code and run from the command line."""
