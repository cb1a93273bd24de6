"""What both clients promise, asked of each by the same tests, at three real members."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from groupcert import (
    CertificationConflict,
    Consistency,
    GetOutcomeResponse,
    NotServing,
    TransactionTooLarge,
    WriteSetTooLarge,
    certifiable,
)
from groupcert.members.client.commit_sending import LARGE_BYTES
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, VERDICT_CONFLICT
from tests.integration.awaited import asynchronous, synchronous

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

NOWHERE = "127.0.0.1:1"
Connect = Callable[..., Any]


@pytest.fixture(params=[asynchronous, synchronous])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Makes a client of one of the two kinds."""
    connect: Connect = request.param
    return connect


@pytest.fixture
def addresses(group: LocalGroup) -> list[str]:
    """All members."""
    return list(group.addresses.values())


@pytest.fixture
def key() -> bytes:
    """A prefix of keys that no other test uses."""
    return uuid.uuid4().hex.encode() + b"/"


async def test_a_transaction_reads_its_snapshot_and_its_own_writes(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses) as client:
        async with client.transaction() as transaction:
            transaction.put(key + b"1", b"")
            transaction.put(key + b"3", b"c")
        assert transaction.gtid
        assert transaction.version == client.version
        async with client.transaction() as transaction:
            transaction.put(key + b"2", b"b")
            transaction.delete(key + b"3")
            assert await transaction.get(key + b"3") is None
            found = await transaction.get_many([key + b"1", key + b"2", key + b"4"])
            assert found == {key + b"1": b"", key + b"2": b"b", key + b"4": None}
            rows = [row async for row in transaction.scan(key, key + b"\xff", page_rows=1)]
            assert rows == [(key + b"1", b""), (key + b"2", b"b")]


async def test_a_transaction_may_be_begun_and_ended_by_hand(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses) as client:
        transaction = await client.transaction()
        transaction.put(key, b"1")
        await transaction.commit()
        with pytest.raises(ValueError, match="has ended"):
            await transaction.commit()
        transaction = await client.transaction()
        transaction.put(key, b"2")
        await transaction.rollback()
        with pytest.raises(RuntimeError, match="as the caller wants"):
            async with client.transaction() as transaction:
                transaction.put(key, b"3")
                raise RuntimeError("as the caller wants")
        assert (await client.status()).observer.open_snapshots == 0
        async with client.transaction() as transaction:
            assert await transaction.get(key) == b"1"


async def test_a_conflict_has_its_row_and_its_winner(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses) as client:
        late = await client.transaction()
        async with client.transaction() as first:
            first.put(key + b"\xff", b"1")
        late.put(key + b"\xff", b"2")
        with pytest.raises(CertificationConflict) as caught:
            await late.commit()
        assert caught.value.key_bytes == key + b"\xff"
        assert caught.value.key == key.decode() + "\\xff"
        assert caught.value.winner_gtid == first.gtid
        assert caught.value.winner_version == first.version


