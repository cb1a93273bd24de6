"""A member's gRPC server and clients that do not behave."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from groupcert import Client
from groupcert.certifier.errors import NotServing, TooManyKeys, UploadExpired
from groupcert.members.door import door_server
from groupcert.members.door.answer_budget import AnswerBudget
from groupcert.members.door.call_limit import CALLS, PLACES_MAX, STREAMS
from groupcert.members.door.call_times import CallTimes
from groupcert.members.errors.calls import TooManyCalls
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.process import serve
from groupcert.members.recovery.copies import Copies
from groupcert.members.recovery.donors import donor_at
from groupcert.members.recovery.manifest import CopyManifest
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.security.access import ROLES_OF_CALL, AccessList, Role
from groupcert.members.security.credentials import ANONYMOUS
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.services.health import HealthChecks
from groupcert.members.services.store import GET_KEYS_MAX
from groupcert.members.wire.statuses import error_from
from groupcert.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    group_pb2,
    group_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
)
from tests.integration.waiting import wait_for
from tests.members.recovery.test_copies import running

HEADER = store_pb2.CommitStreamRequest(
    header=store_pb2.CommitHeader(
        commit=store_pb2.CommitRequest(transaction_id=b"1"), changes_bytes=1_000
    )
)
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
Metadata = tuple[tuple[str, str], ...]
STALLING_CLIENT = f"""
import sys, time
import grpc
from groupcert.v1 import store_pb2, store_pb2_grpc

def requests():
    yield store_pb2.CommitStreamRequest.FromString({HEADER.SerializeToString()!r})
    time.sleep(600)

stub = store_pb2_grpc.StoreServiceStub(grpc.insecure_channel(sys.argv[1]))
for answer in stub.CommitStream(requests()):
    print(answer.WhichOneof("answer"), flush=True)
"""


def access_of(*roles: Role) -> AccessList:
    """An access list with a principal for each role, whose token is the role's name."""
    principals = [
        {
            "name": f"only {role}",
            "token_sha256": hashlib.sha256(role.value.encode()).hexdigest(),
            "roles": [role],
        }
        for role in roles
    ]
    return AccessList.model_validate({"principal": principals})


@asynccontextmanager
async def serving(folder: Path, **settings: object) -> AsyncIterator[tuple[MemberRuntime, str]]:
    """A member that is ONLINE, and where it answers."""
    async with running(folder / "m1") as runtime:
        address = f"{HOST}:{free_port()}"
        config = runtime.config.model_copy(update={"address": address, **settings})
        runtime.config = config
        current = CurrentRuntime()
        current.runtime = runtime
        copies = Copies(folder / "copies")
        answers = AnswerBudget()
        async with serve.serving(config, current, copies, HealthChecks(), CallTimes(), answers):
            yield runtime, address
            current.stopping.end()


async def stalling(
    *requests: store_pb2.CommitStreamRequest,
) -> AsyncIterator[store_pb2.CommitStreamRequest]:
    """Some requests, and nothing more."""
    for request in requests:
        yield request
    await asyncio.sleep(600)


async def test_an_upload_without_its_next_part_ends(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, snapshot_lease_ms=200) as (runtime, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        for requests in ([], [HEADER]):
            call = store_pb2_grpc.StoreServiceStub(channel).CommitStream(stalling(*requests))
            for _ in requests:
                answer = await call.read()
                assert isinstance(answer, store_pb2.CommitStreamResponse)
                assert answer.HasField("admitted")
                assert runtime.uploads.count == 1
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            error = error_from(caught.value)
            assert isinstance(error, UploadExpired)
            assert str(error).startswith("no part of a large commit came for 200 ms")
            assert (runtime.uploads.count, runtime.uploads.bytes) == (0, 0)


def watching(channel: grpc.aio.Channel) -> "grpc.aio.UnaryStreamCall[Any, Any]":
    return group_pb2_grpc.GroupServiceStub(channel).WatchStatus(group_pb2.WatchStatusRequest())


async def admitted(channel: grpc.aio.Channel) -> "grpc.aio.StreamStreamCall[Any, Any]":
    """A large commit whose rows do not come."""
    call = store_pb2_grpc.StoreServiceStub(channel).CommitStream(stalling(HEADER))
    answer = await call.read()
    assert isinstance(answer, store_pb2.CommitStreamResponse)
    return call


def waiting(channel: grpc.aio.Channel) -> "grpc.aio.UnaryUnaryCall[Any, Any]":
    """A call whose answer does not come."""
    request = store_pb2.OpenSnapshotRequest(version_min=1 << 40)
    return store_pb2_grpc.StoreServiceStub(channel).OpenSnapshot(request)


async def get_status(channel: grpc.aio.Channel, metadata: Metadata = ()) -> None:
    stub = group_pb2_grpc.GroupServiceStub(channel)
    await stub.GetStatus(group_pb2.GetStatusRequest(), metadata=metadata)


async def one_refused(calls: list["grpc.aio.UnaryUnaryCall[Any, Any]"]) -> Exception:
    """The error of the call that is refused of some that wait else; it is taken out of them."""
    ends = {asyncio.create_task(call.code()): call for call in calls}
    done, _ = await asyncio.wait(ends, timeout=120, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = (ends[end] for end in done)
    calls.remove(refused)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await refused
    return error_from(caught.value)


async def served(call: Callable[[], Awaitable[object]]) -> None:
    """Returns when a call is answered, again and again while it is refused."""
    async with asyncio.timeout(120):
        while True:
            try:
                await call()
            except grpc.aio.AioRpcError as error:
                assert isinstance(error_from(error), TooManyCalls)
            else:
                return


def test_the_calls_that_the_limit_names_are_there() -> None:
    for start in (start for kind in PLACES_MAX for start in kind.begins):
        assert any(call.startswith(start) for call in ROLES_OF_CALL), start


async def test_streams_are_limited_in_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLACES_MAX, STREAMS, 4)
    async with (
        serving(tmp_path) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        one, two = watching(channel), watching(channel)
        await asyncio.gather(one.read(), two.read())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watching(channel).read()
        error = error_from(caught.value)
        assert isinstance(error, TooManyCalls)
        assert str(error).startswith("2 streams are open, the limit is 4: 2 are this caller's")
        await get_status(channel)
        async with grpc.aio.insecure_channel(address, OWN_CONNECTION) as another:
            await watching(another).read()
        one.cancel()
        await served(lambda: watching(channel).read())


async def test_streams_that_are_not_needed_leave_room_for_recovery_and_large_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLACES_MAX, STREAMS, 1)
    async with (
        serving(tmp_path) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
        donor_at(address, ANONYMOUS) as donor,
    ):
        watch = watching(channel)
        await watch.read()
        await admitted(channel)
        copy_id, manifest = await donor.open_copy("m3")
        file = next(each for each in CopyManifest.decode(manifest, "").files if each.bytes)
        assert (await anext(donor.read_copy(copy_id, file.name, 0))).file == file.name


async def test_calls_are_limited_in_number_but_for_probes_operators_and_joiners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLACES_MAX, CALLS, 4)
    async with (
        serving(tmp_path) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
        donor_at(address, ANONYMOUS) as donor,
    ):
        calls = [waiting(channel) for _ in range(3)]
        error = await one_refused(calls)
        assert isinstance(error, TooManyCalls)
        assert str(error).startswith("2 calls are open, the limit is 4: 2 are this caller's")
        await watching(channel).read()
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        await stub.GetSettings(admin_pb2.GetSettingsRequest())
        await donor.open_copy("m3")
        for call in calls:
            call.cancel()
        await served(lambda: get_status(channel))


