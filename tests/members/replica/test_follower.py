"""A replica's loop, over a real store, with news that a test hands to it."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from groupcert.applier.engine.applier import ApplierOptions, ApplierState
from groupcert.applier.engine.until import AfterGaps, AfterGtids, BeforeGtids, Until
from groupcert.applier.errors import (
    TABLE_CHANGED,
    ApplyFailed,
    PurgedAtSource,
    TransientFailure,
    UnsuitableTarget,
)
from groupcert.applier.mysql_servers.source_errors import SourceLost
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint, LastError, Stage
from groupcert.applier.schemes.catalogue import scheme
from groupcert.applier.source.header import SourceHeader
from groupcert.applier.targets import Target
from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.replica.follower import Replica, ReplicaEnd, now_us
from groupcert.members.replica.replica_process import EmbeddedTarget
from groupcert.members.replica.sources import ReplicaSources, SourceNews
from groupcert.v1.transaction_pb2 import Changes

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SECONDS_MAX = 20


def transaction(number: int, *, committed_us: int = 0, payload: bytes | None = None) -> RelayEntry:
    """A transaction that puts a row of its own; its position is that of the stream."""
    changes = Changes(put_keys=[b"shop.t/%d" % number], put_values=[b"x"])
    return RelayEntry(
        position=0,
        version=number,
        gtid=Gtid(GROUP, number),
        last_committed=0,
        sequence_number=number,
        local=False,
        payload=changes.SerializeToString() if payload is None else payload,
        header=SourceHeader(file=1, committed_us=committed_us, tables=("shop.t",)),
    )


@dataclass
class News(ReplicaSources):
    """A source that has some transactions, tells of the rest once, and has nothing more then."""

    entries: Sequence[RelayEntry]
    asked: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    connected: str = "test"

    def follow(self, received: GtidSet, next_position: Callable[[], int]) -> Iterator[SourceNews]:
        """What is not received, with positions as they are asked for."""
        self.asked.append(str(received))
        left = [each for each in self.entries if not each.gtid or each.gtid not in received]
        first = next_position()
        entries = [entry._replace(position=first + index) for index, entry in enumerate(left)]
        version = self.entries[-1].version
        yield SourceNews(entries, "test", version)
        while not self.stopped.wait(0.01):
            yield SourceNews((), "test", version)

    def stop(self) -> None:
        """Ends it."""
        self.stopped.set()


def replica_of(
    folder: Path,
    news: News,
    *,
    make_until: Callable[[Checkpoint], Until | None] = lambda _: None,
    open_target: Callable[[], Target[Any]] | None = None,
    name: str = "table",
    retries: int = 10,
    **settings: Any,
) -> Replica:
    """A replica with two workers."""
    return Replica(
        "r1",
        news,
        open_target or (lambda: EmbeddedTarget(folder, "r1")),
        lambda: scheme(name),
        2,
        ApplierOptions(scheme=name, transaction_retries=retries),
        make_until=make_until,
        **settings,
    )


def after(*numbers: int) -> Callable[[Checkpoint], Until]:
    """Until some transactions are executed."""
    gtids = GtidSet()
    for number in numbers:
        gtids.add(Gtid(GROUP, number))
    return lambda checkpoint: AfterGtids(gtids, checkpoint.gtid_executed)


def last_error(folder: Path) -> LastError | None:
    """What the store says."""
    target = EmbeddedTarget(folder, "r1")
    checkpoint = target.checkpoint() or Checkpoint()
    target.close()
    return checkpoint.error


def executed(folder: Path) -> str:
    """What the store says."""
    target = EmbeddedTarget(folder, "r1")
    checkpoint = target.checkpoint() or Checkpoint()
    target.close()
    return str(checkpoint.gtid_executed)


def leave_gaps(folder: Path, *numbers: int) -> None:
    """Executes some transactions, as the scheme `table` might have before a crash."""
    news = News([transaction(number) for number in numbers])
    assert replica_of(folder, news, make_until=after(*numbers)).run() is ReplicaEnd.UNTIL


def test_it_asks_for_what_its_target_lacks_gaps_and_all(tmp_path: Path) -> None:
    leave_gaps(tmp_path, 1, 2, 5)
    news = News([transaction(number) for number in range(1, 8)])
    replica = replica_of(tmp_path, news, make_until=after(7))
    assert replica.run() is ReplicaEnd.UNTIL
    assert news.asked == [f"{GROUP}:1-2:5"]
    assert replica.recovery == (
        "3 transactions were executed before, 2 older ones are missing and come first, "
        "0 are executed in part"
    )
    assert replica.status().committed_total == 4
    assert executed(tmp_path) == f"{GROUP}:1-7"


def test_another_scheme_does_not_go_on_over_gaps(tmp_path: Path) -> None:
    leave_gaps(tmp_path, 1, 3)
    news = News([transaction(number) for number in range(1, 5)])
    with pytest.raises(InvalidSetting, match=r"'rows': expected table, which left 1 .*after-gaps"):
        replica_of(tmp_path, news, name="rows").run()
    assert news.asked == []
    assert replica_of(tmp_path, news, make_until=AfterGaps).run() is ReplicaEnd.UNTIL
    assert executed(tmp_path) == f"{GROUP}:1-3", "gaps are filled, and no more"
    assert replica_of(tmp_path, news, name="rows", make_until=after(4)).run() is ReplicaEnd.UNTIL
    assert executed(tmp_path) == f"{GROUP}:1-4"


def test_a_condition_that_is_met_at_its_start_asks_nobody(tmp_path: Path) -> None:
    leave_gaps(tmp_path, 1, 2)
    news = News([transaction(3)])
    assert replica_of(tmp_path, news, make_until=after(2)).run() is ReplicaEnd.UNTIL
    assert replica_of(tmp_path, news, make_until=AfterGaps).run() is ReplicaEnd.UNTIL
    assert news.asked == []


def test_nothing_after_a_condition_is_executed(tmp_path: Path) -> None:
    news = News([transaction(number) for number in range(1, 600)])
    before = GtidSet.parse(f"{GROUP}:300-400")
    replica = replica_of(tmp_path, news, make_until=lambda _: BeforeGtids(before))
    assert replica.run() is ReplicaEnd.UNTIL
    assert executed(tmp_path) == f"{GROUP}:1-299"


def test_what_fails_before_a_gap_is_filled_warns_of_it(tmp_path: Path) -> None:
    leave_gaps(tmp_path, 1, 4)
    news = News([transaction(2, payload=b"\xff"), transaction(3), transaction(4)])
    with pytest.raises(ApplyFailed) as raised:
        replica_of(tmp_path, news).run()
    assert raised.value.gtid == f"{GROUP}:2"
    assert f"executed beyond it: {GROUP}:1" in str(raised.value)


def test_the_queue_has_its_limits(tmp_path: Path) -> None:
    """One transaction, or one byte, at a time; and everything comes all the same."""
    count = 40
    news = News([transaction(number) for number in range(1, count + 1)])
    replica = replica_of(
        tmp_path,
        news,
        make_until=after(count),
        queue_transactions_max=1,
        pending_jobs_size_max=1,
    )
    assert replica.run() is ReplicaEnd.UNTIL
    assert executed(tmp_path) == f"{GROUP}:1-{count}"


def test_what_cannot_be_executed_is_named_and_ends_it(tmp_path: Path) -> None:
    news = News([transaction(1), transaction(2, payload=b"\xff"), transaction(3)])
    with pytest.raises(ApplyFailed) as raised:
        replica_of(tmp_path, news, name="commit-parent").run()
    assert raised.value.gtid == f"{GROUP}:2"
    assert raised.value.worker in (0, 1)
    assert "DecodeError" in raised.value.cause
    assert executed(tmp_path) in ("", f"{GROUP}:1")


def test_a_lost_target_is_opened_again_and_its_checkpoint_counts(tmp_path: Path) -> None:
    class Lost(EmbeddedTarget):
        lives = 0

        def __init__(self) -> None:
            Lost.lives += 1
            if Lost.lives == 2:
                raise TransientFailure(kind="connection_lost", text="not yet")
            super().__init__(tmp_path, "r1")

        def commit(self, group: Any, progress: Any) -> None:
            if Lost.lives == 1 and group.jobs[0].entries[0].version == 3:
                raise TransientFailure(kind="connection_lost", text="gone")
            super().commit(group, progress)

    news = News([transaction(number) for number in range(1, 6)])
    replica = replica_of(tmp_path, news, open_target=Lost, make_until=after(5))
    assert replica.run() is ReplicaEnd.UNTIL
    assert Lost.lives == 3
    assert len(news.asked) == 2
    assert news.asked[1] == f"{GROUP}:1-2"
    assert executed(tmp_path) == f"{GROUP}:1-5"


@pytest.mark.parametrize("retries", [0, 1])
def test_tables_that_change_are_no_failures(tmp_path: Path, retries: int) -> None:
    """Three definitions behind each other: each is executed, and its target opened again."""

    class Defining(EmbeddedTarget):
        def commit(self, group: Any, progress: Any) -> None:
            super().commit(group, progress)
            if group.jobs[0].entries[0].version in (2, 3, 4):
                raise TransientFailure(kind=TABLE_CHANGED, text="others now")

    news = News([transaction(number) for number in range(1, 6)])
    replica = replica_of(
        tmp_path,
        news,
        open_target=lambda: Defining(tmp_path, "r1"),
        make_until=after(5),
        name="commit-parent",
        retries=retries,
    )
    assert replica.run() is ReplicaEnd.UNTIL
    assert executed(tmp_path) == f"{GROUP}:1-5"


def test_tables_that_do_not_fit_when_they_are_looked_up_again_end_it(tmp_path: Path) -> None:
    opened = []

    class Unfit(EmbeddedTarget):
        def execute(self, job: Any) -> Any:
            opened.append(self)
            raise TransientFailure(kind=TABLE_CHANGED, text="no such column")

    replica = replica_of(
        tmp_path,
        News([transaction(1)]),
        open_target=lambda: Unfit(tmp_path, "r1"),
        name="commit-parent",
        retries=0,
    )
    with pytest.raises(ApplyFailed, match="no such column"):
        replica.run()
    assert len(set(opened)) == 2


def test_a_source_that_is_away_while_its_target_is_opened_is_waited_for(tmp_path: Path) -> None:
    """The tables of a server are looked up for it; neither the target nor the status has an error
    of that afterwards.
    """
    away = iter(range(2))

    def open_target() -> Target[Any]:
        if next(away, None) is not None:
            raise SourceLost(source="db1:3306", cause="it hung up")
        return EmbeddedTarget(tmp_path, "r1")

    news = News([transaction(1)])
    replica = replica_of(tmp_path, news, open_target=open_target, retries=1, make_until=after(1))
    assert replica.run() is ReplicaEnd.UNTIL
    assert replica.status().failure is None
    assert last_error(tmp_path) is None


def test_stopped_while_its_source_is_away_it_ends_without_an_error(tmp_path: Path) -> None:
    def open_target() -> Target[Any]:
        replica.stop()
        raise SourceLost(source="db1:3306", cause="it hung up")

    replica = replica_of(tmp_path, News([transaction(1)]), open_target=open_target)
    assert replica.run() is ReplicaEnd.STOPPED


def test_what_no_applier_takes_ends_it(tmp_path: Path) -> None:
    """A bug: entries that come again. They are appended on a thread of its own."""

    class Repeating(News):
        def follow(
            self, received: GtidSet, next_position: Callable[[], int]
        ) -> Iterator[SourceNews]:
            for news in super().follow(received, next_position):
                yield from [news] * 4

    replica = replica_of(tmp_path, Repeating([transaction(1)]))
    with pytest.raises(AssertionError, match="out of order"):
        replica.run()


def test_a_target_that_never_comes_ends_it(tmp_path: Path) -> None:
    calls = []

    def open_target() -> Target[Any]:
        calls.append(1)
        raise TransientFailure(kind="connection_lost", text="refused")

    with pytest.raises(TransientFailure, match="refused"):
        replica_of(tmp_path, News([transaction(1)]), open_target=open_target, retries=1).run()
    assert len(calls) == 2


def test_it_stops_while_it_delays_and_lag_is_the_age_of_what_it_shows(tmp_path: Path) -> None:
    old, new = now_us() - 600_000_000, now_us()
    entries = [transaction(1, committed_us=old), transaction(2, committed_us=new)]
    with delaying(tmp_path, News(entries)) as replica:
        assert replica.applier and replica.applier.drain(SECONDS_MAX)
        assert replica.lag(replica.status(), old + 7_000_000) == (7.0, 1)
        assert replica.lag(replica.status(), old - 7_000_000) == (0.0, 1), "clocks differ"
    assert executed(tmp_path) == f"{GROUP}:1"
    with delaying(tmp_path, News(entries)) as replica:
        assert replica.lag(replica.status(), new + 7_000_000) == (7.0, 1), "what it lacks is old"


def test_lag_goes_on_over_the_beginning_of_a_file(tmp_path: Path) -> None:
    """A rotation has no age and the version of its file's beginning."""
    old, new = now_us() - 600_000_000, now_us()
    first = transaction(1, committed_us=old)
    rotation = first._replace(gtid=None, payload=b"", header=SourceHeader(file=2))
    news = News([first, rotation, transaction(2, committed_us=new)])
    with delaying(tmp_path, news) as replica:
        wait_until(lambda: (newest := replica.status().low_water_mark) and not newest.gtid)
        assert replica.lag(replica.status(), new + 7_000_000) == (7.0, 1)


