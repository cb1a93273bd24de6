"""What one caller sends or holds at a real member, and what it leaves to the others."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import grpc
import grpc.aio
import psutil
import pytest

from groupcert import Client, certifiable
from groupcert.certifier.errors import GroupcertError
from groupcert.members.client.client import run
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.calls import InvalidMessage, TooManyCalls, TooManySnapshots
from groupcert.members.security.access import Role
from groupcert.members.security.credentials import Credentials
from groupcert.members.wire.statuses import error_from
from groupcert.v1 import (
    binary_log_pb2,
    binary_log_pb2_grpc,
    certification_pb2,
    certification_pb2_grpc,
    group_pb2,
    group_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
)
from tests.integration.waiting import SECONDS_MAX, wait_for
from tests.raw_calls import RawCalls

SNAPSHOTS_MAX = 64
ONE, TWO = "token-of-one", "token-of-two"
GET_STATUS = "/groupcert.v1.GroupService/GetStatus"
BEARER_ONE = (("authorization", f"Bearer {ONE}"),)
BEARER_TWO = (("authorization", f"Bearer {TWO}"),)
MIB = 1 << 20
HOLDING_CLIENT = """
import sys, time
from groupcert import Client

client = Client(sys.argv[1], token=sys.argv[2])
held = [client.transaction() for _ in range(int(sys.argv[3]))]
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """One member that knows two callers, who may do everything, and ends no snapshot by itself."""
    folder = tmp_path_factory.mktemp("callers")
    lines = []
    for name, token in (("one", ONE), ("two", TWO)):
        digest = hashlib.sha256(token.encode()).hexdigest()
        lines += ["[[principal]]", f'name = "{name}"', f'token_sha256 = "{digest}"']
        lines.append(f"roles = {json.dumps(list(Role))}")
    (folder / "access.toml").write_text("\n".join(lines) + "\n")
    settings = {
        "access": str(folder / "access.toml"),
        "snapshots_max": SNAPSHOTS_MAX,
        "snapshot_lease_ms": 3_600_000,
    }
    credentials = Credentials(token=ONE)
    with LocalGroup(folder, members=1, settings=settings, credentials=credentials) as group:
        yield group


@pytest.fixture
def address(group: LocalGroup) -> str:
    """The member."""
    return group.addresses["m1"]


def memory(group: LocalGroup) -> int:
    """Bytes of the member that are in memory."""
    found: int = psutil.Process(group.processes["m1"].pid).memory_info().rss
    return found


