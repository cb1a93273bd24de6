"""What a member does not take is refused with value and limit, and never reaches the log."""

import pytest

from groupcert import CertifiableTransaction, Client, certifiable
from groupcert.certifier.errors import (
    GroupcertError,
    InvalidGtid,
    InvalidGtidSet,
    InvalidWriteSet,
    TransactionTooLarge,
    WriteSetTooLarge,
)
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, Changes
from tests.integration.conftest import SETTINGS
from tests.integration.test_service import (
    FOREIGN_UUID,
    decided,
    new_item,
    put,
    read,
    version_of,
)

ITEMS_MAX = int(str(SETTINGS["write_set_items_max"]))
BYTES_MAX = int(str(SETTINGS["transaction_bytes_max"]))
BAD_TRANSACTIONS: list[tuple[CertifiableTransaction, type[GroupcertError], str]] = [
    (
        certifiable(snapshot=1, write_set=range(1, ITEMS_MAX + 2)),
        WriteSetTooLarge,
        f"write set of {ITEMS_MAX + 1} items, the limit is {ITEMS_MAX}: split",
    ),
    (
        certifiable(snapshot=1, write_set=[1], read_set=range(1, ITEMS_MAX + 2)),
        WriteSetTooLarge,
        f"the limit is {ITEMS_MAX}",
    ),
    (
        CertifiableTransaction(
            write_set=[1],
            changes=Changes(put_keys=[b"k"], put_values=[bytes(BYTES_MAX)]).SerializeToString(),
        ),
        TransactionTooLarge,
        rf"transaction of \d+ bytes, the limit is {BYTES_MAX}: split",
    ),
    (
        certifiable(snapshot=1, write_set=[1], transaction_id=bytes(33)),
        InvalidWriteSet,
        "expected a transaction_id of at most 32 bytes",
    ),
    (
        CertifiableTransaction(write_set=[1], changes=b"\xff\xff"),
        InvalidWriteSet,
        r"found 'ffff', expected changes that are a serialized groupcert\.v1\.Changes",
    ),
    (
        CertifiableTransaction(write_set=[1], changes=Changes(put_keys=[b"k"]).SerializeToString()),
        InvalidWriteSet,
        "found '1 put_keys and 0 put_values', expected one value for each key",
    ),
    (certifiable(snapshot="nonsense", write_set=[1]), InvalidGtidSet, "found 'nonsense'"),
    (
        certifiable(snapshot=f"{FOREIGN_UUID}:5-1", write_set=[1]),
        InvalidGtidSet,
        "found '5-1'",
    ),
    (certifiable(snapshot=1, write_set=[1], gtid="x:1"), InvalidGtid, "invalid GTID 'x"),
    (
        certifiable(snapshot=1, write_set=[f"shop/{number}" for number in range(ITEMS_MAX + 1)]),
        WriteSetTooLarge,
        f"write set of {ITEMS_MAX + 1} items",
    ),
]


@pytest.mark.parametrize(
    ("transaction", "kind", "message"),
    BAD_TRANSACTIONS,
    ids=[f"{kind.__name__}-{n}" for n, (_, kind, _) in enumerate(BAD_TRANSACTIONS)],
)
def test_a_bad_transaction_is_refused_by_call_and_stream_with_value_and_limit(
    clients: list[Client],
    transaction: CertifiableTransaction,
    kind: type[GroupcertError],
    message: str,
) -> None:
    before = decided(clients)
    with pytest.raises(kind, match=message):
        clients[0].certify(transaction)
    with pytest.raises(kind, match=message):
        list(clients[0].certify_stream([[transaction]]))
    assert decided(clients) == before


def test_answers_of_a_stream_come_before_the_error_that_ends_it(clients: list[Client]) -> None:
    good = certifiable(snapshot=version_of(clients), write_set=[new_item()])
    bad, _, message = BAD_TRANSACTIONS[0]
    # Nothing is sent behind the bad one: where a message meets the end of its call, gRPC tells of
    # that in place of the error that the member sent.
    answers = clients[0].certify_stream([[good], [bad]])
    number, outcome = next(answers)
    assert (number, outcome.verdict) == (0, VERDICT_CERTIFIED)
    with pytest.raises(WriteSetTooLarge, match=message):
        next(answers)


def test_a_commit_over_the_limit_tells_it(clients: list[Client]) -> None:
    with pytest.raises(TransactionTooLarge, match=f"the limit is {BYTES_MAX}"):
        put(clients[0], b"large", bytes(BYTES_MAX))
    assert read(clients[0], b"large") is None
