"""A real MySQL 9.7.4 group's relay log: the certifier gives each transaction the server's stamps.

Source: `tests/data/mysql-9.7.4-relay/README.md`.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from certifier.core import Certifier, CertifierOptions
from certifier.trace import Replay

DATA = Path(__file__).parent.parent / "data" / "mysql-9.7.4-relay"
OPTIONS = CertifierOptions(
    group_source="aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
    gtid_assignment_block_size=1_000_000,
    collection_period_transactions=0,
    learn_snapshots=True,
    snapshot_lag_max=1 << 62,
)


def test_all_transactions_of_the_relay_log_get_the_servers_stamps() -> None:
    replay = Replay(Certifier(OPTIONS))
    answers = [answer for line in _lines("trace") if (answer := replay.replay(line))]
    transactions = [answer for answer in answers if answer["type"] == "transaction"]
    assert all(answer["decision"] == "certified" for answer in transactions)
    stamps = ("gtid", "last_committed", "sequence_number")
    expected = [line for text in _lines("expected") if "gtid" in (line := json.loads(text))]
    assert [{name: answer[name] for name in stamps} for answer in transactions] == expected
    assert len(transactions) == 11_280
    assert replay.summary.view_changes == 1
    assert replay.summary.garbage_collections == 2


def _lines(name: str) -> Iterator[str]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as lines:
        yield from lines
