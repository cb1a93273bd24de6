"""What a group promises its clients, asked over gRPC at three real members."""

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from groupcert import (
    CertificationConflict,
    Client,
    Consistency,
    GetOutcomeResponse,
    MemberStatus,
    Transaction,
    TransactionTooOld,
    certifiable,
)
from groupcert.certifier.errors import SnapshotExpired
from groupcert.members.demo.group_checks import settle
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.calls import TooManySnapshots
from groupcert.members.security.access import ROLES_OF_CALL
from groupcert.v1 import store_pb2, store_pb2_grpc
from groupcert.v1.transaction_pb2 import (
    VERDICT_CERTIFIED,
    VERDICT_CONFLICT,
    VERDICT_REFUSED,
    VERDICT_TOO_OLD,
    Changes,
    Conflict,
)
from tests.integration.conftest import SETTINGS
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

SERVICES = {
    "groupcert.v1.CertificationService",
    "groupcert.v1.StoreService",
    "groupcert.v1.GroupService",
}
FOREIGN_UUID = "0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f"
BATCH = 64

_item_numbers = count(1)
_gtid_numbers = count(1)


@pytest.fixture
def key() -> bytes:
    """A prefix of keys that no other test uses."""
    return uuid.uuid4().hex.encode() + b"/"


@pytest.fixture
def channel(group: LocalGroup) -> Iterator[grpc.Channel]:
    """A connection to the first member, for calls that the client has no function for."""
    with grpc.insecure_channel(group.addresses["m1"]) as channel:
        yield channel


def new_item() -> int:
    """A write-set item that no other test uses."""
    return next(_item_numbers) << 32


def version_of(clients: Sequence[Client]) -> int:
    """A version that every member has committed."""
    return min(status.committed_version for status in settle(clients))


def at_rest(clients: Sequence[Client]) -> list[MemberStatus]:
    """The members' statuses once they have settled, and clients that went have left nothing."""
    statuses = settle(clients)
    is_busy = any(each.open_snapshots or each.relay_queue_length for each in statuses)
    return [] if is_busy or not all(each.log_durable for each in statuses) else statuses


def put(client: Client, key: bytes, value: bytes) -> Transaction:
    """Commits one row and returns the transaction."""
    with client.transaction() as transaction:
        transaction.put(key, value)
    return transaction


def read(client: Client, key: bytes) -> bytes | None:
    """The row as a new snapshot has it."""
    with client.transaction() as transaction:
        return transaction.get(key)


def decided(clients: Sequence[Client]) -> list[int]:
    """How many transactions each member has decided since its start, whatever the verdict."""
    return [
        status.transactions_certified
        + status.transactions_conflict
        + status.transactions_too_old
        + status.transactions_refused
        for status in settle(clients)
    ]


