"""A group over mutual TLS, its log too, with an access list: who gets in, and who may do what.

Everything is real: members as processes, a log server that asks for certificates, replicas.
"""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from groupcert import Client, TransactionTooOld, certifiable
from groupcert.certifier.errors import LogServerUnavailable, NotServing
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.client.direct_calls import DirectMember
from groupcert.members.commands.status_views import group_document
from groupcert.members.demo.load import AppendWorkload, run_load
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.permissions import CallNotAllowed, NotAuthenticated
from groupcert.members.host.loopback import HOST
from groupcert.members.replica.sources import ReplicaSources
from groupcert.members.security.access import Role
from groupcert.members.security.credentials import Credentials, Tls
from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from groupcert.members.total_order.jetstream_connection import HUNG_UP
from groupcert.v1 import (
    applier_pb2,
    applier_pb2_grpc,
    binary_log_pb2,
    binary_log_pb2_grpc,
    certification_pb2,
    certification_pb2_grpc,
    group_pb2,
    group_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
)
from tests.certificates import Authority, TlsLogServer, tls_settings
from tests.commands import groupcert
from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow]

TOKENS = {"robot": "token-of-the-robot", "board": "token-of-the-board"}
READ_WRITE_OBSERVE = [Role.READ, Role.WRITE, Role.OBSERVE]


class Secured(NamedTuple):
    """A running group, and who may sign for it."""

    group: LocalGroup
    log_server: TlsLogServer
    authority: Authority
    stranger: Authority

    def tls(self, name: str) -> Tls:
        """Files of a client of that name."""
        return self.authority.issue(name)

    @property
    def address(self) -> str:
        """A member."""
        return self.group.addresses["m1"]


