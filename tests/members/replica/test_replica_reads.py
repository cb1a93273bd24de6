"""Reads of a replica's own store, by clients of its server: what they see while it commits, where
the store is opened again, and who may read.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupcert import Client, Consistency, certifiable
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.targets.rocksdb import RowChanges
from groupcert.certifier.errors import NotServing, SnapshotExpired
from groupcert.certifier.gtid import Gtid
from groupcert.members.client.client_options import session_token
from groupcert.members.errors.calls import ReadOnlyReplica, SessionEnded, VersionMissing
from groupcert.members.errors.permissions import CallNotAllowed, NotAuthenticated
from groupcert.members.errors.postgresql_servers import RowsAtServer
from groupcert.members.host.loop_thread import LoopThread
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.replica import replica_reads
from groupcert.members.replica.replica_process import EmbeddedTarget
from groupcert.members.replica.replica_reads import ReplicaReads
from groupcert.members.replica.replica_server import serving_replica
from groupcert.members.security.access import AccessList
from groupcert.v1.transaction_pb2 import Changes
from tests.integration.waiting import wait_for

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SOURCE = "10.0.0.1:7101"


class Served:
    """A store that is served, and that the test writes."""

    def __init__(self, folder: Path, loop: LoopThread) -> None:
        self.address = f"{HOST}:{free_port()}"
        self.loop = loop
        self.reads = ReplicaReads("r1", loop, lambda: SOURCE)
        self._folder = folder
        self.open()

    def open(self) -> None:
        """Opens the store, as of its checkpoint."""
        self.target = EmbeddedTarget(self._folder, "r1", reads=self.reads)
        self.progress = TargetProgress(self.target.checkpoint() or Checkpoint())

    def put(self, number: int, **rows: str) -> None:
        """Commits transaction `number` with these rows."""
        keys = [key.encode() for key in rows]
        values = [value.encode() for value in rows.values()]
        payload = Changes(put_keys=keys, put_values=values).SerializeToString()
        gtid = Gtid(GROUP, number)
        entry = RelayEntry(number, number, gtid, 0, number, local=False, payload=payload)
        job: Job[RowChanges] = Job([entry])
        job.execution = self.target.execute(job)
        self.target.commit(CommitGroup(number, [job]), self.progress)


@contextmanager
def serving(folder: Path, access: AccessList | None = None) -> Iterator[Served]:
    """A store of which transaction 1 is committed."""
    with LoopThread() as loop:
        served = Served(folder, loop)
        with serving_replica(loop, served.address, lambda: None, served.reads, access=access):
            try:
                served.put(1, a="1", b="1")
                yield served
            finally:
                served.target.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A store that is served to whoever can connect."""
    with serving(tmp_path) as served:
        yield served


def read(client: Client) -> dict[bytes, bytes]:
    """The rows, at one snapshot."""
    with client.transaction() as transaction:
        return dict(transaction.scan())


def test_a_snapshot_stays_as_it_is_while_the_replica_commits(served: Served) -> None:
    with Client(served.address) as client:
        with client.transaction() as older:
            assert older.get(b"a") == b"1"
            served.put(2, a="2", b="2")
            assert older.get_many([b"a", b"b", b"c"]) == {b"a": b"1", b"b": b"1", b"c": None}
            with client.transaction() as newer:
                assert dict(newer.scan()) == {b"a": b"2", b"b": b"2"}
                assert (older.snapshot_version, newer.snapshot_version) == (1, 2)
        assert client.version == 2