async def test_twelve_clients_increment_one_row_and_none_gives_up(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async def increment(transaction: Any) -> None:
        value = await transaction.get(key)
        transaction.put(key, b"%d" % (int(value or b"0") + 1))

    async def work(address: str) -> None:
        async with connect(address) as client:
            for _ in range(8):
                await client.run(increment)

    await asyncio.gather(*(work(addresses[number % 3]) for number in range(12)))
    async with connect(addresses, consistency=Consistency.BEFORE) as client:
        async with client.transaction() as transaction:
            assert await transaction.get(key) == b"96"


async def test_run_returns_the_result_and_ends_with_its_attempts_or_its_time(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses) as client:
        calls = 0

        async def lose(transaction: Any) -> None:
            nonlocal calls
            calls += 1
            transaction.put(key, b"mine")
            async with client.transaction() as other:
                other.put(key, b"theirs")

        with pytest.raises(CertificationConflict):
            await client.run(lose, attempts_max=3)
        assert calls == 3
        with pytest.raises(CertificationConflict):
            await client.run(lose, timeout_ms=50)

        async def read(transaction: Any) -> bytes | None:
            found: bytes | None = await transaction.get(key)
            return found

        assert await client.run(read) == b"theirs"
        with pytest.raises(ValueError, match="attempts_max is 0: expected 1 or more"):
            await client.run(read, attempts_max=0)


async def test_a_token_hands_on_what_a_session_has_seen(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses[0]) as writer:
        for number in range(20):
            async with writer.transaction() as transaction:
                transaction.put(key, b"%d" % number)
            async with connect(addresses[1], after=writer.token) as reader:
                async with reader.transaction() as transaction:
                    assert await transaction.get(key) == b"%d" % number
    with pytest.raises(ValueError, match="after is 'yesterday': give the `token`"):
        connect(addresses, after="yesterday")


async def test_a_spread_client_begins_at_all_members_and_sees_its_own_commits(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses, spread=True) as client:
        asked = set()
        for number in range(6):
            async with client.transaction() as transaction:
                expected = b"%d" % (number - 1) if number else None
                assert await transaction.get(key) == expected
                transaction.put(key, b"%d" % number)
            asked.add(client.address)
        assert asked == set(addresses)


async def test_a_client_goes_on_at_the_next_member_and_says_if_there_is_none(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect([NOWHERE, addresses[0]]) as client:
        async with client.transaction() as transaction:
            transaction.put(key, b"1")
        assert client.address == addresses[0]
    async with connect(NOWHERE, timeout_ms=300) as client:
        with pytest.raises(NotServing, match="UNREACHABLE"):
            await client.transaction()
    with pytest.raises(ValueError, match="the client is closed"):
        await client.transaction()


async def test_write_sets_are_certified_one_by_one_and_in_streams(
    connect: Connect, addresses: list[str]
) -> None:
    item = uuid.uuid4().int >> 64
    async with connect(addresses) as client:
        held = await client.transaction()  # Nothing behind it is collected.
        known = certifiable(snapshot=held.snapshot_version, write_set=[item])
        outcome = await client.certify(known)
        assert outcome.verdict == VERDICT_CERTIFIED
        found = await client.outcome(known.transaction_id)
        assert found.state == GetOutcomeResponse.STATE_DECIDED
        lost = await client.certify(certifiable(snapshot=outcome.version - 1, write_set=[item]))
        assert lost.verdict == VERDICT_CONFLICT
        batches = [
            [
                certifiable(snapshot=outcome.version, write_set=[item + 1 + 10 * batch + number])
                for number in range(10)
            ]
            for batch in range(3)
        ]
        decided = [each async for each in client.certify_stream(batches)]
        assert [number for number, _ in decided] == list(range(30))
        assert {each.verdict for _, each in decided} == {VERDICT_CERTIFIED}
        too_large = certifiable(snapshot=0, write_set=range(200_000))
        with pytest.raises(WriteSetTooLarge, match="write set of 200000 items"):
            await client.certify(too_large)
        with pytest.raises(TransactionTooLarge):
            [each async for each in client.certify_stream([[too_large]])]
        await held.rollback()


async def test_a_large_transaction_goes_in_parts_of_which_the_group_says_how_many(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses) as client:
        transaction = await client.transaction()
        for number in range(20):
            transaction.put(key + b"%02d" % number, bytes(LARGE_BYTES // 10))
        with pytest.raises(TransactionTooLarge, match="the limit is 65536"):
            await transaction.commit()


async def test_the_group_is_watched_until_the_reader_leaves(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses) as client:
        status = await client.status()
        seen = 0
        async for watched in client.watch(50):
            assert watched.group == status.group
            seen += 1
            if seen == 3:
                break


async def test_many_tasks_or_threads_share_a_client(
    connect: Connect, addresses: list[str], key: bytes
) -> None:
    async with connect(addresses) as client:

        async def work(number: int) -> None:
            for turn in range(5):
                async with client.transaction() as transaction:
                    transaction.put(key + b"%d/%d" % (number, turn), b"1")

        await asyncio.gather(*(work(number) for number in range(12)))
        async with client.transaction() as transaction:
            rows = [row async for row in transaction.scan(key, key + b"\xff")]
        assert len(rows) == 60
