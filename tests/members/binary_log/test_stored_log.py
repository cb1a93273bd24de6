"""The binary log over a real store: what was committed is what a replica reads, once and in order.

Aim: stamps and ids of whole commit groups, rotation of each kind, retention, and reading from any
GTID set, gaps and all. Commits go through the real target, so that rows and log are one batch.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupcert.applier.errors import PurgedAtSource
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry, RelayGroup
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.source.header import SourceHeader
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges, applied_intervals
from groupcert.certifier.errors import CorruptStore
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.storage.store import Family, Store
from groupcert.members.binary_log import stored_log as binary_log
from groupcert.members.binary_log.replica_reader import DATABASES_MAX, BinaryLogReader
from groupcert.members.binary_log.stored_log import BinaryLog, BinaryLogOptions, key_of
from groupcert.members.wire.binary_log_entries import entries_from, events_of
from groupcert.members.wire.row_changes import changed_keys, decode_changes
from groupcert.v1.binary_log_pb2 import SubscribeResponse
from groupcert.v1.transaction_pb2 import Changes
from tests.stores import IDENTITY, put, writing

SOURCE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


class Source:
    """A member's target with its log, without the member."""

    def __init__(self, store: Store, options: BinaryLogOptions | None = None) -> None:
        rows = RocksDbTarget(store, decode_changes).checkpoint() or Checkpoint()
        self.log = BinaryLog(store, rows, options or BinaryLogOptions())
        self.target = RocksDbTarget(
            store, decode_changes, on_commit=self.log.append, record_history=True
        )
        self.progress = TargetProgress(rows)
        self.version = rows.version
        self.position = rows.position
        self.tick = 0

    def commit(self, *entries: RelayEntry) -> None:
        """Commits entries as one group; each gets the next position, transactions a version."""
        placed = []
        for entry in entries:
            self.position += 1
            self.version += entry.gtid is not None
            gtid = entry.gtid and Gtid(SOURCE, self.version)
            placed.append(entry._replace(position=self.position, version=self.version, gtid=gtid))
        job: Job[RowChanges] = Job(placed)
        job.execution = self.target.execute(job)
        self.tick += 1
        self.target.commit(CommitGroup(self.tick, [job]), self.progress)

    def rotate(self) -> None:
        """Begins a file."""
        assert self.log.rotate(self.position)

    def reader(self, executed: str = "", *, databases_max: int = DATABASES_MAX) -> BinaryLogReader:
        """A replica that has executed a GTID set."""
        return BinaryLogReader(
            self.log,
            GtidSet.parse(executed),
            source="m1",
            keys_of=changed_keys,
            databases_max=databases_max,
        )


@pytest.fixture
def source(store: Store) -> Source:
    """A source that has committed nothing."""
    return Source(store)


def write(
    locked_since: int | None = 0,
    *rows: str,
    items: Sequence[int] = (1,),
    parent: int = 0,
    domain_id: int = 0,
) -> RelayEntry:
    """A transaction that held its rows since a version."""
    changes = Changes(put_keys=[row.encode() for row in rows], put_values=[b"x"] * len(rows))
    header = SourceHeader(
        commit_parent=parent, domain_id=domain_id, items=tuple(items), locked_since=locked_since
    )
    return RelayEntry(0, 0, Gtid(SOURCE, 1), 0, 0, True, changes.SerializeToString(), header)


def view_change(view_id: int) -> RelayEntry:
    return RelayEntry(0, 0, None, 0, 0, False, b"", SourceHeader(view_id=view_id))


def read_all(reader: BinaryLogReader, **limits: int) -> list[RelayEntry]:
    """All that a reader has now."""
    entries = reader.read(**limits)
    while not reader.is_at_end:
        entries += reader.read(**limits)
    return entries


def drawn(entries: Sequence[RelayEntry]) -> list[str]:
    """Entries in words: `file` begins, `v` is a view, a number is a GTID's."""
    return [
        str(entry.gtid.number)
        if entry.gtid
        else (f"v{entry.header.view_id}" if entry.header.view_id else f"file{entry.header.file}")
        for entry in entries
    ]


