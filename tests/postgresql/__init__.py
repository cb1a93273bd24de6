"""A group of PostgreSQL servers under load and kills: `python -m tests.postgresql`."""