class TestCommit:
    """Transactions on the embedded store."""

    def test_a_commit_is_visible_at_every_member(self, clients: list[Client], key: bytes) -> None:
        written = put(clients[0], key, b"1")
        for client in clients:
            client.version = written.version
            assert read(client, key) == b"1"

    def test_the_loser_is_aborted_with_the_row_the_winner_and_both_places(
        self, clients: list[Client], channel: grpc.Channel, key: bytes, newest: int
    ) -> None:
        won = put(clients[1], key, b"winner")
        request = store_pb2.CommitRequest(
            transaction_id=b"loser",
            snapshot_version=newest,
            changes=Changes(put_keys=[key], put_values=[b"loser"]),
        )
        with pytest.raises(grpc.RpcError) as caught:
            store_pb2_grpc.StoreServiceStub(channel).Commit(request)
        status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]  # it is a Call, too
        conflict = Conflict()
        assert status is not None
        assert [detail.Unpack(conflict) for detail in status.details].count(True) == 1
        assert status.code == grpc.StatusCode.ABORTED.value[0]
        assert conflict.key == key.decode()
        assert (conflict.winner_gtid, conflict.winner_member) == (won.gtid, "m2")
        assert (conflict.winner_version, conflict.snapshot_version) == (won.version, newest)
        assert 0 < conflict.winner_log_sequence < conflict.log_sequence
        clients[0].version = won.version
        assert read(clients[0], key) == b"winner"

    def test_a_snapshot_behind_what_was_collected_is_too_old(
        self, clients: list[Client], key: bytes
    ) -> None:
        snapshot_version = put(clients[0], key, b"1").version
        put(clients[0], key + b"later", b"1")
        wait_for(
            "collected",
            lambda: clients[0].status().observer.stable_version > snapshot_version,
        )
        with pytest.raises(TransactionTooOld, match="take a new snapshot"):
            with clients[0].transaction(snapshot_version=snapshot_version) as transaction:
                transaction.put(key, b"2")
        assert read(clients[0], key) == b"1"

    def test_a_commit_sent_to_another_member_counts_once(
        self, clients: list[Client], key: bytes
    ) -> None:
        first = put(clients[0], key, b"1")
        for client in clients:
            again = client.transaction(snapshot_version=first.snapshot_version)
            again.transaction_id = first.transaction_id
            again.put(key, b"1")
            again.commit()
            assert (again.gtid, again.version) == (first.gtid, first.version)

    @pytest.mark.parametrize("serializable", [True, False])
    def test_write_skew_aborts_if_and_only_if_reads_are_certified(
        self, group: LocalGroup, key: bytes, serializable: bool
    ) -> None:
        first, second, _ = group.addresses.values()
        with (
            Client(first, serializable=serializable) as one,
            Client(second, serializable=serializable) as other,
        ):
            left, right = one.transaction(), other.transaction()
            for transaction, reads, writes in ((left, b"a", b"b"), (right, b"b", b"a")):
                assert transaction.get(key + reads) is None
                transaction.put(key + writes, b"1")
            left.commit()
            if serializable:
                with pytest.raises(CertificationConflict) as caught:
                    right.commit()
                assert caught.value.key == (key + b"b").decode()
            else:
                right.commit()
                assert right.version > left.version


class TestConsistency:
    """EVENTUAL, BEFORE, AFTER, BEFORE_AND_AFTER, as Group Replication names them."""

    def test_eventual_reads_one_state_that_the_member_has(
        self, clients: list[Client], key: bytes
    ) -> None:
        values = [put(clients[0], key, b"%d" % number) and b"%d" % number for number in range(10)]
        assert read(clients[1], key) in {None, *values}
        wait_for("the last value", lambda: read(clients[1], key) == values[-1])

    @pytest.mark.parametrize("level", [Consistency.BEFORE, Consistency.BEFORE_AND_AFTER])
    def test_before_sees_what_another_member_has_acknowledged(
        self, clients: list[Client], key: bytes, level: Consistency
    ) -> None:
        for number in range(10):
            put(clients[0], key, b"%d" % number)
            for client in clients[1:]:
                client.consistency = level
                assert read(client, key) == b"%d" % number

    @pytest.mark.parametrize("level", [Consistency.AFTER, Consistency.BEFORE_AND_AFTER])
    def test_after_is_visible_everywhere_at_return(
        self, clients: list[Client], key: bytes, level: Consistency
    ) -> None:
        clients[0].consistency = level
        for number in range(5):
            put(clients[0], key, b"%d" % number)
            assert [read(client, key) for client in clients[1:]] == [b"%d" % number] * 2

    def test_a_session_waits_for_the_version_that_it_has_seen(
        self, clients: list[Client], key: bytes
    ) -> None:
        for number in range(10):
            clients[2].version = put(clients[0], key, b"%d" % number).version
            assert read(clients[2], key) == b"%d" % number

    def test_who_waits_for_a_version_of_the_future_holds_nobody_up(
        self, clients: list[Client], channel: grpc.Channel, key: bytes
    ) -> None:
        request = store_pb2.OpenSnapshotRequest(version_min=1 << 40)
        waiting = store_pb2_grpc.StoreServiceStub(channel).OpenSnapshot.future(request)
        for number in range(10):
            put(clients[1], key, b"%d" % number)
            put(clients[0], key + b"own", b"%d" % number)
        assert not waiting.done()
        waiting.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it out


