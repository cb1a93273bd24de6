"""GTID sets in MySQL's bytes, as MySQL 9.7.4 wrote them.

Source: `tests/data/server-logs/README.md`.
"""

import gzip
import io
from pathlib import Path

import pytest

from groupcert.applier.errors import InvalidBinaryLog
from groupcert.applier.mysql_logs.events import Event, EventReader, EventType
from groupcert.applier.mysql_logs.gtid_set_encoding import encoded, previous_gtids
from groupcert.certifier.gtid_set import GtidSet

DATA = Path(__file__).parents[2] / "data" / "server-logs"
SERVER = "2b4ee913-ea4e-11f1-9af0-02fc00000001"
SETS = {
    "mysql-9.7.4-tagged-gtids": f"{SERVER}:1-136",
    "mysql-9.7.4-writeset-foreign-keys": f"{SERVER}:1-2084:mytag:1,"
    "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:tagx:7,bbbbbbbb-aaaa-aaaa-aaaa-aaaaaaaaaaaa:9",
}


def event_of(log: str) -> Event:
    """The event that has what is in the log before this file."""
    content = gzip.decompress((DATA / f"{log}.binlog.gz").read_bytes())
    events = EventReader(io.BytesIO(content), log, len(content))
    return next(event for event in events if event.type == EventType.PREVIOUS_GTIDS)


@pytest.mark.parametrize("log", SETS)
def test_a_set_is_read_and_written_as_the_server_does(log: str) -> None:
    event = event_of(log)
    assert str(previous_gtids(event)) == SETS[log]
    assert encoded(previous_gtids(event)) == event.body


def test_an_empty_set_has_no_sources() -> None:
    assert encoded(GtidSet()) == bytes(8)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\1" + bytes(6) + b"\2", "a GTID set in layout 2"),
        (b"\1" + bytes(7) + bytes(16) + b"\1" + bytes(7) + bytes(16), "GTIDs from 0 to 0"),
        (b"\1" + bytes(7) + bytes(16) + b"\1" + bytes(7), "bytes early"),
    ],
)
def test_other_bytes_are_no_set(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidBinaryLog, match=problem):
        previous_gtids(event_of("mysql-9.7.4-tagged-gtids")._replace(body=body))
