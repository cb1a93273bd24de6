"""Wire messages and plain values: round trips, limits, and what comes from outside malformed."""

import re
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from groupcert.certifier.errors import (
    InvalidGtidSet,
    InvalidRequest,
    TransactionTooLarge,
)
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.outcomes import TRANSACTION_ID_BYTES_MAX
from groupcert.certifier.position import position_of
from groupcert.certifier.records import Conflict, Outcome, Verdict
from groupcert.certifier.write_set import item_from_text, store_key_item, store_key_items
from groupcert.internal.v1 import log_pb2
from groupcert.members.core.log_records import (
    COLUMNS_MIN,
    CONTROL_BYTES_MAX,
    FIELDS_MAX,
    FRAMING_BYTES,
    GTID_SETS_BYTES_MAX,
    TRANSACTIONS_MAX,
    Appointment,
    Comparison,
    Forgetting,
    LogBatch,
    LoggedTransaction,
    MemberReport,
    PlainColumns,
    Skip,
    Unreadable,
    ViewProposal,
    bytes_of,
)
from groupcert.members.core.record_kinds import KIND_OF
from groupcert.members.core.views import FORMAT_FIRST, FORMAT_VERSION, ViewMember
from groupcert.members.wire import log_batches
from groupcert.members.wire.log_batches import (
    LINGERING_BYTES_MAX,
    RELEASE_CHARACTERS_MAX,
    decode_batch,
    encode_batch,
    is_urgent,
    skips_in,
)
from groupcert.members.wire.requests import (
    RequestLimits,
    conflict_message,
    outcome_message,
    submitted,
    submitted_commit,
)
from groupcert.members.wire.row_changes import (
    decode_changes,
    encode_changes,
)
from groupcert.v1 import store_pb2, transaction_pb2
from tests.datadriven import Command, run_script
from tests.members.state_machines import SETTINGS, run_of

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
        unsigned,
        st.lists(runs, max_size=4).map(tuple),
        st.integers(0, 2**32 - 1),
        unsigned,
    ).map(lambda a: ViewProposal(*a)),
    st.text().map(Forgetting),
    st.tuples(unsigned, unsigned, unsigned, st.binary(max_size=8)).map(lambda a: MemberReport(*a)),
    st.just(SETTINGS),
)


@given(
    st.lists(transactions, max_size=4), st.lists(controls, max_size=3), st.integers(1, 2**64 - 1)
)
def test_a_batch_comes_back_from_its_bytes(
    logged: list[LoggedTransaction],
    control_records: list[ViewProposal | MemberReport | Forgetting],
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


PLAIN = [
    LoggedTransaction(b"id%d" % number, number, [number] * number, payload=encode_changes([], []))
    for number in range(COLUMNS_MIN)
]
"""As few transactions as go as columns; the first has no items."""


def test_many_plain_transactions_go_as_columns() -> None:
    found = read(LogBatch("m1", 7, 3, PLAIN))
    assert isinstance(found.transactions, PlainColumns)
    assert found.transactions == PLAIN
    assert found.transactions[1:] == PLAIN[1:]
    for other in (PLAIN[1:], [*PLAIN, PLAIN[0]._replace(read_set=[1])]):
        assert isinstance(read(LogBatch("m1", 7, 3, other)).transactions, list)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("plain_ids", [b"1"]),
        ("plain_ids", [b"1", b"2", b"3", bytes(TRANSACTION_ID_BYTES_MAX + 1)]),
        ("plain_changes", []),
        ("plain_changes", [b"", b"", b"", b"\xff"]),
        ("plain_snapshot_versions", bytes(8)),
        ("plain_snapshot_versions", bytes(31)),
        ("plain_write_set_sizes", bytes(16)),
        ("plain_write_set_sizes", b"\xff" * 16),
        ("plain_write_sets", bytes(8)),
        ("transactions", [log_pb2.LoggedTransaction()]),
    ],
)
def test_columns_that_no_member_has_written_are_no_batch(column: str, value: object) -> None:
    message = log_pb2.LogBatch.FromString(encode_batch(LogBatch("m1", 7, 3, PLAIN)))
    message.ClearField(column)  # type: ignore[arg-type]  # one of its fields
    message.MergeFrom(log_pb2.LogBatch(**{column: value}))  # type: ignore[arg-type]  # as above
    assert isinstance(decode_batch(message.SerializeToString()), Unreadable)


