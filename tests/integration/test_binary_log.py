"""A replica's view of real members: their binary logs over gRPC, through crashes and rotations.

A subscriber here is what a replica is at the least: it remembers the GTIDs that it got, and asks
for the rest.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import grpc
import pytest

from groupcert import Client, TransactionFailed, certifiable
from groupcert.applier.errors import PurgedAtSource, ReplicaAhead
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.certifier.errors import DomainNotAllowed, NotServing
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.client.remote_member import MESSAGE_BYTES_MAX
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.door.answer_budget import PAGE_BYTES
from groupcert.members.wire.binary_log_entries import entries_from
from groupcert.members.wire.statuses import error_from
from groupcert.v1 import binary_log_pb2
from groupcert.v1.binary_log_pb2_grpc import BinaryLogServiceStub
from groupcert.v1.transaction_pb2 import Changes

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

SETTINGS = {
    "binary_log_file_bytes_max": 4_096,
    "domain_sessions": ["alter"],
    "stable_set_period_ms": 200,
}


class Subscriber:
    """What one replica has got, from whichever member it asked."""

    def __init__(self) -> None:
        self.executed = GtidSet()
        self.entries: list[RelayEntry] = []
        self.source_version = 0
        self.heartbeats = 0

    def follow(self, address: str, *, version: int, timeout_s: float = 120) -> None:
        """Reads from a member until it has everything up to `version`, which may be there already.

        Raises what the member answers.
        """
        request = binary_log_pb2.SubscribeRequest(
            replica="test", gtid_executed=str(self.executed), events_max=50
        )
        options = (("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),)
        with grpc.insecure_channel(address, options) as channel:
            call = BinaryLogServiceStub(channel).Subscribe(request, timeout=timeout_s)
            try:
                for response in call:
                    self._take(response)
                    if self.version >= version:
                        break
            except grpc.RpcError as error:
                raise error_from(error, address) from error

    @property
    def version(self) -> int:
        """The newest transaction that it has."""
        return max((entry.version for entry in self.entries if entry.gtid), default=0)

    def transactions(self) -> list[RelayEntry]:
        """What it has got, in order, without view changes and rotations."""
        return [entry for entry in self.entries if entry.gtid]

    def _take(self, response: binary_log_pb2.SubscribeResponse) -> None:
        self.heartbeats += not response.events
        self.source_version = response.source_version
        for entry in entries_from(response, len(self.entries) + 1):
            if entry.gtid:
                assert entry.gtid not in self.executed, f"{entry.gtid} came twice"
                self.executed.add(entry.gtid)
            self.entries.append(entry)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """Two members with small files."""
    with LocalGroup(tmp_path, members=2, settings=SETTINGS) as group:
        yield group


def stub(group: LocalGroup, name: str = "m1") -> BinaryLogServiceStub:
    return BinaryLogServiceStub(grpc.insecure_channel(group.addresses[name]))


def commit(client: Client, count: int, table: str = "shop.orders") -> int:
    """Commits transactions of one row each; the version of the last one."""
    for number in range(count):
        with client.transaction() as transaction:
            transaction.put(f"{table}/{number}".encode(), b"x" * 20)
    return client.version


def assert_dense(entries: Sequence[RelayEntry]) -> None:
    """Nothing is missing, nothing comes twice, and each file's clock is whole."""
    assert [entry.version for entry in entries] == list(range(1, len(entries) + 1))
    assert_clocks(entries)


def assert_clocks(entries: Sequence[RelayEntry]) -> None:
    """The clock of each file of one member goes on from entry to entry."""
    before: dict[int, int] = {}
    for entry in entries:
        file = entry.header.file
        assert entry.sequence_number > before.get(file, 0)
        assert entry.last_committed < entry.sequence_number
        before[file] = entry.sequence_number


def test_a_member_that_is_killed_misses_nothing_and_repeats_nothing(group: LocalGroup) -> None:
    """Commits go on at the other one, so that the member comes back to a log ahead of it."""
    subscriber, stop = Subscriber(), threading.Event()

    def write(name: str) -> None:
        with Client(group.addresses[name], timeout_ms=60_000) as client:
            number = 0
            while not stop.is_set():
                number += 1
                with client.transaction() as transaction:
                    transaction.put(f"{name}.t/{number % 50}".encode(), b"x")

    writer = threading.Thread(target=write, args=("m2",))
    with Client(group.addresses["m1"]) as client:
        writer.start()
        try:
            for _ in range(3):
                version = commit(client, 20)
                subscriber.follow(group.addresses["m1"], version=version)
                group.kill("m1")
                with pytest.raises(NotServing):
                    subscriber.follow(group.addresses["m1"], version=version + 10**6)
                group.start_member("m1")
                group.wait_online()
        finally:
            stop.set()
            writer.join()
    with Client(list(group.addresses.values())) as client:
        version = commit(client, 1)
    subscriber.follow(group.addresses["m1"], version=version)
    assert_dense(subscriber.transactions())
    tables = {entry.header.tables for entry in subscriber.transactions()}
    assert tables == {("shop.orders",), ("m2.t",)}
    other = Subscriber()
    other.follow(group.addresses["m2"], version=version)
    assert [entry.gtid for entry in other.transactions()] == [
        entry.gtid for entry in subscriber.transactions()
    ]
    assert [entry.payload for entry in other.transactions()] == [
        entry.payload for entry in subscriber.transactions()
    ]


