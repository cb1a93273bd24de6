"""The total order as a certification log: what an observer sees that is nobody, or a member."""

from collections.abc import Sequence

import pytest

from certifier.errors import CorruptRecord, UnsupportedFormat
from certifier.history import RecordKind, Row, place_of
from certifier.records import position_of
from certifier.write_set import store_key_item
from groupcert.v1.log_pb2 import LogBatchHead
from members.convert import encode_batch, encode_changes
from members.log_records import LogBatch, LoggedTransaction, StableReport
from members.total_order import Delivery
from members.total_order_history import TotalOrderHistory
from tests.members.minds import batch_of, deliver, joining, mind, report_of, run_of, write

ID = bytes(range(16))


class Log:
    """A group's log that is written by hand: `mind` is where its first member is."""

    def __init__(self) -> None:
        self.mind = mind()
        self.messages: list[LogBatch] = []
        self.mind.caught_up()
        batch = self.mind.publisher.next_batch()
        assert batch is not None
        self.add(batch)
        self._numbers = {(1, 0): batch.batch_number}

    def add(self, *batches: LogBatch) -> None:
        """Adds messages."""
        self.messages += batches
        deliver(self.mind, *batches)

    def join(self, number: int, run: int = 0) -> None:
        """Adds a run of a member to the view."""
        self._numbers[number, run] = 1
        self.add(joining(self.mind, number, run))

    def commit(self, number: int, *transactions: LoggedTransaction, run: int = 0) -> None:
        """Adds a message of transactions."""
        self.add(batch_of(number, self._next(number, run), transactions, run=run))

    def report(self, number: int, applied: int, stable: int) -> None:
        """Adds a member's report."""
        self.add(report_of(self.mind, number, self._next(number), applied, stable))

    def rows(self, observer: str | None = None, first: int = 1) -> list[Row]:
        """The history."""
        history = TotalOrderHistory(observer, first)
        messages = enumerate(map(encode_batch, self.messages), 1)
        return list(history.rows(Delivery(*each) for each in messages))

    def _next(self, number: int, run: int = 0) -> int:
        self._numbers[number, run] += 1
        return self._numbers[number, run]


def kinds(rows: Sequence[Row]) -> list[object]:
    """What each row tells."""
    return [row["kind"] for row in rows]


def transactions(rows: Sequence[Row]) -> list[Row]:
    """Those that tell of one."""
    return [row for row in rows if row["kind"] == "transaction"]


@pytest.fixture
def log() -> Log:
    """Members m1 and m2, and a transaction of each."""
    made = Log()
    made.join(2)
    made.commit(1, write(0, 11, 12, transaction_id=ID))
    made.commit(2, write(0, 13))
    return made


def test_nobody_sees_all_as_remote_from_the_groups_settings_on(log: Log) -> None:
    rows = log.rows()
    assert kinds(rows) == [*("start", "settings"), *["view_change"] * 2, *["transaction"] * 2]
    assert rows[0]["place"] == place_of(position_of(1, 0), RecordKind.START)
    assert {row["observer"] for row in rows} == {"total-order"}
    assert '"source":"total_order"' in str(rows[0]["settings"])
    assert rows[0]["settings"] == rows[1]["settings"], "those of the group are known beforehand"
    assert [row["resets_clock"] for row in rows[2:4]] == [False, False]
    assert rows[3]["members"] == ["m1", "m2"]
    first, second = rows[4:]
    assert (first["origin"], first["transaction_id"]) == ("m1", ID.hex())
    assert (first["write_set"], first["version"]) == ([11, 12], 1)
    stamps = [(row["is_local"], row["last_committed"], row["sequence_number"]) for row in rows[4:]]
    assert stamps == [(False, 1, 2), (False, 1, 3)]
    assert second["place"] == place_of(position_of(4, 0), RecordKind.TRANSACTION)
    assert not any("decided_us" in row for row in rows), "nobody was there"


def test_conflicts_and_repetitions_are_told(log: Log) -> None:
    log.commit(2, write(0, 11), write(0, 14, transaction_id=ID))
    conflict, repetition = log.rows()[-2:]
    assert (conflict["verdict"], conflict["winner_version"]) == ("conflict", 1)
    assert (repetition["kind"], repetition["transaction_id"]) == ("repetition", ID.hex())


def test_keys_go_along_where_that_is_allowed(log: Log) -> None:
    item = store_key_item(b"account/1")
    log.commit(2, write(2, item)._replace(payload=encode_changes([b"account/1"], [b"SECRET"])))
    assert "write_keys" not in log.rows()[-1]
    messages = enumerate(map(encode_batch, log.messages), 1)
    told = [*TotalOrderHistory(keys=True).rows(Delivery(*each) for each in messages)]
    assert told[-1] == log.rows()[-1] | {"write_keys": ["account/1"]}


