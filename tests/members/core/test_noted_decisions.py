"""What a member notes of its decisions: the same rows as its certifier's recorder would give.

The method: members read random messages; what they noted is stored and read again, and compared
with rows made on the spot by `HistoryRecorder` at a second certifier that follows the same order.
"""

import random
from dataclasses import replace

import pytest

from groupcert.certifier.core import Certifier
from groupcert.certifier.errors import CorruptStore
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.history.recorder import HistoryRecorder
from groupcert.certifier.history.schema import RecordKind, Row, Source, place_of
from groupcert.certifier.position import position_of
from groupcert.certifier.records import GarbageCollection, Transaction
from groupcert.certifier.write_set import store_key_item
from groupcert.members.core.effects import Delivered
from groupcert.members.core.log_records import LogBatch, LoggedTransaction, MemberReport
from groupcert.members.core.member import Member
from groupcert.members.core.member_options import MemberOptions, certifier_options
from groupcert.members.core.noted_decisions import (
    Decisions,
    Noted,
    Sending,
    decode,
    place_key,
    rows_in,
    session_of,
)
from groupcert.members.wire.row_changes import changed_keys, encode_changes
from tests.members.state_machines import (
    SETTINGS,
    batch_of,
    deliver,
    joining,
    online,
    run_of,
    send,
)

NOW_US = 1_780_000_000_000_000
OTHER = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"


def read(member: Member, *batches: LogBatch) -> list[Row]:
    """The rows that a member notes of messages, stored and read again."""
    delivered = Delivered(decided_us=NOW_US)
    for batch in batches:
        member.deliver(member.log_sequence + 1, batch, delivered)
    return stored(member.decisions, delivered.noted)


def stored(decisions: Decisions, noted: Noted) -> list[Row]:
    """What was noted, as it comes out of the store."""
    block = decisions.encode(noted)
    rows: list[Row] = list(decode(block, "m1", "7f", "there"))
    assert rows_in(block) == len(rows) == len(noted)
    assert not rows or place_key(noted) == rows[0]["place"]
    return rows


def noting(*others: int) -> Member:
    """Member m1, ONLINE with others, which notes what it decides."""
    return online(*others, record_history=True)


def test_rows_are_those_of_a_recorder() -> None:
    """Plain transactions, conflicts, reads, collections, foreign snapshots, GTIDs of one's own."""
    chance = random.Random(7)
    member = noting(2)
    certifier = Certifier(certifier_options(SETTINGS))
    recorder = HistoryRecorder(certifier, "m1", Source.MEMBER, "7f")
    found: list[Row] = []
    expected: list[Row] = []
    for number in range(2, 40):
        newest = certifier.window.newest_version
        logged = [random_transaction(chance, newest) for _ in range(chance.randrange(1, 6))]
        controls = [MemberReport(newest, newest, 1, b"")] if number % 5 == 0 else []
        found += read(member, batch_of(2, number, logged))
        for index, each in enumerate(logged):
            place = position_of(member.log_sequence, index)
            record = (place, "m2", each.snapshot, each.write_set, each.read_set, each.gtid)
            transaction = Transaction(*record)
            known: Row = {
                "session": session_of(2),
                "transaction_id": each.transaction_id.hex(),
                **({"domain_id": each.domain_id} if each.domain_id else {}),
            }
            expected += recorder.transaction(transaction, certifier.certify(transaction), known)
        if controls:
            stable = GarbageCollection(position_of(member.log_sequence, 99), newest)
            member.certifier.deliver(stable)
            certifier.deliver(stable)
    assert [row | {"decided_us": NOW_US} for row in expected] == found
    assert {row.get("verdict") for row in found} >= {"certified", "conflict", "too_old", "refused"}
    assert {row["kind"] for row in found} == {"transaction", "collection"}