def a_batch(batch_number: int = 0) -> log_pb2.LogBatch:
    """A batch of the first format, with nothing in it."""
    return log_pb2.LogBatch(
        format_version=FORMAT_FIRST, member="m1", incarnation=7, batch_number=batch_number
    )


def test_batches_of_the_first_format_are_read() -> None:
    message = a_batch(batch_number=3)
    message.transactions.add(snapshot_version=4, write_set=[1, 2])
    found = decode_batch(message.SerializeToString())
    assert isinstance(found, LogBatch)
    assert found.transactions == [LoggedTransaction(b"", 4, [1, 2])]


def read(batch: LogBatch) -> LogBatch:
    """A batch as it comes back from the log, without the bytes."""
    found = decode_batch(encode_batch(batch))
    assert isinstance(found, LogBatch)
    assert found.encoded == encode_batch(batch)
    assert found.format_version == FORMAT_FIRST
    return found._replace(encoded=b"", format_version=0)


def test_a_view_says_what_its_members_have_announced() -> None:
    """Equality does not."""
    members = (
        ViewMember(name="m1", incarnation=7, address="a:1", format_version=2, release="1.0"),
        ViewMember(name="m2", incarnation=8, address="b:1", without_rows=True),
        ViewMember(name="m3", incarnation=9, address="c:1", format_version=3, release="x" * 99),
    )
    batch = read(LogBatch("m1", 7, 1, controls=[ViewProposal(1, members)]))
    (proposal,) = batch.controls
    assert isinstance(proposal, ViewProposal)
    found = [(each.format_version, each.release, each.without_rows) for each in proposal.members]
    assert found == [(2, "1.0", False), (0, "", True), (3, "x" * RELEASE_CHARACTERS_MAX, False)]


def test_a_member_takes_its_own_urgent_and_large_messages_at_once() -> None:
    own, others = 7, 8
    small = LoggedTransaction(b"", 0, [1], payload=b"row")
    awaited = small._replace(report_applied=True)
    large = small._replace(payload=bytes(LINGERING_BYTES_MAX))
    for transaction, expected in ((small, False), (awaited, True), (large, True)):
        message = encode_batch(LogBatch("m2", others, 1, [small, transaction]))
        assert is_urgent(message, own) is expected
        assert is_urgent(message, others)
    assert is_urgent(b"no batch", own)


def test_more_fields_than_a_message_may_have_are_not_looked_at() -> None:
    batch = a_batch()
    for _ in range(FIELDS_MAX - 2):
        batch.transactions.add()
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert found.problem == "it has more than 65536 fields"
    del batch.transactions[-1]
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert found.problem == "it has more than 4096 transactions"


@pytest.mark.parametrize("domain_id", [0, 1], ids=["columns", "records"])
def test_more_transactions_than_a_message_may_have_are_not_made(domain_id: int) -> None:
    """65,536 of them held the event loops of all members for a quarter of a second."""
    each = LoggedTransaction(b"t" * 16, 0, [7], b"", domain_id=domain_id)
    whole = decode_batch(encode_batch(LogBatch("m1", 7, 1, [each] * TRANSACTIONS_MAX)))
    assert isinstance(whole, LogBatch)
    assert len(whole.transactions) == TRANSACTIONS_MAX
    found = decode_batch(encode_batch(LogBatch("m1", 7, 1, [each] * (TRANSACTIONS_MAX + 1))))
    assert isinstance(found, Unreadable)
    assert found.problem == "it has more than 4096 transactions"


def test_gtid_sets_that_no_members_let_into_a_message_are_not_read() -> None:
    """Whoever may write to the log held all members for more than a second by one of 8 MiB."""
    source = "0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f"
    text = f"{source}:{':'.join(map(str, range(1, 400_000, 2)))}"
    batch = a_batch()
    batch.transactions.add(snapshot_gtid_set=text[: GTID_SETS_BYTES_MAX + 1])
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert "expected GTID sets of at most 1310720 bytes in a message" in found.problem
    batch.transactions[0].snapshot_gtid_set = text[: GTID_SETS_BYTES_MAX - 9].rpartition(":")[0]
    assert isinstance(decode_batch(batch.SerializeToString()), LogBatch)


