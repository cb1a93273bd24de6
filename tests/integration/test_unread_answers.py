"""What answers that nobody reads cost a real member: little memory, and no other client."""

import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import psutil
import pytest

from groupcert import Client
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.recovery.manifest import CopyManifest
from groupcert.v1 import binary_log_pb2, group_pb2, recovery_pb2, session_pb2, store_pb2
from groupcert.v1.certification_pb2 import CertifyStreamRequest
from groupcert.v1.recovery_pb2_grpc import RecoveryServiceStub
from groupcert.v1.store_pb2_grpc import StoreServiceStub
from groupcert.v1.transaction_pb2 import Transaction
from tests.integration.test_session_stream import FramedStream
from tests.integration.waiting import wait_for
from tests.raw_calls import RawCalls

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow]

MB = 1_000_000
ROWS, ROW_BYTES = 150, 100_000
STREAMS, SCANS, FRAMED = 512, 24, 128
"""What one caller may have of session streams; what each of them asks for."""
COMMITS = 100
"""Of another client, while nobody reads."""
SESSION, SCAN = "/groupcert.v1.SessionService/Session", "/groupcert.v1.StoreService/Scan"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """One member with 15 MB of rows, and metrics."""
    folder = tmp_path_factory.mktemp("unread")
    settings = {"metrics_address": f"{HOST}:{free_port()}", "snapshot_lease_ms": 600_000}
    with LocalGroup(
        folder, members=1, settings=settings, certification_logs=folder / "logs"
    ) as group:
        with Client(group.addresses["m1"]) as client:
            for first in range(0, ROWS, 10):
                with client.transaction() as transaction:
                    for number in range(first, first + 10):
                        transaction.put(b"row/%d" % number, bytes(ROW_BYTES))
        yield group


@pytest.fixture
def scan(group: LocalGroup) -> Iterator[store_pb2.ScanRequest]:
    """A read of all rows, of a snapshot that stays."""
    with grpc.insecure_channel(group.addresses["m1"]) as channel:
        stub = StoreServiceStub(channel)
        opened = stub.OpenSnapshot(store_pb2.OpenSnapshotRequest())
        yield store_pb2.ScanRequest(snapshot_id=opened.snapshot_id)
        stub.CloseSnapshot(store_pb2.CloseSnapshotRequest(snapshot_id=opened.snapshot_id))


class Memory:
    """The bytes that a member has taken since this was made."""

    def __init__(self, group: LocalGroup) -> None:
        self._process = psutil.Process(group.processes["m1"].pid)
        self._before = self._process.memory_info().rss

    @property
    def grown(self) -> int:
        """As of now."""
        grown: int = self._process.memory_info().rss - self._before
        return grown


def metric(group: LocalGroup, name: str) -> float:
    """A metric of the member."""
    address = next(
        line.split('"')[1]
        for line in (group.folder / "m1.toml").read_text().splitlines()
        if line.startswith("metrics_address")
    )
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


def commit_meanwhile(group: LocalGroup, memory: Memory, grown_max: int) -> None:
    """Commits and reads as another client does."""
    with Client(group.addresses["m1"]) as client:
        for number in range(COMMITS):
            with client.transaction() as transaction:
                assert transaction.get(b"row/1") == bytes(ROW_BYTES)
                transaction.put(b"other", b"%d" % number)
            assert memory.grown < grown_max
            time.sleep(0.01)


def assert_ended_within(group: LocalGroup, calls: RawCalls, memory: Memory, grown_max: int) -> None:
    """Returns when the member has ended a call, and takes little all the time."""

    def is_ended() -> bool:
        assert memory.grown < grown_max
        return bool(calls.ended)

    wait_for("an end", is_ended)


