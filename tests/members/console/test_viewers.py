"""Who may look: principals with the role `observe`, or, without a list, who knows the member."""

import base64
import hashlib

import pytest

from groupcert.members.console.viewers import Viewers
from groupcert.members.security.access import AccessList

TOKENS = {"watcher": ["observe"], "shop": ["read", "write"]}
ACCESS = AccessList.model_validate(
    {
        "principal": [
            {"name": name, "token_sha256": hashlib.sha256(name.encode()).hexdigest()}
            | {"roles": roles}
            for name, roles in TOKENS.items()
        ]
    }
)


def basic(password: str, user: str = "anybody") -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def status(authorization: str, peer: str = "127.0.0.1") -> int:
    """The status that a list answers with."""
    environ = {
        "HTTP_AUTHORIZATION": authorization,
        "REMOTE_ADDR": peer,
        "HTTP_HOST": "evil.example",
    }
    refusal = Viewers(ACCESS).refusal(environ)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        ("Bearer watcher", 200),
        (basic("watcher"), 200),
        (basic("watcher", user=""), 200),
        ("Bearer shop", 403),
        (basic("shop"), 403),
        ("", 401),
        ("Bearer nobody", 401),
        (basic("nobody"), 401),
        (basic("", user="watcher"), 401),
        ("Basic !!!", 401),
        ("Basic /w==", 401),
        ("Digest watcher", 401),
    ],
)
def test_a_list_lets_observers_in(authorization: str, expected: int) -> None:
    assert status(authorization) == expected


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("127.0.0.9", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("10.0.0.1", 401),
        ("fe80::1%eth0", 401),
        ("::ffff:10.0.0.1", 401),
    ],
)
def test_a_token_counts_from_this_machine_only(peer: str, expected: int) -> None:
    assert status("Bearer watcher", peer) == expected


def test_a_browser_is_told_to_ask_for_a_password() -> None:
    refusal = Viewers(ACCESS).refusal({"REMOTE_ADDR": "127.0.0.1"})
    assert refusal is not None
    assert refusal.challenges[0].startswith("Basic realm=")
    assert "watcher" not in refusal.text


@pytest.mark.parametrize(
    ("host", "is_let_in"),
    [
        ("127.0.0.1:7180", True),
        ("[::1]:7180", True),
        ("localhost:7180", True),
        ("m1", True),
        ("m1.shop.example:7180", True),
        ("M1.Shop.Example", True),
        ("", True),
        ("evil.example:7180", False),
        ("127.0.0.1.evil.example", False),
        ("m1.shop.example.evil.example:7180", False),
    ],
)
def test_without_a_list_no_other_site_gets_in_by_its_name(host: str, is_let_in: bool) -> None:
    viewers = Viewers(None, ("m1.shop.example:7101",))
    assert (viewers.refusal({"HTTP_HOST": host}) is None) is is_let_in