def test_reports_are_told_and_what_they_make_stable(log: Log) -> None:
    log.report(1, 2, 1)
    log.report(2, 2, 1)
    log.commit(1, *[write(2, 100 + number) for number in range(16)])
    found = log.rows()[6:]
    assert kinds(found[:3]) == ["checkpoint", "checkpoint", "stable_set"]
    assert (found[0]["origin"], found[0]["reported_sequence"]) == ("m1", 4)
    (report,) = log.messages[4].controls
    assert isinstance(report, StableReport)
    assert found[0]["reported_digest"] == int.from_bytes(report.digest, "little", signed=True)
    assert found[2]["stable_version"] == 1
    (collection,) = [row for row in found if row["kind"] == "collection"]
    assert (collection["collected_version"], collection["purged_items"]) == (1, 2)


def test_a_member_sees_its_own_as_local_and_begins_where_it_joined(log: Log) -> None:
    rows = log.rows("m2")
    views = [row["resets_clock"] for row in rows if row["kind"] == "view_change"]
    assert views == [False, True]
    found = transactions(rows)
    assert [row["is_local"] for row in found] == [False, True]
    assert [row.get("sequence_number") for row in found] == [2, None]


def test_each_run_of_a_member_begins_anew(log: Log) -> None:
    log.join(2, run=1)
    log.commit(1, write(2, 21))
    log.commit(2, write(2, 22), run=1)
    rows = log.rows("m2")
    views = [row["resets_clock"] for row in rows if row["kind"] == "view_change"]
    assert views == [False, True, True]
    found = transactions(rows)
    assert [row["is_local"] for row in found] == [False, True, False, True]
    assert [row.get("sequence_number") for row in found] == [2, None, 2, None]
    assert found[1]["session"] == f"{run_of(2).incarnation:x}"
    assert found[3]["session"] == f"{run_of(2, 1).incarnation:x}"


def test_a_run_whose_view_did_not_count_is_not_the_observer(log: Log) -> None:
    late = joining(Log().mind, 2, run=1)
    log.add(late)
    log.commit(2, write(2, 23))
    assert transactions(log.rows("m2"))[-1]["is_local"] is True


def test_a_history_may_begin_later_with_the_state_that_was_there(log: Log) -> None:
    start, *rest = log.rows(first=4)
    assert kinds(rest) == ["transaction"]
    assert start["place"] == place_of(position_of(4, 0), RecordKind.START)
    assert (start["version"], start["sequence_number"], start["last_committed_global"]) == (1, 2, 1)
    whole = log.rows()
    assert rest == whole[-1:]


def test_the_decisions_do_not_depend_on_who_observes(log: Log) -> None:
    log.commit(2, write(0, 11))
    shared = ("place", "verdict", "version", "gtid_source", "gtid_number", "winner_item")
    histories = [
        [[row.get(name) for name in shared] for row in transactions(log.rows(observer))]
        for observer in (None, "m1", "m2")
    ]
    assert histories[0] == histories[1] == histories[2]


def test_what_is_no_message_of_a_member_is_skipped_as_members_skip_it(log: Log) -> None:
    numbered = list(enumerate([b"\xff", *map(encode_batch, log.messages), b"\x00"], 1))
    history = TotalOrderHistory()
    rows = list(history.rows(Delivery(*each) for each in numbered))
    assert kinds(rows) == kinds(log.rows())
    assert rows[0]["place"] == place_of(position_of(2, 0), RecordKind.START)


def test_a_log_that_makes_no_group_is_refused() -> None:
    history = TotalOrderHistory()
    batch = batch_of(1, 1, controls=[StableReport(0, 0, 0, b"")])
    with pytest.raises(CorruptRecord, match="none of the messages to 1 has a group's settings"):
        list(history.rows([Delivery(1, encode_batch(batch))]))


def test_what_operators_had_skipped_is_skipped_here_too() -> None:
    log = Log()
    log.join(2)
    log.commit(1, write(0, 1))
    *before, last = map(encode_batch, log.messages)
    unreadable = LogBatchHead(format_version=7, member="m2", incarnation=run_of(2).incarnation)
    messages = [*before, unreadable.SerializeToString(), last]
    deliveries = [Delivery(*each) for each in enumerate(messages, 1)]
    with pytest.raises(UnsupportedFormat):
        list(TotalOrderHistory().rows(deliveries))
    history = TotalOrderHistory(is_skip_ordered=[len(messages) - 1].__contains__)
    rows = list(history.rows(deliveries))
    assert [row["verdict"] for row in transactions(rows)] == ["certified"]
