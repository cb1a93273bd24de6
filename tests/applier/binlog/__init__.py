"""Tests of applier/binlog."""