class TestCertification:
    """Write sets in, verdicts out."""

    def test_a_stream_answers_in_order_and_a_loser_leaves_its_batch_alone(
        self, clients: list[Client], newest: int
    ) -> None:
        sent = [certifiable(snapshot=newest, write_set=[new_item()]) for _ in range(8 * BATCH)]
        loser = 3 * BATCH + 7
        sent[loser].write_set[:] = sent[5].write_set
        batches = [sent[start : start + BATCH] for start in range(0, len(sent), BATCH)]
        answers = list(clients[0].certify_stream(batches))
        assert [number for number, _ in answers] == list(range(len(sent)))
        verdicts = [outcome.verdict for _, outcome in answers]
        assert [n for n, verdict in enumerate(verdicts) if verdict == VERDICT_CONFLICT] == [loser]
        versions = [o.version for _, o in answers if o.verdict == VERDICT_CERTIFIED]
        assert versions == list(range(newest + 1, newest + len(sent)))
        conflict = answers[loser][1].conflict
        assert conflict.winner_gtid == answers[5][1].gtid
        assert len({status.digest for status in settle(clients)}) == 1

    def test_a_key_in_words_comes_back_with_its_conflict(
        self, clients: list[Client], newest: int
    ) -> None:
        row = f"shop.orders/PRIMARY/{uuid.uuid4()}"
        won = clients[0].certify(certifiable(snapshot=newest, write_set=["shop/1", row]))
        lost = clients[2].certify(certifiable(snapshot=newest, write_set=[row]))
        assert (won.verdict, lost.verdict) == (VERDICT_CERTIFIED, VERDICT_CONFLICT)
        assert (lost.conflict.key, lost.conflict.winner_member) == (row, "m1")

    def test_every_member_knows_a_decided_outcome_and_none_an_unknown_one(
        self, clients: list[Client]
    ) -> None:
        transaction = certifiable(snapshot=version_of(clients), write_set=[new_item()])
        outcome = clients[0].certify(transaction)
        settle(clients)
        for client in clients:
            found = client.outcome(transaction.transaction_id)
            assert found.state == GetOutcomeResponse.STATE_DECIDED
            assert (found.outcome.gtid, found.outcome.version) == (outcome.gtid, outcome.version)
            unknown = client.outcome(uuid.uuid4().bytes)
            assert unknown.state == GetOutcomeResponse.STATE_UNKNOWN

    def test_one_id_sent_to_all_members_at_once_is_certified_once(
        self, clients: list[Client]
    ) -> None:
        before = decided(clients)
        with ThreadPoolExecutor(len(clients)) as pool:
            for _ in range(20):
                sent = certifiable(snapshot=version_of(clients), write_set=[new_item()])
                outcomes = list(pool.map(lambda client, sent=sent: client.certify(sent), clients))
                assert {outcome.verdict for outcome in outcomes} == {VERDICT_CERTIFIED}
                assert len({outcome.gtid for outcome in outcomes}) == 1
        assert decided(clients) == [number + 20 for number in before]

    def test_a_read_set_conflicts_and_is_not_recorded(
        self, clients: list[Client], newest: int
    ) -> None:
        row, written = new_item(), new_item()
        assert clients[0].certify(certifiable(snapshot=newest, write_set=[row])).version
        skewed = certifiable(snapshot=newest, write_set=[written], read_set=[row])
        lost = clients[1].certify(skewed)
        assert (lost.verdict, lost.conflict.item) == (VERDICT_CONFLICT, row)
        version = version_of(clients)
        reading = certifiable(snapshot=version, write_set=[new_item()], read_set=[written])
        assert clients[0].certify(reading).verdict == VERDICT_CERTIFIED
        after = certifiable(snapshot=version, write_set=[written])
        assert clients[1].certify(after).verdict == VERDICT_CERTIFIED

    def test_a_gtid_that_is_brought_along_counts_once(
        self, clients: list[Client], newest: int
    ) -> None:
        gtid = f"{FOREIGN_UUID}:{next(_gtid_numbers)}"
        first, again = (
            client.certify(certifiable(snapshot=newest, write_set=[new_item()], gtid=gtid))
            for client in clients[:2]
        )
        assert (first.verdict, first.gtid) == (VERDICT_CERTIFIED, gtid)
        assert again.verdict == VERDICT_REFUSED
        assert again.reason == f"GTID {gtid} was already used"
        assert all(gtid.partition(":")[0] in each.gtid_executed for each in settle(clients))

    @pytest.mark.usefixtures("newest")
    def test_a_snapshot_may_be_a_set_of_gtids(self, clients: list[Client]) -> None:
        executed, row = settle(clients)[0].gtid_executed, new_item()
        won = clients[0].certify(certifiable(snapshot=executed, write_set=[row]))
        lost = clients[1].certify(certifiable(snapshot=executed, write_set=[row]))
        assert (won.verdict, lost.verdict) == (VERDICT_CERTIFIED, VERDICT_CONFLICT)
        newer = certifiable(snapshot=settle(clients)[0].gtid_executed, write_set=[row])
        assert clients[1].certify(newer).verdict == VERDICT_CERTIFIED

    def test_a_set_with_gtids_that_nobody_executed_is_refused(self, clients: list[Client]) -> None:
        executed = settle(clients)[0].gtid_executed
        snapshot = f"{executed},{uuid.UUID(int=7)}:1-3"
        outcome = clients[0].certify(certifiable(snapshot=snapshot, write_set=[new_item()]))
        assert outcome.verdict == VERDICT_REFUSED
        assert f"{uuid.UUID(int=7)}:1-3" in outcome.reason

    def test_a_snapshot_of_the_future_is_refused(self, clients: list[Client]) -> None:
        version = version_of(clients) + 1_000_000
        outcome = clients[0].certify(certifiable(snapshot=version, write_set=[new_item()]))
        assert outcome.verdict == VERDICT_REFUSED
        assert outcome.reason == f"snapshot version {version} is not certified yet"

    def test_an_empty_set_of_gtids_is_too_old_once_something_was_collected(
        self, clients: list[Client]
    ) -> None:
        wait_for("collected", lambda: clients[0].status().observer.stable_version)
        outcome = clients[0].certify(certifiable(snapshot=0, write_set=[new_item()]))
        assert outcome.verdict == VERDICT_TOO_OLD


