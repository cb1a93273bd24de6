"""What is wrong from the start is told with value, limit and next step; a running group loses
nothing to what goes wrong later.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import grpc
import nats
import pytest

from groupcert import Client, Consistency
from groupcert.certifier.errors import LogServerTooOld, NotServing
from groupcert.certifier.storage.info_store import CertificationInfoStore
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from groupcert.members.wire.statuses import error_from
from groupcert.v1 import store_pb2, store_pb2_grpc
from groupcert.v1.binary_log_pb2 import SubscribeRequest
from groupcert.v1.binary_log_pb2_grpc import BinaryLogServiceStub
from groupcert.v1.group_pb2 import (
    MEMBER_STATE_ERROR,
    MEMBER_STATE_FENCED,
    MEMBER_STATE_ONLINE,
    MemberStatus,
)
from groupcert.v1.transaction_pb2 import CONSISTENCY_BEFORE
from tests.datadriven import Command, run_script
from tests.integration.conftest import SETTINGS
from tests.integration.waiting import SECONDS_MAX, wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole
from tests.transcripts import FOLDER, Terminal

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.in_turns]


@pytest.fixture
def log_server(tmp_path: Path) -> Iterator[LogServer]:
    """A log server of one test's own."""
    with LogServer(tmp_path / "log-server") as server:
        yield server


async def make_stream(address: str, discard: str) -> None:
    """Makes the stream of group shop with a setting that members may not have."""
    client = await nats.connect(address)
    await client.jetstream().add_stream(
        name="GROUPCERT_shop", subjects=["groupcert.shop.log"], discard=discard
    )
    await client.close()


def status_of(group: LocalGroup, name: str) -> MemberStatus:
    """A member's status; one without a state while it does not answer."""
    try:
        return group.status(name).observer
    except NotServing:
        return MemberStatus()


def reason_in(group: LocalGroup, name: str, state: int) -> str:
    """Waits for a member to be in a state; returns the reason that it gives."""

    def find() -> str | None:
        status = status_of(group, name)
        return status.reason if status.state == state else None

    return wait_for(f"{name} in state {state}", find) or ""


def assert_takes_nothing(address: str, why: str) -> None:
    """A member refuses a transaction, and is certain that nothing was ordered."""

    def refusal() -> str:
        """On a busy machine it may be that no answer came in time."""
        with Client(address, timeout_ms=1_000) as client:
            with pytest.raises(NotServing) as caught:
                client.run(lambda transaction: transaction.put(b"k", b"v"), attempts_max=1)
        return str(caught.value)

    wait_for(why, lambda: why in refusal())


async def delete_log(group: LocalGroup) -> datetime:
    """Deletes a group's log; returns when that had been made."""
    client = await nats.connect(group.log_server.address)
    created = (await client.jetstream().stream_info("GROUPCERT_local")).created
    await client.jetstream().delete_stream("GROUPCERT_local")
    await client.close()
    assert created is not None
    return created


def spoil_digest(store: Store) -> None:
    """Makes a member's certifier believe that it has decided something else."""
    saved = json.loads(store.get(Family.META, CertificationInfoStore.CHECKPOINT_KEY) or b"")
    batch = store.batch()
    spoiled = json.dumps({**saved, "digest": "00" * 8}).encode()
    batch.put(Family.META, CertificationInfoStore.CHECKPOINT_KEY, spoiled)
    store.write(batch)


