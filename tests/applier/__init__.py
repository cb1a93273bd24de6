"""Tests of the applier."""
