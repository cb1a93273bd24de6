"""A short run of the load under kills; `make nightly` has a long one, and wrong members."""

import re
from pathlib import Path

import pytest

from tests import servers
from tests.laboratory.mutants import environment_of, run_program

pytestmark = [
    pytest.mark.nats,
    pytest.mark.cluster,
    pytest.mark.database,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def check(folder: Path, *, mutant: str = "") -> tuple[int, str]:
    """Runs the command, on members that are a mutant if it is named."""
    with servers.where_installed():
        servers.postgresql_program("pgbench")
    environment = environment_of("tests.postgresql.mutants", mutant) if mutant else {}
    arguments = ("--seconds", "8", "--seed", "4")
    return run_program(folder, "tests.postgresql", *arguments, environment=environment)


def test_nothing_is_lost_or_doubled_while_processes_are_killed(tmp_path: Path) -> None:
    code, text = check(tmp_path)
    assert code == 0, text
    assert "violations 0" in text


@pytest.mark.nightly
def test_updates_that_a_wrong_member_loses_are_found(tmp_path: Path) -> None:
    code, text = check(tmp_path, mutant="with-the-newest-snapshot")
    assert code == 1, text
    assert re.search("lost-append|incompatible-order|lost-update", text), text