def test_a_replica_may_go_on_at_another_member(group: LocalGroup) -> None:
    """Members end their files at places of their own, so that each one's clocks are its own."""
    subscriber, ends = Subscriber(), [0]
    with Client(group.addresses["m1"]) as client:
        for name in ("m1", "m2", "m1"):
            subscriber.follow(group.addresses[name], version=commit(client, 30))
            ends.append(len(subscriber.transactions()))
    entries = subscriber.transactions()
    assert [entry.version for entry in entries] == list(range(1, len(entries) + 1))
    for first, end in pairwise(ends):
        assert_clocks(entries[first:end])


def test_files_end_by_size_and_by_command_and_can_be_purged(group: LocalGroup) -> None:
    service = stub(group)
    with Client(group.addresses["m1"]) as client:
        version = commit(client, 60)
        files = service.ListFiles(binary_log_pb2.ListFilesRequest()).files
        assert len(files) > 2
        assert all(file.bytes < 3 * 4_096 for file in files)
        rotated = service.Rotate(binary_log_pb2.RotateRequest()).file
        assert rotated == files[-1].number + 1
        client_status = client.status().observer
        assert client_status.binary_log_files == len(files) + 1
        assert client_status.binary_log_first_gtid == files[0].first_gtid
        assert client_status.binlog_commits >= client_status.binlog_group_commits >= 1
        subscriber = Subscriber()
        subscriber.follow(group.addresses["m1"], version=version)
        entries = subscriber.entries
        assert entries[0].gtid is None, "a stream begins with the name of a file"
        rotations = [each for each in entries if each.gtid is None and not each.header.view_id]
        numbers = [each.header.file for each in rotations]
        assert numbers[: len(files)] == [file.number for file in files]
        views = [each.header.view_id for each in entries if each.header.view_id]
        assert views == sorted(views) != []
        purged = service.Purge(binary_log_pb2.PurgeRequest(to_file=rotated)).files_purged
        assert purged == len(files)
        with pytest.raises(PurgedAtSource) as raised:
            Subscriber().follow(group.addresses["m1"], version=version)
        assert GtidSet.parse(raised.value.missing) == subscriber.executed
        subscriber.follow(group.addresses["m1"], version=commit(client, 1))
        assert_dense(subscriber.transactions())


def test_transactions_with_a_row_in_common_overlap_nowhere(group: LocalGroup) -> None:
    """Clients of both members fight for few rows: by no stamp or id may a replica execute two at
    once that wrote the same row, and by each it may execute some.
    """

    def write(number: int) -> None:
        chance = random.Random(number)
        with Client(group.addresses[f"m{number % 2 + 1}"]) as client:
            for _ in range(60):
                key = f"t/{chance.randrange(30)}".encode()
                with suppress(TransactionFailed), client.transaction() as transaction:
                    transaction.put(key, (transaction.get(key) or b"")[:20] + b"x")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Client(list(group.addresses.values())) as client:
        version = commit(client, 1)
    for address in group.addresses.values():
        subscriber = Subscriber()
        subscriber.follow(address, version=version)
        entries = subscriber.transactions()
        assert_dense(entries)
        last_writers: dict[int, RelayEntry] = {}
        for entry in entries:
            header = entry.header
            for earlier in filter(None, map(last_writers.get, header.items)):
                if earlier.header.file == header.file:
                    assert earlier.sequence_number <= entry.last_committed
                    assert earlier.header.commit_parent < header.commit_parent
                    assert not header.commit_id or earlier.header.commit_id != header.commit_id
            last_writers.update(dict.fromkeys(header.items, entry))
        assert any(entry.last_committed < entry.sequence_number - 1 for entry in entries)
        parents = [entry.header.commit_parent for entry in entries]
        assert any(first == second for first, second in pairwise(parents))


