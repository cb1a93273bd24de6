"""Fragments beside small transactions: they share the way into the log and hold nothing up."""

from members.log_records import Abandonment, Fragment, LogBatch
from members.publisher import Publisher, Upload
from tests.members.test_publisher import items_of, publisher, sent, submission


def upload_with(source: Publisher, fragments: int) -> Upload:
    """An upload with so many fragments handed in."""
    upload = source.begin_upload(lambda: None)
    for place in range(fragments):
        source.fragment(upload, place, b"x")
    return upload


def places_of(batch: LogBatch) -> list[int]:
    """The places of the fragments in a batch, which has nothing else."""
    assert not batch.transactions and not batch.controls
    return [fragment.place for fragment in batch.fragments]


def test_a_fragment_is_a_message_of_its_own_and_few_are_on_their_way() -> None:
    source = publisher()
    upload = upload_with(source, 3)
    assert upload.undelivered == 3
    first, second = sent(source), sent(source)
    assert (places_of(first), places_of(second)) == ([0], [1])
    assert first.fragments == (Fragment(upload.number, 0, b"x"),)
    assert source.next_batch() is None
    assert source.read_back(first.batch_number) == []
    assert upload.undelivered == 2
    assert places_of(sent(source)) == [2]


def test_small_transactions_do_not_wait_for_fragments() -> None:
    source = publisher()
    upload_with(source, 5)
    sent(source), sent(source)
    source.submit(submission(1))
    assert source.lingers
    small = sent(source)
    assert items_of(small) == [1]
    source.submit(submission(2))
    assert source.next_batch() is None, "one small batch is on its way"
    source.read_back(small.batch_number)
    assert items_of(sent(source)) == [2]


def test_transactions_go_before_fragments() -> None:
    source = publisher()
    upload_with(source, 1)
    source.submit(submission(1))
    assert items_of(sent(source)) == [1]
    assert places_of(sent(source)) == [0]


def test_fragments_wait_while_there_is_no_credit() -> None:
    source = publisher()
    upload_with(source, 1)
    assert source.next_batch(credit=0) is None
    assert places_of(sent(source)) == [0]


def test_overtaken_fragments_are_sent_again_in_their_order() -> None:
    source = publisher()
    upload = upload_with(source, 3)
    sent(source), sent(source)
    source.submit(submission(1))
    small = sent(source)
    source.read_back(small.batch_number)
    assert upload.undelivered == 3
    assert [places_of(sent(source)) for _ in range(2)] == [[0], [1]]


def test_an_abandonment_comes_after_all_that_was_sent() -> None:
    source = publisher()
    upload, other = upload_with(source, 3), upload_with(source, 1)
    first, second = sent(source), sent(source)
    source.end_upload(upload, submitted=False)
    source.end_upload(upload, submitted=False)
    abandonment = sent(source)
    assert abandonment.controls == [Abandonment(upload.number)]
    source.read_back(abandonment.batch_number)
    assert (first.batch_number, second.batch_number) < (abandonment.batch_number,) * 2
    last = sent(source)
    assert [each.number for each in last.fragments] == [other.number], "overtaken, and not again"
    assert source.next_batch() is None


def test_what_was_submitted_is_not_abandoned() -> None:
    source = publisher()
    source.end_upload(upload_with(source, 0), submitted=True)
    assert source.next_batch() is None


def test_uploads_are_told_that_nothing_will_become_of_them() -> None:
    source = publisher()
    changes: list[int] = []
    upload = source.begin_upload(lambda: changes.append(upload.number))
    source.fragment(upload, 0, b"x")
    source.abandon()
    assert upload.is_refused and changes == [upload.number]
    assert source.next_batch() is None


def test_bytes_that_wait_are_counted() -> None:
    source = publisher(transactions_max=2)
    source.submit(submission(1, 2, 3))
    one = source.waiting_bytes // 3
    batch = sent(source)
    assert source.waiting_bytes == one
    source.submit(submission(4))
    later = sent(source)
    assert source.waiting_bytes == 0
    source.read_back(later.batch_number)
    assert items_of(batch) == [1, 2]
    assert source.waiting_bytes == 2 * one, "the first batch was overtaken"