def numbers_of(entries: Sequence[RelayEntry]) -> list[int]:
    return [entry.gtid.number for entry in entries if entry.gtid]


def stamps_of(entries: Sequence[RelayEntry]) -> list[tuple[int, int]]:
    return [(entry.last_committed, entry.sequence_number) for entry in entries if entry.gtid]


class TestHeaders:
    """What the schemes of the seeds are told."""

    def test_a_transaction_comes_with_all_that_it_brought(self, source: Source) -> None:
        source.commit(view_change(7))
        source.commit(write(0, "shop.orders/1", "shop.items/2", items=(3, 2**64 - 1), domain_id=5))
        rotation, view, entry = read_all(source.reader())
        assert drawn([rotation, view, entry]) == ["file1", "v7", "1"]
        assert entry.header.databases == ("shop",)
        assert entry.header.tables == ("shop.items", "shop.orders")
        assert (entry.header.items, entry.header.domain_id) == ((3, 2**64 - 1), 5)
        assert (entry.header.file, entry.version, entry.local) == (1, 1, False)
        assert entry.header.committed_us >= view.header.committed_us > 0
        assert decode_changes(entry.payload)[0] == [b"shop.orders/1", b"shop.items/2"]

    def test_a_file_has_a_clock_of_its_own(self, source: Source) -> None:
        source.commit(write(0), write(0))
        source.commit(write(1))
        source.rotate()
        source.commit(write(1), write(3))
        source.commit(write(4))
        expected = [(0, 1), (0, 2), (1, 3), (0, 1), (0, 2), (1, 3)]
        assert stamps_of(read_all(source.reader())) == expected

    def test_what_has_no_write_set_or_no_known_snapshot_waits_for_all(self, source: Source) -> None:
        source.commit(write(0), write(None), write(0), write(0, items=()), write(0))
        entries = read_all(source.reader())
        assert stamps_of(entries) == [(0, 1), (1, 2), (0, 3), (3, 4), (4, 5)]

    def test_the_lock_interval_begins_where_the_clock_is(self, source: Source) -> None:
        assert source.log.end_statement() == 0
        source.commit(write(0), write(0))
        assert source.log.end_statement() == 2
        source.rotate()
        assert source.log.end_statement() == 2

    def test_only_those_are_a_group_that_held_their_locks_at_one_time(self, source: Source) -> None:
        source.commit(write(0), write(0), write(1), write(1), view_change(2), write(0))
        source.commit(write(0))
        entries = read_all(source.reader())
        assert [entry.header.commit_id for entry in entries] == [0, 1, 1, 3, 3, 0, 0, 0]
        counters = source.log.counters
        assert (counters.commits, counters.group_commits) == (6, 4)

    def test_a_group_that_ends_with_a_file_is_two(self, store: Store) -> None:
        source = Source(store, BinaryLogOptions(sequence_number_max=2))
        source.commit(write(0), write(0), write(0), write(0))
        entries = read_all(source.reader())
        assert drawn(entries) == ["file1", "1", "2", "file2", "3", "4"]
        assert [entry.header.commit_id for entry in entries if entry.gtid] == [1, 1, 3, 3]

    def test_no_transaction_has_the_commit_parent_of_what_runs_alone(self, source: Source) -> None:
        source.commit(write(0, parent=0), write(0, parent=0))
        source.commit(write(0, items=(), parent=0), write(0, parent=0), write(2, parent=2))
        source.rotate()
        source.commit(write(2, parent=4), write(None, parent=4))
        source.commit(write(7, parent=7), view_change(2), write(7, parent=7))
        parents = [each.header.commit_parent for each in read_all(source.reader()) if each.gtid]
        assert parents == [0, 0, 2, 3, 3, 5, 6, 7, 8]

    def test_databases_over_the_maximum_are_all(self, source: Source) -> None:
        source.commit(write(0, "a.t/1", "b.t/1", "b.u/2"))
        source.commit(write(0, "a.t/1", "b.t/1", "c.t/1"))
        source.commit(write(0))
        few, many, none = read_all(source.reader(databases_max=2))[1:]
        assert (few.header.databases, few.header.tables) == (("a", "b"), ("a.t", "b.t", "b.u"))
        assert (many.header.databases, many.header.tables) == (None, None)
        assert (none.header.databases, none.header.tables) == (None, None)

    def test_events_cross_the_wire(self, source: Source) -> None:
        source.commit(view_change(3), write(0, "a.t/1", domain_id=2), write(0), write(0, "k"))
        entries = read_all(source.reader())
        message = SubscribeResponse(events=events_of(entries)).SerializeToString()
        received = entries_from(SubscribeResponse.FromString(message), 11)
        assert received == [
            entry._replace(position=position) for position, entry in enumerate(entries, 11)
        ]


