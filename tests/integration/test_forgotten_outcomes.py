"""Transactions that are sent again once the group has forgotten their outcomes.

Nobody can say then whether a conflict is with itself: members do not say so, on any way that a
transaction takes.
"""

import uuid
from collections.abc import Callable, Iterator
from functools import partial

import grpc
import pytest

from groupcert import (
    CertificationConflict,
    Client,
    GetOutcomeResponse,
    OutcomeUnknown,
    Transaction,
    certifiable,
)
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.wire.statuses import error_from
from groupcert.v1 import store_pb2_grpc
from groupcert.v1.certification_pb2 import CertifyRequest, CertifyStreamRequest
from groupcert.v1.certification_pb2_grpc import CertificationServiceStub
from groupcert.v1.store_pb2 import CommitHeader, CommitPart, CommitRequest, CommitStreamRequest
from groupcert.v1.transaction_pb2 import (
    VERDICT_CERTIFIED,
    VERDICT_CONFLICT,
    VERDICT_UNKNOWN,
    Changes,
    Outcome,
)
from groupcert.v1.transaction_pb2 import Transaction as Certifiable
from tests.integration.conftest import SETTINGS

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

OUTCOMES_MAX = 8
FORGOTTEN = "outcomes up to version [0-9]+ are forgotten, perhaps its own"
STATE_UNKNOWN = GetOutcomeResponse.STATE_UNKNOWN
Commit = Callable[[grpc.Channel, CommitRequest], None]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Two members that remember hardly anything."""
    settings = {**SETTINGS, "outcomes_max": OUTCOMES_MAX}
    with LocalGroup(tmp_path_factory.mktemp("group"), members=2, settings=settings) as group:
        yield group


@pytest.fixture
def client(clients: list[Client]) -> Client:
    """The first member's."""
    return clients[0]


@pytest.fixture
def channels(group: LocalGroup) -> Iterator[list[grpc.Channel]]:
    """Connections to the members."""
    channels = [grpc.insecure_channel(address) for address in group.addresses.values()]
    yield channels
    for channel in channels:
        channel.close()


@pytest.fixture
def key() -> bytes:
    """A row that no other test uses."""
    return uuid.uuid4().bytes


def put(client: Client, key: bytes) -> Transaction:
    """Commits one row."""
    with client.transaction() as transaction:
        transaction.put(key, b"1")
    return transaction


def forget(client: Client) -> None:
    """Commits until all that was remembered is forgotten. An open snapshot keeps what happens from
    being too old.
    """
    for _ in range(OUTCOMES_MAX + 1):
        put(client, b"forgetting")


def decided(client: Client) -> list[int]:
    """How many transactions the first member has certified, and how many not."""
    status = client.status().observer
    return [status.transactions_certified, status.transactions_conflict]


def commit_once(channel: grpc.Channel, request: CommitRequest) -> None:
    """Commits in one call. Raises what the member answers."""
    try:
        store_pb2_grpc.StoreServiceStub(channel).Commit(request)
    except grpc.RpcError as error:
        raise error_from(error) from None


def commit_in_parts(channel: grpc.Channel, request: CommitRequest) -> None:
    """Commits as a large transaction goes. Raises what the member answers."""
    rows = request.changes.SerializeToString()
    header = CommitRequest()
    header.CopyFrom(request)
    header.ClearField("changes")
    messages = [
        CommitStreamRequest(header=CommitHeader(commit=header, changes_bytes=len(rows))),
        CommitStreamRequest(rows=CommitPart(changes=rows)),
    ]
    try:
        list(store_pb2_grpc.StoreServiceStub(channel).CommitStream(iter(messages)))
    except grpc.RpcError as error:
        raise error_from(error) from None


@pytest.mark.parametrize("commit", [commit_once, commit_in_parts])
def test_a_commit_that_may_have_lost_to_itself_is_unknown(
    client: Client, channels: list[grpc.Channel], key: bytes, commit: Commit
) -> None:
    with client.transaction() as held:
        request = CommitRequest(
            transaction_id=key,
            snapshot_version=held.snapshot_version,
            changes=Changes(put_keys=[key], put_values=[b"1"]),
        )
        commit(channels[0], request)
        commit(channels[1], request)
        forget(client)
        for channel in channels:
            with pytest.raises(OutcomeUnknown, match=FORGOTTEN) as caught:
                commit(channel, request)
            assert caught.value.transaction_id == key
        assert client.outcome(key).state == STATE_UNKNOWN
        request.transaction_id, request.first_attempt = uuid.uuid4().bytes, True
        with pytest.raises(CertificationConflict):
            commit(channels[0], request)


