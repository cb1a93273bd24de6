"""Mutual TLS between real servers and clients: who gets in, and what the others are told.

The server is that of a replica's status, which takes its port and its channels as members do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from groupcert.certifier.errors import GroupcertError, InvalidSetting, NotServing, PortTaken
from groupcert.members.client.direct_calls import DirectMember
from groupcert.members.errors.permissions import CallNotAllowed, NotAuthenticated, TlsRefused
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.security.access import AccessList
from groupcert.members.security.credentials import ANONYMOUS, Credentials, Tls
from groupcert.members.wire.channels import open_channel
from groupcert.members.wire.statuses import error_from
from groupcert.v1 import applier_pb2, applier_pb2_grpc
from tests.certificates import Authority
from tests.members.replica_servers import replica_server

ANSWER = applier_pb2.GetApplierStatusResponse(coordinator=applier_pb2.Coordinator(channel="c"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom everybody in these tests should trust."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom nobody should trust."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@contextmanager
def serving(tls: Tls | None, access: AccessList | None = None) -> Iterator[str]:
    """Yields the address of a server."""
    with replica_server(lambda: ANSWER, tls=tls, access=access) as address:
        yield address


def ask(address: str, credentials: Credentials = ANONYMOUS) -> str:
    """Returns the answer of a server, or raises what its clients are told."""
    remote = DirectMember(address, credentials)
    try:
        stub = applier_pb2_grpc.ApplierServiceStub(remote.channel)
        answer = stub.GetApplierStatus(applier_pb2.GetApplierStatusRequest(), timeout=10)
        return answer.coordinator.channel
    except grpc.RpcError as error:
        raise remote.failure(error) from None
    finally:
        remote.channel.close()


def refusal(address: str, tls: Tls | None) -> GroupcertError:
    """Returns what a client is told that does not get in."""
    with pytest.raises((NotServing, TlsRefused)) as caught:
        ask(address, Credentials(tls=tls))
    assert address in str(caught.value)
    return caught.value


def test_the_right_certificate_gets_in(authority: Authority) -> None:
    with serving(authority.issue("m1")) as address:
        assert ask(address, Credentials(tls=authority.issue("client"))) == "c"
        by_name = address.replace(HOST, "localhost")
        assert ask(by_name, Credentials(tls=authority.issue("client"))) == "c"


@pytest.mark.parametrize("which", ["foreign", "expired"])
def test_a_wrong_certificate_of_a_client_is_refused(
    authority: Authority, stranger: Authority, which: str
) -> None:
    shown = {
        "foreign": stranger.issue("client", trusts=authority),
        "expired": authority.issue("old-client", expired=True),
    }[which]
    with serving(authority.issue("m1")) as address:
        error = refusal(address, shown)
        assert isinstance(error, NotServing)
        assert "takes no such certificate for TLS: is ours missing, expired, or" in str(error)


def test_no_certificate_is_refused(authority: Authority) -> None:
    with serving(authority.issue("m1")) as address:
        trusting = grpc.ssl_channel_credentials(authority.path.read_bytes())
        with grpc.secure_channel(address, trusting) as channel:
            stub = applier_pb2_grpc.ApplierServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetApplierStatus(applier_pb2.GetApplierStatusRequest(), timeout=10)
        told = error_from(caught.value, address, has_tls=True)
        assert isinstance(told, NotServing)
        assert "is ours missing, expired, or of an authority that it does not trust" in str(told)


@pytest.mark.parametrize(
    ("issue", "problem"),
    [
        (
            lambda ours, theirs: theirs.issue("m1", trusts=ours),
            "its certificate is of no authority that is trusted here",
        ),
        (lambda ours, _: ours.issue("old-m1", expired=True), "its certificate has expired"),
        (
            lambda ours, _: ours.issue("m9", "m9.example"),
            "its certificate is for another host",
        ),
        (lambda *_: None, "it speaks without TLS"),
    ],
    ids=["foreign", "expired", "another host", "plain"],
)
def test_a_wrong_server_is_refused(
    authority: Authority,
    stranger: Authority,
    issue: Callable[[Authority, Authority], Tls | None],
    problem: str,
) -> None:
    with serving(issue(authority, stranger)) as address:
        error = refusal(address, authority.issue("client"))
        assert isinstance(error, TlsRefused)
        assert problem in str(error)


def test_a_plain_client_is_told_of_tls(authority: Authority) -> None:
    with serving(authority.issue("m1")) as address:
        text = str(refusal(address, None))
        assert "as one does that speaks TLS only: give authority, certificate and key" in text


def test_a_replica_asks_for_the_role_that_its_status_takes(authority: Authority) -> None:
    principals = [
        {"name": "dashboard", "certificate": "dashboard", "roles": ["observe"]},
        {"name": "shop", "certificate": "shop", "roles": ["read", "write"]},
    ]
    access = AccessList.model_validate({"principal": principals})
    with serving(authority.issue("m1"), access) as address:
        assert ask(address, Credentials(tls=authority.issue("dashboard"))) == "c"
        with pytest.raises(CallNotAllowed, match="needs the role observe"):
            ask(address, Credentials(tls=authority.issue("shop")))
        with pytest.raises(NotAuthenticated):
            ask(address, Credentials(tls=authority.issue("stranger")))


def test_nobody_there_is_no_matter_of_tls(authority: Authority) -> None:
    text = str(refusal(f"{HOST}:{free_port()}", authority.issue("client")))
    assert "Connection refused" in text
    assert "TLS" not in text


def test_a_port_is_taken_with_tls_as_without(authority: Authority) -> None:
    tls = authority.issue("m1")
    with (
        serving(tls) as address,
        pytest.raises(PortTaken),
        replica_server(lambda: ANSWER, address=address, tls=tls),
    ):
        pass


def test_a_server_does_not_start_with_files_that_cannot_serve(
    authority: Authority, tmp_path: Path
) -> None:
    tls = Tls(authority=authority.path, certificate=tmp_path / "none", key=tmp_path / "none")
    with pytest.raises(InvalidSetting, match="tls_certificate"), serving(tls):
        pass
    with pytest.raises(InvalidSetting, match="tls_certificate"):
        open_channel("127.0.0.1:1", Credentials(tls=tls))


def test_renewed_certificates_are_used_without_a_restart(authority: Authority) -> None:
    with serving(authority.issue("renewed", expired=True)) as address:
        client = authority.issue("client")
        assert isinstance(refusal(address, client), TlsRefused)
        authority.issue("renewed")
        assert ask(address, Credentials(tls=client)) == "c"


def test_a_renewal_that_is_half_done_changes_nothing(authority: Authority) -> None:
    tls = authority.issue("half")
    client = Credentials(tls=authority.issue("client"))
    with serving(tls) as address:
        Path(tls.key).write_bytes(Path(authority.issue("other").key).read_bytes())
        assert ask(address, client) == "c"
        Path(tls.certificate).unlink()
        assert ask(address, client) == "c"
        authority.issue("half")
        assert ask(address, client) == "c"


def test_a_token_leaves_this_machine_over_tls_only(authority: Authority) -> None:
    with pytest.raises(InvalidSetting, match="expected none without TLS") as caught:
        open_channel("10.0.0.1:7101", Credentials(token="abc-123"))
    assert "abc-123" not in str(caught.value)
    secure = Credentials(tls=authority.issue("client"), token="abc-123")
    for address, credentials in (
        ("10.0.0.1:7101", secure),
        ("127.0.0.1:7101", Credentials(token="abc-123")),
        ("[::1]:7101", Credentials(token="abc-123")),
        ("localhost:7101", Credentials(token="abc-123")),
    ):
        with open_channel(address, credentials):
            pass
