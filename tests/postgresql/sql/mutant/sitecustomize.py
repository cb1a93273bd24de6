"""Makes a process wrong on purpose: Python imports this before anything else."""

from tests.postgresql.sql.mutants import change_this_process

change_this_process()
