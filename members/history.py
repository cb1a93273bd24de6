"""What a member decided and when its applier ran it, kept with the setting `record_history`.

It is for checks: who reads it can prove that acknowledged transactions are there once, and that no
two that overlap were in execution at the same time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from applier.targets.rocksdb import applied_intervals
from certifier.records import Outcome
from certifier.store import Batch, Family, Store, integer_key
from groupcert.v1 import group_pb2
from members.log_records import LoggedTransaction

RESPONSE_TRANSACTIONS = 1_000


def save_decisions(batch: Batch, certified: Sequence[tuple[Outcome, LoggedTransaction]]) -> None:
    """Adds certified transactions, by the first one's version."""
    rows = [
        [
            outcome.version,
            logged.transaction_id.hex(),
            str(outcome.gtid),
            outcome.last_committed or 0,
            outcome.sequence_number or 0,
            list(logged.write_set),
        ]
        for outcome, logged in certified
    ]
    batch.put(Family.DECISIONS, integer_key(certified[0][0].version), json.dumps(rows).encode())


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
            _add(response, rows, after_version, ticks)
            if key == newest or len(response.versions) >= RESPONSE_TRANSACTIONS:
                break
        if response.versions:
            yield response


def _add(
    response: group_pb2.ReadHistoryResponse,
    rows: bytes,
    after_version: int,
    ticks: Mapping[int, tuple[int, int]],
) -> None:
    """Adds what was decided at one time."""
    for version, transaction_id, gtid, last_committed, sequence_number, items in json.loads(rows):
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