def access_table() -> str:
    """The access file: a principal with everything, one of each role, two with tokens."""
    principals: list[dict[str, object]] = [
        {"name": "operator", "certificate": "operator", "roles": list(Role)},
        {"name": "shop", "certificate": "shop", "roles": READ_WRITE_OBSERVE},
    ]
    principals.extend(
        {"name": f"only {role}", "certificate": role.value, "roles": [role]} for role in Role
    )
    for (name, token), roles in zip(
        TOKENS.items(), (READ_WRITE_OBSERVE, [Role.OBSERVE]), strict=True
    ):
        digest = hashlib.sha256(token.encode()).hexdigest()
        principals.append({"name": name, "token_sha256": digest, "roles": roles})
    lines = []
    for principal in principals:
        lines.append("[[principal]]")
        lines += (f"{key} = {json.dumps(value)}" for key, value in principal.items())
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Two members with an access list, over a log server, all with mutual TLS."""
    folder = tmp_path_factory.mktemp("secured")
    authority, stranger = Authority(folder / "ours"), Authority(folder / "theirs")
    (folder / "access.toml").write_text(access_table())
    credentials = Credentials(tls=authority.issue("operator"))
    with TlsLogServer(folder / "tls-log", authority.issue("log")) as log_server:
        settings: dict[str, object] = {
            "log_servers": [log_server.address],
            "log_monitors": [log_server.monitor],
            "access": str(folder / "access.toml"),
            **tls_settings(authority.issue("member")),
        }
        with LocalGroup(
            folder,
            members=2,
            settings=settings,
            credentials=credentials,
            certification_logs=folder / "logs",
        ) as group:
            yield Secured(group, log_server, authority, stranger)


def test_the_right_certificate_commits_reads_and_sees_the_group(secured: Secured) -> None:
    tls = secured.tls("shop")
    with Client(list(secured.group.addresses.values()), tls=tls) as client:
        with client.transaction() as transaction:
            transaction.put(b"tls/1", b"one")
        with client.transaction() as transaction:
            assert transaction.get(b"tls/1") == b"one"
            assert list(transaction.scan(b"tls/", b"tls0")) == [(b"tls/1", b"one")]
        batches = [[certifiable(snapshot=client.version, write_set=[7])]]
        assert len(list(client.certify_stream(batches))) == 1
        assert next(client.watch(50)).group == "local"
        wait_for("a durable log", lambda: client.status().observer.log_durable)
        assert sum(1 for _ in client.history()) > 0
    document = group_document(secured.address, Credentials(tls=tls))
    members = document["members"]
    assert isinstance(members, list)
    assert [each["state"] for each in members] == ["ONLINE", "ONLINE"]


def test_members_find_their_way_back_to_a_log_server_that_was_killed(secured: Secured) -> None:
    with Client(secured.address, timeout_ms=60_000, tls=secured.tls("shop")) as client:
        for number in range(3):
            with client.transaction() as transaction:
                transaction.put(b"tls/after", b"%d" % number)
            if number == 0:
                secured.log_server.kill()
                secured.log_server.start()
        with client.transaction() as transaction:
            assert transaction.get(b"tls/after") == b"2"


def test_load_runs_over_tls(secured: Secured) -> None:
    counts, _ = run_load(
        AppendWorkload(),
        list(secured.group.addresses.values()),
        clients=2,
        seconds=0.5,
        credentials=Credentials(tls=secured.tls("shop")),
    )
    assert counts.committed_ids
    assert counts.unavailable == 0


def test_others_do_not_get_in(secured: Secured) -> None:
    foreign = secured.stranger.issue("shop", trusts=secured.authority)
    expired = secured.authority.issue("shop", expired=True, into="expired")
    for tls, problem in (
        (foreign, "takes no such certificate for TLS"),
        (expired, "takes no such certificate for TLS"),
        (None, "speaks TLS only"),
    ):
        assert wait_for(problem, lambda: problem in refusal(secured.address, tls))  # noqa: B023


def refusal(address: str, tls: Tls | None) -> str:
    """Why a client gets no answer; on a busy machine that may be that it took too long."""
    with Client(address, timeout_ms=1_000, tls=tls) as client:
        with pytest.raises(NotServing) as caught:
            client.status()
    return str(caught.value)


def calls(remote: DirectMember) -> dict[tuple[Role, ...], list[Callable[[], object]]]:
    """Returns calls by the roles that allow them, of which no other role does."""
    log = binary_log_pb2_grpc.BinaryLogServiceStub(remote.channel)
    applier = applier_pb2_grpc.ApplierServiceStub(remote.channel)
    group = group_pb2_grpc.GroupServiceStub(remote.channel)
    store = store_pb2_grpc.StoreServiceStub(remote.channel)
    certification = certification_pb2_grpc.CertificationServiceStub(remote.channel)
    certify = certification_pb2.CertifyStreamRequest()
    subscribe = binary_log_pb2.SubscribeRequest(replica="r")
    return {
        (Role.POSTGRESQL, Role.READ): [
            lambda: store.OpenSnapshot(store_pb2.OpenSnapshotRequest(), SECONDS_MAX),
            lambda: store.CloseSnapshot(store_pb2.CloseSnapshotRequest(), SECONDS_MAX),
        ],
        (Role.POSTGRESQL, Role.WRITE): [
            lambda: store.Commit(store_pb2.CommitRequest(transaction_id=b"1"), SECONDS_MAX),
            lambda: list(certification.CertifyStream(iter([certify]), SECONDS_MAX)),
        ],
        (Role.POSTGRESQL, Role.REPLICATE): [
            lambda: next(iter(log.Subscribe(subscribe, SECONDS_MAX))),
        ],
        (Role.REPLICATE,): [
            lambda: log.ListFiles(binary_log_pb2.ListFilesRequest(), SECONDS_MAX),
        ],
        (Role.OBSERVE,): [
            lambda: list(group.ReadHistory(group_pb2.ReadHistoryRequest(), SECONDS_MAX)),
            lambda: applier.GetApplierStatus(applier_pb2.GetApplierStatusRequest(), SECONDS_MAX),
        ],
        (Role.ADMIN,): [lambda: log.Rotate(binary_log_pb2.RotateRequest(), SECONDS_MAX)],
    }


@pytest.mark.parametrize("role", Role)
def test_a_role_may_do_what_is_its_own_and_nothing_else(secured: Secured, role: Role) -> None:
    remote = DirectMember(secured.address, Credentials(tls=secured.tls(role.value)))
    try:
        for owners, each in calls(remote).items():
            for call in each:
                if role in owners:
                    call()
                    continue
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                error = remote.failure(caught.value)
                assert isinstance(error, CallNotAllowed)
                assert (error.principal, error.roles) == (f"only {role}", " or ".join(owners))
        check = health_pb2_grpc.HealthStub(remote.channel).Check
        answer = check(health_pb2.HealthCheckRequest(), timeout=SECONDS_MAX)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        remote.channel.close()


def test_calls_in_a_session_need_the_roles_of_the_same_calls_by_themselves(
    secured: Secured,
) -> None:
    with Client(secured.address, tls=secured.tls(Role.READ.value)) as client:
        transaction = client.transaction()
        transaction.put(b"k", b"1")
        with pytest.raises(CallNotAllowed, match="StoreService/Commit"):
            transaction.commit()
    with Client(secured.address, tls=secured.tls(Role.WRITE.value)) as client:
        with pytest.raises(CallNotAllowed, match="StoreService/OpenSnapshot"):
            client.transaction()
        transaction = client.transaction(snapshot_version=0)
        transaction.put(b"k", b"1")
        with suppress(TransactionTooOld):  # It was certified, too.
            transaction.commit()
    with Client(secured.address, tls=secured.tls(Role.ADMIN.value)) as client:
        with pytest.raises(CallNotAllowed, match="SessionService/Session"):
            client.transaction()


def test_a_certificate_that_nobody_knows_may_do_nothing(secured: Secured) -> None:
    with Client(secured.address, tls=secured.tls("guest")) as client:
        with pytest.raises(NotAuthenticated, match="nobody has a certificate of guest"):
            client.status()
        with pytest.raises(NotAuthenticated, match="SessionService/Session"):
            client.transaction()


def test_a_token_says_who_calls_whatever_the_certificate(secured: Secured) -> None:
    guest = secured.tls("guest")
    with Client(secured.address, tls=guest, token=TOKENS["robot"]) as client:
        with client.transaction() as transaction:
            transaction.put(b"tls/robot", b"1")
        assert next(client.watch(50)).group == "local"
    with Client(secured.address, tls=secured.tls("shop"), token=TOKENS["board"]) as client:
        assert client.status().group == "local"
        with pytest.raises(CallNotAllowed, match="'board' may not call"):
            client.transaction()


def test_a_wrong_token_is_refused_and_never_written_down(secured: Secured) -> None:
    def log_of_a_refusal() -> str:
        """The member's log, once it names a refusal: it writes ten lines a second of them."""
        with Client(secured.address, tls=secured.tls("shop"), token="wrong-token") as client:
            with pytest.raises(NotAuthenticated, match="nobody has its token"):
                client.status()
        text = (secured.group.folder / "m1.log").read_text()
        return text if "nobody has its token" in text else ""

    log = wait_for("the refusal in the log", log_of_a_refusal)
    assert '"call_refused"' in log
    assert not any(token in log for token in ("wrong-token", *TOKENS.values()))