class TestStart:
    """A member that cannot start says why, and ends."""

    def test_it_says_what_the_transcript_says(
        self,
        rewrite: bool,
        log_server: LogServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        stack: ExitStack,
    ) -> None:
        taken = stack.enter_context(socket.create_server((HOST, 0)))
        names = {"log": log_server.address, "free": f"{HOST}:{free_port()}"}
        names["taken"] = f"{HOST}:{taken.getsockname()[1]}"
        terminal = Terminal(tmp_path, monkeypatch, capsys, names)

        def stream(command: Command) -> str:
            """stream discard=: somebody has made the group's stream."""
            asyncio.run(make_stream(log_server.address, str(command.take("discard")[0])))
            return ""

        def store(command: Command) -> str:
            """store in= group= member= [format=] [held]: a member's folder; somebody holds it."""
            folder, group, member, release, held = command.take(
                "in", "group", "member", "format", "held"
            )
            store = Store(Path(str(folder)), StoreIdentity(group=str(group), member=str(member)))
            if release:
                batch = store.batch()
                batch.put(Family.META, b"format", release.encode())
                store.write(batch)
            stack.callback(store.close) if held is not None else store.close()
            return ""

        script = FOLDER / "starts" / "member.txt"
        run_script(script, terminal.handlers | {"stream": stream, "store": store}, rewrite=rewrite)

    async def test_a_log_server_that_is_too_old(self, log_server: LogServer) -> None:
        options = JetStreamOptions(servers=(log_server.address,), group="shop")
        order = JetStreamOrder(replace(options, version_min=(99, 0, 0)))
        with pytest.raises(LogServerTooOld, match=r"oldest that serves is 99\.0\.0: upgrade it"):
            await order.open(create=True)
        await order.close()


class TestLog:
    """A log that is not what it was: the member stops serving, and says what it expected."""

    async def test_another_log_under_the_same_name(self, tmp_path: Path) -> None:
        with LocalGroup(tmp_path, members=1, settings=SETTINGS) as group:
            assert group.stop_member("m1") == 0
            before = await delete_log(group)
            group.start_member("m1")
            reason = await asyncio.to_thread(reason_in, group, "m1", MEMBER_STATE_FENCED)
            assert_takes_nothing(group.addresses["m1"], "m1 is FENCED")
            with grpc.insecure_channel(group.addresses["m1"]) as channel:
                binary_log = BinaryLogServiceStub(channel)
                with pytest.raises(grpc.RpcError) as caught:  # Its replicas go on elsewhere.
                    for _ in binary_log.Subscribe(SubscribeRequest(), timeout=SECONDS_MAX):
                        pass
            assert str(error_from(caught.value)).startswith("member m1 is FENCED")
        identities = reason.split("FOREIGN_LOG: log has identity GROUPCERT_local created ")[1]
        assert f"expected GROUPCERT_local created {before:%Y-%m-%dT%H:%M:%S}" in identities
        assert identities.endswith("else let the member rejoin with an empty folder")

    async def test_a_log_that_was_trimmed_past_the_member_has_it_copy_another(
        self, tmp_path: Path
    ) -> None:
        with LocalGroup(tmp_path, members=2, settings=SETTINGS) as group:
            assert group.stop_member("m2") == 0
            with Client(group.addresses["m1"]) as client:
                for _ in range(3):
                    client.run(lambda transaction: transaction.put(b"k", b"v"))
                last = client.status().observer.log_sequence
            order = JetStreamOrder(
                JetStreamOptions(servers=(group.log_server.address,), group="local")
            )
            await order.open(create=False)
            await order.trim(last)
            await order.close()
            group.start_member("m2")
            group.wait_online()
            with Client(group.addresses["m2"], consistency=Consistency.BEFORE) as client:
                assert client.run(lambda transaction: transaction.get(b"k")) == b"v"

    async def test_a_log_that_is_deleted_under_a_running_member(self, tmp_path: Path) -> None:
        """Whoever waits for the log is told that the member has stopped."""
        with LocalGroup(tmp_path, members=1, settings=SETTINGS) as group:
            await delete_log(group)
            request = store_pb2.OpenSnapshotRequest(consistency=CONSISTENCY_BEFORE)
            with grpc.insecure_channel(group.addresses["m1"]) as channel:
                open_snapshot = store_pb2_grpc.StoreServiceStub(channel).OpenSnapshot
                with pytest.raises(grpc.RpcError) as caught:
                    await asyncio.to_thread(open_snapshot, request, timeout=SECONDS_MAX)
            assert str(error_from(caught.value)).startswith("member m1 is FENCED")
            reason = reason_in(group, "m1", MEMBER_STATE_FENCED)
        assert reason.startswith(
            "FOREIGN_LOG: log has identity no stream, expected GROUPCERT_local"
        )

    def test_a_member_that_decided_otherwise_fences_itself_and_the_others_go_on(
        self, tmp_path: Path
    ) -> None:
        with LocalGroup(tmp_path, settings=SETTINGS, certification_logs=tmp_path / "logs") as group:
            with Client(group.addresses["m1"]) as client:
                client.run(lambda transaction: transaction.put(b"k", b"v"))
                assert group.stop_member("m2") == 0
                with Store(tmp_path / "m2", StoreIdentity(group="local", member="m2")) as store:
                    spoil_digest(store)
                group.start_member("m2")
                client.run(lambda transaction: transaction.put(b"k", b"w"))
                reason = reason_in(group, "m2", MEMBER_STATE_FENCED)
                client.run(lambda transaction: transaction.put(b"k", b"x"))
            assert status_of(group, "m3").state == MEMBER_STATE_ONLINE
        assert reason.startswith("DIGEST_MISMATCH: digest at position ")
        assert reason.endswith(
            "find out which one is wrong, and let it rejoin with an empty folder"
        )


