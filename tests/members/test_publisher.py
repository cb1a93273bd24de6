"""The publisher: batches and their limits, and what happens to those that are overtaken."""

import weakref

from hypothesis import given
from hypothesis import strategies as st

from certifier.gtid_set import GtidSet
from certifier.records import Outcome, Verdict
from members.log_records import (
    Appointment,
    LogBatch,
    LoggedTransaction,
    StableReport,
    bytes_of,
)
from members.publisher import BatchLimits, Publisher, Submission
from tests.members.minds import SETTINGS, write

CERTIFIED = Outcome(Verdict.CERTIFIED, version=7)


def publisher(
    transactions_max: int = 3, transactions_min: int = 2, bytes_max: int = 10_000, window: int = 2
) -> Publisher:
    """A publisher of member m1."""
    limits = BatchLimits(
        transactions_max=transactions_max,
        transactions_min=transactions_min,
        bytes_max=bytes_max,
        window=window,
        fragments_window=2,
    )
    return Publisher("m1", 1, limits)


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


def test_nothing_is_sent_where_nothing_waits() -> None:
    assert publisher().next_batch() is None


def test_batches_of_a_run_are_numbered() -> None:
    source = publisher()
    source.submit(submission(1, 2, 3, 4, 5))
    first, second = sent(source), sent(source)
    assert (first.member, first.incarnation) == ("m1", 1)
    assert (first.batch_number, second.batch_number) == (1, 2)


def test_a_submission_over_the_limit_goes_out_in_parts() -> None:
    source = publisher()
    source.submit(submission(1, 2, 3, 4, 5))
    assert items_of(sent(source)) == [1, 2, 3]
    assert items_of(sent(source)) == [4, 5]


def test_a_batch_ends_before_its_bytes_pass_the_limit() -> None:
    two = 2 * bytes_of(write(0, 1))
    source = publisher(bytes_max=two)
    source.submit(submission(1, 2, 3))
    assert items_of(sent(source)) == [1, 2]


def test_a_transaction_over_the_limit_goes_out_alone() -> None:
    source = publisher(bytes_max=1)
    source.submit(submission(1, 2))
    assert items_of(sent(source)) == [1]


def test_bytes_cover_snapshot_sets_and_payloads() -> None:
    gtid_set = GtidSet.parse("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-5:7:9")
    plain = bytes_of(LoggedTransaction(b"", 0, [1]))
    assert bytes_of(LoggedTransaction(b"", 0, [1], [2], None, b"xxx")) == plain + 8 + 3
    assert bytes_of(LoggedTransaction(b"", gtid_set, [1])) >= plain + len(str(gtid_set))


def test_little_waits_while_a_batch_is_on_its_way() -> None:
    source = publisher()
    source.submit(submission(1))
    sent(source)
    source.submit(submission(2))
    assert source.next_batch() is None
    source.submit(submission(3))
    assert items_of(sent(source)) == [2, 3]


def test_no_more_batches_than_the_window_are_on_their_way() -> None:
    source = publisher()
    source.submit(submission(*range(12)))
    first, _ = sent(source), sent(source)
    assert source.next_batch() is None
    source.read_back(first.batch_number)
    assert items_of(sent(source)) == [6, 7, 8]


def test_what_the_log_has_taken_and_nobody_has_read_holds_no_control_record_up() -> None:
    source = publisher()
    source.submit(submission(*range(12)))
    _, last = sent(source), sent(source)
    source.control(SETTINGS)
    assert source.next_batch() is None
    batch = source.next_batch(is_taken=True)
    assert batch is not None
    assert (items_of(batch), batch.controls) == ([], [SETTINGS]), "transactions keep to the window"
    assert source.next_batch(is_taken=True) is None
    source.read_back(last.batch_number)
    source.read_back(batch.batch_number)
    assert source.waiting == 9


def test_few_wait_for_as_many_as_were_answered_but_not_for_ever() -> None:
    source = publisher(transactions_min=5)
    source.submit(submission(1, 2))
    source.read_back(sent(source).batch_number)
    assert not source.lingers
    source.submit(submission(3))
    assert source.next_batch(lingered=False) is None
    assert source.lingers
    assert items_of(sent(source)) == [3]
    assert not source.lingers


def test_control_records_go_out_with_the_next_batch() -> None:
    source = publisher()
    source.control(SETTINGS)
    source.submit(submission(1))
    batch = sent(source)
    assert items_of(batch) == [1]
    assert batch.controls == [SETTINGS]


def test_of_reports_that_wait_only_the_newest_goes_out() -> None:
    source = publisher()
    for version in (1, 2):
        source.control(StableReport(version, version, 0, b""))
        source.control(Appointment("m1"))
    assert sent(source).controls == [
        Appointment("m1"),
        StableReport(2, 2, 0, b""),
        Appointment("m1"),
    ]


def test_control_records_do_not_wait_for_what_is_on_its_way() -> None:
    source = publisher()
    source.submit(submission(1))
    sent(source)
    source.control(Appointment("m1"))
    assert sent(source).controls == [Appointment("m1")]


def test_reading_back_gives_the_parts_once() -> None:
    source = publisher()
    mine = submission(1, 2)
    source.submit(mine)
    batch = sent(source)
    assert source.read_back(batch.batch_number) == [(mine, 0), (mine, 1)]
    assert source.read_back(batch.batch_number) == []


def test_an_overtaken_batch_is_sent_again_before_what_waits() -> None:
    source = publisher()
    source.control(SETTINGS)
    source.submit(submission(1, 2, 3, 4, 5))
    first, second = sent(source), sent(source)
    source.submit(submission(6))
    source.read_back(second.batch_number)
    again = sent(source)
    assert items_of(again) == items_of(first)
    assert again.controls == [SETTINGS]
    assert again.batch_number == 3
    assert source.read_back(first.batch_number) == []


def test_batches_overtaken_together_keep_their_order() -> None:
    source = publisher(window=4)
    source.submit(submission(*range(9)))
    batches = [sent(source) for _ in range(3)]
    source.read_back(batches[2].batch_number)
    assert [items_of(sent(source)), items_of(sent(source))] == [[0, 1, 2], [3, 4, 5]]


def test_a_submission_ends_with_its_last_transaction_and_has_the_newest_version() -> None:
    both = submission(1, 2)
    assert not both.decide(1, CERTIFIED)
    assert both.decide(0, Outcome(Verdict.CONFLICT))
    assert both.version == 7


def test_a_mark_is_a_part_without_a_transaction() -> None:
    source = publisher()
    mark = submission()
    source.submit(mark)
    batch = sent(source)
    assert batch.transactions == []
    assert source.read_back(batch.batch_number) == [(mark, -1)]


def test_giving_up_names_every_undecided_submission_once() -> None:
    source = publisher()
    first, second = submission(1, 2, 3, 4), submission(5)
    source.submit(first)
    sent(source)
    source.submit(second)
    assert (source.waiting, source.undecided) == (2, 5)
    assert source.abandon() == [first, second]
    assert source.abandon() == []
    assert (source.waiting, source.undecided) == (0, 0)


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
