"""Tests of `applier.whatif`."""
