"""Certification logs and traces: what was certified and decided, as records."""
