"""Logs that another process reads: what it tells is what this one would have read."""

import gzip
from contextlib import closing
from multiprocessing import active_children, connection
from pathlib import Path

import pytest

from groupcert.applier.errors import InvalidBinaryLog
from groupcert.members.commands import logs_ahead

LOGS = Path(__file__).parents[2] / "data" / "server-logs"
UNNAMED = LOGS / "mariadb-10.11-default-metadata.binlog.gz"
ENDING_SECONDS = 30


@pytest.fixture
def long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server's log that counts as long, and has tables without keys."""
    monkeypatch.setattr(logs_ahead, "AHEAD_BYTES", 1)
    path = tmp_path / "binlog.000001"
    path.write_bytes(
        gzip.decompress((LOGS / "mariadb-10.11-default-metadata.binlog.gz").read_bytes())
    )
    return path


def test_another_process_reads_a_long_log_alike(long_log: Path) -> None:
    [ahead] = logs_ahead.opened_logs([long_log], None, 2)
    [alone] = logs_ahead.opened_logs([long_log], None, 1)
    assert isinstance(ahead, logs_ahead.LogAhead) and not isinstance(alone, type(ahead))
    assert list(ahead) == list(alone)
    assert ahead.notes == alone.notes and ahead.tables_without_keys == alone.tables_without_keys
    assert len(ahead.tables_without_keys) == 4


def test_the_other_process_tells_what_is_wrong_with_a_log(long_log: Path) -> None:
    long_log.write_bytes(b"no binary log")
    [ahead] = logs_ahead.opened_logs([long_log], None, 2)
    with pytest.raises(InvalidBinaryLog, match="begins with 6e 6f 20 62"):
        list(ahead)


def test_who_stops_reading_a_long_log_ends_the_other_process(long_log: Path) -> None:
    others = {process.pid for process in active_children()}
    [ahead] = logs_ahead.opened_logs([long_log], None, 2)
    assert isinstance(ahead, logs_ahead.LogAhead)
    with closing(iter(ahead)) as transactions:
        next(transactions)
        [reading] = [process for process in active_children() if process.pid not in others]
    # Not `join`: who else waits for the process may have its exit code first.
    assert connection.wait([reading.sentinel], ENDING_SECONDS)