def asked(call: Callable[[], object]) -> GroupcertError:
    """The error that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error = error_from(caught.value)
    assert isinstance(error, GroupcertError), error
    return error


@pytest.mark.parametrize("size", [MIB, 8 * MIB])
def test_calls_without_a_token_are_answered_at_once_and_take_no_memory(
    group: LocalGroup, address: str, size: int
) -> None:
    before = memory(group)
    with RawCalls(address) as calls:
        numbers = [calls.begin(GET_STATUS, size) for _ in range(100)]
        calls.send(dict.fromkeys(numbers, bytes(size - 1)))
        calls.wait_ended(100)
        assert memory(group) - before < 32 * MIB


def test_calls_with_a_token_take_the_memory_of_its_share_and_others_are_answered(
    group: LocalGroup, address: str
) -> None:
    before = memory(group)
    with RawCalls(address) as calls:
        numbers = [calls.begin(GET_STATUS, MIB, BEARER_ONE) for _ in range(100)]
        calls.send(dict.fromkeys(numbers, bytes(MIB - 1)))
        assert not calls.ended
        assert calls.sent < 24 * MIB
        assert memory(group) - before < 40 * MIB
        with Client(address, token=TWO) as other:
            assert other.status().group == "local"


def test_a_message_that_is_said_to_be_too_large_is_refused_before_it_comes(address: str) -> None:
    with RawCalls(address) as calls:
        number = calls.begin(GET_STATUS, 64 * MIB, BEARER_ONE)
        calls.send({number: bytes(MIB)})
        calls.wait_ended(1)
        assert calls.sent < MIB // 4


def test_bytes_that_are_no_message_are_refused_by_name_and_without_a_traceback(
    group: LocalGroup, address: str
) -> None:
    log = group.folder / "m1.log"
    before = len(log.read_text())

    def logged() -> list[str]:
        """What is said of some calls: more than ten lines a second are left out."""
        began = len(log.read_text())
        calls = send_junk(address)
        said = log.read_text()[began:].splitlines()
        refused = [line for line in said if "bytes that are no message" in line]
        return refused if len(refused) == calls else []

    assert all('"call_refused"' in line for line in wait_for("all refusals", logged))
    assert "Traceback" not in log.read_text()[before:]


def send_junk(address: str) -> int:
    """Makes calls of each kind without a message that they take; returns how many."""
    junk = b"\xff\xff\xff"
    with grpc.insecure_channel(address) as channel:
        unary = channel.unary_unary("/groupcert.v1.StoreService/Get", bytes, bytes)
        stream = channel.unary_stream("/groupcert.v1.GroupService/WatchStatus", bytes, bytes)
        certify = "/groupcert.v1.CertificationService/CertifyStream"
        commit = "/groupcert.v1.StoreService/CommitStream"
        both = [channel.stream_stream(name, bytes, bytes) for name in (certify, commit)]
        calls: dict[str, Callable[[], object]] = {
            "GetRequest": lambda: unary(junk, SECONDS_MAX, BEARER_ONE),
            "WatchStatusRequest": lambda: list(stream(junk, SECONDS_MAX, BEARER_ONE)),
            "CertifyStreamRequest": lambda: list(both[0](iter([junk]), SECONDS_MAX, BEARER_ONE)),
            "CommitStreamRequest": lambda: list(both[1](iter([junk]), SECONDS_MAX, BEARER_ONE)),
        }
        for expected, call in calls.items():
            error = asked(call)
            assert isinstance(error, InvalidMessage)
            assert (error.bytes, error.expected) == (3, f"groupcert.v1.{expected}")
        nothing = channel.stream_unary("/groupcert.v1.StoreService/Get", bytes, bytes)
        error = asked(lambda: nothing(iter([]), SECONDS_MAX, BEARER_ONE))
        assert isinstance(error, InvalidMessage)
    return len(calls) + 1


async def test_many_streams_of_one_caller_leave_room_for_those_of_others(address: str) -> None:
    asks = group_pb2.WatchStatusRequest(period_ms=600_000)
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(address, own) as greedy,
        grpc.aio.insecure_channel(address, own) as channel,
    ):
        watch = group_pb2_grpc.GroupServiceStub(greedy).WatchStatus
        held = [watch(asks, metadata=BEARER_ONE) for _ in range(1_030)]
        answers = await asyncio.gather(*(call.read() for call in held), return_exceptions=True)
        refused = [each for each in answers if isinstance(each, grpc.RpcError)]
        assert len(refused) == 1_030 - 512
        error = error_from(refused[0])
        assert isinstance(error, TooManyCalls)
        assert "512 are this caller's, its share is 512; end those" in str(error)
        log = binary_log_pb2_grpc.BinaryLogServiceStub(greedy)
        certification = certification_pb2_grpc.CertificationServiceStub(greedy)
        subscribed = log.Subscribe(binary_log_pb2.SubscribeRequest(), metadata=BEARER_ONE)
        await subscribed.wait_for_connection()
        certifying = certification.CertifyStream(None, metadata=BEARER_ONE)
        await certifying.write(certification_pb2.CertifyStreamRequest())
        assert await certifying.read() == certification_pb2.CertifyStreamResponse()
        other = group_pb2_grpc.GroupServiceStub(channel).WatchStatus(asks, metadata=BEARER_TWO)
        assert isinstance(await other.read(), group_pb2.WatchStatusResponse)


def test_snapshots_of_one_caller_leave_room_and_end_with_its_connection(address: str) -> None:
    with Client(address, token=TWO) as other:

        def open_snapshots() -> int:
            return other.status().observer.open_snapshots

        wait_for("no snapshot", lambda: not open_snapshots())
        with Client(address, token=ONE) as greedy:
            held = [greedy.transaction() for _ in range(SNAPSHOTS_MAX // 2)]
            with pytest.raises(TooManySnapshots, match="32 are this caller's, its share is 32"):
                greedy.transaction()
            assert other.run(lambda transaction: transaction.get(b"key")) is None
            wait_for("those of one caller", lambda: open_snapshots() == len(held))
        wait_for("no snapshot of the client that closed", lambda: not open_snapshots())
        client = [sys.executable, "-c", HOLDING_CLIENT, address, ONE, "20"]
        with subprocess.Popen(client, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"held\n"
                wait_for("those of the process", lambda: open_snapshots() == 20)
            finally:
                os.kill(process.pid, signal.SIGKILL)
        wait_for("no snapshot of the client that was killed", lambda: not open_snapshots())


def test_a_client_opens_another_session_once_its_own_has_ended(address: str) -> None:
    with Client(address, token=ONE) as client:
        client.transaction().rollback()
        member = client.asynchronous._members._member(address)
        first = member.connection.session
        assert first is not None

        async def cut_off() -> None:
            assert first._stream is not None
            first._stream.cancel()

        run(cut_off())
        wait_for("the end of the session", lambda: first.ended is not None)
        client.transaction().rollback()
        assert member.connection.session is not first


def test_a_snapshot_of_an_ended_session_is_refused_by_name_and_one_of_none_lasts(
    address: str,
) -> None:
    with grpc.insecure_channel(address) as channel:
        store = store_pb2_grpc.StoreServiceStub(channel)
        ended = store_pb2.OpenSnapshotRequest(session_id=7)
        error = asked(lambda: store.OpenSnapshot(ended, SECONDS_MAX, BEARER_ONE))
        assert str(error) == "session 7 is not open here: hold another one, then try again"
        opened = store.OpenSnapshot(store_pb2.OpenSnapshotRequest(), SECONDS_MAX, BEARER_ONE)
    with grpc.insecure_channel(address) as channel:
        store = store_pb2_grpc.StoreServiceStub(channel)
        get = store_pb2.GetRequest(snapshot_id=opened.snapshot_id)
        store.Get(get, SECONDS_MAX, BEARER_ONE)
        close = store_pb2.CloseSnapshotRequest(snapshot_id=opened.snapshot_id)
        store.CloseSnapshot(close, SECONDS_MAX, BEARER_ONE)


def test_batches_larger_than_a_message_are_sent_as_several(address: str) -> None:
    starts = range(1, 200_000, 2_000)
    sent = [certifiable(snapshot=1, write_set=range(each, each + 2_000)) for each in starts]
    assert sum(each.ByteSize() for each in sent) > MIB
    with Client(address, token=ONE) as client:
        answers = dict(client.certify_stream([sent[:1], sent[1:]]))
    assert sorted(answers) == list(range(len(sent)))
    assert all(
        answers[number].transaction_id == each.transaction_id for number, each in enumerate(sent)
    )