def test_filled_gaps_are_not_behind(tmp_path: Path) -> None:
    leave_gaps(tmp_path, 1, 4)
    old = now_us() - 600_000_000
    news = News([transaction(number, committed_us=old) for number in range(1, 5)])
    replica = replica_of(tmp_path, news, make_until=after(2, 3))
    assert replica.run() is ReplicaEnd.UNTIL
    assert replica.lag(replica.status(), now_us()) == (0.0, 0)


def test_stopped_while_its_target_is_away_it_ends_without_an_error(tmp_path: Path) -> None:
    def open_target() -> Target[Any]:
        replica.stop()
        raise TransientFailure(kind="connection_lost", text="refused")

    replica = replica_of(tmp_path, News([transaction(1)]), open_target=open_target)
    assert replica.run() is ReplicaEnd.STOPPED


@pytest.mark.parametrize("name", ["commit-parent", "table"])
def test_the_last_error_outlives_the_replica_until_its_transaction_is_executed(
    tmp_path: Path, name: str
) -> None:
    news = News([transaction(1), transaction(2, payload=b"\xff"), transaction(3)])
    with pytest.raises(ApplyFailed):
        replica_of(tmp_path, news, name=name).run()
    error = last_error(tmp_path)
    assert error and (error.stage, error.gtid) == (Stage.EXECUTING, f"{GROUP}:2")
    assert error.cause.startswith("DecodeError")
    assert abs(now_us() - error.at_us) < 600_000_000
    first = News([transaction(1)])
    replica = replica_of(tmp_path, first, name=name, make_until=after(1))
    assert replica.run() is ReplicaEnd.UNTIL
    assert last_error(tmp_path) == error, "what is before it changes nothing"
    mended = News([transaction(number) for number in (1, 2, 3)])
    assert replica_of(tmp_path, mended, name=name, make_until=after(3)).run() is ReplicaEnd.UNTIL
    assert last_error(tmp_path) is None


