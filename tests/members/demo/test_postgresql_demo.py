"""The demo on PostgreSQL servers: where it cannot run, and what its checks find in wrong rows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.applier.errors import UnsuitableTarget
from groupcert.certifier.errors import InvalidSetting
from groupcert.members.commands import failures
from groupcert.members.commands.cli import app
from groupcert.members.demo.group_checks import Findings
from groupcert.members.demo.postgresql_demo import SCHEMA, check_servers, main
from groupcert.members.demo.postgresql_servers import Primary
from groupcert.members.host import postgresql_server
from groupcert.members.postgresql import attachment
from tests import servers

UNAVAILABLE = 3
FIRST, SECOND = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_without_postgresql_it_says_what_to_install(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(postgresql_server, "POSTGRESQL_FOLDERS", str(temporary))
    monkeypatch.setenv("PATH", str(temporary))
    assert failures.run(app, ["demo", "--postgresql"]) == UNAVAILABLE
    told = capsys.readouterr().err
    assert "no PostgreSQL server here: sudo apt-get install postgresql" in told
    assert list(temporary.iterdir()) == []


def test_one_server_is_refused_since_it_would_be_killed() -> None:
    with pytest.raises(InvalidSetting, match="--members is '1': expected 2 or more"):
        main(members=1, clients=1, seconds=1, as_json=True)


@pytest.mark.database
def test_without_pl_python_it_says_what_to_install(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, postgresql: servers.PostgreSqlServer
) -> None:
    monkeypatch.setattr(attachment, "_LANGUAGE", "plpython4u")
    with pytest.raises(UnsuitableTarget) as failure:
        main(members=2, clients=1, seconds=1, as_json=True)
    assert "it has no plpython4u" in str(failure.value)
    assert "sudo apt-get install postgresql-plpython3-" in str(failure.value)
    assert list(temporary.iterdir()) == []


class Bank(Primary):
    """A database with the bank's tables, in a server that others use as well."""

    def __init__(self, name: str, dsn: str) -> None:
        super().__init__(name, Path(), dsn=dsn)
        self.query(SCHEMA)
        self.move(FIRST)

    def move(self, transfer_id: str) -> None:
        """Moves 5 from account 1 to account 2."""
        self.query("UPDATE accounts SET balance = balance - 5 WHERE id = 1")
        self.query("UPDATE accounts SET balance = balance + 5 WHERE id = 2")
        self.query(f"INSERT INTO transfers VALUES ('{transfer_id}', 1, 2, 5)")


@pytest.fixture
def banks(postgresql: servers.PostgreSqlServer) -> Iterator[list[Bank]]:
    """Two banks with equal rows."""
    with (
        servers.postgresql_database(postgresql, "bank1") as first,
        servers.postgresql_database(postgresql, "bank2") as second,
    ):
        yield [Bank("m1", first), Bank("m2", second)]


def found(banks: list[Bank]) -> Findings:
    """What the checks find, where clients were told that the first transfer has committed."""
    findings = Findings()
    check_servers(banks, {bytes(15) + b"\1"}, findings)
    return findings


@pytest.mark.database
class TestChecks:
    def test_equal_banks_are_fine(self, banks: list[Bank]) -> None:
        assert found(banks) == Findings()

    def test_an_acknowledged_transfer_that_is_not_there_is_lost(self, banks: list[Bank]) -> None:
        for bank in banks:
            bank.query("DELETE FROM transfers")
            bank.query("UPDATE accounts SET balance = 1000")
        findings = found(banks)
        assert (findings.lost, findings.converged, findings.exactly_once) == (1, True, True)
        assert findings.texts == [
            f"{name}: acknowledged transfer {FIRST.replace('-', '')} is lost"
            for name in ("m1", "m2")
        ]

    def test_a_transfer_that_was_booked_twice_is_found(self, banks: list[Bank]) -> None:
        for bank in banks:
            bank.query("UPDATE accounts SET balance = balance - 5 WHERE id = 1")
            bank.query("UPDATE accounts SET balance = balance + 5 WHERE id = 2")
        findings = found(banks)
        assert (findings.exactly_once, findings.invariant_ok, findings.lost) == (False, True, 0)
        assert findings.texts[0] == "m1: account 1 holds 990, its transfers make 995"

    def test_servers_that_differ_are_found(self, banks: list[Bank]) -> None:
        banks[1].move(SECOND)
        findings = found(banks)
        assert (findings.converged, findings.exactly_once, findings.invariant_ok) == (
            False,
            True,
            True,
        )
        assert findings.texts[0].startswith("servers differ in their rows: {'m1': ")

    def test_money_from_nowhere_is_found(self, banks: list[Bank]) -> None:
        banks[1].query("UPDATE accounts SET balance = balance + 1 WHERE id = 3")
        findings = found(banks)
        assert (findings.converged, findings.exactly_once, findings.invariant_ok) == (
            False,
            False,
            False,
        )
        assert "m2: all accounts hold 200001, expected 200000" in findings.texts