class TestSnapshots:
    """Reads of the embedded store."""

    def test_a_scan_over_pages_reads_one_state_while_others_write(
        self, clients: list[Client], key: bytes
    ) -> None:
        rows = [(key + b"%04d" % number, b"old") for number in range(1_000)]

        def fill(transaction: Transaction) -> None:
            for name, value in rows:
                transaction.put(name, value)

        def change(transaction: Transaction, names: Sequence[bytes]) -> None:
            transaction.put(names[0], b"new")
            transaction.delete(names[1])
            transaction.put(names[2] + b"+", b"new")

        clients[0].run(fill)
        changed = dict(rows)
        with clients[0].transaction() as transaction:
            found: list[tuple[bytes, bytes]] = []
            for row in transaction.scan(key, key + b"\xff", page_rows=300):
                found.append(row)
                if len(found) % 300 == 150:
                    ahead = [name for name, _ in rows[len(found) + 200 :]]
                    clients[1].run(partial(change, names=ahead))
                    changed.update({ahead[0]: b"new", ahead[2] + b"+": b"new"})
                    del changed[ahead[1]]
        assert found == rows
        clients[0].version = clients[1].version
        with clients[0].transaction() as transaction:
            found = list(transaction.scan(key, key + b"\xff", page_rows=999))
        assert found == sorted(changed.items())

    def test_a_snapshot_that_nobody_uses_ends_with_its_lease(self, tmp_path: Path) -> None:
        with (
            LocalGroup(tmp_path, members=1, settings={"snapshot_lease_ms": 100}) as group,
            Client(group.addresses["m1"]) as client,
        ):
            forgotten = client.transaction()
            wait_for("closed", lambda: not client.status().observer.open_snapshots)
            with pytest.raises(SnapshotExpired, match=r"was not used for 100 ms: begin"):
                forgotten.get(b"key")

    def test_more_snapshots_than_allowed_are_refused_until_one_ends(
        self, clients: list[Client]
    ) -> None:
        wait_for("no snapshot", lambda: not clients[1].status().observer.open_snapshots)
        share = int(str(SETTINGS["snapshots_max"])) // 2
        held = [clients[1].transaction() for _ in range(share)]
        with pytest.raises(TooManySnapshots, match="16 are this caller's, its share is 16; end"):
            clients[1].transaction()
        with Client(clients[1].address) as other:
            other.transaction().rollback()
        for transaction in held:
            transaction.rollback()
        clients[1].transaction().rollback()
        wait_for("no snapshot", lambda: not clients[1].status().observer.open_snapshots)

    def test_a_held_snapshot_can_commit_however_much_was_committed_since(
        self, clients: list[Client], key: bytes
    ) -> None:
        held = clients[0].transaction()
        version = put(clients[1], key + b"other", b"1").version
        for number in range(300):
            version = put(clients[1], key + b"other", b"%d" % number).version
            if not number % 100:
                assert held.get(key) is None
        wait_for("applied", lambda: clients[0].status().observer.committed_version >= version)
        held.put(key, b"1")
        held.commit()
        assert held.version == version + 1