class TestFiles:
    """When a file ends, and how long it is kept."""

    def test_each_start_begins_a_file_that_goes_on_where_the_last_one_ended(
        self, tmp_path: Path
    ) -> None:
        with Store(tmp_path, IDENTITY) as store:
            source = Source(store)
            source.commit(write(0, "k"), write(0))
            before = source.log.files
        with Store(tmp_path, IDENTITY) as store:
            again = Source(store)
            again.commit(write(2))
            first, second = again.log.files
            assert [first] == before
            assert (second.number, second.version, second.first_gtid) == (2, 2, f"{SOURCE}:3")
            assert str(second.previous_gtids) == f"{SOURCE}:1-2"
            assert drawn(read_all(again.reader())) == ["file1", "1", "2", "file2", "3"]
            assert stamps_of(read_all(again.reader())) == [(0, 1), (0, 2), (0, 1)]

    def test_a_full_file_ends(self, store: Store) -> None:
        source = Source(store, BinaryLogOptions(file_bytes_max=600))
        for _ in range(6):
            source.commit(write(0, "k" * 200))
        files = source.log.files
        assert len(files) >= 3
        assert all(600 <= file.bytes < 1_200 for file in files[:-1])
        assert numbers_of(read_all(source.reader())) == [1, 2, 3, 4, 5, 6]

    def test_a_file_ends_when_its_numbers_are_used_up(self, store: Store) -> None:
        source = Source(store, BinaryLogOptions(sequence_number_max=2))
        source.commit(write(0))
        source.commit(write(0), write(0), view_change(2), write(0), write(0))
        source.commit(write(0))
        entries = read_all(source.reader())
        expected = "file1 1 2 file2 3 v2 file3 4 5 file4 6"
        assert " ".join(drawn(entries)) == expected, "a view change takes the place of a number"
        assert max(number for _, number in stamps_of(entries)) == 2
        for file in source.log.files[1:]:
            assert str(file.previous_gtids) == f"{SOURCE}:1-{file.version}".replace(":1-1", ":1")

    def test_files_are_kept_up_to_their_number(self, store: Store) -> None:
        source = Source(store, BinaryLogOptions(files_max=2))
        for _ in range(4):
            source.commit(write(0))
            source.rotate()
        assert [file.number for file in source.log.files] == [4, 5]
        assert numbers_of(read_all(source.reader(f"{SOURCE}:1-3"))) == [4]

    def test_files_are_kept_up_to_their_bytes_but_the_newest_always(self, store: Store) -> None:
        source = Source(store, BinaryLogOptions(retention_bytes=1_000))
        for _ in range(4):
            source.commit(write(0, "k" * 300))
            source.rotate()
        kept = source.log.files
        assert 1 < len(kept) < 5
        assert sum(file.bytes for file in kept) <= 1_000
        source.commit(write(0, "k" * 2_000))
        source.rotate()
        assert len(source.log.files) == 1

    def test_files_before_one_are_purged_but_never_the_newest(
        self, source: Source, store: Store
    ) -> None:
        for _ in range(3):
            source.commit(write(0))
            source.rotate()
        assert source.log.purge(3, source.position) == 2
        assert [file.number for file in source.log.files] == [3, 4]
        assert next(store.scan(Family.BINARY_LOG))[0] == key_of(3)
        assert source.log.purge(99, source.position) == 1
        assert [file.number for file in source.log.files] == [4]
        assert source.log.purge(99, source.position) == 0

    def test_nothing_is_changed_while_a_group_is_being_written(self, source: Source) -> None:
        source.commit(write(0))
        assert not source.log.rotate(source.position - 1)
        assert source.log.purge(9, source.position - 1) is None
        assert len(source.log.files) == 1

    def test_sizes_and_first_gtids_survive_a_restart(self, tmp_path: Path) -> None:
        with Store(tmp_path, IDENTITY) as store:
            source = Source(store)
            source.commit(view_change(1))
            source.commit(write(0, "k"))
            source.rotate()
            source.commit(view_change(2))
            source.rotate()
            source.commit(write(0))
            before = source.log.files
        with Store(tmp_path, IDENTITY) as store:
            assert Source(store).log.files[:-1] == before
        assert [file.first_gtid[-2:] for file in before] == [":1", "", ":2"]

    def test_a_file_without_its_header_is_corrupt(self, tmp_path: Path) -> None:
        with Store(tmp_path, IDENTITY) as store:
            Source(store).commit(write(0))
            with writing(store) as batch:
                batch.delete(Family.BINARY_LOG, key_of(1))
            with pytest.raises(CorruptStore, match="file 1 of the binary log has no header"):
                Source(store)
            put(store, Family.BINARY_LOG, (key_of(1), b"{}"))
            with pytest.raises(CorruptStore, match="the header of file 1 of the binary log"):
                Source(store)


