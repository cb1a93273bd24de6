"""The publisher: every transaction counts once; tests/testdata/members has its rules."""

import weakref

from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.records import Outcome, Verdict
from groupcert.members.core.held_versions import HeldVersions
from groupcert.members.core.log_records import (
    LogBatch,
    LoggedTransaction,
    bytes_of,
)
from groupcert.members.core.publisher import BatchLimits, Publisher, Submission
from tests.members.state_machines import write

CERTIFIED = Outcome(verdict=Verdict.CERTIFIED, version=1)


def publisher(transactions_max: int = 3, window: int = 2) -> Publisher:
    """A publisher of member m1."""
    limits = BatchLimits(transactions_max=transactions_max, transactions_min=2, window=window)
    return Publisher("m1", 1, limits, HeldVersions(100))


def submission(*items: int) -> Submission:
    """A submission of one transaction an item."""
    return Submission([write(0, item) for item in items], lambda _: None)


def sent(source: Publisher) -> LogBatch:
    """The next batch, which must be there."""
    batch = source.next_batch()
    assert batch is not None
    return batch


def items_of(batch: LogBatch) -> list[int]:
    """The items that a batch's transactions write."""
    return [item for transaction in batch.transactions for item in transaction.write_set]


def test_bytes_cover_snapshot_sets_and_payloads() -> None:
    gtid_set = GtidSet.parse("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-5:7:9")
    plain = bytes_of(LoggedTransaction(b"", 0, [1]))
    assert bytes_of(LoggedTransaction(b"", 0, [1], [2], None, b"xxx")) == plain + 8 + 3
    assert bytes_of(LoggedTransaction(b"", gtid_set, [1])) >= plain + len(str(gtid_set))


def test_a_transaction_is_held_until_it_is_read_back() -> None:
    source = publisher(transactions_max=1)
    for transaction_id in (b"sent", b"waiting"):
        source.submit(Submission([write(0, 1, transaction_id=transaction_id)], lambda _: None))
    source.submit(submission())
    batch = sent(source)
    assert source.holds(b"sent")
    assert source.holds(b"waiting")
    assert not source.holds(b"other")
    source.read_back(batch.batch_number)
    assert not source.holds(b"sent")


def test_a_full_log_has_only_what_was_never_sent_withdrawn() -> None:
    """Of what was sent an attempt may have been taken; and half a submission is not given back."""
    source = publisher(transactions_max=2, window=1)
    whole, half, mark, waiting = submission(1), submission(2, 3), submission(), submission(4, 5)
    for each in (whole, half, mark, waiting):
        source.submit(each)
    batch = sent(source)
    assert items_of(batch) == [1, 2]
    assert source.note_log_full("no space") == [mark, waiting]
    assert [each.is_withdrawn for each in (whole, half, mark, waiting)] == [
        False,
        False,
        True,
        True,
    ]
    assert (source.waiting, source.in_flight) == (1, 2)
    assert source.waiting_bytes == bytes_of(half.transactions[1])
    [(_, _), (_, index)] = source.read_back(batch.batch_number)
    half.decide(index, CERTIFIED)
    assert source.note_log_full("no space") == [], "half of it is decided"
    assert items_of(sent(source)) == [3]
    late = submission(6)
    source.submit(late)
    assert source.note_log_full("no space") == [late]
    assert source.waiting_bytes == source.waiting == 0


def test_a_full_log_has_uploads_refused_once_and_takes_others_when_there_is_space() -> None:
    source = publisher()
    changes: list[str] = []
    first = source.begin_upload(lambda: changes.append("first"))
    source.submit(submission(1))
    assert source.note_log_full("") == []
    assert source.waiting == 1
    source.note_log_full("no space")
    source.note_log_full("no space")
    assert (source.log_full, first.is_refused, changes) == ("no space", True, ["first"])
    assert source.note_log_full("") == []
    assert source.log_full == ""
    assert not source.begin_upload(lambda: None).is_refused


@given(st.data())
def test_every_transaction_counts_once_whatever_the_log_does(data: st.DataObject) -> None:
    """A log that loses nothing, but orders batches as it likes and repeats them."""
    source = publisher(window=3)
    counted: list[int] = []
    last_number = 0
    on_the_way: list[LogBatch] = []
    for item in range(data.draw(st.integers(1, 20))):
        source.submit(submission(item))
    while source.undecided:
        while batch := source.next_batch():
            on_the_way.append(batch)
        batch = data.draw(st.sampled_from(on_the_way))
        if not data.draw(st.booleans()):
            on_the_way.remove(batch)
        if batch.batch_number > last_number:
            last_number = batch.batch_number
            parts = source.read_back(last_number)
            assert len(parts) == len(batch.transactions)
            counted += items_of(batch)
    assert sorted(counted) == list(range(len(counted)))


def test_who_was_told_of_an_end_is_let_go_of() -> None:
    """He keeps what he was told of: a circle of both would keep its rows for long."""
    told: list[Submission] = []

    def tell(ended: Submission) -> None:
        told.append(ended)

    waits = weakref.ref(tell)
    submission = Submission([write(0, 1)], tell)
    del tell
    submission.end()
    submission.end()
    assert told == [submission]
    assert waits() is None


def test_little_credit_is_used_once_nothing_is_on_its_way() -> None:
    source = publisher(window=3)
    for item in range(6):
        source.submit(submission(item))
    first = source.next_batch(credit=3)
    assert first is not None
    assert source.next_batch(credit=1) is None, "a small message, while another one is on its way"
    second = source.next_batch(credit=2)
    assert second is not None
    assert items_of(second) == [3, 4]
    for each in (first, second):
        source.read_back(each.batch_number)
    last = source.next_batch(credit=1)
    assert last is not None
    assert items_of(last) == [5]
