"""A transaction as it is run: what goes out, what comes in, and what is recorded of it."""

import pytest

from groupcert import (
    CertificationConflict,
    MemberFailed,
    OutcomeUnknown,
    TransactionRefused,
    TransactionTooOld,
)
from groupcert.certifier.errors import NotServing, TransactionTooLarge
from tests.laboratory.group_clients import failed
from tests.laboratory.history import Outcome, Step, Workload
from tests.laboratory.transactions import (
    Begin,
    Commit,
    Decision,
    Found,
    Get,
    Opened,
    Plan,
    Put,
    Running,
    Start,
    transact,
)

CONFLICT = CertificationConflict(
    item=1,
    key="k",
    winner_gtid="u:1",
    winner_member="m2",
    winner_version=2,
    winner_log_sequence=3,
    snapshot_version=1,
    log_sequence=4,
)


def plan() -> Plan:
    """Reads two rows, writes one of them, and reads it again with a third."""
    found = yield Get((b"a", b"b"))
    yield Put(b"a", (found[b"a"] or b"") + b"!")
    yield Get((b"a", b"c"))
    yield Put(b"b", None)


def running(*, serializable: bool = False) -> Running:
    """The plan as a transaction of a session that has seen version 5."""
    start = Start(
        workload=Workload("append", serializable), process=1, index=2, version_min=5, latest=True
    )
    return transact(start, plan(), iter(range(100, 200, 10)).__next__)


def test_a_transaction_sends_what_its_plan_wants_and_records_what_it_saw() -> None:
    transaction = running(serializable=True)
    assert next(transaction) == Begin(5, True, True)
    assert transaction.send(Opened("m3", 7, b"id")) == Get([b"a", b"b"])
    assert transaction.send(Found({b"a": b"1", b"b": None})) == Get([b"c"]), "a is its own by now"
    commit = transaction.send(Found({b"c": b"3"}))
    assert commit == Commit({b"a": b"1!", b"b": None}, [b"a", b"b", b"c"])
    with pytest.raises(StopIteration) as ended:
        transaction.send(Decision(Outcome.COMMITTED, 8))
    operation = ended.value.value
    assert operation.steps == (
        Step(False, b"a", b"1"),
        Step(False, b"b", None),
        Step(True, b"a", b"1!"),
        Step(False, b"a", b"1!"),
        Step(False, b"c", b"3"),
        Step(True, b"b", None),
    )
    assert operation.external_reads() == {b"a": b"1", b"b": None, b"c": b"3"}
    assert (operation.member, operation.transaction_id) == ("m3", b"id")
    assert (operation.invoked_ms, operation.completed_ms) == (100, 110)
    assert (operation.snapshot_version, operation.version) == (7, 8)
    assert operation.outcome is Outcome.COMMITTED


def test_a_transaction_ends_where_a_request_cannot_be_met() -> None:
    gone = Decision(Outcome.UNAVAILABLE, cause="gone")
    for answers in ([], [Opened("m1", 1, b"id")]):
        transaction = running()
        next(transaction)
        for answer in answers:
            transaction.send(answer)
        with pytest.raises(StopIteration) as ended:
            transaction.send(gone)
        operation = ended.value.value
        assert (operation.outcome, operation.cause) == (Outcome.UNAVAILABLE, "gone")
        assert not operation.has_writes


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (CONFLICT, Outcome.CONFLICT),
        (TransactionTooOld(explanation=""), Outcome.TOO_OLD),
        (TransactionRefused(explanation=""), Outcome.REFUSED),
        (TransactionTooLarge(bytes=2, bytes_max=1), Outcome.REFUSED),
        (OutcomeUnknown(transaction_id=b"1", cause=""), Outcome.UNKNOWN),
        (NotServing(member="m1", state="LEFT"), Outcome.UNAVAILABLE),
        (MemberFailed(address="m1", code="INTERNAL", explanation=""), Outcome.UNKNOWN),
        (MemberFailed(address="m1", code="UNIMPLEMENTED", explanation=""), Outcome.UNAVAILABLE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_an_outcome_that_is_certain_is_called_one(
    failure: Exception, outcome: Outcome
) -> None:
    assert failed(failure, is_commit=True).outcome is outcome


def test_a_failed_read_has_committed_nothing() -> None:
    failure = MemberFailed(address="m1", code="INTERNAL", explanation="")
    assert failed(failure, is_commit=False).outcome is Outcome.UNAVAILABLE
