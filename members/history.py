"""What a member decided and when its applier ran it, kept with the setting `record_history`.

It is for checks: who reads it can prove that acknowledged transactions are there once, and that no
two that overlap were in execution at the same time.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from applier.targets.rocksdb import applied_intervals
from certifier.history import Verdict
from certifier.store import Family, Store
from groupcert.v1 import group_pb2
from members.decisions import decode, is_of_earlier_release

RESPONSE_TRANSACTIONS = 1_000


def read_history(store: Store, after_version: int) -> Iterator[group_pb2.ReadHistoryResponse]:
    """All that is kept now after a version, in the order of versions, in parts. It holds nothing of
    the store between two of them.

    Transactions that are not applied yet have ticks of 0.
    """
    ticks = {
        interval.version: (interval.started, interval.committed)
        for interval in applied_intervals(store)
        if interval.version > after_version
    }
    newest, _ = store.last(Family.DECISIONS, b"\xff") or (b"", b"")
    key = b""
    while key < newest:
        response = group_pb2.ReadHistoryResponse()
        start = key + b"\x00"
        for key, rows in store.scan(Family.DECISIONS, start):
            _add(response, _certified(rows), after_version, ticks)
            if key == newest or len(response.versions) >= RESPONSE_TRANSACTIONS:
                break
        if response.versions:
            yield response


class _Certified(NamedTuple):
    """A certified transaction; its items are as in the log of the group."""

    version: int
    transaction_id: str
    gtid: str
    last_committed: int
    sequence_number: int
    items: list[int]


def _certified(block: bytes) -> Iterator[_Certified]:
    """The certified transactions of what was decided at one time. Earlier releases stored these
    alone, as JSON.
    """
    if is_of_earlier_release(block):
        yield from (_Certified(*each) for each in json.loads(block))
        return
    for row in decode(block, "", "", "history"):
        if row.get("verdict") == Verdict.CERTIFIED:
            yield _certified_row(row)


def _certified_row(row: dict[str, Any]) -> _Certified:
    return _Certified(
        row["version"],
        row["transaction_id"],
        f"{row['gtid_source']}:{row['gtid_number']}",
        row.get("last_committed", 0),
        row.get("sequence_number", 0),
        [item % (1 << 64) for item in row["write_set"]],
    )


def _add(
    response: group_pb2.ReadHistoryResponse,
    decided: Iterable[_Certified],
    after_version: int,
    ticks: Mapping[int, tuple[int, int]],
) -> None:
    """Adds what was decided at one time."""
    for version, transaction_id, gtid, last_committed, sequence_number, items in decided:
        if version <= after_version:
            continue
        started, committed = ticks.get(version, (0, 0))
        response.versions.append(version)
        response.transaction_ids.append(bytes.fromhex(transaction_id))
        response.gtids.append(gtid)
        response.last_committed.append(last_committed)
        response.sequence_numbers.append(sequence_number)
        response.started_ticks.append(started)
        response.committed_ticks.append(committed)
        response.write_set_sizes.append(len(items))
        response.write_set_items.extend(items)
