"""A real MySQL 9.7.4 group's relay log: the certifier gives each transaction the server's stamps.

Source: `tests/data/mysql-9.7.4-relay/README.md`.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.history.trace_rows import TraceHistory

DATA = Path(__file__).parent.parent / "data" / "mysql-9.7.4-relay"
OPTIONS = CertifierOptions(
    group_source="aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
    gtid_assignment_block_size=1_000_000,
    collection_period_transactions=0,
    learn_snapshots=True,
    snapshot_lag_max=1 << 62,
)


@pytest.mark.slow
def test_all_transactions_of_the_relay_log_get_the_servers_stamps() -> None:
    rows = list(TraceHistory(OPTIONS).rows(_lines("trace")))
    found = [
        {
            "gtid": ":".join((str(row["gtid_source"]), str(row["gtid_number"]))),
            "last_committed": row["last_committed"],
            "sequence_number": row["sequence_number"],
        }
        for row in rows
        if row["kind"] == "transaction" and row["verdict"] == "certified"
    ]
    expected = [line for text in _lines("expected") if "gtid" in (line := json.loads(text))]
    assert found == expected
    assert Counter(row["kind"] for row in rows) == {
        "start": 1,
        "executed_elsewhere": 1,
        "view_change": 1,
        "transaction": 11_280,
        "stable_set": 2,
        "collection": 2,
    }
    assert [row["kind"] for row in rows[:3]] == ["start", "executed_elsewhere", "view_change"]


def _lines(name: str) -> Iterator[str]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as lines:
        yield from lines