def test_control_records_of_too_many_bytes_are_not_looked_at() -> None:
    """A view of empty members takes fifty times as much in memory as in the log."""
    batch = a_batch()
    for _ in range(2):
        view = batch.controls.add().view_proposal
        view.members.extend([log_pb2.Member()] * (CONTROL_BYTES_MAX // 4))
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert found.problem == "it has more than 131072 bytes of control records"
    del batch.controls[1]
    batch.fragments.add(data=bytes(CONTROL_BYTES_MAX))
    assert isinstance(decode_batch(batch.SerializeToString()), LogBatch)


@pytest.mark.parametrize("sends_a_known_one", [False, True])
def test_a_record_of_an_unknown_kind_makes_a_message_unreadable(sends_a_known_one: bool) -> None:
    """Also one that stands behind a record which this release knows: all or nothing counts."""
    known = (Appointment("m2"),) if sends_a_known_one else ()
    batch = log_pb2.LogBatch.FromString(encode_batch(LogBatch("m1", 7, 3, (), known)))
    batch.controls.append(log_pb2.ControlRecord.FromString(b"\x7a\x02hi"))
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert found.problem == "it has a record of kind 15, which this release does not know"
    assert found[1:5] == ("m1", 7, 3, 0)


def test_a_record_that_is_empty_is_of_no_kind() -> None:
    batch = a_batch(batch_number=3)
    batch.controls.add()
    found = decode_batch(batch.SerializeToString())
    assert isinstance(found, Unreadable)
    assert "kind 0" in found.problem


def test_a_record_of_a_later_format_than_its_message_makes_it_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who does not know the record skips the message, and so must who does."""
    kind = KIND_OF[Skip]._replace(since_format=FORMAT_FIRST + 1)
    encoded = encode_batch(LogBatch("m1", 7, 3, (), (Skip(2),)))
    monkeypatch.setitem(log_batches._KIND_IN, "skip", kind)
    found = decode_batch(encoded)
    assert isinstance(found, Unreadable)
    assert found.problem == "it has format 2, and a skip of format 3"


def test_a_record_is_not_sent_in_a_format_that_has_none_of_its_kind() -> None:
    """All members would skip the message, with the transactions in it."""
    batch = LogBatch("m1", 7, 3, (), (Comparison(1),))
    since = KIND_OF[Comparison].since_format
    assert encode_batch(batch, since)
    with pytest.raises(AssertionError):
        encode_batch(batch, since - 1)


def test_of_a_batch_of_another_format_the_head_is_read() -> None:
    head = log_pb2.LogBatchHead(
        format_version=FORMAT_VERSION + 1, member="m1", incarnation=7, batch_number=3
    )
    other_fields = b"\x2a\x01\xff"  # Field 5 has something there that is no message.
    with pytest.raises(DecodeError):
        log_pb2.LogBatch.FromString(head.SerializeToString() + other_fields)
    found = decode_batch(head.SerializeToString() + other_fields)
    assert isinstance(found, Unreadable)
    later = FORMAT_VERSION + 1
    problem = f"it has format {later}, this release reads {FORMAT_FIRST} to {FORMAT_VERSION}"
    assert found[:5] == (problem, "m1", 7, 3, later)


def test_the_messages_to_skip_are_found_among_all_others() -> None:
    skip = encode_batch(LogBatch("m1", 7, 1, controls=[Skip(9), Appointment("m1"), Skip(4)]))
    assert [skips_in(each) for each in (skip, b"\xff", b"")] == [[9, 4], [], []]


def test_a_report_tells_how_far_the_log_is_written() -> None:
    report = MemberReport(3, 2, 1, b"digest", 1, 2**60, b"\xffchain")
    assert read(LogBatch("m1", 7, 1, controls=[report])).controls == [report]


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
    message = outcome_message(b"id", Outcome(Verdict.CONFLICT, conflict=CONFLICT), 6, b"row")
    assert message.conflict == conflict_message(CONFLICT, b"row")
    assert message.conflict == transaction_pb2.Conflict(
        item=7,
        key="row",
        key_bytes=b"row",
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
    assert on_the_wire.pop("VERDICT_UNKNOWN") > max(Verdict), "no decision: a client's answer"
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


KEYS = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=4)


@st.composite
def sent(draw: st.DrawFn) -> transaction_pb2.Transaction:
    """Draws transactions that are plain, or nearly so."""
    keys = draw(KEYS)
    changes = transaction_pb2.Changes(put_keys=keys, put_values=keys)
    match draw(st.integers(0, 9)):
        case 0:
            changes.put_values.append(b"more")
        case 1:
            changes.delete_keys.append(b"d")
        case 2:
            changes.put_keys[:] = draw(KEYS)
            changes.put_values[:] = changes.put_keys
    payload = changes.SerializeToString()
    return transaction_pb2.Transaction(
        transaction_id=bytes(draw(st.sampled_from([0, 16, TRANSACTION_ID_BYTES_MAX + 1]))),
        snapshot_version=draw(st.sampled_from([7, 2**63 - 1, 2**63])),
        write_set=store_key_items(keys),
        changes=draw(st.sampled_from([payload, payload, b"", payload[:-1]])),
        report_applied=draw(st.booleans()),
    )


@settings(max_examples=300)
@given(message=sent(), items_max=st.sampled_from([1, 4]), bytes_max=st.sampled_from([210, 300]))
def test_a_plain_transaction_is_taken_as_one_that_is_looked_at_in_parts(
    message: transaction_pb2.Transaction, items_max: int, bytes_max: int
) -> None:
    def taken(limits: RequestLimits) -> LoggedTransaction | str:
        try:
            return submitted(message, limits)._replace(read_set=())
        except InvalidRequest as error:
            return str(error)

    limits = RequestLimits(items_max, bytes_max)
    # Where tables are reserved, each transaction is looked at in parts.
    assert taken(limits) == taken(limits._replace(postgresql_tables=("another.*",)))


SCRIPT = Path(__file__).parents[2] / "testdata" / "requests.txt"


def drawn(logged: LoggedTransaction) -> str:
    """Returns a transaction as the script draws it: what is not as usual; items of rows by key."""
    keys = {store_key_item(key): key.decode() for key in (b"a", b"b", b"c", b"d", b"x")}
    keys[item_from_text("readable")] = "readable"
    usual = LoggedTransaction(b"", 0, [])._asdict() | {"payload": b""}
    values = logged._asdict()
    for name in ("write_set", "read_set"):
        values[name] = [keys.get(item, item) for item in values[name]]
    values["payload"] = decode_changes(logged.payload) if logged.payload else b""
    words = [f"{name}={value}" for name, value in values.items() if value and value != usual[name]]
    return " ".join(words) or "nothing"


def handled(command: Command) -> str:
    """Returns what becomes of a request or a message, which is the body as text.

    certify | commit [items=] [snapshot=] [alter] [tables=]: a client's; `alter`: its session may
    set domains; `tables`: it may not write their rows.
    decode [bytes=<hexadecimal>]: of the log.
    """
    values, text = command.arguments, "\n".join(command.body)
    sessions = ("alter",) if "alter" in values else ()
    limits = LIMITS._replace(
        write_set_items_max=int(values.get("items", 3)),
        domain_sessions=sessions,
        postgresql_tables=tuple(filter(None, values.get("tables", "").split(","))),
        caller="shop",
    )
    try:
        if command.name == "certify":
            message = text_format.Parse(text, transaction_pb2.Transaction())
            return drawn(submitted(message, limits))
        if command.name == "commit":
            request = text_format.Parse(text, store_pb2.CommitRequest())
            snapshot = int(values.get("snapshot", 0))
            return drawn(submitted_commit(request, snapshot, limits, report=True))
    except InvalidRequest as error:
        return f"{type(error).__name__}: {error}"
    batch = text_format.Parse(text, log_pb2.LogBatch())
    payload = bytes.fromhex(values["bytes"]) if "bytes" in values else batch.SerializeToString()
    found = decode_batch(payload)
    assert found.encoded == payload
    if isinstance(found, LogBatch):
        return "\n".join(map(str, found.controls)) or "no records"
    head = f"{found.member} {found.incarnation} {found.batch_number} format {found.format_version}"
    problem = re.sub(r"(it is no batch) \(Error parsing message.*", r"\1", found.problem)
    return f"unreadable, of {head}: {problem}"


def test_the_script_gives_its_answers(rewrite: bool) -> None:
    run_script(SCRIPT, dict.fromkeys(("certify", "commit", "decode"), handled), rewrite=rewrite)