def test_a_client_that_sends_for_the_first_time_knows_a_conflict_for_its_own(
    client: Client, key: bytes
) -> None:
    late = client.transaction()
    won = put(client, key)
    forget(client)
    again = client.transaction(snapshot_version=won.snapshot_version)
    again.transaction_id = won.transaction_id
    again.put(key, b"1")
    with pytest.raises(OutcomeUnknown, match=FORGOTTEN):
        again.commit()
    late.put(key, b"2")
    with pytest.raises(CertificationConflict, match=f"version {won.version}"):
        late.commit()


def test_a_certify_call_that_may_have_lost_to_itself_is_unknown(
    clients: list[Client], key: bytes
) -> None:
    with clients[0].transaction() as held:
        mine = certifiable(snapshot=held.snapshot_version, write_set=[key.hex()])
        assert clients[0].certify(mine).verdict == VERDICT_CERTIFIED
        forget(clients[0])
        for client in clients:
            with pytest.raises(OutcomeUnknown, match=FORGOTTEN) as caught:
                client.certify(mine)
            assert caught.value.transaction_id == mine.transaction_id
            assert client.outcome(mine.transaction_id).state == STATE_UNKNOWN
        other = certifiable(
            snapshot=held.snapshot_version, write_set=[key.hex()], first_attempt=True
        )
        assert clients[0].certify(other).verdict == VERDICT_CONFLICT


@pytest.mark.parametrize("read_set", [[], [7]])
def test_nothing_without_a_write_set_is_certified_twice(
    client: Client, channels: list[grpc.Channel], read_set: list[int]
) -> None:
    with client.transaction() as held:
        schema = certifiable(snapshot=held.snapshot_version, write_set=[], read_set=read_set)
        first = client.certify(schema)
        assert client.certify(schema).gtid == first.gtid
        forget(client)
        before = decided(client)
        with pytest.raises(OutcomeUnknown, match=FORGOTTEN):
            client.certify(schema)
        empty = CommitRequest(
            transaction_id=schema.transaction_id, snapshot_version=held.snapshot_version
        )
        for commit in (commit_once, commit_in_parts):
            with pytest.raises(OutcomeUnknown, match=FORGOTTEN):
                commit(channels[0], empty)
        assert decided(client) == before
        schema.first_attempt = True
        assert client.certify(schema).version > first.version


def test_a_set_of_gtids_is_as_old_as_what_it_lacks(client: Client, key: bytes) -> None:
    with client.transaction():
        executed = client.status().observer.gtid_executed
        forget(client)
        schema = certifiable(snapshot=executed, write_set=[])
        with pytest.raises(OutcomeUnknown, match=FORGOTTEN):
            client.certify(schema)
        new = certifiable(snapshot=client.status().observer.gtid_executed, write_set=[])
        assert client.certify(new).verdict == VERDICT_CERTIFIED


def test_a_stream_answers_each_transaction_for_itself(
    client: Client, channels: list[grpc.Channel], key: bytes
) -> None:
    with client.transaction() as held:
        read = partial(certifiable, snapshot=held.snapshot_version)
        lost, schema = read(write_set=[key.hex()]), read(write_set=[])
        assert [outcome.verdict for outcome in certified(channels[0], lost, schema)] == [
            VERDICT_CERTIFIED,
            VERDICT_CERTIFIED,
        ]
        forget(client)
        before = decided(client)
        new = read(write_set=[f"{key.hex()}/new"])
        outcomes = certified(channels[0], schema, lost, new, schema)
        assert [outcome.verdict for outcome in outcomes] == [
            VERDICT_UNKNOWN,
            VERDICT_UNKNOWN,
            VERDICT_CERTIFIED,
            VERDICT_UNKNOWN,
        ]
        assert [outcome.transaction_id for outcome in outcomes] == [
            each.transaction_id for each in (schema, lost, new, schema)
        ]
        assert decided(client) == [before[0] + 1, before[1] + 1]
        assert [outcome.verdict for outcome in certified(channels[0], schema)] == [VERDICT_UNKNOWN]


def certified(channel: grpc.Channel, *transactions: Certifiable) -> list[Outcome]:
    """Returns what a stream of one message answers; of one transaction, as the call by itself."""
    stub = CertificationServiceStub(channel)
    if len(transactions) == 1:
        return [stub.Certify(CertifyRequest(transaction=transactions[0])).outcome]
    message = CertifyStreamRequest(transactions=transactions)
    return [each for answer in stub.CertifyStream(iter([message])) for each in answer.outcomes]