def test_the_command_takes_files_as_flags_and_from_the_environment(
    secured: Secured, tmp_path: Path
) -> None:
    tls = secured.tls("guest")
    (tmp_path / "token").write_text(TOKENS["robot"] + "\n")
    flags = [
        "--tls-authority",
        str(tls.authority),
        "--tls-certificate",
        str(tls.certificate),
        "--tls-key",
        str(tls.key),
        "--token-file",
        str(tmp_path / "token"),
    ]
    status = ("status", secured.address, "--json")
    done = groupcert(*status, *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["group"] == "local"
    plain = groupcert(*status)
    assert plain.returncode == 3
    assert "speaks TLS only" in plain.stderr
    refused = groupcert(*status, *flags[:-2])
    assert refused.returncode == 2
    assert "nobody has a certificate of guest" in refused.stderr


def test_a_replica_follows_over_tls(secured: Secured, tmp_path: Path) -> None:
    with Client(secured.address, tls=secured.tls("shop")) as client:
        with client.transaction() as transaction:
            transaction.put(b"tls/replica", b"1")
        executed = client.status().observer.gtid_executed
    config = tmp_path / "replica.toml"
    values = {
        "sources": [secured.address],
        "target": f"rocksdb:{tmp_path / 'data'}",
        "until_after_gtids": executed,
        **tls_settings(secured.tls("replicate")),
    }
    config.write_text("".join(f"{key} = {json.dumps(each)}\n" for key, each in values.items()))
    command = [sys.executable, "-m", "groupcert.members", "replica", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["shop", "guest"])
def test_a_replica_that_no_source_lets_in_ends(secured: Secured, name: str) -> None:
    addresses = list(secured.group.addresses.values())
    sources = ReplicaSources(addresses, "r", Credentials(tls=secured.tls(name)))
    with pytest.raises((CallNotAllowed, NotAuthenticated)):
        for _ in sources.follow(GtidSet(), lambda: 1):
            pass


def test_a_member_starts_no_more_with_a_broken_file(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    settings = {**tls_settings(secured.tls("member")), "tls_key": str(tmp_path / "key")}
    group = LocalGroup(tmp_path, members=1, settings=settings)
    group.log_server.start()
    try:
        group.start_member("m1")
        assert group.processes["m1"].wait(SECONDS_MAX) == 2
    finally:
        group.stop()
    assert "setting tls_key is" in (tmp_path / "m1.log").read_text()


async def opened(servers: str, tls: Tls | None, connect_ms_max: int = 60_000) -> str:
    """Returns why a log cannot be opened; empty: it can."""
    options = JetStreamOptions(
        servers=(servers,), group="tls-test", tls=tls, connect_ms_max=connect_ms_max
    )
    order = JetStreamOrder(options)
    try:
        await order.open(create=True)
    except LogServerUnavailable as error:
        return str(error)
    finally:
        await order.close()
    return ""


async def refused(servers: str, tls: Tls | None, *words: str) -> str:
    """Returns why a log cannot be opened, once that has some of these words: on a busy machine it
    may be that connecting took too long.
    """
    text = ""
    async with asyncio.timeout(SECONDS_MAX):
        while not any(each in text for each in words):
            text = await opened(servers, tls, 1_500)
            assert text, "it was opened"
    return text


async def test_the_log_is_reached_with_the_right_certificates_only(secured: Secured) -> None:
    server, ours = secured.log_server, secured.authority
    right = ours.issue("member-of-the-log")
    assert await opened(server.address, right) == ""
    foreign = secured.stranger.issue("member", trusts=ours)
    assert "(TLS: " in await refused(server.address, foreign, "unknown ca", HUNG_UP)
    expired = ours.issue("member", expired=True, into="expired-member")
    assert await refused(server.address, expired, "certificate expired", HUNG_UP)
    trusting = ours.issue("trusting", trusts=secured.stranger)
    assert await refused(server.address, trusting, "CERTIFICATE_VERIFY_FAILED")
    bare = server.address.replace("tls://", "nats://")
    assert await refused(bare, None, "CERTIFICATE_VERIFY_FAILED")


async def test_a_log_server_of_another_host_or_without_tls_is_refused(
    secured: Secured, tmp_path: Path
) -> None:
    right = secured.authority.issue("member-of-the-log")
    other_host = secured.authority.issue("log", "log.example", into="elsewhere")
    with TlsLogServer(tmp_path / "log", other_host) as elsewhere:
        mismatch = f"IP address mismatch, certificate is not valid for '{HOST}'"
        assert await refused(elsewhere.address, right, mismatch)
    with LogServer(tmp_path / "plain") as plain:
        for address in (plain.address, plain.address.replace("nats://", "tls://")):
            assert await refused(address, right, "it offers no TLS, and TLS is asked for")


def test_a_token_without_tls_is_good_on_loopback_alone(tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text(access_table())
    settings = {"access": str(tmp_path / "access.toml")}
    credentials = Credentials(token=TOKENS["robot"])
    with LocalGroup(tmp_path, members=1, settings=settings, credentials=credentials) as group:
        address = group.addresses["m1"]
        with Client(address, token=TOKENS["robot"]) as client:
            with client.transaction() as transaction:
                transaction.put(b"token/1", b"1")
            batches = [[certifiable(snapshot=client.version, write_set=[7])]]
            assert len(list(client.certify_stream(batches))) == 1
            assert next(client.watch(50)).group == "local"
        with Client(address) as client, pytest.raises(NotAuthenticated, match="shows neither"):
            client.status()
        wait_for("the status", lambda: group.status("m1").group)
