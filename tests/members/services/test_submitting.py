"""Rows that are reserved for members, at a member's server: who writes them, on each path."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from groupcert import AsyncClient, certifiable
from groupcert.certifier.errors import GroupcertError
from groupcert.members.client.client_options import CertifiableTransaction
from groupcert.members.errors.permissions import KeyReserved
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.security.access import AccessList, Role
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, Changes
from tests.members.process.test_serve import serving

ROLES = {
    "writer": [role for role in Role if role is not Role.POSTGRESQL],
    "changer": [Role.POSTGRESQL],
}
LARGE, IN_PARTS = 512 << 10, 3 << 20
ROW, CHANGE = b"public.t/50", b"groupcert.schema_changes/newest"
ACCESS = AccessList.model_validate(
    {
        "principal": [
            {
                "name": name,
                "token_sha256": hashlib.sha256(name.encode()).hexdigest(),
                "roles": roles,
            }
            for name, roles in ROLES.items()
        ]
    }
)


@asynccontextmanager
async def reserving(folder: Path, **settings: object) -> AsyncIterator[tuple[MemberRuntime, str]]:
    """A member of a group that has reserved the tables of `public`."""
    async with serving(folder, **settings) as (runtime, address):
        member = runtime.member
        member.settings = member.settings._replace(postgresql_tables=("public.*",))
        yield runtime, address


class Writer:
    """A client that writes one key in every way that there is."""

    def __init__(self, client: AsyncClient, key: bytes) -> None:
        self._client = client
        self._key = key

    async def put(self, size: int = 8) -> None:
        """Puts a value; a large one goes in parts."""
        async with await self._client.transaction() as transaction:
            transaction.put(self._key, bytes(size))

    async def delete(self) -> None:
        """Deletes it."""
        async with await self._client.transaction() as transaction:
            transaction.delete(self._key)

    async def certify(self, size: int = 8, *, deletes: bool = False) -> None:
        """Has a change of it certified; the rows of a large one go in fragments."""
        outcome = await self._client.certify(await self._certifiable(size, deletes=deletes))
        assert outcome.verdict == VERDICT_CERTIFIED

    async def stream(self, size: int = 8) -> None:
        """The same, in a stream."""
        batch = [certifiable(snapshot=0, write_set=[]), await self._certifiable(size)]
        outcomes = [each async for each in self._client.certify_stream([batch])]
        assert len(outcomes) == 2

    async def every_way(self) -> list[GroupcertError | None]:
        """Returns what it was refused with, of each way; None: it was not."""
        ways: list[Callable[[], Awaitable[None]]] = [
            self.put,
            partial(self.put, IN_PARTS),
            self.delete,
            self.certify,
            partial(self.certify, LARGE),
            partial(self.certify, deletes=True),
            self.stream,
            partial(self.stream, LARGE),
        ]
        return [await self._refusal(way) for way in ways]

    async def _refusal(self, way: Callable[[], Awaitable[None]]) -> GroupcertError | None:
        try:
            await way()
        except GroupcertError as error:
            return error
        return None

    async def _certifiable(self, size: int, *, deletes: bool = False) -> CertifiableTransaction:
        async with await self._client.transaction() as transaction:
            sent = certifiable(snapshot=transaction.snapshot_version, write_set=[])
        changes = Changes(put_keys=[b"a", self._key], put_values=[b"1", bytes(size)])
        changes = Changes(delete_keys=[self._key]) if deletes else changes
        sent.changes = changes.SerializeToString()
        return sent


@pytest.mark.parametrize("key", [ROW, CHANGE])
async def test_a_reserved_key_is_taken_from_members_alone_in_every_way(
    tmp_path: Path, key: bytes
) -> None:
    async with reserving(tmp_path, access=ACCESS) as (runtime, address):
        async with AsyncClient(address, token="writer") as client:
            for error in await Writer(client, key).every_way():
                assert isinstance(error, KeyReserved)
                assert (error.caller, error.key) == ("writer", key.decode())
            assert runtime.committed_version == 0, "nothing was ordered"
            assert (runtime.uploads.count, runtime.uploads.bytes) == (0, 0)
            assert not any(await Writer(client, b"public/50").every_way())
        async with AsyncClient(address, token="changer") as client:
            assert not any(await Writer(client, key).every_way())


async def test_two_callers_of_one_member_have_their_own_rights(tmp_path: Path) -> None:
    async with (
        reserving(tmp_path, access=ACCESS) as (_, address),
        AsyncClient(address, token="writer") as writer,
        AsyncClient(address, token="changer") as changer,
    ):
        for number in range(3):
            pair = (Writer(client, b"public.t/%d" % number) for client in (writer, changer))
            refused, taken = await asyncio.gather(*(each.every_way() for each in pair))
            assert {type(error) for error in refused} == {KeyReserved}
            assert not any(taken)


async def test_without_an_access_list_reserved_keys_are_taken_from_nobody(tmp_path: Path) -> None:
    async with (
        reserving(tmp_path) as (_, address),
        AsyncClient(address) as client,
    ):
        await Writer(client, b"a").put()
        with pytest.raises(KeyReserved, match=r"may not write key 'public.t/50'"):
            await Writer(client, ROW).put()
