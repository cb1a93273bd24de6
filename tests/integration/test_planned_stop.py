"""SIGTERM of members under load: no client gets an error, whatever it was at.

Members are real processes, stopped one after the other and started again, under clients that use
`Client.run`, plain transactions and `certify`, and beside readers of streams.
"""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path

import grpc
import pytest

from groupcert import Client, MemberFailed, Outcome, certifiable
from groupcert.certifier.errors import GroupcertError, NotServing
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.client.direct_calls import DirectMember
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.replica.sources import ReplicaSources
from groupcert.v1.group_pb2 import DEPARTURE_CAUSE_LEFT, GroupStatus
from groupcert.v1.store_pb2 import CloseSnapshotRequest, OpenSnapshotRequest
from groupcert.v1.store_pb2_grpc import StoreServiceStub
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED
from tests.integration.waiting import wait_for
from tests.laboratory.watched_clients import WatchedClients

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.in_turns]

COMMITS = 10
"""Of each client, between what a test does."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """Three members, of which a test stops one for good."""
    with LocalGroup(tmp_path) as group:
        yield group


@pytest.mark.parametrize("single_primary", [False, True])
def test_no_client_gets_an_error(tmp_path: Path, single_primary: bool) -> None:
    with LocalGroup(tmp_path, settings={"single_primary": single_primary}) as group:
        with WatchedClients(list(group.addresses.values())) as clients:
            clients.wait_for_answers(COMMITS)
            for name in group.names:
                assert group.stop_member(name) == 0
                clients.wait_for_answers(COMMITS)
                group.start_member(name)
                group.wait_online()
                clients.wait_for_answers(COMMITS)
        assert clients.errors == []


def test_streams_end_with_the_reason_after_all_that_was_sent_is_answered(
    group: LocalGroup,
) -> None:
    address = group.addresses["m2"]
    answered: list[Outcome] = []

    def watch() -> None:
        with Client(address) as client:
            watched.extend(status.group for status in client.watch(60_000))

    def certify() -> None:
        with Client(address) as client:
            batches = (
                [certifiable(snapshot=0, write_set=[f"{number}/{index}"]) for index in range(10)]
                for number in count()
            )
            for _, outcome in client.certify_stream(batches):
                answered.append(outcome)

    watched: list[str] = []
    with ThreadPoolExecutor(2) as pool, Client(group.addresses["m1"]) as client:
        held = client.transaction()  # Nothing is collected: the write sets are not too old.
        streams = [pool.submit(watch), pool.submit(certify)]
        wait_for("both at work", lambda: watched and len(answered) > 100)
        assert group.stop_member("m2") == 0
        watching, certifying = (stream.exception(120) for stream in streams)
        assert isinstance(watching, NotServing), watching
        assert (watching.state, watching.ordered) == ("STOPPING", "nothing")
        # gRPC tells of its own failed write, if that comes before the member's reason.
        assert isinstance(certifying, NotServing), certifying
        assert (certifying.state, certifying.ordered) in {
            ("STOPPING", "nothing"),
            ("UNREACHABLE (Internal error from Core)", "perhaps"),
        }
        held.rollback()
    assert {outcome.verdict for outcome in answered} == {VERDICT_CERTIFIED}
    status = wait_for_view(group, "m1", "m3")
    assert status.observer.transactions_certified == len(answered), "what was ordered was answered"


def test_a_replica_goes_on_at_its_next_source(group: LocalGroup) -> None:
    addresses = [group.addresses["m2"], group.addresses["m1"]]
    sources = ReplicaSources(addresses, "r1")
    received = GtidSet()
    positions = count(1)

    def follow() -> None:
        for news in sources.follow(received, lambda: next(positions)):
            for entry in news.entries:
                if entry.gtid:
                    received.add(entry.gtid)

    with ThreadPoolExecutor(1) as pool, Client(group.addresses["m1"]) as client:
        following = pool.submit(follow)
        try:
            client.run(lambda transaction: transaction.put(b"key", b"1"))
            wait_for("the first", lambda: received.count() == 1)
            assert sources.connected == addresses[0]
            assert group.stop_member("m2") == 0
            client.run(lambda transaction: transaction.put(b"key", b"2"))
            wait_for("the second", lambda: received.count() == 2)
            assert sources.connected == addresses[1]
        finally:
            sources.stop()
        following.result(120)


def test_a_running_transaction_may_end_where_it_began(group: LocalGroup) -> None:
    assert wait_for("one that ends in time", lambda: ends_at_a_member_that_stops(group))
    (gone,) = wait_for_view(group, "m1", "m2").departed
    assert (gone.name, gone.cause) == ("m3", DEPARTURE_CAUSE_LEFT), "nobody had to suspect it"


def ends_at_a_member_that_stops(group: LocalGroup) -> bool:
    """Whether a transaction commits at m3, which was told to stop meanwhile. It gets a second and a
    half, and is cut off where the machine stands still for longer: m3 is started again then.
    """
    address = group.addresses["m3"]
    other = DirectMember(address)
    is_cut_off = False
    with Client(address) as client, closing(other.channel):
        client.run(lambda transaction: transaction.put(b"key", b"1"))
        try:
            with client.transaction() as transaction:
                group.processes["m3"].send_signal(signal.SIGTERM)
                wait_for("no new ones", lambda: _state(other) == "STOPPING")
                assert transaction.get(b"key") == b"1"
                transaction.put(b"key", b"2")
        except (GroupcertError, MemberFailed):
            is_cut_off = True
        else:
            assert transaction.gtid
            assert client.address == address, "its own member has committed it"
    assert group.processes.pop("m3").wait(120) == 0
    if is_cut_off:
        group.start_member("m3")
        group.wait_online()
    return not is_cut_off


def wait_for_view(group: LocalGroup, *names: str) -> GroupStatus:
    """The status of m1 once it has read that others have left: it has read all before that, too."""

    def found() -> GroupStatus | None:
        status = group.status("m1")
        return status if [each.name for each in status.members] == [*names] else None

    status = wait_for("a view without it", found)
    assert status is not None
    return status


def _state(member: DirectMember) -> str:
    """The state in which a member refuses a transaction; empty: it takes one."""
    store = StoreServiceStub(member.channel)
    try:
        opened = store.OpenSnapshot(OpenSnapshotRequest(), 10)
        store.CloseSnapshot(CloseSnapshotRequest(snapshot_id=opened.snapshot_id), 10)
    except grpc.RpcError as error:
        refusal = member.failure(error)
        return refusal.state if isinstance(refusal, NotServing) else ""
    return ""
