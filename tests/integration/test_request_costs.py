"""What one client's request costs a member, and what it leaves behind: seconds of processors and
bytes of memory, as the system counts them. How busy the machine is changes neither much.
"""

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from groupcert import CertifiableTransaction, CertificationConflict, Client, certifiable
from groupcert.certifier.errors import InvalidGtidSet
from groupcert.certifier.write_set import store_key_item
from groupcert.members.demo.group_checks import settle
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1 import (
    binary_log_pb2,
    binary_log_pb2_grpc,
    store_pb2,
    transaction_pb2,
)
from groupcert.v1.certification_pb2 import CertifyStreamRequest
from groupcert.v1.certification_pb2_grpc import CertificationServiceStub
from groupcert.v1.store_pb2_grpc import StoreServiceStub
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, VERDICT_CONFLICT, VERDICT_REFUSED
from tests.integration.test_service import FOREIGN_UUID, put, read, version_of
from tests.integration.waiting import wait_for

GAPS = 115_000
"""Of a set that takes nearly a megabyte."""
GROWTH_BYTES_MAX = 16 << 20
"""Of 28 MB that are sent, and refused."""


REFUSED_STREAMS = {
    "CertifyStream": CertifyStreamRequest(
        transactions=[transaction_pb2.Transaction(write_set_keys=[""] * 346_666)]
    ),
    "CommitStream": store_pb2.CommitStreamRequest(
        header=store_pb2.CommitHeader(commit=store_pb2.CommitRequest(read_keys=[b""] * 346_666))
    ),
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Three members with the limits that members have."""
    folder = tmp_path_factory.mktemp("costs")
    settings = {"stable_set_period_ms": 200}
    with LocalGroup(folder, members=3, settings=settings) as group:
        yield group


def cpu_seconds(group: LocalGroup) -> list[float]:
    """What each member's process has used up of processors."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = [Path(f"/proc/{each.pid}/stat").read_text() for each in group.processes.values()]
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    return [(int(each[11]) + int(each[12])) / ticks for each in fields]


def resident_bytes(group: LocalGroup) -> list[int]:
    """What each member's process has in memory."""
    pages = [Path(f"/proc/{each.pid}/statm").read_text() for each in group.processes.values()]
    return [int(each.split()[1]) * os.sysconf("SC_PAGE_SIZE") for each in pages]


def used(group: LocalGroup, before: list[float]) -> float:
    """The most that a member has used up of processors since."""
    return max(now - then for now, then in zip(cpu_seconds(group), before, strict=True))


def set_with_gaps(order: int) -> str:
    """A set of GTIDs with as many gaps as a message may have, in ascending or descending order."""
    return f"{FOREIGN_UUID}:{':'.join(map(str, range(1, 2 * GAPS, 2)[::order]))}"


class TestGtidSets:
    """Sets that clients send."""

    @pytest.mark.parametrize("order", [1, -1], ids=["ascending", "descending"])
    def test_a_snapshot_that_is_too_long_is_refused_before_it_is_read(
        self, group: LocalGroup, clients: list[Client], order: int
    ) -> None:
        """A descending one took 4 s, in which the member did nothing else."""
        sent = certifiable(snapshot=set_with_gaps(order), write_set=[1])
        before = cpu_seconds(group)
        with pytest.raises(InvalidGtidSet, match="expected at most 32768: send snapshot_version"):
            clients[0].certify(sent)
        assert used(group, before) < 1.0

    def test_what_a_replica_has_executed_is_refused_where_it_is_too_long(
        self, group: LocalGroup
    ) -> None:
        request = binary_log_pb2.SubscribeRequest(gtid_executed=set_with_gaps(-1))
        before = cpu_seconds(group)
        with grpc.insecure_channel(group.addresses["m1"]) as channel:
            answers = binary_log_pb2_grpc.BinaryLogServiceStub(channel).Subscribe(request)
            with pytest.raises(grpc.RpcError, match="at most 131072: begin with a newer copy"):
                list(answers)
        assert used(group, before) < 1.0

    def test_a_refusal_leaves_nothing_of_what_was_sent(
        self, group: LocalGroup, clients: list[Client]
    ) -> None:
        """Its reason, with the set in it, was kept by every member, in memory and on disk."""

        def refuse(snapshot: str, times: int) -> list[str]:
            reasons = []
            for _ in range(times):
                sent = certifiable(snapshot=snapshot, write_set=[1])
                with suppress(InvalidGtidSet):
                    outcome = clients[0].certify(sent)
                    assert outcome.verdict == VERDICT_REFUSED
                    reasons.append(outcome.reason)
            return reasons

        def grown() -> int:
            return max(now - then for now, then in zip(resident_bytes(group), before, strict=True))

        before = resident_bytes(group)
        refuse(set_with_gaps(1), 36)
        settle(clients)
        wait_for("what was sent is gone", lambda: grown() < GROWTH_BYTES_MAX)
        (reason,) = refuse(set_with_gaps(1)[:32_000].rpartition(":")[0], 1)
        assert reason.startswith("snapshot names GTIDs that the group did not execute: '0f0f")
        assert len(reason) <= 200

    def test_old_snapshots_cost_little_however_much_was_certified_since(
        self, group: LocalGroup, clients: list[Client]
    ) -> None:
        """Each one made every member walk back through all that was certified since."""
        put(clients[0], b"old", b"1")
        old = settle(clients)[0].gtid_executed
        held = clients[0].transaction()
        newest = version_of(clients)
        for _ in range(3):
            items = [random.getrandbits(64) for _ in range(8_000)]
            sent = [certifiable(snapshot=newest, write_set=[item]) for item in items]
            assert len(list(clients[0].certify_stream([sent]))) == 8_000
        settle(clients)
        sent = [certifiable(snapshot=old, write_set=[random.getrandbits(64)]) for _ in range(300)]
        before = cpu_seconds(group)
        outcomes = [outcome for _, outcome in clients[0].certify_stream([sent])]
        assert {outcome.verdict for outcome in outcomes} == {VERDICT_CERTIFIED}
        assert used(group, before) < 3.0
        held.rollback()


class TestRows:
    """Changes of rows that come with a certification."""

    def test_a_row_is_certified_whatever_write_set_its_changes_come_with(
        self, clients: list[Client], newest: int
    ) -> None:
        """Of three that write one row from one old snapshot, the first wins."""
        certified = []
        for number, client in enumerate(clients[:2], 1):
            changes = transaction_pb2.Changes(put_keys=[b"row"], put_values=[b"%d" % number])
            sent = CertifiableTransaction(
                snapshot_version=newest,
                write_set=[number],
                write_set_keys=[f"other/{number}"],
                changes=changes.SerializeToString(),
            )
            certified.append(client.certify(sent))
        assert [each.verdict for each in certified] == [VERDICT_CERTIFIED, VERDICT_CONFLICT]
        assert certified[1].conflict.item == store_key_item(b"row")
        with pytest.raises(CertificationConflict):
            with clients[2].transaction(snapshot_version=newest) as transaction:
                transaction.put(b"row", b"3")
        version_of(clients)
        assert [read(client, b"row") for client in clients] == [b"1"] * 3

    def test_large_changes_are_certified_by_their_rows_too(
        self, clients: list[Client], newest: int
    ) -> None:
        """They go through the log in fragments, of which certification sees nothing."""
        changes = transaction_pb2.Changes(
            put_keys=[b"large/%d" % number for number in range(6)], put_values=[bytes(100_000)] * 6
        )
        sent = CertifiableTransaction(
            snapshot_version=newest, write_set=[1], changes=changes.SerializeToString()
        )
        streamed = CertifiableTransaction(
            snapshot_version=newest, write_set=[2], changes=changes.SerializeToString()
        )
        assert clients[0].certify(sent).verdict == VERDICT_CERTIFIED
        ((_, lost),) = clients[1].certify_stream([[streamed]])
        assert lost.verdict == VERDICT_CONFLICT

    def test_the_largest_write_sets_are_certified(self, clients: list[Client], newest: int) -> None:
        row = random.getrandbits(64)
        items = [random.getrandbits(64) for _ in range(100_000)]
        won, lost, read_it = (
            clients[0].certify(certifiable(snapshot=newest, write_set=sent, read_set=also))
            for sent, also in (
                ([*items[:-1], row], ()),
                ([*items[1:-1], 7, row], ()),
                ([8], [*range(9, 100_008), row]),
            )
        )
        assert won.verdict == VERDICT_CERTIFIED
        assert (lost.verdict, lost.conflict.item) == (VERDICT_CONFLICT, items[1])
        assert (read_it.verdict, read_it.conflict.item) == (VERDICT_CONFLICT, row)
        assert len({status.digest for status in settle(clients)}) == 1


class TestManyAtOnce:
    """Requests of many parts."""

    def test_more_transactions_than_a_message_may_have_are_refused(
        self, group: LocalGroup, clients: list[Client]
    ) -> None:
        """A megabyte holds half a million of them, which have nothing in them."""
        sent = CertifyStreamRequest(transactions=[transaction_pb2.Transaction()] * 10_001)
        with grpc.insecure_channel(group.addresses["m1"]) as channel:
            answers = CertificationServiceStub(channel).CertifyStream(iter([sent]))
            with pytest.raises(grpc.RpcError, match="more than 10000 transactions in one message"):
                list(answers)
        *_, (number, outcome) = clients[0].certify_stream([list(sent.transactions)])
        assert (number, outcome.verdict) == (10_000, VERDICT_CERTIFIED), "sent in two messages"

    @pytest.mark.parametrize("sent", REFUSED_STREAMS.values(), ids=REFUSED_STREAMS)
    def test_a_refused_stream_leaves_nothing_of_what_was_sent(
        self, group: LocalGroup, sent: Message
    ) -> None:
        """Its last message was in a circle, and stayed until Python looked for circles."""
        stub = (
            CertificationServiceStub if isinstance(sent, CertifyStreamRequest) else StoreServiceStub
        )
        name = type(sent).__name__.removesuffix("Request")

        def refuse(times: int) -> None:
            for _ in range(times):
                with pytest.raises(grpc.RpcError, match="write set of 346666 items"):
                    list(getattr(stub(channel), name)(iter([sent])))

        with grpc.insecure_channel(group.addresses["m1"]) as channel:
            refuse(20)
            before = resident_bytes(group)[0]
            refuse(100)

        def grown() -> int:
            return resident_bytes(group)[0] - before

        wait_for("what was sent is gone", lambda: grown() < 2 * GROWTH_BYTES_MAX)

    def test_reads_that_take_turns_with_others_miss_no_row(
        self, group: LocalGroup, clients: list[Client]
    ) -> None:
        keys = [b"many/%05d" % number for number in range(10_000)]
        with clients[0].transaction() as transaction:
            for key in keys:
                transaction.put(key, key[::-1])
        with clients[0].transaction() as transaction:
            rows = list(transaction.scan(b"many/", b"many0", page_rows=9_000))
            assert rows == [(key, key[::-1]) for key in keys]
            with grpc.insecure_channel(group.addresses["m1"]) as channel:
                store = StoreServiceStub(channel)
                snapshot = store.OpenSnapshot(store_pb2.OpenSnapshotRequest())
                request = store_pb2.GetRequest(snapshot_id=snapshot.snapshot_id, keys=keys[::-1])
                found = store.Get(request).rows
        assert [(row.key, row.value) for row in found] == rows[::-1]