def random_transaction(chance: random.Random, newest: int) -> LoggedTransaction:
    """A transaction of another member; now and then there is something special about it."""
    snapshot: int | GtidSet = max(newest - chance.randrange(6), 0)
    gtid, domain_id = None, 0
    match chance.randrange(12):
        case 0:
            gtid = Gtid(OTHER, chance.randrange(1, 40))
        case 1:
            snapshot = GtidSet.parse(f"{SETTINGS.group_uuid}:1-{chance.randrange(1, newest + 2)}")
        case 2:
            domain_id = 7
        case 3:
            snapshot = newest + 1
    items = [chance.randrange(2**64 - 40, 2**64) for _ in range(chance.randrange(4))]
    reads = [chance.randrange(2**64 - 40, 2**64)] if chance.random() < 0.3 else []
    return LoggedTransaction(
        chance.randbytes(4), snapshot, items, reads, gtid, b"", False, domain_id
    )


def kinds(rows: list[Row]) -> list[object]:
    return [row["kind"] for row in rows]


def test_keys_go_along_where_that_is_allowed_and_values_never_do() -> None:
    decisions = Decisions("m1", is_on=True, keys_of=changed_keys)
    member = Member(MemberOptions(me=run_of(1), settings=SETTINGS), decisions)
    member.caught_up()
    send(member)
    deliver(member, joining(member, 2))
    keys = [b"account/1", b"\xff\x00"]
    items = [store_key_item(key) for key in keys]
    payload = encode_changes(keys, [b"SECRET", b"SECRET"])
    plain = LoggedTransaction(b"", 0, [items[1], 5, items[0]], payload=payload)
    special = plain._replace(snapshot=1, domain_id=3)
    delivered = Delivered(decided_us=NOW_US)
    member.deliver(member.log_sequence + 1, batch_of(2, 2, [plain, special]), delivered)
    block = decisions.encode(delivered.noted)
    assert b"SECRET" not in block
    for row in decode(block, "m1", "7f", "there"):
        assert row["write_keys"] == ["\\xff\x00", "", "account/1"]


def test_what_was_executed_elsewhere_has_a_row() -> None:
    """No member learns from snapshots today; its history would tell if one did."""
    decisions = Decisions("m1", is_on=True)
    certifier = Certifier(replace(certifier_options(SETTINGS), learn_snapshots=True))
    decisions.follow(certifier)
    noted = Noted()
    logged = LoggedTransaction(b"", GtidSet.parse(f"{OTHER}:1-3"), [1])
    transaction = Transaction(16, "m2", logged.snapshot, logged.write_set)
    outcome = certifier.certify(transaction)
    decisions.decided(noted, Sending("m2", "2", False, NOW_US), 16, logged, outcome, False)
    assert kinds(stored(decisions, noted)) == ["executed_elsewhere", "transaction"]


def test_a_history_begins_where_it_is_told() -> None:
    member = noting(2)
    noted = member.decisions.start(position_of(9, 0), NOW_US)
    (row,) = stored(member.decisions, noted)
    assert (row["kind"], row["decided_us"]) == ("start", NOW_US)
    assert place_key(noted) == place_of(position_of(9, 0), RecordKind.START)


def test_decisions_in_another_format_are_not_read() -> None:
    with pytest.raises(CorruptStore, match="decisions in format 03"):
        decode(b"\x03rest", "m1", "7f", "there")


def test_items_take_eight_bytes_each_and_come_back() -> None:
    """JSON of them takes so long that no client is answered meanwhile."""
    member = noting(2)
    items = [2**64 - 1 - each for each in range(10_000)]
    plain = LoggedTransaction(b"a", 0, items, items[:100])
    special = plain._replace(transaction_id=b"b", snapshot=1, domain_id=3)
    delivered = Delivered(decided_us=NOW_US)
    member.deliver(member.log_sequence + 1, batch_of(2, 2, [plain, special]), delivered)
    block = member.decisions.encode(delivered.noted)
    assert len(block) < 8 * 20_200 + 2_000
    rows = decode(block, "m1", "7f", "there")
    assert kinds(list(rows)) == ["transaction"] * 2
    for row in rows:
        assert row["write_set"] == [-1 - each for each in range(10_000)]
        assert row["read_set"] == [-1 - each for each in range(100)]
