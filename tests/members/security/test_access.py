"""Who may call what: the table is complete, and what is not granted is refused."""

import hashlib
import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from pydantic import ValidationError

import groupcert.v1
from groupcert.certifier.errors import InvalidRequest
from groupcert.members.errors.permissions import CallNotAllowed, NotAuthenticated
from groupcert.members.security.access import ROLES_OF_CALL, AccessList, AccessRules, Caller, Role
from groupcert.members.services import reflection

COMMIT = "/groupcert.v1.StoreService/Commit"
TOKEN = "a-token-of-the-dashboard"
DIGEST_OF_TOKEN = hashlib.sha256(TOKEN.encode()).hexdigest()
ACCESS = {
    "principal": [
        {"name": "shop", "certificate": "shop.example", "roles": ["read", "write"]},
        {"name": "board", "token_sha256": DIGEST_OF_TOKEN.upper()} | {"roles": ["observe"]},
        *({"name": f"only-{role}", "certificate": role.value, "roles": [role]} for role in Role),
    ]
}
RULES = AccessRules(AccessList.model_validate(ACCESS))


def described() -> Iterator[FileDescriptor]:
    """Yields every file with services of ours, and those of health and reflection."""
    for found in pkgutil.iter_modules(groupcert.v1.__path__, "groupcert.v1."):
        if found.name.endswith("_pb2"):
            yield importlib.import_module(found.name).DESCRIPTOR
    yield from (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR, reflection.DESCRIPTOR)


def refused(call: str, *names: str, authorization: str = "", is_private: bool = True) -> str:
    """Returns the text of a refusal; empty: the call is allowed."""
    try:
        RULES.admit(call, Caller(names, authorization, is_private))
    except InvalidRequest as refusal:
        return str(refusal)
    return ""


def kind_of(call: str, *names: str, authorization: str = "") -> type[InvalidRequest] | None:
    """Returns the class of a refusal; None: the call is allowed."""
    try:
        RULES.admit(call, Caller(names, authorization, True))
    except InvalidRequest as refusal:
        return type(refusal)
    return None


def test_every_call_of_every_service_has_its_roles_and_no_other_has() -> None:
    calls = {
        f"/{service.full_name}/{method.name}"
        for each in described()
        for service in each.services_by_name.values()
        for method in service.methods
    }
    assert len(calls) > 15
    assert set(ROLES_OF_CALL) == calls
    assert all(ROLES_OF_CALL.values())


@pytest.mark.parametrize("role", Role)
def test_a_role_allows_its_own_calls_and_no_others(role: Role) -> None:
    for call, roles in ROLES_OF_CALL.items():
        expected = None if role in roles else CallNotAllowed
        assert kind_of(call, role.value) is expected, call


@pytest.mark.parametrize("role", sorted(set(Role) - {Role.ADMIN}))
def test_a_call_that_the_table_does_not_have_is_for_admins(role: Role) -> None:
    assert kind_of("/groupcert.v1.NewService/New", role.value) is CallNotAllowed
    assert kind_of("/groupcert.v1.NewService/New", Role.ADMIN.value) is None


def test_a_certificate_is_known_by_any_of_its_names() -> None:
    assert refused(COMMIT, "somebody", "shop.example") == ""
    assert "nobody has a certificate of a or b" in refused(COMMIT, "a", "b")
    assert kind_of(COMMIT, "SHOP.example") is NotAuthenticated


def test_who_shows_nothing_is_nobody() -> None:
    assert "it shows neither a token nor a certificate" in refused(COMMIT)


def test_a_refusal_names_principal_call_and_missing_role() -> None:
    text = refused(COMMIT, authorization=f"Bearer {TOKEN}")
    needed = "which needs the role postgresql or write"
    assert text.startswith(f"principal 'board' may not call {COMMIT}, {needed}")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_token_is_known(scheme: str) -> None:
    call = "/groupcert.v1.GroupService/ReadHistory"
    assert refused(call, authorization=f"{scheme} {TOKEN}") == ""


@pytest.mark.parametrize(
    ("authorization", "problem"),
    [
        (f"Bearer {TOKEN}x", "nobody has its token"),
        (f"Bearer {TOKEN[:-1]}", "nobody has its token"),
        ("Bearer ", "nobody has its token"),
        (f"Bearer {DIGEST_OF_TOKEN}", "nobody has its token"),
        (f"Basic {TOKEN}", "its authorization is no bearer token"),
        (TOKEN, "its authorization is no bearer token"),
    ],
)
def test_a_wrong_token_is_refused_though_the_certificate_is_known(
    authorization: str, problem: str
) -> None:
    text = refused(COMMIT, "shop.example", authorization=authorization)
    assert problem in text
    assert TOKEN not in text


def test_a_token_that_others_can_read_is_refused_though_it_is_right() -> None:
    call = "/groupcert.v1.GroupService/GetStatus"
    text = refused(call, authorization=f"Bearer {TOKEN}", is_private=False)
    assert "a token came without TLS, others may have read it" in text
    assert TOKEN not in text


DIGEST = "0" * 64
SHOP = {"name": "shop", "certificate": "shop", "roles": ["read"]}


@pytest.mark.parametrize(
    ("principals", "problem"),
    [
        ([], "nobody is named, so that nobody could call"),
        ([{**SHOP, "roles": []}], "at least 1 item"),
        ([{**SHOP, "roles": ["root"]}], "'read', 'write', 'replicate'"),
        ([{**SHOP, "token_sha256": DIGEST}], "shop: give either certificate or token_sha256"),
        ([{"name": "shop", "roles": ["read"]}], "shop: give either certificate or token_sha256"),
        ([{**SHOP, "colour": "red"}], "Extra inputs are not permitted"),
        ([SHOP, {**SHOP, "certificate": "other"}], "name shop is given twice"),
        ([SHOP, {**SHOP, "name": "other"}], "certificate shop is given twice"),
        (
            [
                {"name": name, "token_sha256": digest, "roles": ["read"]}
                for name, digest in (("a", "a" * 64), ("b", "A" * 64))
            ],
            "a token_sha256 is given twice",
        ),
        (
            [{"name": "a", "token_sha256": "secret", "roles": ["read"]}],
            "expected the SHA-256 of a token, 64 hexadecimal digits",
        ),
    ],
)
def test_a_list_that_means_nothing_is_refused(principals: list[object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        AccessList.model_validate({"principal": principals})
