"""Makes a process wrong on purpose: Python imports this before anything else."""

from tests.laboratory.mutants import install

install()