async def test_who_may_not_call_takes_nobodys_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLACES_MAX, CALLS, 1)
    monkeypatch.setitem(PLACES_MAX, STREAMS, 1)
    async with (
        serving(tmp_path, access=access_of(Role.OBSERVE)) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        calls = [
            channel.stream_stream(f"/groupcert.v1.GroupService/{name}", bytes, bytes)(stalling())
            for name in ("GetStatus", "WatchStatus")
            for _ in range(3)
        ]
        connected = (call.wait_for_connection() for call in calls)
        await asyncio.gather(*connected, return_exceptions=True)  # Some are refused by then.
        refused = store_pb2_grpc.StoreServiceStub(channel).CommitStream(stalling(HEADER))
        with pytest.raises(grpc.aio.AioRpcError):
            await refused.read()
        await get_status(channel, (("authorization", f"Bearer {Role.OBSERVE.value}"),))


async def test_a_server_with_all_calls_that_it_takes_has_its_clients_ask_another_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_server, "UNCHECKED_CALLS_MAX", 2)
    async with (
        serving(tmp_path) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        calls = [watching(channel) for _ in range(2)]
        await asyncio.gather(*(call.read() for call in calls))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get_status(channel)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = error_from(caught.value, address)
        assert isinstance(error, NotServing)
        assert "OVERLOADED" in str(error)


async def test_many_keys_are_asked_for_in_several_calls(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, address):
        keys = [b"%d" % number for number in range(2_500)]
        large = [b"a", b"b", b"c"]
        values = {key: b"x" * (5 << 20) for key in large} | {keys[7]: b"found"}

        def read() -> dict[bytes, bytes | None]:
            with Client(address) as client:
                for key, value in values.items():
                    with client.transaction() as transaction:
                        transaction.put(key, value)
                with client.transaction() as transaction:
                    return transaction.get_many([*large, *keys])

        assert await asyncio.to_thread(read) == dict.fromkeys(keys) | values
        options = [("grpc.max_receive_message_length", door_server.ANSWER_BYTES_MAX)]
        async with grpc.aio.insecure_channel(address, options) as channel:
            stub = store_pb2_grpc.StoreServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Get(store_pb2.GetRequest(keys=[b"k"] * (GET_KEYS_MAX + 1)))
            assert isinstance(error_from(caught.value), TooManyKeys)
            snapshot, version = runtime.snapshots.open(runtime.committed_version, runtime.now_ms())
            assert version == len(values)
            request = store_pb2.GetRequest(snapshot_id=snapshot, keys=large)
            assert [row.key for row in (await stub.Get(request)).rows] == large[:1]


@pytest.mark.slow
async def test_a_client_that_vanished_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_server, "KEEPALIVE_MS", 500)
    monkeypatch.setattr(door_server, "KEEPALIVE_TIMEOUT_MS", 4_000)
    async with serving(tmp_path, snapshot_lease_ms=600_000) as (runtime, address):
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STALLING_CLIENT, address, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert client.stdout is not None
            assert await client.stdout.readline() == b"admitted\n"
            await asyncio.sleep(6)
            assert runtime.uploads.count == 1, "it answers"
            os.kill(client.pid, signal.SIGSTOP)
            await asyncio.to_thread(wait_for, "no upload", lambda: not runtime.uploads.count)
        finally:
            client.kill()
            await client.wait()