def test_what_fills_a_gap_is_seen_and_only_then_a_version_counts(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transaction 3 is committed before 2, as schemes without an order do."""
    monkeypatch.setattr(replica_reads, "VERSION_SECONDS", 0.1)
    served.put(3, b="3")
    with Client(served.address) as client:
        assert read(client) == {b"a": b"1", b"b": b"3"}
    with Client(served.address, timeout_ms=1_000, after=session_token(3)) as client:
        with pytest.raises(VersionMissing, match=r"member r1 is at version 1, .* waits for 3"):
            client.transaction()
        served.put(2, a="2")
        assert read(client) == {b"a": b"2", b"b": b"3"}


def test_a_session_waits_for_what_it_has_seen(served: Served) -> None:
    with (
        Client(served.address, after=session_token(2)) as client,
        ThreadPoolExecutor(1) as executor,
    ):
        reading = executor.submit(read, client)
        wait_for("who waits", lambda: served.reads._waiting)
        served.put(2, a="2")
        assert reading.result()[b"a"] == b"2"


@pytest.mark.parametrize("what", ["commit", "large commit", "certify", "outcome", "read BEFORE"])
def test_only_reads_are_taken_and_the_source_is_named(served: Served, what: str) -> None:
    written = certifiable(snapshot=1, write_set=[1])
    large = b"x" * (4 << 20)
    with (
        Client(served.address) as client,
        pytest.raises(ReadOnlyReplica, match=f"to its source, {SOURCE}") as caught,
    ):
        match what:
            case "commit" | "large commit":
                with client.transaction() as transaction:
                    transaction.put(b"a", b"x" if what == "commit" else large)
            case "certify":
                client.certify(written)
            case "outcome":
                client.outcome(written.transaction_id)
            case _:
                client.consistency = Consistency.BEFORE
                client.transaction()
    assert caught.value.replica == "r1"
    with Client(served.address) as client:
        assert read(client) == {b"a": b"1", b"b": b"1"}


def test_a_store_that_is_opened_again_ends_what_was_read(served: Served) -> None:
    with Client(served.address, timeout_ms=1_000) as client:
        older = client.transaction()
        served.target.close()
        with pytest.raises(NotServing, match="r1 is without its store"):
            client.transaction()
        served.open()
        with pytest.raises(SnapshotExpired):
            older.get(b"a")
        assert client.run(lambda transaction: transaction.get(b"a")) == b"1"


def test_a_closed_store_ends_who_waits_for_a_version(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_reads, "VERSION_SECONDS", 600.0)
    with (
        Client(served.address, after=session_token(9), timeout_ms=2_000) as client,
        ThreadPoolExecutor(1) as executor,
    ):
        reading = executor.submit(read, client)
        wait_for("who waits", lambda: served.reads._waiting)
        served.target.close()
        with pytest.raises(NotServing, match="r1 is without its store"):
            reading.result()
        served.open()


def test_a_snapshot_that_nobody_uses_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_reads, "LEASE_MS", 1)
    monkeypatch.setattr(replica_reads, "EXPIRE_SECONDS", 0.01)
    with serving(tmp_path) as served, Client(served.address) as client:
        transaction = client.transaction()
        wait_for("its end", lambda: not len(served.reads.snapshots))
        with pytest.raises((SnapshotExpired, SessionEnded)):
            transaction.get(b"a")


def test_access_lists_hold_as_at_members(tmp_path: Path) -> None:
    principals = [
        {"name": name, "token_sha256": hashlib.sha256(name.encode()).hexdigest(), "roles": [role]}
        for name, role in (("reader", "read"), ("writer", "write"))
    ]
    access = AccessList.model_validate({"principal": principals})
    with serving(tmp_path, access) as served:
        with Client(served.address, token="reader") as client:
            assert read(client)[b"a"] == b"1"
            with pytest.raises(CallNotAllowed), client.transaction() as transaction:
                transaction.put(b"a", b"2")
        with Client(served.address, token="writer") as client:
            with pytest.raises(CallNotAllowed):
                client.transaction()
        with Client(served.address) as client, pytest.raises(NotAuthenticated):
            client.transaction()


def test_a_replica_without_rows_says_where_they_are() -> None:
    address = f"{HOST}:{free_port()}"
    with LoopThread() as loop:
        reads = ReplicaReads("r1", loop, lambda: SOURCE, RowsAtServer(server="db1/shop"))
        with (
            serving_replica(loop, address, lambda: None, reads),
            Client(address) as client,
            pytest.raises(RowsAtServer, match="the rows are at db1/shop: use SQL there"),
        ):
            client.transaction()