def test_a_quiet_source_says_that_it_is_there(group: LocalGroup) -> None:
    with Client(group.addresses["m1"]) as client:
        version = commit(client, 1)
    subscriber = Subscriber()
    with grpc.insecure_channel(group.addresses["m1"]) as channel:
        call = BinaryLogServiceStub(channel).Subscribe(
            binary_log_pb2.SubscribeRequest(), timeout=120
        )
        for response in call:
            subscriber._take(response)
            assert response.source == "m1"
            assert response.source_us > 0
            if subscriber.heartbeats >= 2:
                break
    assert subscriber.source_version == subscriber.version == version


def test_a_replica_with_transactions_that_the_group_has_not_is_refused(group: LocalGroup) -> None:
    with Client(group.addresses["m1"]) as client:
        commit(client, 1)
    ahead = Subscriber()
    ahead.follow(group.addresses["m1"], version=1)
    (transaction,) = ahead.transactions()
    assert transaction.gtid is not None
    extra = Gtid(transaction.gtid.source, 500_000)
    ahead.executed.add(extra)
    ahead.executed.add(Gtid("bbbbbbbb-aaaa-aaaa-aaaa-aaaaaaaaaaaa", 7))
    with pytest.raises(ReplicaAhead) as raised:
        ahead.follow(group.addresses["m1"], version=10)
    assert (raised.value.source, raised.value.extra) == ("m1", str(extra))


def test_a_domain_takes_the_right_to_set_it_and_comes_with_the_transaction(
    group: LocalGroup,
) -> None:
    address = group.addresses["m1"]
    with Client(address, session="guest", gtid_domain_id=3) as guest:
        transaction = guest.transaction()
        transaction.put(b"k", b"1")
        with pytest.raises(DomainNotAllowed) as raised:
            transaction.commit()
        assert (raised.value.session, raised.value.domain_id) == ("guest", 3)
        certify = certifiable(snapshot=0, write_set=[1])
        certify.gtid_domain_id = 3
        with pytest.raises(DomainNotAllowed):
            guest.certify(certify)
        with guest.transaction(gtid_domain_id=0) as transaction:
            transaction.put(b"k", b"1")
    with Client(address, session="alter", gtid_domain_id=3) as alter:
        with alter.transaction() as transaction:
            transaction.put(b"k", b"2")
        with alter.transaction(gtid_domain_id=4) as transaction:
            transaction.put(b"k", b"3")
        version = alter.version
    for name in group.names:
        subscriber = Subscriber()
        subscriber.follow(group.addresses[name], version=version)
        domains = [entry.header.domain_id for entry in subscriber.transactions()]
        assert domains == [0, 3, 4], "the same at every member"


def test_a_member_without_a_binary_log_says_so(group: LocalGroup) -> None:
    group.stop_member("m2")
    group.start_member("m2", settings={"binary_log": False})
    group.wait_online()
    with pytest.raises(Exception, match="setting binary_log is 'False': expected true"):
        Subscriber().follow(group.addresses["m2"], version=1)


def test_commits_that_wait_for_company_are_committed_as_a_group(tmp_path: Path) -> None:
    settings = {"binlog_commit_wait_count": 8, "binlog_commit_wait_usec": 60_000_000}
    with LocalGroup(tmp_path, members=1, settings=settings) as group:
        address = group.addresses["m1"]

        def write(number: int) -> None:
            with Client(address, timeout_ms=120_000) as client, client.transaction() as transaction:
                transaction.put(f"t/{number}".encode(), b"x")

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        subscriber = Subscriber()
        with Client(address) as client:
            status = client.status().observer
        subscriber.follow(address, version=8)
        ids = [entry.header.commit_id for entry in subscriber.transactions()]
        assert max(ids.count(each) for each in ids if each) > 1
        assert status.binlog_commits == 8 > status.binlog_group_commits
        keys = {Changes.FromString(each.payload).put_keys[0] for each in subscriber.transactions()}
        assert len(keys) == 8


@pytest.mark.slow
def test_a_commit_group_that_no_message_takes_is_divided(tmp_path: Path) -> None:
    count, size = 40, (1 << 20) - 2_000
    settings = {
        "binlog_commit_wait_count": count,
        "binlog_commit_wait_usec": 60_000_000,
        "fragment_bytes": 1 << 20,
    }
    with LocalGroup(tmp_path, members=1, settings=settings) as group:
        address = group.addresses["m1"]
        value = bytes(size)

        def write(number: int) -> None:
            with Client(address, timeout_ms=120_000) as client, client.transaction() as transaction:
                transaction.put(f"t/{number}".encode(), value)

        with ThreadPoolExecutor(count) as threads:
            assert len(list(threads.map(write, range(count)))) == count
        subscriber = Subscriber()
        subscriber.follow(address, version=count)
        ids = [entry.header.commit_id for entry in subscriber.transactions()]
        assert max(ids.count(each) for each in ids if each) * size > PAGE_BYTES