class TestReading:
    """From a GTID set on."""

    def test_what_was_executed_is_skipped_and_gaps_are_filled(self, source: Source) -> None:
        for view in range(2, 5):
            source.commit(write(0), view_change(view), write(0))
        reader = source.reader(f"{SOURCE}:2-3:6")
        assert drawn(read_all(reader)) == ["file1", "1", "v3", "4", "5"]

    def test_a_replica_starts_at_the_last_file_before_which_it_lacks_nothing(
        self, source: Source
    ) -> None:
        for _ in range(3):
            source.commit(write(0), write(0))
            source.rotate()
        assert drawn(read_all(source.reader(f"{SOURCE}:1-4"))) == ["file3", "5", "6", "file4"]
        assert drawn(read_all(source.reader(f"{SOURCE}:1-3:5-6"))) == [
            "file2",
            "4",
            "file3",
            "file4",
        ]
        assert drawn(read_all(source.reader(f"{SOURCE}:1-6"))) == ["file4"]

    def test_a_reader_goes_on_with_what_is_committed_later(self, source: Source) -> None:
        reader = source.reader()
        assert drawn(read_all(reader)) == ["file1"]
        source.commit(write(0))
        source.rotate()
        source.commit(write(0))
        assert drawn(read_all(reader)) == ["1", "file2", "2"]
        assert read_all(reader) == []

    def test_a_step_is_bounded_and_groups_are_whole(self, source: Source) -> None:
        source.commit(write(0), write(0), write(0))
        source.commit(write(0))
        source.commit(write(0))
        reader = source.reader()
        steps = []
        while not reader.is_at_end:
            steps.append(drawn(reader.read(entries_max=2)))
        assert steps == [["file1", "1", "2", "3"], ["4", "5"], []]
        reader = source.reader()
        assert len(reader.read(bytes_max=1)) == 1

    def test_what_was_purged_is_named(self, source: Source) -> None:
        source.commit(write(0), write(0), write(0))
        source.rotate()
        source.log.purge(2, source.position)
        with pytest.raises(PurgedAtSource) as raised:
            source.reader(f"{SOURCE}:2")
        assert (raised.value.source, raised.value.missing) == ("m1", f"{SOURCE}:1:3")

    def test_a_replica_that_is_overtaken_by_a_purge_is_told(self, source: Source) -> None:
        source.commit(write(0))
        reader = source.reader()
        reader.read(entries_max=1)
        source.commit(write(0))
        source.rotate()
        source.commit(write(0))
        source.log.purge(2, source.position)
        with pytest.raises(PurgedAtSource, match=f"{SOURCE}:"):
            read_all(reader)

    def test_a_log_that_was_off_for_a_time_has_a_gap_that_nobody_reads_over(
        self, source: Source, store: Store
    ) -> None:
        source.commit(write(0))
        unlogged = RocksDbTarget(store, decode_changes)
        gone = write(0)._replace(position=source.position + 1, version=2, gtid=Gtid(SOURCE, 2))
        unlogged.commit(CommitGroup(1, [Job([gone])]), source.progress)
        again = Source(store)
        again.commit(write(0))
        with pytest.raises(PurgedAtSource) as raised:
            read_all(again.reader())
        assert raised.value.missing == f"{SOURCE}:2"
        assert numbers_of(read_all(again.reader(f"{SOURCE}:1-2"))) == [3]

    def test_a_replica_that_was_close_looks_through_little(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(binary_log, "MARK_BYTES", 1_000)
        for _ in range(50):
            source.commit(write(0, "k" * 100))
        reader = source.reader(f"{SOURCE}:1-48")
        place = source.log.place_of(GtidSet.parse(f"{SOURCE}:1-48"))
        assert place is not None
        assert len(list(source.log.read(place[0]))) < 15
        entries = read_all(reader)
        assert drawn(entries) == ["file1", "49", "50"]
        assert stamps_of(entries) == [(0, 49), (0, 50)]


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=8),
    st.sets(st.integers(1, 40)),
    st.integers(1, 9),
    st.integers(1, 5),
)
def test_each_transaction_that_a_replica_lacks_comes_once(
    groups: list[list[bool]], has: set[int], numbers_max: int, entries_max: int
) -> None:
    """Groups of transactions (true) and view changes, files and steps of any size."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), IDENTITY) as store:
        source = Source(store, BinaryLogOptions(sequence_number_max=numbers_max))
        for group in groups:
            source.commit(*(write(0) if each else view_change(1) for each in group))
        executed = GtidSet.of(*(Gtid(SOURCE, number) for number in has))
        entries = read_all(source.reader(str(executed)), entries_max=entries_max)
        assert numbers_of(entries) == [n for n in range(1, source.version + 1) if n not in has]


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=6), max_size=8),
    st.integers(1, 9),
)
def test_the_history_has_the_commit_parents_and_ids_of_the_log(
    groups: list[list[int | None]], numbers_max: int
) -> None:
    """Groups of transactions, each locked since so many versions before its group, and of view
    changes; files of any size.
    """
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), IDENTITY) as store:
        source = Source(store, BinaryLogOptions(sequence_number_max=numbers_max))
        for group in groups:
            since = source.version
            source.commit(
                *(view_change(1) if age is None else write(max(since - age, 0)) for age in group)
            )
        headers = [entry.header for entry in read_all(source.reader()) if entry.gtid]
        logged = [(header.commit_parent, header.commit_id) for header in headers]
        intervals = list(applied_intervals(store))
        assert [(each.commit_parent, each.commit_id) for each in intervals] == logged


class Follower:
    """A member whose rows a server keeps: its relay queue, and the log that follows that."""

    def __init__(self, store: Store, options: BinaryLogOptions | None = None) -> None:
        self._store, self._options = store, options or BinaryLogOptions()
        self.version = self.position = 0
        self.begin()

    def begin(self, at_server: Checkpoint | None = None) -> None:
        """Begins another run, at a server that has executed something."""
        self.queue = RelayQueue(self._store, kept_bytes_max=0)
        for _ in self.queue.load():
            pass
        self.log = BinaryLog.following(self._store, at_server or Checkpoint(), self._options)

    def append(self, *entries: RelayEntry) -> None:
        """Stores entries as one group of the relay queue, as `Source.commit` numbers them."""
        group = RelayGroup()
        for entry in entries:
            self.position += 1
            self.version += entry.gtid is not None
            gtid = entry.gtid and Gtid(SOURCE, self.version)
            group.append(entry._replace(position=self.position, version=self.version, gtid=gtid))
        batch = self._store.batch()
        self.queue.append(batch, group)
        self._store.write(batch)
        self.queue.written()

    def follow(self, position: int) -> None:
        """Follows the queue up to a position, and has that let go of what the log has."""
        for _ in self.log.follow(self.queue, position):
            pass
        batch = self._store.batch()
        self.queue.discard(batch, self.log.position)
        self._store.write(batch)

    def read(self, executed: str = "") -> list[RelayEntry]:
        """All that a replica gets that has executed a GTID set."""
        has = GtidSet.parse(executed)
        return read_all(BinaryLogReader(self.log, has, source="m1", keys_of=changed_keys))


class TestFollowing:
    def test_it_has_what_is_visible_and_goes_on_within_a_group(self, store: Store) -> None:
        member = Follower(store)
        member.append(write(), write(), view_change(1), write())
        member.follow(2)
        assert drawn(member.read()) == ["file1", "1", "2"]
        member.follow(2)
        member.begin()
        member.append(write())
        member.follow(9)
        assert drawn(member.read()) == ["file1", "1", "2", "file2", "v1", "3", "4"]
        assert stamps_of(member.read(f"{SOURCE}:1-2")) == [(0, 1), (0, 2)]

    def test_a_server_that_lost_its_last_commits_changes_nothing(self, store: Store) -> None:
        member = Follower(store)
        member.append(write(), write())
        member.follow(2)
        member.begin(Checkpoint(version=1, position=1, gtid_executed=GtidSet.parse(f"{SOURCE}:1")))
        member.follow(1)
        member.append(write())
        member.follow(3)
        assert numbers_of(member.read()) == [1, 2, 3]

    def test_what_was_executed_while_it_did_not_follow_is_purged(self, store: Store) -> None:
        member = Follower(store)
        member.append(write())
        member.follow(1)
        BinaryLog.stop_following(store)
        member.append(write())
        executed = GtidSet.parse(f"{SOURCE}:1-2")
        member.begin(Checkpoint(version=2, position=2, gtid_executed=executed))
        member.append(write())
        member.follow(3)
        assert numbers_of(member.read(str(executed))) == [3]
        with pytest.raises(PurgedAtSource):
            member.read(f"{SOURCE}:1")

    def test_fragments_are_the_relay_queues(self, store: Store) -> None:
        assert Source(store).log.has_fragments_of(1)
        options = BinaryLogOptions(keeps_fragments=False)
        assert not Source(store, options).log.has_fragments_of(2)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 7))),
    st.sets(st.integers(1, 40)),
    st.integers(1, 9),
)
def test_each_transaction_of_a_relay_queue_comes_once(
    groups: list[tuple[list[bool], int]], has: set[int], numbers_max: int
) -> None:
    """Groups of transactions (true) and view changes; after each the server shows some more of
    them, and each seventh begins a run.
    """
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), IDENTITY) as store:
        member = Follower(store, BinaryLogOptions(sequence_number_max=numbers_max))
        visible = 0
        for group, more in groups:
            member.append(*(write(0) if each else view_change(1) for each in group))
            visible = min(visible + more, member.position)
            member.follow(visible)
            if more == 7:
                member.begin()
        member.follow(member.position)
        executed = GtidSet.of(*(Gtid(SOURCE, number) for number in has))
        entries = member.read(str(executed))
        assert numbers_of(entries) == [n for n in range(1, member.version + 1) if n not in has]
