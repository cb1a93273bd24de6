"""Donors as a joiner asks them: who may, and what they hear of its end."""

import asyncio
from pathlib import Path

import pytest

from groupcert.members.core.recovery_plan import Needs, choose_donor, why_none
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.recovery import donors
from groupcert.members.recovery.copies import Copies
from groupcert.members.recovery.donors import donor_at
from groupcert.members.recovery.download import download_copy
from groupcert.members.security.access import Role
from groupcert.members.security.credentials import ANONYMOUS, Credentials
from groupcert.members.wire.peer_status import ask_members
from tests.members.process.test_serve import access_of, serving


async def test_the_role_of_members_is_enough_to_find_a_donor(tmp_path: Path) -> None:
    async with serving(tmp_path, access=access_of(Role.MEMBER)) as (_, address):
        candidates = await ask_members([address], Credentials(token=Role.MEMBER.value))
    choice = choose_donor(candidates, Needs("m3"))
    assert choice is not None
    assert choice.donor.name == "m1"


@pytest.mark.parametrize(
    ("token", "cause"),
    [
        (Role.WRITE.value, "principal 'only write' may not call /groupcert.v1.GroupService/"),
        ("stranger", "has no known caller (nobody has its token)"),
    ],
)
async def test_why_a_donor_refuses_to_answer_is_told(
    tmp_path: Path, token: str, cause: str
) -> None:
    async with serving(tmp_path, access=access_of(Role.WRITE)) as (_, address):
        candidates = await ask_members([address], Credentials(token=token))
    assert choose_donor(candidates, Needs("m3")) is None
    told = why_none(candidates, Needs("m3"), {})
    assert told.startswith(f"{address} at {address} is REFUSING (")
    assert cause in told


async def test_a_donor_that_is_not_there_is_unreachable() -> None:
    address = f"{HOST}:{free_port()}"
    (candidate,) = await ask_members([address], Credentials())
    assert candidate.state == "UNREACHABLE"


async def test_a_donor_that_did_not_hear_that_its_copy_was_read_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[bool, bool]] = []

    async def close_late(copies: Copies, copy_id: str, *, reads_on: bool) -> None:
        told.append((copies.get(copy_id).is_read, reads_on))
        if len(told) == 1:
            await asyncio.sleep(60)

    monkeypatch.setattr(Copies, "close", close_late)
    monkeypatch.setattr(donors, "CLOSE_SECONDS", 0.2)
    async with serving(tmp_path) as (_, address), donor_at(address, ANONYMOUS) as donor:
        folder = tmp_path / "m3"
        folder.mkdir()
        await download_copy(donor, folder, "m3", lambda _: None, lambda _: None, reads_on=True)
    assert told == [(True, True), (True, True)]
