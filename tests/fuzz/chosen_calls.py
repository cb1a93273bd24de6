"""Calls that somebody chose: each was thought of as what could end, hold or fill a member."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from google.protobuf.message import Message

from groupcert.v1.binary_log_pb2 import PurgeRequest, SubscribeRequest
from groupcert.v1.certification_pb2 import CertifyRequest, CertifyStreamRequest
from groupcert.v1.group_pb2 import ReadHistoryRequest, WatchStatusRequest
from groupcert.v1.recovery_pb2 import OpenCopyRequest, ReadCopyRequest
from groupcert.v1.session_pb2 import SessionCall, SessionRequest
from groupcert.v1.store_pb2 import (
    CommitHeader,
    CommitPart,
    CommitRequest,
    CommitStreamRequest,
    GetRequest,
    OpenSnapshotRequest,
    ScanRequest,
)
from groupcert.v1.transaction_pb2 import Changes, Transaction
from tests.fuzz.calls import Call
from tests.fuzz.methods import method_named, methods, why_left_out
from tests.fuzz.mutations import add_unknown, nest_groups
from tests.fuzz.valid_requests import VALID, commit, commit_stream, row_changes, transaction
from tests.fuzz.values import SOURCES, Answers

HUGE = (2**63 - 1, 2**63, 2**64 - 1)
SET_BYTES = 32 << 10
"""Of the longest set of GTIDs that a client may send."""
ITEMS_MAX = 100_000
PART_BYTES_MAX = 1 << 20

Build = Callable[[random.Random, Answers], list[Call]]


class Case(NamedTuple):
    """A chosen case; those that cost the machine much have a small weight."""

    name: str
    build: Build
    weight: int = 10


def call(case: str, method: str, *messages: Message, **behaviour: object) -> Call:
    """Returns a call with these messages."""
    payloads = [each.SerializeToString() for each in messages]
    plain = Call(case, method_named(method), payloads)
    return plain._replace(**behaviour)  # type: ignore[arg-type]  # its own fields


def set_with_gaps(size: int) -> str:
    """Returns a set of GTIDs, of so many bytes or a few less, in which every other one is missing.

    >>> set_with_gaps(50)
    '00000000-f022-4e5d-8000-000000000000:1:3:5:7:9:11'
    """
    text = f"{SOURCES[0]}:{':'.join(map(str, range(1, size, 2)))}"[:size]
    return text.rpartition(":")[0]


def _huge_numbers(chance: random.Random, answers: Answers) -> list[Call]:
    huge = chance.choice(HUGE)
    change = row_changes(chance)
    whole = CommitRequest(snapshot_id=huge, snapshot_version=huge, changes=change)
    session = SessionCall(number=huge, get=GetRequest(snapshot_id=huge))
    large = CommitHeader(commit=commit(chance, answers), changes_bytes=huge)
    made = (
        ("StoreService/Commit", whole),
        ("StoreService/Commit", CommitRequest(snapshot_version=huge, changes=change)),
        ("StoreService/Get", GetRequest(snapshot_id=huge, keys=[b"k"])),
        ("StoreService/OpenSnapshot", OpenSnapshotRequest(version_min=huge)),
        ("StoreService/OpenSnapshot", OpenSnapshotRequest(session_id=huge)),
        ("StoreService/CommitStream", CommitStreamRequest(header=large)),
        ("SessionService/Session", SessionRequest(calls=[session], cancelled=[huge])),
        ("GroupService/ReadHistory", ReadHistoryRequest(after_version=huge)),
        ("GroupService/WatchStatus", WatchStatusRequest(period_ms=2**32 - 1)),
        ("BinaryLogService/Subscribe", SubscribeRequest(events_max=2**32 - 1)),
        ("BinaryLogService/Purge", PurgeRequest(to_file=huge)),
        ("RecoveryService/ReadCopy", ReadCopyRequest(copy_id="x", offset=huge)),
    )
    return [call("numbers of 64 bits", *chance.choice(made), timeout_s=1.0)]


def _ids(chance: random.Random, answers: Answers) -> list[Call]:
    same = chance.choice((b"", chance.randbytes(32), chance.randbytes(33)))
    certify = [transaction(chance, answers) for _ in range(2)]
    commits = [commit(chance, answers) for _ in range(2)]
    for first, second in zip(certify, commits, strict=True):
        first.transaction_id = second.transaction_id = same
    name = "one id, other content" if same else "empty ids"
    return [
        *(call(name, "CertificationService/Certify", CertifyRequest(transaction=each))
          for each in certify),
        *(call(name, "StoreService/Commit", each) for each in commits),
    ]  # fmt: skip


def _gtid_sets(chance: random.Random, answers: Answers) -> list[Call]:
    text = set_with_gaps(SET_BYTES + chance.choice((-1_000, -1, 0, 1, 1_000)))
    if chance.random() < 0.3:
        text = ":".join([text[:36], *text[37:].split(":")[::-1]])
    sent = transaction(chance, answers)
    sent.snapshot_gtid_set = text
    replica = SubscribeRequest(gtid_executed=set_with_gaps(4 * SET_BYTES))
    return [
        call("sets of GTIDs with gaps", "CertificationService/Certify",
             CertifyRequest(transaction=sent)),
        call("sets of GTIDs with gaps", "BinaryLogService/Subscribe", replica, timeout_s=1.0),
    ]  # fmt: skip


def _own_gtids(chance: random.Random, answers: Answers) -> list[Call]:
    group = str(answers.newest("gtid") or SOURCES[0]).partition(":")[0]
    number = chance.choice((1, 2**31, 2**63 - 2, 2**63 - 1, answers.latest("version") + 5))
    sent = [transaction(chance, answers) for _ in range(2)]
    sent[0].gtid, sent[1].gtid = f"{SOURCES[3]}:{number}", f"{group}:{number}"
    requests = [CertifyRequest(transaction=each) for each in sent]
    method = "CertificationService/Certify"
    # One of the group's own source is sent where it has been used: the others would be gaps.
    known = requests if number == 1 else requests[:1]
    return [call("own GTIDs", method, each) for each in known]


def _many_transactions(chance: random.Random, answers: Answers) -> list[Call]:
    del answers
    count = chance.choice((10_000, 10_001))
    sent = CertifyStreamRequest(transactions=[Transaction()] * count)
    return [call(f"{count} empty transactions", "CertificationService/CertifyStream", sent)]


def _large_write_sets(chance: random.Random, answers: Answers) -> list[Call]:
    sent = transaction(chance, answers)
    count = chance.choice((ITEMS_MAX // 4, ITEMS_MAX, ITEMS_MAX + 1))
    sent.write_set.extend(range(count - 4))
    return [call("the largest write sets", "CertificationService/Certify",
                 CertifyRequest(transaction=sent))]  # fmt: skip


def _many_requests(chance: random.Random, answers: Answers) -> list[Call]:
    count = chance.choice((1_000, 10_000, 10_001))
    opening = SessionCall(number=1, open_snapshot=OpenSnapshotRequest())
    kinds = (
        [SessionCall(number=number) for number in range(count)],
        [opening] * (count // 10),
        [SessionCall(number=number, get=GetRequest(snapshot_id=1)) for number in range(count)],
    )
    sent = SessionRequest(calls=chance.choice(kinds), cancelled=range(0, count, 3))
    return [call("many requests in a message", "SessionService/Session", sent, timeout_s=3.0)]


def _keys(chance: random.Random, answers: Answers) -> list[Call]:
    snapshot = answers.latest("snapshot_id")
    long = bytes(chance.choice((0, 1, 65_536, 900_000)))
    made = (
        ("StoreService/Get", GetRequest(snapshot_id=snapshot, keys=[b"k"] * 10_001)),
        ("StoreService/Get", GetRequest(snapshot_id=snapshot, keys=[b""] * 300_000)),
        ("StoreService/Get", GetRequest(snapshot_id=snapshot, keys=[long])),
        ("StoreService/Scan", ScanRequest(snapshot_id=snapshot, start_key=b"\xff", end_key=b"a")),
        ("StoreService/Scan", ScanRequest(snapshot_id=snapshot, rows_max=2**32 - 1)),
        ("StoreService/Commit", CommitRequest(changes=Changes(put_keys=[long], put_values=[b""]))),
        ("StoreService/Commit", CommitRequest(changes=Changes(delete_keys=[b"a", b"a"]))),
        ("StoreService/Commit", CommitRequest(read_keys=[b""] * 300_000)),
    )
    return [call("keys: long, many, double, backwards", *chance.choice(made))]


def _strange_parts(chance: random.Random, answers: Answers) -> list[Call]:
    """Builds large commits whose parts are not what the header says."""
    header, *rows = commit_stream(chance, answers)
    empty = CommitStreamRequest(rows=CommitPart())
    large = CommitStreamRequest(rows=CommitPart(changes=bytes(PART_BYTES_MAX)))
    orders: Sequence[Sequence[Message]] = (
        [header],
        rows,
        [header, header],
        [header, *rows, *rows],
        [*rows, header],
        [header, *[empty] * 2_000],
        [header, large],
        [CommitStreamRequest()],
        [],
    )
    half_closes = chance.random() < 0.5
    return [call("parts in disorder", "StoreService/CommitStream", *chance.choice(orders),
                 half_closes=half_closes, timeout_s=1.0)]  # fmt: skip


def _impatient(chance: random.Random, answers: Answers) -> list[Call]:
    name = chance.choice(list(VALID))
    messages = VALID[name](chance, answers)
    behaviour = {"timeout_s": 0.001}
    if chance.random() < 0.6:
        behaviour = {"timeout_s": 5.0, "cancel_after_s": chance.choice((0.0, 0.001, 0.02))}
    return [call("deadlines of 1 ms, cancelled", name, *messages, **behaviour)] * 3


def _half_open(chance: random.Random, answers: Answers) -> list[Call]:
    name = chance.choice([each.name for each in methods() if each.streams_requests])
    messages = VALID[name](chance, answers) if name in VALID else []
    sent = messages[: chance.randrange(len(messages) + 1)]
    return [call("streams left open", name, *sent, half_closes=False, timeout_s=1.0)]


def _metadata(chance: random.Random, answers: Answers) -> list[Call]:
    name = chance.choice(list(VALID))
    metadata: tuple[tuple[str, str | bytes], ...] = chance.choice(
        (
            (("authorization", "Bearer " + "x" * 2_000),),
            (("authorization", "Basic Og=="), ("authorization", "")),
            (("x-bin", chance.randbytes(500)),),
            (("x", "y" * 7_000),),
            (("x", "y" * 60_000),),
            tuple((f"x{number}", "y") for number in range(200)),
            (("grpc-status-details-bin", b"\xff"), ("groupcert-admitted", "1")),
        )
    )
    return [call("metadata", name, *VALID[name](chance, answers), metadata=metadata)]


def _unknown_and_nested(chance: random.Random, answers: Answers) -> list[Call]:
    method = chance.choice(methods())
    messages = VALID[method.name](chance, answers) if method.name in VALID else []
    base = b"".join(each.SerializeToString() for each in messages)
    payload = chance.choice((add_unknown, nest_groups))(base, chance)
    if why_left_out(method, payload):
        return []
    return [Call("unknown fields and groups", method, [payload], timeout_s=1.0)]


def _copies(chance: random.Random, answers: Answers) -> list[Call]:
    copy_id = str(answers.newest("copy_id") or "x")
    paths = ("", "../m1.toml", "/etc/passwd", "\0", str(answers.newest("file")), "CURRENT")
    reading = ReadCopyRequest(
        copy_id=copy_id, file=chance.choice(paths), offset=chance.choice(HUGE)
    )
    return [
        call("copies", "RecoveryService/OpenCopy", OpenCopyRequest(asker="x" * 5_000)),
        call("copies", "RecoveryService/ReadCopy", reading, timeout_s=1.0),
    ]


def _many_streams(chance: random.Random, answers: Answers) -> list[Call]:
    name = chance.choice(
        ("StoreService/HoldSession", "GroupService/WatchStatus", "BinaryLogService/Subscribe",
         "StoreService/CommitStream", "SessionService/Session", "Health/Watch")
    )  # fmt: skip
    messages = VALID[name](chance, answers) if name in VALID else [method_named(name).request()]
    return [call("many open streams", name, *messages, half_closes=False, timeout_s=2.0)] * 300


CASES: Sequence[Case] = (
    Case("numbers of 64 bits", _huge_numbers, 30),
    Case("ids", _ids),
    Case("sets of GTIDs with gaps", _gtid_sets),
    Case("own GTIDs", _own_gtids),
    Case("10,000 empty transactions", _many_transactions, 1),
    Case("the largest write sets", _large_write_sets, 1),
    Case("many requests in a message", _many_requests, 2),
    Case("keys", _keys),
    Case("parts in disorder", _strange_parts),
    Case("impatient clients", _impatient, 20),
    Case("streams left open", _half_open),
    Case("metadata", _metadata),
    Case("unknown fields and groups", _unknown_and_nested, 20),
    Case("copies", _copies, 2),
    Case("many open streams", _many_streams, 1),
)


def chosen_calls(chance: random.Random, answers: Answers) -> list[Call]:
    """Returns the calls of one case, drawn by its weight; they are made side by side."""
    (case,) = chance.choices(CASES, [each.weight for each in CASES])
    return case.build(chance, answers)
