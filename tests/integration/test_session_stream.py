"""Session streams of a real member, by messages that are made by hand: over gRPC, and by frames."""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Self

import grpc
import pytest
from google.rpc import code_pb2, status_pb2  # type: ignore[import-untyped]  # has no types
from grpc_status import rpc_status

from groupcert import Client
from groupcert.certifier.errors import GroupcertError, NotServing
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.door.door_server import MESSAGE_BYTES_MAX
from groupcert.members.door.frame_door import STRANGERS_MAX
from groupcert.members.errors.calls import InvalidMessage
from groupcert.members.host.loopback import HOST
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
from tests.raw_frames import SIGN_BYTES, RawFrames

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

FAR_VERSION = 1 << 40
SECONDS_MAX = 120


class Stream:
    """A session stream."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._messages: SimpleQueue[SessionRequest | None] = SimpleQueue()
        self.call = SessionServiceStub(channel).Session(iter(self._messages.get, None), SECONDS_MAX)
        self._found: dict[int, SessionAnswer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()
        self.call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it out

    def send(self, *requests: SessionCall, cancelled: tuple[int, ...] = ()) -> None:
        """Sends requests in one message."""
        self.put(SessionRequest(calls=requests, cancelled=cancelled))

    def put(self, message: SessionRequest) -> None:
        """Sends a message."""
        self._messages.put(message)

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


class FramedStream(Stream):
    """A session stream whose messages go and come by frames."""

    def __init__(self, channel: grpc.Channel) -> None:
        super().__init__(channel)
        super().put(SessionRequest(asks_frames=True))
        self.told = next(super().messages()).frames
        self.frames = RawFrames.admitted(HOST, self.told)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.frames.close()

    def put(self, message: SessionRequest) -> None:
        """Sends a message."""
        with suppress(ConnectionError):  # The member has hung up: who reads learns why.
            self.frames.send(message.SerializeToString())

    def messages(self) -> Iterator[SessionResponse]:
        """Yields what the member sends; then hangs up. Raises as a stream."""
        yield from map(SessionResponse.FromString, self.frames.messages())
        self.frames.close()
        yield from super().messages()


TRANSPORTS = pytest.mark.parametrize("opened", [Stream, FramedStream])


@pytest.fixture
def channel(group: LocalGroup) -> Iterator[grpc.Channel]:
    """A connection to the first member."""
    with grpc.insecure_channel(group.addresses["m1"]) as channel:
        yield channel


@pytest.fixture(params=[Stream, FramedStream])
def stream(channel: grpc.Channel, request: pytest.FixtureRequest) -> Iterator[Stream]:
    """A stream, which ends with the test."""
    with request.param(channel) as stream:
        yield stream


@pytest.fixture
def framed(channel: grpc.Channel) -> Iterator[FramedStream]:
    """One by frames."""
    with FramedStream(channel) as stream:
        yield stream


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


@TRANSPORTS
def test_snapshots_end_with_the_stream(
    group: LocalGroup, channel: grpc.Channel, opened: type[Stream]
) -> None:
    def held() -> int:
        return group.status("m1").observer.open_snapshots

    wait_for("nothing of tests before", lambda: not held())
    with opened(channel) as stream:
        for number in range(1, 11):
            stream.open_snapshot(number)
        assert held() == 10
        stream.end()
        assert list(stream.messages()) == []
    wait_for("the end of the stream's snapshots", lambda: not held())


def test_a_stream_ends_with_its_frames(group: LocalGroup, framed: FramedStream) -> None:
    framed.open_snapshot(1)
    framed.frames.close()
    assert list(Stream.messages(framed)) == []
    wait_for("the end of its snapshots", lambda: not group.status("m1").observer.open_snapshots)


def test_a_ticket_is_good_once_and_while_its_stream_lasts(
    framed: FramedStream, channel: grpc.Channel
) -> None:
    with RawFrames.admitted(HOST, framed.told) as second:
        assert list(second.messages()) == []
        assert not second.ended_in_order
    framed.send(SessionCall(number=1, open_snapshot=OpenSnapshotRequest()))
    assert framed.answer(1).open_snapshot.snapshot_id
    with Stream(channel) as other:
        other.put(SessionRequest(asks_frames=True))
        told = next(other.messages()).frames
        other.end()
        assert list(other.messages()) == []
    with RawFrames.admitted(HOST, told) as late:
        assert list(late.messages()) == []
    framed.end()
    assert list(framed.messages()) == []
    assert framed.frames.ended_in_order


def test_who_has_no_ticket_is_turned_away(framed: FramedStream) -> None:
    with RawFrames(HOST, framed.told.port) as stranger:
        assert stranger.received(SIGN_BYTES) == framed.told.greeting
        stranger.put(bytes(SIGN_BYTES) + b"GET / HTTP/1.1")
        assert stranger.received(1) == b""
    with RawFrames(HOST, framed.told.port) as silent:
        assert len(silent.received(SIGN_BYTES + 1)) == SIGN_BYTES
    framed.end()


def test_many_strangers_leave_members_to_their_clients(
    group: LocalGroup, framed: FramedStream
) -> None:
    with ExitStack() as strangers:
        for _ in range(STRANGERS_MAX):
            connection = strangers.enter_context(RawFrames(HOST, framed.told.port))
            assert len(connection.received(SIGN_BYTES)) == SIGN_BYTES
        with RawFrames(HOST, framed.told.port) as late:
            assert late.received(1) == b""
        with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
            transaction.put(uuid.uuid4().bytes, b"1")
    assert framed.open_snapshot(1)
    framed.end()


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX + 1, 2**32 - 1])
def test_a_frame_over_the_limit_ends_the_stream(framed: FramedStream, size: int) -> None:
    framed.frames.put(size.to_bytes(4))
    with pytest.raises(InvalidMessage, match=f"got {size} bytes .* at most {MESSAGE_BYTES_MAX}"):
        list(framed.messages())
    assert not framed.frames.ended_in_order


def test_bytes_that_are_no_message_end_the_stream(framed: FramedStream) -> None:
    framed.frames.send(b"\xff\xff")
    with pytest.raises(InvalidMessage, match=r"expected groupcert\.v1\.SessionRequest"):
        list(framed.messages())


def test_a_message_may_come_byte_by_byte(framed: FramedStream) -> None:
    request = SessionCall(number=7, open_snapshot=OpenSnapshotRequest())
    message = SessionRequest(calls=[request]).SerializeToString()
    for byte in len(message).to_bytes(4) + message:
        framed.frames.put(bytes((byte,)))
        time.sleep(0.005)
    assert framed.answer(7).open_snapshot.snapshot_id


def test_a_stream_is_let_in_before_anything_is_sent(stream: Stream) -> None:
    assert ADMITTED in dict(stream.call.initial_metadata())


@pytest.mark.slow
@TRANSPORTS
def test_an_orderly_stop_answers_what_it_received_and_says_that_the_rest_was_not_begun(
    tmp_path_factory: pytest.TempPathFactory, opened: type[Stream]
) -> None:
    with LocalGroup(tmp_path_factory.mktemp("stop"), members=1) as group:
        with (
            grpc.insecure_channel(group.addresses["m1"]) as channel,
            opened(channel) as stream,
        ):
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
