"""Wire messages and plain values: round trips, limits, and what comes from outside malformed."""

from contextlib import nullcontext

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from applier.fragments import FragmentSet
from certifier.errors import (
    DomainNotAllowed,
    InvalidGtid,
    InvalidGtidSet,
    InvalidWriteSet,
    TransactionTooLarge,
    WriteSetTooLarge,
)
from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet
from certifier.outcomes import TRANSACTION_ID_BYTES_MAX
from certifier.records import Conflict, Outcome, Verdict, position_of
from certifier.write_set import item_from_text, store_key_item
from groupcert.v1 import log_pb2, store_pb2, transaction_pb2
from members.convert import (
    RequestLimits,
    changed_items,
    checked_changes,
    conflict_message,
    decode_batch,
    decode_changes,
    encode_batch,
    encode_changes,
    outcome_message,
    skips_in,
    submitted,
    submitted_commit,
)
from members.log_records import (
    CONTROL_BYTES_MAX,
    FIELDS_MAX,
    FRAMING_BYTES,
    Appointment,
    Forgetting,
    LogBatch,
    LoggedTransaction,
    Skip,
    StableReport,
    Unreadable,
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
snapshots = st.integers(0, 2**63 - 1) | st.lists(gtids, min_size=1).map(
    lambda each: GtidSet.of(*each)
)
transactions = st.tuples(
    st.binary(max_size=TRANSACTION_ID_BYTES_MAX),
    snapshots,
    st.lists(unsigned, max_size=5),
    st.lists(unsigned, min_size=1, max_size=5) | st.just(()),
    gtids | st.none(),
    st.binary(max_size=20).map(lambda value: encode_changes([b"key"], [value])) | st.just(b""),
    st.booleans(),
    st.integers(0, 2**32 - 1),
).map(lambda fields: LoggedTransaction(*fields))
runs = st.builds(run_of, st.integers(1, 5), st.integers(0, 10**6))
controls = st.one_of(
    st.tuples(
        *(unsigned, st.lists(runs, max_size=4).map(tuple)),
        *(st.integers(0, 2**32 - 1), unsigned),
    ).map(lambda a: ViewProposal(*a)),
    st.text().map(Forgetting),
    st.tuples(unsigned, unsigned, unsigned, st.binary(max_size=8)).map(lambda a: StableReport(*a)),
    st.just(SETTINGS),
)


@given(
    st.lists(transactions, max_size=4), st.lists(controls, max_size=3), st.integers(1, 2**64 - 1)
)
def test_a_batch_comes_back_from_its_bytes(
    logged: list[LoggedTransaction],
    control_records: list[ViewProposal | StableReport | Forgetting],
    incarnation: int,
) -> None:
    batch = LogBatch("m1", incarnation, 3, logged, control_records or ())
    assert read(batch) == batch


@given(transactions)
def test_a_transaction_takes_no_more_bytes_than_it_is_counted_for(
    logged: LoggedTransaction,
) -> None:
    empty = len(encode_batch(LogBatch("m1", 1, 1)))
    assert len(encode_batch(LogBatch("m1", 1, 1, [logged]))) - empty <= bytes_of(logged)


def read(batch: LogBatch) -> LogBatch:
    """A batch as it comes back from the log, without the bytes."""
    found = decode_batch(encode_batch(batch))
    assert isinstance(found, LogBatch)
    assert found.encoded == encode_batch(batch)
    return found._replace(encoded=b"")


UNREADABLE = {
    "no message": (b"\xff\xff", "it is no batch (Error parsing message"),
    "no format": (log_pb2.LogBatch(member="m1"), "it has format 0, this release reads 1"),
    "no run": (log_pb2.LogBatch(format_version=1), "it names no run of a member"),
}
MALFORMED = {
    "a GTID": (transaction_pb2.Transaction(gtid="nonsense"), "invalid GTID 'nonsense'"),
    "a GTID set": (transaction_pb2.Transaction(snapshot_gtid_set="7"), "invalid GTID set '7'"),
    "an id": (transaction_pb2.Transaction(transaction_id=bytes(33)), "at most 32 bytes"),
    "changes": (transaction_pb2.Transaction(changes=b"\xff"), "a serialized groupcert.v1.Changes"),
    "a reference": (
        transaction_pb2.Transaction(changes=FragmentSet(1, 2, 3, 4, bytes(16)).reference()),
        "a serialized groupcert.v1.Changes",
    ),
    "pairs": (
        transaction_pb2.Transaction(
            changes=transaction_pb2.Changes(put_keys=[b"k"]).SerializeToString()
        ),
        "expected one value for each key",
    ),
    "a number": (
        transaction_pb2.Transaction(fragments=transaction_pb2.FragmentSet(number=2**63)),
        f"found 'large transaction {2**63}', expected a number of at most {2**63 - 1}",
    ),
    "a digest": (
        transaction_pb2.Transaction(fragments=transaction_pb2.FragmentSet(digest=bytes(17))),
        "a digest of fragments of 16 bytes",
    ),
}


@pytest.mark.parametrize(("message", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_batch_says_why(message: bytes | log_pb2.LogBatch, problem: str) -> None:
    payload = message if isinstance(message, bytes) else message.SerializeToString()
    found = decode_batch(payload)
    assert isinstance(found, Unreadable)
    assert found.problem.startswith(problem)
    assert (found.format_version, found.encoded) == (0, payload)


@pytest.mark.parametrize(("message", "problem"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_transaction_makes_its_batch_unreadable(
    message: transaction_pb2.Transaction, problem: str
) -> None:
    batch = log_pb2.LogBatch(
        format_version=1, member="m1", incarnation=7, batch_number=2, transactions=[message]
    )
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert problem in found.problem
    assert (found.member, found.incarnation, found.batch_number) == ("m1", 7, 2)
    assert found.format_version == 0, "it is of this format"


@pytest.mark.parametrize("kind", ["fragment", "abandonment"])
def test_a_number_that_no_large_transaction_has_makes_its_batch_unreadable(kind: str) -> None:
    batch = log_pb2.LogBatch(format_version=1, member="m1", incarnation=7)
    if kind == "fragment":
        batch.fragments.add(number=2**64 - 1)
    else:
        batch.controls.add().abandonment.number = 2**64 - 1
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert f"large transaction {2**64 - 1}" in found.problem


def test_more_fields_than_a_message_may_have_are_not_looked_at() -> None:
    batch = log_pb2.LogBatch(format_version=1, member="m1", incarnation=7)
    for _ in range(FIELDS_MAX - 2):
        batch.transactions.add()
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert found.problem == "it has more than 65536 fields"
    del batch.transactions[-1]
    whole = decode_batch(batch.SerializeToString())
    assert isinstance(whole, LogBatch)
    assert len(whole.transactions) == FIELDS_MAX - 3


def test_control_records_of_too_many_bytes_are_not_looked_at() -> None:
    """A view of empty members takes fifty times as much in memory as in the log."""
    batch = log_pb2.LogBatch(format_version=1, member="m1", incarnation=7)
    for _ in range(2):
        view = batch.controls.add().view_change
        view.members.extend([log_pb2.Member()] * (CONTROL_BYTES_MAX // 4))
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert found.problem == "it has more than 131072 bytes of control records"
    del batch.controls[1]
    batch.fragments.add(data=bytes(CONTROL_BYTES_MAX))
    assert isinstance(decode_batch(batch.SerializeToString()), LogBatch)


def test_of_a_batch_of_another_format_the_head_is_read() -> None:
    head = log_pb2.LogBatchHead(format_version=2, member="m1", incarnation=7, batch_number=3)
    other_fields = b"\x2a\x01\xff"  # Field 5 has something there that is no message.
    with pytest.raises(DecodeError):
        log_pb2.LogBatch.FromString(head.SerializeToString() + other_fields)
    found = decode_batch(head.SerializeToString() + other_fields)
    assert isinstance(found, Unreadable)
    assert found[:5] == ("it has format 2, this release reads 1", "m1", 7, 3, 2)


def test_the_messages_to_skip_are_found_among_all_others() -> None:
    skip = encode_batch(LogBatch("m1", 7, 1, controls=[Skip(9), Appointment("m1"), Skip(4)]))
    assert [skips_in(each) for each in (skip, b"\xff", b"")] == [[9, 4], [], []]


def test_a_report_of_an_earlier_release_tells_of_no_log() -> None:
    stable_set = log_pb2.StableSet(applied_version=3, stable_version=2, digest=b"digest")
    control = log_pb2.ControlRecord(stable_set=stable_set)
    batch = log_pb2.LogBatch(format_version=1, incarnation=7, controls=[control])
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, LogBatch)
    (report,) = found.controls
    assert report == StableReport(3, 2, 0, b"digest", 0, 0, b"")


def test_a_report_tells_how_far_the_log_is_written() -> None:
    report = StableReport(3, 2, 1, b"digest", 1, 2**60, b"\xffchain")
    assert read(LogBatch("m1", 7, 1, controls=[report])).controls == [report]


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
        (transaction_pb2.Transaction(changes=CHANGES), 8 + len(CHANGES)),
        (
            transaction_pb2.Transaction(snapshot_gtid_set=GTID_SET),
            GtidSet.parse(GTID_SET).text_bytes_max(),
        ),
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
        checked_changes(uneven.SerializeToString())
    with pytest.raises(InvalidWriteSet, match="2 put_keys and 1 put_values"):
        submitted_commit(store_pb2.CommitRequest(changes=uneven), 0, LIMITS, report=False)


def test_a_commit_writes_the_items_of_its_changed_keys_once() -> None:
    changes = transaction_pb2.Changes(
        put_keys=[b"a", b"b"], put_values=[b"1", b"2"], delete_keys=[b"b", b"c"]
    )
    request = store_pb2.CommitRequest(
        transaction_id=b"id", changes=changes, read_keys=[b"d", b"d", b"a"]
    )
    logged = submitted_commit(request, 7, LIMITS._replace(write_set_items_max=4), report=True)
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


def test_a_snapshot_that_is_too_long_is_refused_before_it_is_read() -> None:
    limit = 32_768
    numbers = ":".join(map(str, range(400_000, 0, -2)))
    message = transaction_pb2.Transaction(snapshot_gtid_set=f"{SOURCE}:{numbers}")
    with pytest.raises(InvalidGtidSet) as raised:
        submitted(message, LIMITS)
    size = len(message.snapshot_gtid_set)
    assert str(raised.value).endswith(
        f"({size} characters): found '{size} bytes', "
        f"expected at most {limit}: send snapshot_version, or a set with fewer gaps"
    )
    message.snapshot_gtid_set = message.snapshot_gtid_set[:limit]
    assert submitted(message, LIMITS._replace(transaction_bytes_max=1 << 20)).snapshot


EMPTY = [b""] * 4
TOO_MANY_ROWS = [
    transaction_pb2.Changes(put_keys=EMPTY, put_values=EMPTY),
    transaction_pb2.Changes(delete_keys=EMPTY),
    transaction_pb2.Changes(put_keys=EMPTY[:2], put_values=EMPTY[:2], delete_keys=EMPTY[:2]),
]


@pytest.mark.parametrize("changes", TOO_MANY_ROWS)
def test_rows_are_counted_before_anything_is_made_of_them(changes: transaction_pb2.Changes) -> None:
    """Four million keys that are the same one count as many, though they would be one item."""
    commit = store_pb2.CommitRequest(changes=changes)
    with pytest.raises(WriteSetTooLarge, match="write set of 4 items, the limit is 3"):
        submitted_commit(commit, 0, LIMITS, report=False)
    with pytest.raises(WriteSetTooLarge, match="write set of 4 items"):
        submitted(transaction_pb2.Transaction(changes=changes.SerializeToString()), LIMITS)
    with pytest.raises(WriteSetTooLarge):
        submitted_commit(store_pb2.CommitRequest(read_keys=EMPTY), 0, LIMITS, report=False)
    with pytest.raises(WriteSetTooLarge):
        submitted(transaction_pb2.Transaction(write_set_keys=[""] * 4), LIMITS)


def test_the_rows_that_a_transaction_changes_are_in_its_write_set_whatever_it_names() -> None:
    changes = transaction_pb2.Changes(put_keys=[b"a"], put_values=[b"1"], delete_keys=[b"b"])
    rows = [store_key_item(b"a"), store_key_item(b"b")]
    for named, expected in (([], rows), ([7], [7, *rows]), (rows[::-1], rows[::-1])):
        message = transaction_pb2.Transaction(write_set=named, changes=changes.SerializeToString())
        assert submitted(message, LIMITS).write_set == expected
    message = transaction_pb2.Transaction(write_set=[7, 8], changes=changes.SerializeToString())
    with pytest.raises(WriteSetTooLarge, match="write set of 4 items, the limit is 3"):
        submitted(message, LIMITS)