def test_an_error_of_the_source_is_kept_too(tmp_path: Path) -> None:
    class Purged(News):
        def follow(self, *_: Any) -> Iterator[SourceNews]:
            yield SourceNews([], "test", 1)
            raise PurgedAtSource(source="test", missing=f"{GROUP}:1")

    with pytest.raises(PurgedAtSource):
        replica_of(tmp_path, Purged([transaction(1)])).run()
    error = last_error(tmp_path)
    assert error and (error.stage, error.worker, error.gtid) == (Stage.READING, -1, "")
    assert f"has purged '{GROUP}:1'" in error.cause


def test_a_replica_that_stays_goes_on_once_the_cause_is_mended(tmp_path: Path) -> None:
    """Twice something is wrong with its target, of which the second time it tells in the target."""
    problems = [UnsuitableTarget(target="t", problem="no table", expected="one"), ValueError("row")]

    class Broken(EmbeddedTarget):
        def execute(self, job: Any) -> Any:
            if problems:
                raise problems[0]
            return super().execute(job)

    def open_target() -> Target[Any]:
        if len(problems) == 2:
            raise problems[0]
        return Broken(tmp_path, "r1")

    news = News([transaction(1), transaction(2)])
    replica = replica_of(
        tmp_path,
        news,
        open_target=open_target,
        make_until=after(2),
        name="commit-parent",
        retry_s=1,
    )
    with running(replica) as ends:
        for stage, gtid in ((Stage.OPENING, ""), (Stage.EXECUTING, f"{GROUP}:1")):
            wait_until(partial(_is_failed, replica, stage, gtid))
            problems.pop(0)
    assert ends == [ReplicaEnd.UNTIL]
    status = replica.status()
    assert (status.failure, status.checkpoint.error) == (None, None)
    assert executed(tmp_path) == f"{GROUP}:1-2"


