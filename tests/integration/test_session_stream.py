"""Session streams of a real member, by messages that are made by hand."""

import threading
import uuid
from collections.abc import Iterator
from queue import SimpleQueue

import grpc
import pytest
from google.rpc import code_pb2, status_pb2  # type: ignore[import-untyped]  # has no types
from grpc_status import rpc_status

from groupcert.certifier.errors import GroupcertError, NotServing
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.calls import InvalidMessage
from groupcert.members.wire.channels import ADMITTED
from groupcert.members.wire.message_fields import REPEATED_MAX
from groupcert.members.wire.statuses import carried_error, error_from
from groupcert.v1.certification_pb2 import CertifyRequest, GetOutcomeRequest, GetOutcomeResponse
from groupcert.v1.session_pb2 import SessionAnswer, SessionCall, SessionRequest, SessionResponse
from groupcert.v1.session_pb2_grpc import SessionServiceStub
from groupcert.v1.store_pb2 import (
    CloseSnapshotRequest,
    CommitRequest,
    GetRequest,
    OpenSnapshotRequest,
    ScanRequest,
)
from groupcert.v1.store_pb2_grpc import StoreServiceStub
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, Changes, Transaction
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

FAR_VERSION = 1 << 40
SECONDS_MAX = 120


class Stream:
    """A session stream."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._messages: SimpleQueue[SessionRequest | None] = SimpleQueue()
        self.call = SessionServiceStub(channel).Session(iter(self._messages.get, None), SECONDS_MAX)
        self._found: dict[int, SessionAnswer] = {}

    def send(self, *requests: SessionCall, cancelled: tuple[int, ...] = ()) -> None:
        """Sends requests in one message."""
        self._messages.put(SessionRequest(calls=requests, cancelled=cancelled))

    def end(self) -> None:
        """Says that no more requests come."""
        self._messages.put(None)

    def messages(self) -> Iterator[SessionResponse]:
        """Yields what the member sends. Raises the error that the stream ends with."""
        try:
            yield from self.call
        except grpc.RpcError as error:
            raise error_from(error) from None

    def answer(self, number: int) -> SessionAnswer:
        """Returns the answer with a number."""
        messages = self.messages()
        while number not in self._found:
            self._found.update((each.number, each) for each in next(messages).answers)
        return self._found.pop(number)

    def error(self, number: int) -> GroupcertError:
        """Returns the error that a request is answered with."""
        return carried_error(self.answer(number).error, "m1")

    def open_snapshot(self, number: int, version_min: int = 0) -> int:
        """Opens a snapshot of this version or a later one, and returns its id."""
        request = OpenSnapshotRequest(version_min=version_min)
        self.send(SessionCall(number=number, open_snapshot=request))
        return self.answer(number).open_snapshot.snapshot_id


@pytest.fixture
def channel(group: LocalGroup) -> Iterator[grpc.Channel]:
    """A connection to the first member."""
    with grpc.insecure_channel(group.addresses["m1"]) as channel:
        yield channel


@pytest.fixture
def stream(channel: grpc.Channel) -> Iterator[Stream]:
    """A stream, which ends with the test."""
    stream = Stream(channel)
    yield stream
    stream.end()
    stream.call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it out


def commit(key: bytes, version: int = 0, snapshot_id: int = 0) -> CommitRequest:
    """A commit of one row."""
    return CommitRequest(
        transaction_id=uuid.uuid4().bytes,
        snapshot_version=version,
        snapshot_id=snapshot_id,
        changes=Changes(put_keys=[key], put_values=[b"1"]),
    )


def test_every_call_is_answered_as_by_itself(stream: Stream) -> None:
    key = uuid.uuid4().bytes
    snapshot_id = stream.open_snapshot(1)
    transaction = Transaction(transaction_id=key, write_set_keys=["shop.orders/PRIMARY/1"])
    first = commit(key, snapshot_id=stream.open_snapshot(2))
    stream.send(
        SessionCall(number=3, get=GetRequest(snapshot_id=snapshot_id, keys=[key])),
        SessionCall(number=4, commit=first),
        SessionCall(number=5, certify=CertifyRequest(transaction=transaction)),
    )
    assert [row.HasField("value") for row in stream.answer(3).get.rows] == [False]
    version = stream.answer(4).commit.version
    assert stream.answer(5).certify.outcome.transaction_id == key
    later = stream.open_snapshot(6, version_min=version)
    scan = ScanRequest(snapshot_id=later, start_key=key, end_key=key + b"\x00")
    outcome = GetOutcomeRequest(transaction_id=first.transaction_id)
    stream.send(
        SessionCall(number=7, scan=scan),
        SessionCall(number=8, get_outcome=outcome),
        SessionCall(number=9, close_snapshot=CloseSnapshotRequest(snapshot_id=later)),
    )
    assert [(row.key, row.value) for row in stream.answer(7).scan.rows] == [(key, b"1")]
    found = stream.answer(8).get_outcome
    assert found.state == GetOutcomeResponse.STATE_DECIDED
    assert (found.outcome.verdict, found.outcome.version) == (VERDICT_CERTIFIED, version)
    assert stream.answer(9).WhichOneof("answer") == "close_snapshot"
    stream.send(SessionCall(number=10, get=GetRequest(snapshot_id=later, keys=[key])))
    assert stream.error(10).reason == "SNAPSHOT_EXPIRED"


def test_a_conflict_has_the_status_of_the_unary_call(stream: Stream, channel: grpc.Channel) -> None:
    key = uuid.uuid4().bytes
    snapshot_id, calls = stream.open_snapshot(1), StoreServiceStub(channel)
    first, second = (calls.OpenSnapshot(OpenSnapshotRequest()).snapshot_id for _ in range(2))
    calls.Commit(commit(key, snapshot_id=first), SECONDS_MAX)
    with pytest.raises(grpc.RpcError) as caught:
        calls.Commit(commit(key, snapshot_id=second), SECONDS_MAX)
    unary = rpc_status.from_call(caught.value)  # type: ignore[arg-type]  # it is a Call, too
    assert unary is not None
    stream.send(SessionCall(number=2, commit=commit(key, snapshot_id=snapshot_id)))
    status = status_pb2.Status.FromString(stream.answer(2).error)
    assert (status.code, unary.code) == (code_pb2.ABORTED, code_pb2.ABORTED)
    assert [each.type_url for each in status.details] == [each.type_url for each in unary.details]
    ours, theirs = carried_error(status.SerializeToString(), ""), error_from(caught.value)
    own = {"log_sequence", "snapshot_version"}
    assert {name: value for name, value in vars(ours).items() if name not in own} == {
        name: value for name, value in vars(theirs).items() if name not in own
    }


def test_answers_come_in_any_order_and_a_thousand_in_few_messages(stream: Stream) -> None:
    waits = OpenSnapshotRequest(version_min=FAR_VERSION)
    close = CloseSnapshotRequest(snapshot_id=1 << 40)  # Is answered before others have a turn.
    stream.send(
        SessionCall(number=2, open_snapshot=waits),
        *(SessionCall(number=number, close_snapshot=close) for number in range(10, 1_010)),
    )
    numbers: list[int] = []
    sizes: list[int] = []
    for message in stream.messages():
        numbers += [answer.number for answer in message.answers]
        sizes.append(len(message.answers))
        if len(numbers) == 1_000:
            break
    assert sorted(numbers) == list(range(10, 1_010))
    assert len(sizes) < 100


def test_a_cancelled_request_is_not_answered_and_its_number_is_free(stream: Stream) -> None:
    waits = OpenSnapshotRequest(version_min=FAR_VERSION)
    stream.send(SessionCall(number=1, open_snapshot=waits))
    again = SessionCall(number=1, open_snapshot=OpenSnapshotRequest())
    stream.send(again, cancelled=(1, 99))
    assert stream.answer(1).open_snapshot.snapshot_id
    assert stream.open_snapshot(2)


def test_a_number_twice_ends_the_stream(stream: Stream) -> None:
    waits = OpenSnapshotRequest(version_min=FAR_VERSION)
    stream.send(*[SessionCall(number=1, open_snapshot=waits)] * 2)
    with pytest.raises(InvalidMessage, match="a number that no unanswered request has, not 1"):
        list(stream.messages())


def test_an_empty_request_is_answered_and_too_many_end_the_stream(stream: Stream) -> None:
    stream.send(SessionCall(number=1))
    assert "expected one of open_snapshot, " in str(stream.error(1))
    stream.send(*[SessionCall()] * (REPEATED_MAX + 1))
    with pytest.raises(GroupcertError, match=f"at most {REPEATED_MAX}"):
        list(stream.messages())


def test_snapshots_end_with_the_stream(group: LocalGroup, channel: grpc.Channel) -> None:
    def opened() -> int:
        return group.status("m1").observer.open_snapshots

    wait_for("nothing of tests before", lambda: not opened())
    stream = Stream(channel)
    for number in range(1, 11):
        stream.open_snapshot(number)
    assert opened() == 10
    stream.end()
    assert list(stream.messages()) == []
    wait_for("the end of the stream's snapshots", lambda: not opened())


def test_a_stream_is_let_in_before_anything_is_sent(stream: Stream) -> None:
    assert ADMITTED in dict(stream.call.initial_metadata())


@pytest.mark.slow
def test_an_orderly_stop_answers_what_it_received_and_says_that_the_rest_was_not_begun(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with LocalGroup(tmp_path_factory.mktemp("stop"), members=1) as group:
        with grpc.insecure_channel(group.addresses["m1"]) as channel:
            stream = Stream(channel)
            snapshot_id = stream.open_snapshot(1)
            answers: list[int] = []
            stopping = threading.Thread(target=group.stop_member, args=("m1",))
            stopping.start()
            with pytest.raises(NotServing) as caught:
                number = 1
                while True:
                    number += 1
                    get = GetRequest(snapshot_id=snapshot_id, keys=[b"k"])
                    stream.send(SessionCall(number=number, get=get))
                    answers.append(stream.answer(number).number)
            stopping.join()
            assert caught.value.ordered == "nothing"
            assert answers == list(range(2, number))
