"""Wire messages and plain values: round trips, limits, and what comes from outside malformed."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certifier.errors import (
    CorruptRecord,
    DomainNotAllowed,
    InvalidGtid,
    InvalidGtidSet,
    InvalidWriteSet,
    TransactionTooLarge,
    UnsupportedFormat,
    WriteSetTooLarge,
)
from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet
from certifier.records import Conflict, Outcome, Verdict, position_of
from certifier.write_set import item_from_text, store_key_item
from groupcert.v1 import log_pb2, store_pb2, transaction_pb2
from members.convert import (
    TRANSACTION_ID_BYTES_MAX,
    RequestLimits,
    changed_items,
    check_changes,
    conflict_message,
    decode_batch,
    decode_changes,
    encode_batch,
    outcome_message,
    submitted,
    submitted_commit,
)
from members.log_records import (
    FRAMING_BYTES,
    LogBatch,
    LoggedTransaction,
    StableReport,
    ViewProposal,
    bytes_of,
)
from tests.members.minds import SETTINGS, run_of

SOURCE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
LIMITS = RequestLimits(write_set_items_max=3, transaction_bytes_max=1_000)
CONFLICT = Conflict(
    item=7,
    winner_version=3,
    winner_gtid=Gtid(SOURCE, 3),
    winner_origin="m2",
    winner_position=position_of(5, 1),
    snapshot_version=2,
    position=position_of(6, 4),
)

unsigned = st.integers(0, 2**64 - 1)
gtids = st.builds(lambda number: Gtid(SOURCE, number), st.integers(1, 2**40))
snapshots = st.integers(0, 2**63) | st.lists(gtids, min_size=1).map(lambda each: GtidSet.of(*each))
transactions = st.tuples(
    st.binary(max_size=TRANSACTION_ID_BYTES_MAX),
    snapshots,
    st.lists(unsigned, max_size=5),
    st.lists(unsigned, min_size=1, max_size=5) | st.just(()),
    gtids | st.none(),
    st.binary(max_size=20),
    st.booleans(),
    st.integers(0, 2**32 - 1),
).map(lambda fields: LoggedTransaction(*fields))
runs = st.builds(run_of, st.integers(1, 5), st.integers(0, 10**6))
controls = st.one_of(
    st.tuples(unsigned, st.lists(runs, max_size=4).map(tuple)).map(lambda a: ViewProposal(*a)),
    st.tuples(unsigned, unsigned, unsigned, st.binary(max_size=8)).map(lambda a: StableReport(*a)),
    st.just(SETTINGS),
)


@given(st.lists(transactions, max_size=4), st.lists(controls, max_size=3), unsigned)
def test_a_batch_comes_back_from_its_bytes(
    logged: list[LoggedTransaction],
    control_records: list[ViewProposal | StableReport],
    incarnation: int,
) -> None:
    batch = LogBatch("m1", incarnation, 3, logged, control_records or ())
    assert decode_batch(9, encode_batch(batch)) == batch


@given(transactions)
def test_a_transaction_takes_no_more_bytes_than_it_is_counted_for(
    logged: LoggedTransaction,
) -> None:
    empty = len(encode_batch(LogBatch("m1", 1, 1)))
    assert len(encode_batch(LogBatch("m1", 1, 1, [logged]))) - empty <= bytes_of(logged)


def test_bytes_that_are_no_batch_are_corrupt_and_say_where() -> None:
    with pytest.raises(CorruptRecord) as raised:
        decode_batch(9, b"\xff\xff")
    assert raised.value.position == position_of(9, 0)


@pytest.mark.parametrize(
    "message",
    [
        transaction_pb2.Transaction(gtid="nonsense"),
        transaction_pb2.Transaction(snapshot_gtid_set="nonsense"),
    ],
)
def test_a_malformed_gtid_in_the_log_is_corrupt(message: transaction_pb2.Transaction) -> None:
    batch = log_pb2.LogBatch(format_version=1, transactions=[message])
    with pytest.raises(CorruptRecord, match="nonsense"):
        decode_batch(9, batch.SerializeToString())


def test_a_batch_of_another_format_is_not_read() -> None:
    with pytest.raises(UnsupportedFormat) as raised:
        decode_batch(9, log_pb2.LogBatch(format_version=2).SerializeToString())
    assert str(raised.value).startswith("log message 9 has format 2, this release reads 1")


def test_a_report_of_an_earlier_release_tells_of_no_log() -> None:
    stable_set = log_pb2.StableSet(applied_version=3, stable_version=2, digest=b"digest")
    control = log_pb2.ControlRecord(stable_set=stable_set)
    batch = log_pb2.LogBatch(format_version=1, controls=[control])
    (report,) = decode_batch(9, batch.SerializeToString()).controls
    assert report == StableReport(3, 2, 0, b"digest", 0, 0, b"")


def test_a_report_tells_how_far_the_log_is_written() -> None:
    report = StableReport(3, 2, 1, b"digest", 1, 2**60, b"\xffchain")
    payload = encode_batch(LogBatch("m1", 7, 1, controls=[report]))
    assert decode_batch(9, payload).controls == [report]


def test_readable_keys_join_the_write_set_once() -> None:
    item = item_from_text("shop.orders/PRIMARY/42")
    message = transaction_pb2.Transaction(
        write_set=[item, 5], write_set_keys=["shop.orders/PRIMARY/42", "other"]
    )
    assert submitted(message, LIMITS).write_set == [item, 5, item_from_text("other")]


def test_a_transaction_is_taken_with_all_that_it_brings() -> None:
    message = transaction_pb2.Transaction(
        transaction_id=b"id",
        snapshot_gtid_set=f"{SOURCE}:1-5",
        write_set=[1],
        read_set=[2],
        gtid=f"{SOURCE}:9",
        report_applied=True,
    )
    snapshot = GtidSet.parse(f"{SOURCE}:1-5")
    expected = LoggedTransaction(b"id", snapshot, [1], [2], Gtid(SOURCE, 9), b"", True)
    assert submitted(message, LIMITS) == expected


@pytest.mark.parametrize("which", ["write_set", "read_set"])
def test_a_set_over_the_limit_is_refused_with_both_numbers(which: str) -> None:
    message = transaction_pb2.Transaction()
    getattr(message, which).extend(range(4))
    with pytest.raises(WriteSetTooLarge) as raised:
        submitted(message, LIMITS)
    assert (raised.value.items, raised.value.items_max) == (4, 3)


CHANGES = transaction_pb2.Changes(delete_keys=[b"x" * 1_000]).SerializeToString()
GTID_SET = f"{SOURCE}:1:3:5:7:9"


@pytest.mark.parametrize(
    ("message", "content_bytes"),
    [
        (transaction_pb2.Transaction(changes=CHANGES), len(CHANGES)),
        (transaction_pb2.Transaction(snapshot_gtid_set=GTID_SET), len(GTID_SET)),
        (transaction_pb2.Transaction(write_set=[1, 2], read_set=[3]), 24),
    ],
)
def test_a_transaction_over_the_byte_limit_is_refused_with_both_numbers(
    message: transaction_pb2.Transaction, content_bytes: int
) -> None:
    size = FRAMING_BYTES + content_bytes
    submitted(message, LIMITS._replace(transaction_bytes_max=size))
    with pytest.raises(TransactionTooLarge) as raised:
        submitted(message, LIMITS._replace(transaction_bytes_max=size - 1))
    assert (raised.value.bytes, raised.value.bytes_max) == (size, size - 1)


def test_an_id_over_the_limit_is_refused_with_both() -> None:
    too_long = b"\xab" * (TRANSACTION_ID_BYTES_MAX + 1)
    commit = store_pb2.CommitRequest(transaction_id=too_long)
    with pytest.raises(InvalidWriteSet, match="abab") as raised:
        submitted(transaction_pb2.Transaction(transaction_id=too_long), LIMITS)
    assert raised.value.expected == "a transaction_id of at most 32 bytes"
    with pytest.raises(InvalidWriteSet, match="abab"):
        submitted_commit(commit, 0, LIMITS, report=False)


def test_a_snapshot_that_no_member_can_have_is_refused_with_the_limit() -> None:
    largest, over = 2**63 - 1, 2**63
    for version, wrong in ((largest, False), (over, True)):
        with pytest.raises(InvalidWriteSet) if wrong else nullcontext() as raised:
            submitted(transaction_pb2.Transaction(snapshot_version=version), LIMITS)
        with pytest.raises(InvalidWriteSet) if wrong else nullcontext():
            submitted_commit(store_pb2.CommitRequest(), version, LIMITS, report=False)
    assert raised and str(raised.value) == (
        f"invalid write set: found 'snapshot_version {over}', "
        f"expected at most {largest}: send a version that a member has told"
    )


def test_a_domain_is_taken_from_sessions_that_may_set_it() -> None:
    limits = LIMITS._replace(domain_sessions=("alter",))
    certify = transaction_pb2.Transaction(session="alter", gtid_domain_id=3)
    commit = store_pb2.CommitRequest(session="alter", gtid_domain_id=3)
    assert submitted(certify, limits).domain_id == 3
    assert submitted_commit(commit, 0, limits, report=False).domain_id == 3
    with pytest.raises(DomainNotAllowed, match="session 'alter' may not set gtid_domain_id 3"):
        submitted(certify, LIMITS)
    with pytest.raises(DomainNotAllowed):
        submitted_commit(commit, 0, LIMITS, report=False)
    nobody = transaction_pb2.Transaction(session="guest")
    assert submitted(nobody, LIMITS).domain_id == 0


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (transaction_pb2.Transaction(gtid="nonsense"), InvalidGtid),
        (transaction_pb2.Transaction(snapshot_gtid_set="nonsense"), InvalidGtidSet),
    ],
)
def test_a_malformed_gtid_is_the_callers(
    message: transaction_pb2.Transaction, error: type[Exception]
) -> None:
    with pytest.raises(error, match="nonsense"):
        submitted(message, LIMITS)


def test_row_changes_that_cannot_be_executed_are_never_ordered() -> None:
    uneven = transaction_pb2.Changes(put_keys=[b"a", b"b"], put_values=[b"1"])
    with pytest.raises(InvalidWriteSet, match="serialized"):
        submitted(transaction_pb2.Transaction(changes=b"\xff\xff"), LIMITS)
    with pytest.raises(InvalidWriteSet, match="2 put_keys and 1 put_values"):
        check_changes(uneven.SerializeToString())
    with pytest.raises(InvalidWriteSet, match="2 put_keys and 1 put_values"):
        submitted_commit(store_pb2.CommitRequest(changes=uneven), 0, LIMITS, report=False)


def test_a_commit_writes_the_items_of_its_changed_keys_once() -> None:
    changes = transaction_pb2.Changes(
        put_keys=[b"a", b"b"], put_values=[b"1", b"2"], delete_keys=[b"b", b"c"]
    )
    request = store_pb2.CommitRequest(
        transaction_id=b"id", changes=changes, read_keys=[b"d", b"d", b"a"]
    )
    logged = submitted_commit(request, 7, LIMITS, report=True)
    assert (
        logged.write_set == changed_items(changes) == list(map(store_key_item, (b"a", b"b", b"c")))
    )
    assert logged.read_set == list(map(store_key_item, (b"d", b"a")))
    assert (logged.snapshot, logged.report_applied) == (7, True)
    assert decode_changes(logged.payload) == ([b"a", b"b"], [b"1", b"2"], [b"b", b"c"])


def test_an_outcome_for_a_client_has_its_gtid_and_place() -> None:
    outcome = Outcome(Verdict.CERTIFIED, Gtid(SOURCE, 4), 3, 1, 2)
    message = outcome_message(b"id", outcome, 9)
    assert message == transaction_pb2.Outcome(
        transaction_id=b"id",
        verdict=transaction_pb2.VERDICT_CERTIFIED,
        gtid=f"{SOURCE}:4",
        version=3,
        log_sequence=9,
    )


def test_a_conflict_for_a_client_names_row_winner_and_places() -> None:
    message = outcome_message(b"id", Outcome(Verdict.CONFLICT, conflict=CONFLICT), 6, "row")
    assert message.conflict == conflict_message(CONFLICT, "row")
    assert message.conflict == transaction_pb2.Conflict(
        item=7,
        key="row",
        winner_gtid=f"{SOURCE}:3",
        winner_member="m2",
        winner_version=3,
        winner_log_sequence=5,
        snapshot_version=2,
        log_sequence=6,
    )
    assert message.log_index == 4


def test_a_snapshot_before_everything_is_version_0_for_a_client() -> None:
    assert conflict_message(CONFLICT._replace(snapshot_version=-1)).snapshot_version == 0


def test_a_refusal_for_a_client_has_its_reason() -> None:
    message = outcome_message(b"", Outcome(Verdict.REFUSED, reason="because"), 1)
    assert (message.verdict, message.reason) == (transaction_pb2.VERDICT_REFUSED, "because")


def test_verdicts_have_the_same_numbers_on_the_wire() -> None:
    on_the_wire = {name: int(number) for name, number in transaction_pb2.Verdict.items()}
    assert on_the_wire.pop("VERDICT_UNSPECIFIED") == 0
    assert on_the_wire == {f"VERDICT_{verdict.name}": int(verdict) for verdict in Verdict}