def test_a_bug_or_a_wrong_setting_is_not_tried_again(tmp_path: Path) -> None:
    def raising(error: Exception) -> Callable[[], Target[Any]]:
        def open_target() -> Target[Any]:
            raise error

        return open_target

    wrong = InvalidSetting(name="target", value="x", expected="another")
    for error in (wrong, AssertionError("a bug")):
        replica = replica_of(tmp_path, News([]), open_target=raising(error), retry_s=600)
        with pytest.raises(type(error)):
            replica.run()


def test_skipped_transactions_are_counted_where_they_come(tmp_path: Path) -> None:
    news = News([transaction(1), transaction(2, payload=b"\xff"), transaction(3)])
    skipped = GtidSet.parse(f"{GROUP}:2:77")
    replica = replica_of(tmp_path, news, make_until=after(3), skipped=skipped)
    assert replica.run() is ReplicaEnd.UNTIL
    assert replica.skipped == 1, "one never came"
    assert executed(tmp_path) == f"{GROUP}:1-3"


def _is_failed(replica: Replica, stage: Stage, gtid: str) -> bool:
    if replica.is_starting or replica.activity != "the next try, every 1 s":
        return False
    status = replica.status()
    failure = status.failure
    if status.state is not ApplierState.FAILED or failure is None:
        return False
    return (failure.stage, failure.gtid) == (stage, gtid)


def wait_until(happened: Callable[[], object]) -> None:
    """Returns when it has happened."""
    deadline = time.monotonic() + SECONDS_MAX
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def running(replica: Replica) -> Iterator[list[ReplicaEnd]]:
    """A replica that runs until its end."""
    ends: list[ReplicaEnd] = []
    thread = threading.Thread(target=lambda: ends.append(replica.run()))
    thread.start()
    yield ends
    thread.join(SECONDS_MAX)


@contextmanager
def delaying(folder: Path, news: News) -> Iterator[Replica]:
    """A replica that waits for what is not due; it is stopped at the end."""
    replica = replica_of(folder, news, delay_s=300)
    with running(replica) as ends:
        wait_until(lambda: replica.activity.startswith("delaying by 300 s"))
        yield replica
        replica.stop()
    assert ends == [ReplicaEnd.STOPPED]
