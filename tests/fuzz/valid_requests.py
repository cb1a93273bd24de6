"""Requests as a sane client sends them, with ids that are alive: what mutations begin with."""

import random
from collections.abc import Callable, Mapping

from google.protobuf.message import Message

from groupcert.v1.binary_log_pb2 import ListFilesRequest, PurgeRequest, SubscribeRequest
from groupcert.v1.certification_pb2 import CertifyRequest, CertifyStreamRequest, GetOutcomeRequest
from groupcert.v1.group_pb2 import ReadHistoryRequest, WatchStatusRequest
from groupcert.v1.recovery_pb2 import CloseCopyRequest, OpenCopyRequest, ReadCopyRequest
from groupcert.v1.session_pb2 import SessionCall, SessionRequest
from groupcert.v1.store_pb2 import (
    CloseSnapshotRequest,
    CommitHeader,
    CommitPart,
    CommitRequest,
    CommitStreamRequest,
    GetRequest,
    OpenSnapshotRequest,
    ScanRequest,
)
from groupcert.v1.transaction_pb2 import Changes, Transaction
from tests.fuzz.values import Answers, rows_changed

Builder = Callable[[random.Random, Answers], list[Message]]


def row_changes(chance: random.Random, rows: int = 2, value_bytes: int = 20) -> Changes:
    """Returns changes of a few rows that are the fuzzer's."""
    keys = list({rows_changed(chance) for _ in range(rows)})
    return Changes(put_keys=keys, put_values=[chance.randbytes(value_bytes) for _ in keys])


def commit(chance: random.Random, answers: Answers) -> CommitRequest:
    """Returns a commit on the newest state that is known."""
    return CommitRequest(
        transaction_id=chance.randbytes(16),
        snapshot_version=answers.latest("version"),
        changes=row_changes(chance),
        read_keys=[rows_changed(chance)],
    )


def transaction(chance: random.Random, answers: Answers) -> Transaction:
    """Returns a transaction of a store of the caller's own."""
    return Transaction(
        transaction_id=chance.randbytes(16),
        snapshot_version=answers.latest("version"),
        write_set=[chance.getrandbits(64) for _ in range(3)],
        read_set=[chance.getrandbits(64)],
        write_set_keys=["fuzz/key"],
    )


def commit_stream(chance: random.Random, answers: Answers) -> list[Message]:
    """Returns a large commit, or a large transaction of a store of the caller's own, in parts."""
    parts = [
        row_changes(chance, rows=3, value_bytes=100_000).SerializeToString()
        for _ in range(chance.randrange(1, 4))
    ]
    header = CommitRequest(
        transaction_id=chance.randbytes(16), snapshot_version=answers.latest("version")
    )
    announced = CommitHeader(changes_bytes=sum(map(len, parts)))
    if chance.random() < 0.5:
        announced.commit.CopyFrom(header)
    else:
        announced.transaction.CopyFrom(transaction(chance, answers))
    items = [chance.getrandbits(64)] if chance.random() < 0.5 else []
    rows = [CommitStreamRequest(rows=CommitPart(changes=each, write_set=items)) for each in parts]
    return [CommitStreamRequest(header=announced), *rows]


def session(chance: random.Random, answers: Answers) -> list[Message]:
    """Returns messages of a session stream with calls of every kind."""
    number = 0
    messages: list[Message] = []
    for _ in range(chance.randrange(1, 4)):
        requests = []
        for field in SessionCall.DESCRIPTOR.oneofs_by_name["call"].fields:
            number += 1
            name = f"{_SERVICES[field.name]}/{_camel(field.name)}"
            (made,) = VALID[name](chance, answers)
            request = SessionCall(number=number)
            getattr(request, field.name).CopyFrom(made)
            requests.append(request)
        cancelled = [number] if chance.random() < 0.2 else []
        messages.append(SessionRequest(calls=requests, cancelled=cancelled))
    return messages


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


_SERVICES = {
    "certify": "CertificationService",
    "get_outcome": "CertificationService",
    **dict.fromkeys(("open_snapshot", "close_snapshot", "get", "scan", "commit"), "StoreService"),
}

VALID: Mapping[str, Builder] = {
    "StoreService/OpenSnapshot": lambda chance, answers: [
        OpenSnapshotRequest(
            consistency=chance.randrange(5),  # type: ignore[arg-type]  # one of the enum
            session_id=chance.choice((0, 0, answers.latest("session_id"))),
        )
    ],
    "StoreService/CloseSnapshot": lambda chance, answers: [
        CloseSnapshotRequest(snapshot_id=answers.latest("snapshot_id"))
    ],
    "StoreService/Get": lambda chance, answers: [
        GetRequest(snapshot_id=answers.latest("snapshot_id"), keys=[rows_changed(chance)] * 3)
    ],
    "StoreService/Scan": lambda chance, answers: [
        ScanRequest(
            snapshot_id=answers.latest("snapshot_id"),
            start_key=b"fuzz/",
            end_key=b"fuzz0",
            rows_max=chance.choice((0, 1, 100)),
        )
    ],
    "StoreService/Commit": lambda chance, answers: [commit(chance, answers)],
    "StoreService/CommitStream": commit_stream,
    "CertificationService/Certify": lambda chance, answers: [
        CertifyRequest(transaction=transaction(chance, answers))
    ],
    "CertificationService/CertifyStream": lambda chance, answers: [
        CertifyStreamRequest(transactions=[transaction(chance, answers) for _ in range(5)])
        for _ in range(2)
    ],
    "CertificationService/GetOutcome": lambda chance, answers: [
        GetOutcomeRequest(transaction_id=chance.randbytes(16))
    ],
    "SessionService/Session": session,
    "BinaryLogService/Subscribe": lambda chance, answers: [
        SubscribeRequest(replica="fuzz", events_max=chance.choice((0, 1, 10)))
    ],
    "BinaryLogService/ListFiles": lambda chance, answers: [ListFilesRequest()],
    "BinaryLogService/Purge": lambda chance, answers: [
        PurgeRequest(to_file=answers.latest("number"))
    ],
    "GroupService/ReadHistory": lambda chance, answers: [
        ReadHistoryRequest(after_version=answers.latest("version"))
    ],
    "GroupService/WatchStatus": lambda chance, answers: [
        WatchStatusRequest(period_ms=chance.choice((0, 1, 100)))
    ],
    "RecoveryService/OpenCopy": lambda chance, answers: [OpenCopyRequest(asker="fuzz")],
    "RecoveryService/ReadCopy": lambda chance, answers: [ReadCopyRequest(copy_id=_id(answers))],
    "RecoveryService/CloseCopy": lambda chance, answers: [CloseCopyRequest(copy_id=_id(answers))],
}
"""Of each rpc that mutations are sent of; those of others begin with a random message."""


def _id(answers: Answers) -> str:
    return str(answers.newest("copy_id") or "")