class TestTwins:
    """Two processes of one name: the first one notices, and stops serving."""

    def test_the_later_one_serves(self, tmp_path: Path) -> None:
        with LocalGroup(tmp_path, members=2, settings=SETTINGS) as group:
            first_address = group.addresses["m2"]
            first = group.processes.pop("m2")
            try:
                with Client(first_address) as client:
                    client.run(lambda transaction: transaction.put(b"before", b"1"))
                    shutil.move(tmp_path / "m2", tmp_path / "m2-first")
                    group.addresses["m2"] = f"{HOST}:{free_port()}"
                    group.start_member("m2")
                    group.wait_online()

                    def reason() -> str:
                        observer = client.status().observer
                        return observer.reason if observer.state == MEMBER_STATE_FENCED else ""

                    words = wait_for("a fence", reason)
                    assert "NAME_TAKEN: another process serves as m2" in words
                assert_takes_nothing(first_address, "m2 is FENCED")
                with Client(group.addresses["m2"]) as client:
                    assert client.run(lambda transaction: transaction.get(b"before")) == b"1"
            finally:
                first.kill()
                first.wait()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB in memory, where a group's third member will keep its data."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "m3"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if (done := subprocess.run(mount, capture_output=True, text=True)).returncode:
        pytest.skip(f"no small file system here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class TestFullDisk:
    """A member whose disk is full stops serving, and goes on by itself once there is space."""

    def test_the_others_go_on_and_it_comes_back(self, tmp_path: Path, small_disk: Path) -> None:
        with LocalGroup(tmp_path, settings=SETTINGS, certification_logs=tmp_path / "logs") as group:
            load = BankLoad()
            with load.running(list(group.addresses.values()), seed=7):
                load.wait_for_commits(50)
                fill(small_disk / "filler")
                with Client(group.addresses["m1"]) as client:
                    write_until_full(client, group)
                reason = reason_in(group, "m3", MEMBER_STATE_ERROR)
                assert status_of(group, "m1").state == MEMBER_STATE_ONLINE
                load.wait_for_commits(50)
                (small_disk / "filler").unlink()
                group.wait_online()
                load.wait_for_commits(50)
            assert_whole(group, load)
        assert f"no space left at {small_disk}" in reason
        assert reason.endswith("free some, the member then goes on")


def fill(path: Path) -> None:
    """Writes a file until there is no space."""
    with path.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        except OSError:
            return


def write_until_full(client: Client, group: LocalGroup) -> None:
    """Commits large rows until the third member cannot store them any more."""
    for number in range(2_000):
        if number % 20 == 0 and status_of(group, "m3").state != MEMBER_STATE_ONLINE:
            return
        client.run(lambda transaction: transaction.put(b"large", os.urandom(60_000)))
    pytest.fail("the third member never ran out of space")


def test_a_member_that_is_configured_otherwise_than_its_group_says_so(tmp_path: Path) -> None:
    group = LocalGroup(tmp_path, members=2)
    try:
        group.log_server.start()
        group.start_member("m1")
        group.wait_online()
        group.start_member("m2", {"gc_window": "tight"})
        group.wait_online()
    finally:
        group.stop()
    lines = [json.loads(line) for line in (tmp_path / "m2.log").read_text().splitlines()]
    (warning,) = (line for line in lines if line["event"] == "group_setting_differs")
    assert (warning["setting"], warning["configured"], warning["used"]) == (
        "gc_window",
        "tight",
        "close",
    )
