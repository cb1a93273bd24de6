"""A short run of drawn SQL, and mutants that it finds; `make nightly` draws for an hour.

`python -m tests.postgresql.sql` runs as its own process, as a developer starts it.
"""

from pathlib import Path

import pytest

from tests import servers
from tests.laboratory.mutants import run_program
from tests.postgresql.sql.mutants import MUTANTS
from tests.postgresql.sql.session_drawing import draw_case

pytestmark = [
    pytest.mark.nats,
    pytest.mark.cluster,
    pytest.mark.database,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

SEEDS = ("--seed", "1", "--seeds", "12")
"""Some 25 s."""
EACH_RUN = (
    "keys_by_name",
    "items_without_predicate",
    "note_outlives_savepoint",
    "executed_as_superuser",
)
"""Mutants that are not left to the nightly run, in an order in which few need a group of their own.
"""


def check(folder: Path, *arguments: str) -> tuple[int, str]:
    """Runs the command with its files in a folder; returns its exit code, and what it printed."""
    with servers.where_installed():
        servers.postgresql_program("postgres")
    return run_program(folder, "tests.postgresql.sql", "--shrink-seconds", "0", *arguments)


def test_drawn_sql_leaves_all_servers_alike_and_finds_mutants(tmp_path: Path) -> None:
    """In one process: most of the time goes into what starts."""
    code, text = check(tmp_path, *SEEDS, "--finds", *EACH_RUN)
    assert code == 0, text
    assert "12 cases" in text
    for name in EACH_RUN:
        assert f"found: {name} by seed {MUTANTS[name].seed}: " in text


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_by_its_seed(tmp_path: Path, name: str) -> None:
    mutant = MUTANTS[name]
    code, text = check(tmp_path, "--seed", str(mutant.seed), "--mutant", name)
    assert code == 1, text
    assert f"WRONG: seed {mutant.seed}: " in text
    assert mutant.kind in text, text
    assert f"again: python -m tests.postgresql.sql --seed {mutant.seed} --mutant {name}" in text


def test_the_same_seed_draws_the_same_case() -> None:
    assert draw_case(7) == draw_case(7)
    assert draw_case(7).steps != draw_case(8).steps
