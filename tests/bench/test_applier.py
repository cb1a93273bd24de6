"""The applier's benchmark, in small: it measures all it says, and finds wrong rows itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupcert.certifier.errors import InvalidRequest
from groupcert.members.host.servers import ServerMissing
from tests.bench import applier as applier_bench
from tests.bench.applier import LINES, applier, lines_of, measure
from tests.bench.harness import Run
from tests.bench.mariadb_replica import mariadb_replica
from tests.bench.source_stream import SourceOptions, source_stream, table_names
from tests.bench.targets import (
    BenchTarget,
    Opened,
    mariadb_database,
    postgresql_database,
    rocksdb,
    slow,
)
from tests.servers import MariaDbServer, PostgreSqlServer

SMALL = SourceOptions(transactions=300)
ENTRIES = source_stream(SMALL)
FIRST = next(iter(LINES.values()))


@pytest.mark.slow
def test_every_scheme_is_compared_to_serial_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier_bench, "SLOW_COMMIT_MS", 0.1)
    run = Run()
    document = applier(run, workers=(2, 0), transactions=300, repeat=2)
    assert run.wrong == []
    labels = ["no workers", *LINES]
    measured = [(result["target"], result["scheme"]) for result in document["results"]]
    assert measured == [(target, label) for target in ("rocksdb", "slow") for label in labels]
    for result in document["results"]:
        assert result["run"]["is_correct"]
        assert result["rate_min"] <= result["rate_median"] <= result["rate_max"]
        assert (result["ratio"] is None) == (result["workers"] == 0)
        assert (result["run"]["bound_share"] is None) == (result["target"] == "rocksdb")


def test_wrong_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def forgetful(workers: int) -> Iterator[Opened]:
        with rocksdb().opened(workers) as opened:
            yield opened._replace(rows=lambda: dict(list(opened.rows().items())[1:]))

    monkeypatch.setattr(applier_bench, "rocksdb", lambda: BenchTarget(opened=forgetful))
    run = Run()
    applier(run, targets=("rocksdb",), workers=(0,), transactions=50, repeat=1)
    expected = "rocksdb, no workers, 0 workers: rows are not those of serial execution"
    assert run.wrong == [expected]


def test_the_error_of_a_transaction_ends_the_benchmark() -> None:
    @contextmanager
    def broken(workers: int) -> Iterator[Opened]:
        with rocksdb().opened(workers) as opened:
            opened.target.execute = lambda job: 1 // 0  # type: ignore[method-assign]
            yield opened

    for workers in (0, 2):
        with pytest.raises(ZeroDivisionError):
            measure(BenchTarget(opened=broken), FIRST, workers, ENTRIES)


def test_a_slow_commit_keeps_a_worker_and_no_other() -> None:
    for workers in (0, 4):
        run = measure(slow(5.0), FIRST, workers, ENTRIES[:40])
        assert run["is_correct"]
        assert 0 < run["bound_share"] <= 1
        assert run["transactions_per_second"] <= max(workers, 1) / 0.005


@pytest.mark.parametrize("label", ["logical-clock", "jobs graph"])
def test_a_scheme_is_chosen_by_its_name_or_with_its_settings(label: str) -> None:
    labels = [line.label for line in lines_of((label,), ("slow",), (0, 8))]
    assert labels[0] == "no workers"
    assert all(each.startswith(label) for each in labels[1:])
    assert len(labels) > 1


@pytest.mark.parametrize(
    ("schemes", "targets", "expected"),
    [(("clock",), ("slow",), "jobs graph"), ((), ("oracle",), "rocksdb")],
)
def test_what_cannot_be_measured_is_refused(
    schemes: tuple[str, ...], targets: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        lines_of(schemes, targets, (0,))


def test_rows_reach_postgresql(postgresql: PostgreSqlServer) -> None:
    target = postgresql_database(postgresql, table_names(SMALL))
    assert target.version.startswith("PostgreSQL ")
    check_rows(target)


def test_rows_reach_mariadb(mariadb: MariaDbServer) -> None:
    target = mariadb_database(mariadb, table_names(SMALL))
    assert "MariaDB" in target.version
    check_rows(target)


def check_rows(target: BenchTarget) -> None:
    for line, workers in ((FIRST, 0), (FIRST, 4), (LINES["jobs barrier"], 4)):
        run = measure(target, line, workers, ENTRIES)
        assert run["is_correct"]
        assert run["server_cpu_us"] is not None


def test_mariadb_own_replica_catches_up_again_and_again(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    assert mariadb.pid, "there is a MariaDB"
    with mariadb_replica(tmp_path, ENTRIES, table_names(SMALL), sessions=4) as replica:
        runs = [
            replica.measure(mode, workers)
            for mode, workers in (("conservative", 0), ("optimistic", 4))
        ]
    assert all(run["is_correct"] for run in runs)


def test_a_server_that_is_missing_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> None:
        raise ServerMissing(server="PostgreSQL", advice="sudo apt-get install postgresql")

    monkeypatch.setattr(applier_bench, "PostgreSqlServer", missing)
    with pytest.raises(ServerMissing, match="apt-get install postgresql"):
        applier(Run(), targets=("rocksdb", "postgresql"))
