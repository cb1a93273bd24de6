"""Tests of a whole group: real log server, real member processes, real clients."""