def test_512_unread_streams_take_less_than_200_mb_and_another_client_commits(
    group: LocalGroup, scan: store_pb2.ScanRequest
) -> None:
    memory, numbers = Memory(group), range(1, SCANS + 1)
    asked = [session_pb2.SessionCall(number=number, scan=scan) for number in numbers]
    request = session_pb2.SessionRequest(calls=asked).SerializeToString()
    refused = 'groupcert_call_refusals_total{reason="ANSWER_NOT_TAKEN"}'
    with RawCalls(group.addresses["m1"]) as calls:
        for _ in range(STREAMS):
            calls.ask(SESSION, request)
        commit_meanwhile(group, memory, 200 * MB)
        assert_ended_within(group, calls, memory, 200 * MB)
        assert metric(group, "groupcert_call_unsent_bytes") > 0
        assert metric(group, refused) > 0
    wait_for("nothing unsent", lambda: metric(group, "groupcert_call_unsent_bytes") == 0)


def test_unread_frames_take_no_more(group: LocalGroup, scan: store_pb2.ScanRequest) -> None:
    memory = Memory(group)
    refused = 'groupcert_call_refusals_total{reason="ANSWER_NOT_TAKEN"}'
    with grpc.insecure_channel(group.addresses["m1"]) as channel, ExitStack() as opened:
        for _ in range(FRAMED):
            stream = opened.enter_context(FramedStream(channel))
            numbers = range(1, SCANS + 1)
            stream.send(*(session_pb2.SessionCall(number=each, scan=scan) for each in numbers))
        ended = metric(group, refused)
        commit_meanwhile(group, memory, 200 * MB)
        wait_for("streams that are ended", lambda: metric(group, refused) > ended)
        assert memory.grown < 200 * MB
    wait_for("nothing unsent", lambda: metric(group, "groupcert_call_unsent_bytes") == 0)


def test_calls_over_a_window_of_0_take_no_more(
    group: LocalGroup, scan: store_pb2.ScanRequest
) -> None:
    memory = Memory(group)
    with RawCalls(group.addresses["m1"], window=0) as calls:
        for _ in range(200):
            calls.ask(SCAN, scan.SerializeToString())
        commit_meanwhile(group, memory, 150 * MB)
        assert_ended_within(group, calls, memory, 150 * MB)


@pytest.fixture
def copy(group: LocalGroup) -> Iterator[recovery_pb2.ReadCopyRequest]:
    """Asks for all of a copy of the member's state."""
    with grpc.insecure_channel(group.addresses["m1"]) as channel:
        stub = RecoveryServiceStub(channel)
        made = stub.OpenCopy(recovery_pb2.OpenCopyRequest(asker="m2"))
        first = CopyManifest.decode(made.manifest, "the copy").files[0].name
        yield recovery_pb2.ReadCopyRequest(copy_id=made.copy_id, file=first)
        stub.CloseCopy(recovery_pb2.CloseCopyRequest(copy_id=made.copy_id))


def test_streams_of_every_kind_take_no_more(
    group: LocalGroup, copy: recovery_pb2.ReadCopyRequest
) -> None:
    large = [Transaction(snapshot_version=1, write_set=range(1, 2_000))]
    asked = {
        "BinaryLogService/Subscribe": binary_log_pb2.SubscribeRequest(replica="r"),
        "GroupService/ReadHistory": group_pb2.ReadHistoryRequest(),
        "GroupService/WatchStatus": group_pb2.WatchStatusRequest(period_ms=50),
        "GroupService/GetStatus": group_pb2.GetStatusRequest(),
        "RecoveryService/ReadCopy": copy,
        "CertificationService/CertifyStream": CertifyStreamRequest(transactions=large),
    }
    memory = Memory(group)
    with RawCalls(group.addresses["m1"]) as calls:
        for call, request in asked.items():
            for _ in range(64):
                calls.ask(f"/groupcert.v1.{call}", request.SerializeToString())
        commit_meanwhile(group, memory, 200 * MB)
        assert_ended_within(group, calls, memory, 200 * MB)