class TestServer:
    """What operators and tools ask."""

    def test_health_is_serving_for_the_member_and_each_service(self, channel: grpc.Channel) -> None:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", *SERVICES):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

    @pytest.mark.parametrize("protocol", ["grpc-v1", "grpc-v1alpha"])
    def test_a_tool_finds_every_call_by_reflection(self, group: LocalGroup, protocol: str) -> None:
        buf = Path(sys.executable).with_name("buf")
        options = f"--http2-prior-knowledge --protocol grpc --reflect-protocol {protocol}"
        command = (str(buf), "curl", *options.split(), "--list-methods")
        listed = subprocess.check_output((*command, f"http://{group.addresses['m1']}"), text=True)
        assert {f"/{call}" for call in listed.split()} == set(ROLES_OF_CALL)

    def test_members_agree_in_their_statuses(
        self, group: LocalGroup, clients: list[Client], key: bytes
    ) -> None:
        put(clients[0], key, b"1")
        statuses = wait_for("members at rest", partial(at_rest, clients))
        views = [client.status() for client in clients]
        assert {(view.group, view.view_id) for view in views} == {("local", views[0].view_id)}
        for view in views:
            assert {each.name: each.address for each in view.members} == group.addresses
        for what in ("certified_version", "committed_version", "gtid_executed", "digest"):
            assert len({str(getattr(status, what)) for status in statuses}) == 1, what
        for status in statuses:
            assert (status.log_durable, status.log_replicas) == (True, 1)
            assert [worker.worker for worker in status.workers] == [0, 1, 2, 3]
            assert status.stable_version <= status.durable_version <= status.committed_version
            assert status.relay_queue_length == status.open_snapshots == 0
        assert statuses[0].transactions_local > 0
        assert {stage.name for stage in statuses[0].stages} == {"queued", "ordered", "committed"}
