"""The applier's benchmark, in small: it measures all it says, and finds wrong rows itself."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from groupcert.applier.targets import Target
from groupcert.certifier.errors import InvalidRequest
from groupcert.members.benchmarks.applier import BenchOptions, main
from groupcert.members.benchmarks.applier_run import LINES, measure, stream
from groupcert.members.benchmarks.applier_targets import MariaDb, PostgreSql, RocksDb, Rows, Slow
from groupcert.members.benchmarks.mariadb_replica import MariaDbReplica
from groupcert.members.benchmarks.source_stream import SourceOptions, final_rows, table_names
from groupcert.members.host.database_servers import (
    MariaDbServer,
    PostgreSqlServer,
)
from groupcert.members.host.server_missing import ServerMissing
from groupcert.members.wire.row_changes import decode_changes

SMALL = SourceOptions(transactions=300)
ENTRIES = stream(SMALL)
FIRST = next(iter(LINES.values()))
EXPECTED = final_rows(ENTRIES, decode_changes)


@pytest.mark.slow
def test_every_scheme_is_compared_to_serial_execution(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groupcert.members.benchmarks.applier.SLOW_COMMIT_MS", 0.1)
    output = tmp_path / "applier.json"
    options = BenchOptions(transactions=300, workers=(2, 0), targets=("rocksdb", "slow"), repeat=2)
    assert main(options, as_json=True, output=output) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(output.read_text())
    labels = ["no workers", *LINES]
    measured = [(result["target"], result["scheme"]) for result in document["results"]]
    assert measured == [(target, label) for target in options.targets for label in labels]
    for result in document["results"]:
        assert result["run"]["is_correct"]
        assert result["rate_min"] <= result["rate_median"] <= result["rate_max"]
        assert (result["ratio"] is None) == (result["workers"] == 0)
        assert (result["run"]["bound_share"] is None) == (result["target"] == "rocksdb")


def test_wrong_rows_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Forgetful(RocksDb):
        def rows(self, target: Any) -> Rows:
            rows = super().rows(target)
            rows.popitem()
            return rows

    monkeypatch.setattr("groupcert.members.benchmarks.applier.RocksDb", Forgetful)
    options = BenchOptions(transactions=50, workers=(0,), targets=("rocksdb",), repeat=1)
    assert main(options, as_json=False, output=None) == 1
    assert "WRONG ROWS" in capsys.readouterr().out


def test_the_error_of_a_transaction_ends_the_benchmark() -> None:
    class Broken(RocksDb):
        @contextmanager
        def opened(self, workers: int) -> Iterator[Target[Any]]:
            with super().opened(workers) as target:
                target.execute = lambda job: 1 // 0  # type: ignore[method-assign]
                yield target

    for workers in (0, 2):
        with pytest.raises(ZeroDivisionError):
            measure(Broken(), FIRST, workers, ENTRIES, EXPECTED)


def test_a_slow_commit_keeps_a_worker_and_no_other() -> None:
    entries = ENTRIES[:40]
    expected = final_rows(entries, decode_changes)
    for workers in (0, 4):
        run = measure(Slow(5.0), FIRST, workers, entries, expected)
        assert run.is_correct
        assert run.bound_share is not None
        assert 0 < run.bound_share <= 1
        assert run.transactions_per_second <= max(workers, 1) / 0.005


@pytest.mark.parametrize("label", ["logical-clock", "jobs graph"])
def test_a_scheme_is_chosen_by_its_name_or_with_its_settings(label: str) -> None:
    options = BenchOptions(schemes=(label,), targets=("slow",), workers=(0, 8))
    labels = [planned for planned, _, _ in options.plan(options.lines)]
    assert labels[0] == "no workers"
    assert all(planned.startswith(label) for planned in labels[1:])
    assert len(labels) > 1


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("schemes", ("clock",), "jobs graph"),
        ("targets", ("oracle",), "rocksdb"),
        ("targets", ("mariadb",), "--start-servers"),
        ("workers", (5_000,), "0 to 1024"),
    ],
)
def test_what_cannot_be_measured_is_refused(setting: str, value: object, expected: str) -> None:
    given: dict[str, Any] = {"targets": ("slow",), setting: value}
    with pytest.raises(InvalidRequest, match=expected):
        BenchOptions(**given)


def test_rows_reach_postgresql(postgresql: PostgreSqlServer) -> None:
    target = PostgreSql(postgresql.dsn, table_names(SMALL), postgresql.pid)
    assert target.version().startswith("PostgreSQL ")
    for line, workers in ((FIRST, 0), (FIRST, 4), (LINES["jobs barrier"], 4)):
        run = measure(target, line, workers, ENTRIES, EXPECTED)
        assert run.is_correct
        assert run.server_cpu_us is not None


def test_rows_reach_mariadb(mariadb: MariaDbServer) -> None:
    target = MariaDb(mariadb.url, table_names(SMALL), mariadb.pid)
    assert "MariaDB" in target.version()
    for line, workers in ((FIRST, 0), (FIRST, 4), (LINES["jobs barrier"], 4)):
        run = measure(target, line, workers, ENTRIES, EXPECTED)
        assert run.is_correct
        assert run.server_cpu_us is not None


def test_mariadb_own_replica_catches_up_again_and_again(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    assert mariadb.pid, "there is a MariaDB"
    with MariaDbReplica(tmp_path, table_names(SMALL), sessions=4) as replica:
        replica.load(ENTRIES)
        runs = [
            replica.measure(mode, workers)
            for mode, workers in (("conservative", 0), ("optimistic", 4))
        ]
    assert all(run.is_correct for run in runs)


def test_a_server_that_is_missing_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> None:
        raise ServerMissing(server="PostgreSQL", advice="sudo apt-get install postgresql")

    monkeypatch.setattr("groupcert.members.benchmarks.applier.postgresql_server", missing)
    options = BenchOptions(targets=("postgresql",), start_servers=True)
    with pytest.raises(ServerMissing, match="apt-get install postgresql"):
        main(options, as_json=True, output=None)
