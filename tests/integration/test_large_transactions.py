"""Large transactions on real members: whole or not at all, everywhere, whoever dies in between.

Values are random bytes, so that nothing is gained by compression; a member's rows are compared by a
hash of all of them.
"""

import hashlib
import os
import statistics
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from groupcert import (
    CertifiableTransaction,
    CertificationConflict,
    Client,
    Consistency,
    Transaction,
    certifiable,
)
from groupcert.certifier.errors import Overloaded, TransactionTooLarge
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.certifier.write_set import store_key_item
from groupcert.members.client.commit_sending import CommitSending
from groupcert.members.client.direct_calls import DirectMember
from groupcert.members.client.own_writes import OwnWrites
from groupcert.members.client.remote_member import RemoteMember
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.large_transactions.fragment_store import FragmentStore
from groupcert.members.wire.pieces import split
from groupcert.members.wire.statuses import error_from
from groupcert.v1 import store_pb2
from groupcert.v1.store_pb2_grpc import StoreServiceStub
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, VERDICT_CONFLICT, Changes
from tests.integration.replicas import ReplicaProcess, embedded_state
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

LIMIT = 30_000_000
LARGE = 10_000_000
ROW = 20_000
SETTINGS: Mapping[str, object] = {
    "transaction_bytes_max": LIMIT,
    "ingress_bytes_max": 2 * LIMIT,
    "suspicion_timeout_ms": 2_000,
    "member_expel_timeout_ms": 2_000,
    "stable_set_period_ms": 200,
}
MEMBER_BYTES_MAX = 600_000_000
"""What members/runtime/README.md says of a member that takes large transactions."""
LARGEST = 145_000_000


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Three members, of which the last one keeps no binary log."""
    group = LocalGroup(tmp_path_factory.mktemp("group"), members=3, settings=SETTINGS)
    try:
        group.log_server.start()
        for name in group.names:
            start(group, name)
        group.wait_online()
        yield group
    finally:
        group.stop()


@pytest.fixture
def prefix() -> bytes:
    """Before the keys of a test."""
    return uuid.uuid4().hex.encode() + b"/"


def start(group: LocalGroup, name: str) -> None:
    """Starts a member with its own setting."""
    group.start_member(name, {"binary_log": name != "m3"})


def fill(transaction: Transaction, prefix: bytes, size: int = LARGE) -> None:
    """Writes rows of so many bytes."""
    for number in range(size // ROW):
        transaction.put(prefix + b"%06d" % number, os.urandom(ROW))


def rows_hash(group: LocalGroup, name: str, prefix: bytes) -> tuple[int, str]:
    """How many rows a member has below a prefix, and a hash of them, of the newest state."""
    digest, count = hashlib.sha256(), 0
    address = group.addresses[name]
    with (
        Client(address, consistency=Consistency.BEFORE) as client,
        client.transaction() as transaction,
    ):
        for key, value in transaction.scan(prefix, prefix + b"\xff"):
            digest.update(key + value)
            count += 1
    return count, digest.hexdigest()


def assert_whole_everywhere(group: LocalGroup, prefix: bytes, rows: int) -> None:
    """All members have the same rows, and so many of them."""
    found = {name: rows_hash(group, name, prefix) for name in group.names}
    assert len(set(found.values())) == 1, found
    assert found["m1"][0] == rows


def wait_for_nothing_open(group: LocalGroup) -> None:
    """Returns when no member takes anything in or keeps a fragment of what is not decided."""

    def is_clean() -> bool:
        statuses = [group.status(name).observer for name in group.processes]
        return not any(status.uploads or status.fragment_sets for status in statuses)

    wait_for("members forget what will not come", is_clean)


def wait_for_fragments(group: LocalGroup, name: str, commit: threading.Thread) -> None:
    """Returns when a member has some of a commit, or too late: it has ended."""

    def has_begun() -> bool:
        return group.status(name).observer.fragment_sets_bytes > 2_000_000

    wait_for("fragments", lambda: has_begun() or not commit.is_alive())


def commit_request(version: int) -> store_pb2.CommitRequest:
    """A commit of a new transaction on a known version."""
    return store_pb2.CommitRequest(transaction_id=uuid.uuid4().bytes, snapshot_version=version)


class Stream:
    """A large commit, sent by hand: parts go when they are told to."""

    def __init__(self, address: str, size: int) -> None:
        self._member = DirectMember(address)
        self._go_on = threading.Semaphore(0)
        self._parts = split(
            [(b"x/%d" % n, os.urandom(ROW)) for n in range(size // ROW)], (), 1 << 18
        )
        self._size = size
        self.call = StoreServiceStub(self._member.channel).CommitStream(self._requests(), 60)

    def _requests(self) -> Iterator[store_pb2.CommitStreamRequest]:
        header = store_pb2.CommitHeader(commit=commit_request(1), changes_bytes=2 * self._size)
        yield store_pb2.CommitStreamRequest(header=header)
        for part in self._parts:
            self._go_on.acquire()
            yield store_pb2.CommitStreamRequest(rows=store_pb2.CommitPart(changes=part))

    def admitted(self) -> bool:
        """Whether the member has room for it; its error otherwise."""
        try:
            answer: store_pb2.CommitStreamResponse
            for answer in self.call:
                return answer.HasField("admitted")
            return False
        except grpc.RpcError as error:
            raise error_from(error) from None

    def send(self, parts: int) -> None:
        """Sends some parts."""
        self._go_on.release(parts)

    def hang_up(self) -> None:
        """Goes away, without a word."""
        self.call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it out
        self._go_on.release(1_000)
        self._member.channel.close()


def test_a_large_commit_is_whole_at_every_member(group: LocalGroup, prefix: bytes) -> None:
    with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
        fill(transaction, prefix)
        transaction.put(prefix + b"long", os.urandom(5_000_000))
        transaction.put(prefix + b"x", b"")
    assert transaction.gtid
    assert_whole_everywhere(group, prefix, LARGE // ROW + 2)
    with Client(group.addresses["m2"]) as client, client.transaction() as transaction:
        transaction.get(prefix + b"x")
        for number in range(LARGE // ROW):
            transaction.delete(prefix + b"%06d" % number)
        transaction.put(prefix + b"long", os.urandom(2_000_000))
    assert_whole_everywhere(group, prefix, 2)
    wait_for_nothing_open(group)


def test_one_that_lost_leaves_nothing_and_says_why(group: LocalGroup, prefix: bytes) -> None:
    with Client(group.addresses["m1"]) as client, Client(group.addresses["m2"]) as other:
        transaction = client.transaction()
        fill(transaction, prefix)
        with other.transaction() as first:
            first.put(prefix + b"000001", b"first")
        with pytest.raises(CertificationConflict):
            transaction.commit()
    assert_whole_everywhere(group, prefix, 1)
    wait_for_nothing_open(group)


def test_over_the_limit_it_is_refused_before_its_rows_are_sent(
    group: LocalGroup, prefix: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitSending, "_parts", lambda _: pytest.fail("rows were sent"))
    with Client(group.addresses["m1"]) as client:
        transaction = client.transaction()
        fill(transaction, prefix, LIMIT + ROW)
        with pytest.raises(TransactionTooLarge, match=rf"of \d+ bytes, the limit is {LIMIT}: spl"):
            transaction.commit()
    assert_whole_everywhere(group, prefix, 0)


def test_more_than_it_takes_in_at_a_time_is_sent_elsewhere(group: LocalGroup) -> None:
    streams = [Stream(group.addresses["m2"], LIMIT // 2 - ROW) for _ in range(3)]
    try:
        assert streams[0].admitted()
        assert streams[1].admitted()
        with pytest.raises(Overloaded, match=f"the limit is {2 * LIMIT}"):
            streams[2].admitted()
        wait_for("the first two", lambda: group.status("m2").observer.uploads == 2)
    finally:
        for stream in streams:
            stream.hang_up()
    wait_for_nothing_open(group)


def test_a_client_that_hangs_up_frees_what_it_held(group: LocalGroup) -> None:
    stream = Stream(group.addresses["m1"], LARGE)
    assert stream.admitted()
    stream.send(10)
    wait_for(
        "its fragments at the others", lambda: group.status("m3").observer.fragment_sets_bytes > ROW
    )
    stream.hang_up()
    wait_for_nothing_open(group)
    assert_whole_everywhere(group, b"x/", 0)


async def test_a_repetition_has_the_first_outcome(group: LocalGroup, prefix: bytes) -> None:
    writes = OwnWrites()
    for number in range(LARGE // ROW):
        writes.put(prefix + b"%06d" % number, os.urandom(ROW))
    version = group.status("m1").observer.committed_version
    sending = CommitSending(commit_request(version), writes, [])
    answers = []
    for name in ("m1", "m2"):
        member = RemoteMember(group.addresses[name])
        answers.append(await sending.send(member, 0, 60))
        await member.close()
    first, second = answers
    assert (first.gtid, first.version) == (second.gtid, second.version)
    assert_whole_everywhere(group, prefix, LARGE // ROW)
    wait_for_nothing_open(group)


def certified(prefix: bytes, size: int, version: int) -> CertifiableTransaction:
    """A transaction on a store of its own, with rows of so many bytes and an item beside them."""
    rows = size // ROW
    changes = Changes(
        put_keys=[prefix + b"%d" % number for number in range(rows)],
        put_values=[os.urandom(ROW) for _ in range(rows)],
    )
    transaction = certifiable(snapshot=version, write_set=[uuid.uuid4().int >> 64])
    transaction.changes = changes.SerializeToString()
    return transaction


def test_certified_changes_of_a_call_go_in_fragments(group: LocalGroup, prefix: bytes) -> None:
    with Client(group.addresses["m1"]) as client:
        version = client.status().observer.committed_version
        transaction = certified(prefix, 900_000, version)
        assert client.certify(transaction).verdict == VERDICT_CERTIFIED
        transaction.transaction_id = b"again"
        leased = client.transaction()  # Nothing after its snapshot is collected meanwhile.
        transaction.snapshot_version = leased.snapshot_version
        small = certifiable(snapshot=leased.snapshot_version, write_set=[uuid.uuid4().int >> 64])
        answers = list(client.certify_stream([[transaction, small], [small]]))
        leased.rollback()
        assert [outcome.verdict for _, outcome in answers] == [VERDICT_CERTIFIED] * 3
    assert_whole_everywhere(group, prefix, 900_000 // ROW)
    wait_for_nothing_open(group)


def test_larger_ones_go_in_parts_with_their_items_and_are_answered_with_a_verdict(
    group: LocalGroup, prefix: bytes
) -> None:
    with Client(group.addresses["m1"]) as client, Client(group.addresses["m2"]) as other:
        leased = client.transaction()  # Nothing after its snapshot is collected meanwhile.
        transaction = certified(prefix, LARGE, leased.snapshot_version)
        outcome = client.certify(transaction)
        assert outcome.verdict == VERDICT_CERTIFIED
        assert client.certify(transaction).gtid == outcome.gtid, "the answer to a repetition"
        for item in (*transaction.write_set, store_key_item(prefix + b"7")):
            late = certified(b"x/", LARGE, leased.snapshot_version)
            late.write_set.append(item)
            lost = other.certify(late)
            assert lost.verdict == VERDICT_CONFLICT
            assert (lost.conflict.item, lost.conflict.winner_gtid) == (item, outcome.gtid)
        leased.rollback()
        transaction = certified(prefix, LIMIT + 2 * ROW, outcome.version)
        with pytest.raises(TransactionTooLarge, match=f"the limit is {LIMIT}"):
            client.certify(transaction)
    assert_whole_everywhere(group, b"x/", 0)
    assert_whole_everywhere(group, prefix, LARGE // ROW)
    wait_for_nothing_open(group)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["m1", "m3"])
def test_a_member_killed_midway_leaves_it_whole_or_absent(
    group: LocalGroup, prefix: bytes, victim: str
) -> None:
    """The client goes on at another member where the one dies that it spoke to."""
    addresses = [group.addresses["m1"], group.addresses["m2"]]
    with Client(addresses, timeout_ms=60_000) as client:
        transaction = client.transaction()
        fill(transaction, prefix, LIMIT - LIMIT // 10)
        commit = threading.Thread(target=transaction.commit)
        commit.start()
        wait_for_fragments(group, "m2", commit)
        group.kill(victim)
        commit.join()
        assert transaction.gtid
    start(group, victim)
    group.wait_online()
    assert_whole_everywhere(group, prefix, (LIMIT - LIMIT // 10) // ROW)
    wait_for_nothing_open(group)


@pytest.mark.slow
def test_all_members_killed_while_they_execute_it_have_it_afterwards(
    group: LocalGroup, prefix: bytes
) -> None:
    with Client(group.addresses["m1"], timeout_ms=60_000) as client:
        transaction = client.transaction()
        fill(transaction, prefix, LIMIT - LIMIT // 10)
        commit = threading.Thread(target=lambda: ended(transaction))
        commit.start()
        wait_for_fragments(group, "m1", commit)
        wait_for("its decision", lambda: not group.status("m1").observer.fragment_sets)
        for name in group.names:
            group.kill(name)
        for name in group.names:
            start(group, name)
        group.wait_online()
        commit.join()
    assert_whole_everywhere(group, prefix, (LIMIT - LIMIT // 10) // ROW)
    wait_for_nothing_open(group)


def ended(transaction: Transaction) -> None:
    """Commits, and does not mind how that ends."""
    try:
        transaction.commit()
    except Exception:
        return


@pytest.mark.slow
def test_a_replica_executes_it_or_says_that_it_is_too_large(
    group: LocalGroup, prefix: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
        fill(transaction, prefix)
        transaction.put(prefix + b"long", os.urandom(5_000_000))
    sources = [group.addresses["m1"], group.addresses["m2"]]
    target = f"rocksdb:{tmp_path / 'target'}"
    with ReplicaProcess(tmp_path, sources, target, "logical-clock") as replica:
        assert replica.run("--until-after-gtids", transaction.gtid) == 0, replica.last_line()
    rows, _ = embedded_state(tmp_path / "target")
    digest = hashlib.sha256()
    own = sorted(key for key in rows if key.startswith(prefix))
    for key in own:
        digest.update(key + rows[key])
    assert (len(own), digest.hexdigest()) == rows_hash(group, "m1", prefix)
    monkeypatch.setenv("GROUPCERT_TRANSACTION_BYTES_MAX", "1000000")
    target = f"rocksdb:{tmp_path / 'another'}"
    with ReplicaProcess(tmp_path / "small", sources, target, "logical-clock") as replica:
        assert replica.run() == 2
        assert "the limit is 1000000" in replica.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(50_000_000, marks=pytest.mark.in_turns),
        pytest.param(LARGEST, marks=pytest.mark.nightly),
    ],
)
def test_large_ones_go_through_beside_small_ones_in_bounded_memory(
    tmp_path: Path, size: int
) -> None:
    """Three at a time, each through another member."""
    with LocalGroup(tmp_path, members=3) as group, watched(group) as peaks, small(group) as times:
        threads = [
            threading.Thread(target=commit_large, args=(group, name, size)) for name in group.names
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        assert_whole_everywhere(group, b"large/", 3 * (size // ROW))
        wait_for_nothing_open(group)
    assert max(peaks.values()) < MEMBER_BYTES_MAX - 2 * (LARGEST - size), peaks
    assert statistics.median(times) < took / 20, "they do not wait until a large one has ended"
    for name in group.names:
        assert not left_over(group, name)


def commit_large(group: LocalGroup, name: str, size: int) -> None:
    """Commits rows of so many bytes at a member."""
    with Client(group.addresses[name], timeout_ms=120_000) as client:
        with client.transaction() as transaction:
            fill(transaction, b"large/%s/" % name.encode(), size)


def left_over(group: LocalGroup, name: str) -> int:
    """Sets of fragments of a stopped member that its binary log does not refer to."""
    with Store(group.folder / name, StoreIdentity(group="local", member=name)) as store:
        assert next(store.scan(Family.FRAGMENTS), None), "the binary log keeps them"
        return FragmentStore(store).remove_strangers((), ())


@contextmanager
def watched(group: LocalGroup) -> Iterator[dict[str, int]]:
    """The largest resident size of each member during the block."""
    peaks: dict[str, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            for name, process in list(group.processes.items()):
                size = psutil.Process(process.pid).memory_info().rss
                peaks[name] = max(peaks.get(name, 0), size)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


@contextmanager
def small(group: LocalGroup) -> Iterator[list[float]]:
    """How long small commits take during the block, in seconds."""
    times: list[float] = []
    ended = threading.Event()

    def work(name: str) -> None:
        with Client(group.addresses[name], timeout_ms=60_000) as client:
            while not ended.is_set():
                began = time.perf_counter()
                with client.transaction() as transaction:
                    transaction.put(b"small/" + name.encode(), b"1")
                times.append(time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(name,)) for name in group.names[:2]]
    for thread in threads:
        thread.start()
    try:
        yield times
    finally:
        ended.set()
        for thread in threads:
            thread.join()
