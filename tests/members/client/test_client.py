"""The client against real members, and what it refuses by itself.

What members promise is in `tests/integration/test_service.py`, by the same client.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from groupcert.certifier.errors import (
    InvalidWriteSet,
    NotServing,
)
from groupcert.members.client.async_client import AsyncClient
from groupcert.members.client.async_transaction import AsyncTransaction
from groupcert.members.client.client import Client, Transaction
from groupcert.members.client.client_options import Consistency, certifiable
from groupcert.members.client.sizes import KEY_BYTES_MAX
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.calls import VersionMissing
from groupcert.members.errors.transactions import CertificationConflict
from groupcert.members.wire.pieces import VALUE_BYTES_MAX

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def client(member_address: str) -> Iterator[Client]:
    """A client of a running member."""
    with Client(member_address) as client:
        yield client


@pytest.fixture
def key() -> bytes:
    """A prefix of keys that no other test uses."""
    return uuid.uuid4().hex.encode() + b"/"


class TestWithoutMembers:
    """What a client says by itself."""

    def test_keys_and_values_are_bytes(self) -> None:
        with Client(NOWHERE) as client:
            transaction = client.transaction(snapshot_version=1)
            with pytest.raises(TypeError, match=r"key is str 'account/1': give bytes"):
                transaction.put("account/1", b"")  # type: ignore[arg-type]  # that is tested
            with pytest.raises(TypeError, match="value is int 10"):
                transaction.put(b"account/1", 10)  # type: ignore[arg-type]  # that is tested
            with pytest.raises(TypeError, match="key is NoneType"):
                transaction.delete(None)  # type: ignore[arg-type]  # that is tested

    def test_a_value_or_a_key_that_is_too_long_is_refused_where_it_is_given(self) -> None:
        with Client(NOWHERE) as client:
            transaction = client.transaction(snapshot_version=1)
            longest, longer = bytes(KEY_BYTES_MAX), bytes(KEY_BYTES_MAX + 1)
            expected = f"a key of {KEY_BYTES_MAX + 1} bytes', expected keys of at most"
            for refused in (
                lambda: transaction.put(longer, b""),
                lambda: transaction.delete(longer),
                lambda: transaction.get(longer),
                lambda: transaction.get_many([longest, longer]),
            ):
                with pytest.raises(InvalidWriteSet, match=expected):
                    refused()
            with pytest.raises(InvalidWriteSet, match="an end of"):
                transaction.scan(b"", longer)
            value = bytes(VALUE_BYTES_MAX + 1)
            for more in (b"", bytes(1 << 20)):
                with pytest.raises(InvalidWriteSet, match="divide it among rows"):
                    transaction.put(longest, value + more)
            transaction.put(longest, value[1:])
            transaction.transaction_id = bytes(33)
            with pytest.raises(InvalidWriteSet, match="a transaction_id of at most 32 bytes"):
                transaction.commit()
            for wrong in (bytes(33), bytes(3 << 20)):
                with pytest.raises(InvalidWriteSet, match="a transaction_id of at most 32 bytes"):
                    client.outcome(wrong)
            with pytest.raises(TypeError, match="transaction_id is str 'mine': give bytes"):
                client.outcome("mine")  # type: ignore[arg-type]  # that is tested

    def test_a_level_of_consistency_may_be_given_by_its_name(self) -> None:
        for kind in (Client, AsyncClient):
            client = kind(NOWHERE, consistency="BEFORE")
            assert client.consistency is Consistency.BEFORE
            client.consistency = "AFTER"
            assert client.consistency is Consistency.AFTER
            levels = "EVENTUAL, BEFORE, AFTER, BEFORE_AND_AFTER"
            for wrong in ("before", 7, None):
                with pytest.raises(TypeError, match=f"give a Consistency, or its name: {levels}"):
                    kind(NOWHERE, consistency=wrong)  # type: ignore[arg-type]  # that is tested
                with pytest.raises(TypeError, match="consistency is "):
                    client.consistency = wrong  # type: ignore[assignment]  # that is tested

    @pytest.mark.parametrize("kind", [Client, AsyncClient])
    def test_an_option_that_there_is_not_is_named_with_the_one_that_is_meant(
        self, kind: Callable[..., object]
    ) -> None:
        name = kind.__name__
        with pytest.raises(TypeError, match=f"{name} has no option timeout: did you mean timeout_"):
            kind(NOWHERE, timeout=3)
        with pytest.raises(TypeError, match="did you mean serializable"):
            kind(NOWHERE, serialisable=True)
        with pytest.raises(TypeError, match="it has timeout_ms, consistency, "):
            kind(NOWHERE, x=1)

    @pytest.mark.parametrize(
        "address", ["localhost", "http://127.0.0.1:7101", ":7101", "127.0.0.1:0", "a:1,b:2", ""]
    )
    def test_an_address_is_a_host_and_a_port(self, address: str) -> None:
        for kind in (Client, AsyncClient):
            for given in (address, [NOWHERE, address]):
                with pytest.raises(ValueError, match="expected host:port, such as "):
                    kind(given)
            with pytest.raises(TypeError, match="address is 7101: expected host:port"):
                kind([7101])  # type: ignore[list-item]  # that is tested

    def test_objects_say_what_they_are(self) -> None:
        client = Client([NOWHERE, "127.0.0.1:2"])
        assert repr(client) == f"<Client of {NOWHERE}, 127.0.0.1:2, at {NOWHERE}>"
        assert repr(client.asynchronous).startswith("<AsyncClient of ")
        transaction = client.transaction(snapshot_version=7)
        transaction.put(b"a", b"1")
        name = transaction.transaction_id.hex()
        assert repr(transaction) == f"<Transaction {name} on version 7, 1 writes>"
        assert repr(transaction.asynchronous).startswith("<AsyncTransaction ")
        transaction.rollback()
        assert repr(transaction) == f"<Transaction {name} on version 7, has ended>"
        client.close()
        assert repr(client) == f"<Client of {NOWHERE}, 127.0.0.1:2, closed>"

    def test_an_async_client_is_for_one_event_loop(self) -> None:
        client = AsyncClient(NOWHERE, timeout_ms=100)

        async def ask() -> None:
            with pytest.raises(NotServing):
                await client.status()

        asyncio.run(ask())
        with pytest.raises(RuntimeError, match="an AsyncClient is for one event loop"):
            asyncio.run(client.status())

    def test_a_transaction_on_a_known_version_reads_its_own_writes_alone(self) -> None:
        with Client(NOWHERE) as client:
            transaction = client.transaction(snapshot_version=7)
            transaction.put(b"a", b"1")
            assert transaction.get(b"a") == b"1"
            with pytest.raises(ValueError, match="only writes"):
                transaction.get(b"b")

    def test_a_transaction_that_has_ended_takes_nothing_more(self) -> None:
        with Client(NOWHERE) as client:
            transaction = client.transaction(snapshot_version=7)
            transaction.rollback()
            with pytest.raises(ValueError, match="has ended"):
                transaction.put(b"a", b"1")
            with pytest.raises(ValueError, match="has ended"):
                transaction.commit()

    @pytest.mark.parametrize(("address", "timeout_ms"), [([], 1_000), (NOWHERE, 0)])
    def test_a_client_needs_an_address_and_time(
        self, address: str | list[str], timeout_ms: int
    ) -> None:
        with pytest.raises(ValueError, match="needs a member's address, and a time limit"):
            Client(address, timeout_ms=timeout_ms)

    def test_a_stream_from_a_member_that_is_not_there_raises_the_same(self) -> None:
        with Client(NOWHERE) as client, pytest.raises(NotServing, match="is UNREACHABLE"):
            next(client.watch())

    def test_certifiable_takes_items_and_texts_versions_and_sets(self) -> None:
        by_version = certifiable(snapshot=7, write_set=[1, "t/a", 2], transaction_id=b"")
        by_set = certifiable(snapshot="u:1-5", write_set=[])
        assert list(by_version.write_set) == [1, 2]
        assert list(by_version.write_set_keys) == ["t/a"]
        assert (by_version.snapshot_version, by_version.transaction_id) == (7, b"")
        assert by_set.snapshot_gtid_set == "u:1-5"
        assert len(by_set.transaction_id) == 16


class TestTransactions:
    """The embedded store."""

    async def test_run_takes_the_kind_of_function_that_its_client_runs(
        self, member_address: str, key: bytes
    ) -> None:
        async def written(transaction: Transaction) -> None:
            transaction.put(key, b"1")

        def at_once(transaction: AsyncTransaction) -> None:
            transaction.put(key, b"1")

        client = Client(member_address)
        with pytest.raises(TypeError, match="written is an async function: run it with an Async"):
            await asyncio.to_thread(lambda: [client.run(written)])
        await asyncio.to_thread(client.close)
        async with AsyncClient(member_address) as other:
            with pytest.raises(TypeError, match="at_once is no async function"):
                await other.run(at_once)  # type: ignore[arg-type]  # that is tested
            async with other.transaction() as transaction:
                assert await transaction.get(key) is None

    def test_a_version_that_is_not_there_is_waited_for_and_named(
        self, client: Client, member_address: str
    ) -> None:
        newest = client.status().observer.committed_version
        with Client(member_address, after=f"version:{newest + 10_000}", timeout_ms=500) as ahead:
            expected = f"member m1 is at version .*this session waits for {newest + 10_000}"
            with pytest.raises(VersionMissing, match=expected) as caught:
                ahead.transaction()
        assert caught.value.version >= newest

    def test_a_write_on_a_known_version_needs_no_snapshot(self, client: Client, key: bytes) -> None:
        client.run(lambda transaction: transaction.put(key, b"1"))
        with client.transaction(snapshot_version=client.version) as transaction:
            transaction.put(key, b"2")
        with client.transaction() as reading:
            assert reading.get(key) == b"2"
        with (
            pytest.raises(CertificationConflict),
            client.transaction(snapshot_version=transaction.version - 1) as late,
        ):
            late.put(key, b"3")


class TestCertification:
    """Certification for a store of the caller's own."""

    def test_a_stream_takes_batches(self, client: Client) -> None:
        mine = certifiable(snapshot=0, write_set=[1])
        for wrong in (mine, (each for each in [mine])):
            with pytest.raises(TypeError, match="takes batches, each a list of transactions, and "):
                list(client.certify_stream([wrong]))  # type: ignore[list-item]  # that is tested
        verdicts = list(client.certify_stream([(mine,), [], [mine]]))
        assert len(verdicts) == 2


class TestOtherPorts:
    """Addresses of what is no member."""

    def test_a_log_server_or_a_console_is_told_from_a_member(self, local_group: LocalGroup) -> None:
        for url in (local_group.log_server.address, local_group.log_server.monitor):
            with Client(url.rpartition("/")[2], timeout_ms=500) as client:
                with pytest.raises(NotServing, match="speaks no gRPC: is it a console's or a log"):
                    client.status()


class TestGroup:
    """The group as its members see it."""

    def test_history_has_what_was_committed(self, client: Client, key: bytes) -> None:
        with client.transaction() as transaction:
            transaction.put(key, b"1")
        while not (pages := list(client.history(transaction.version - 1))):
            time.sleep(0.01)
        assert pages[0].versions[0] == transaction.version
        assert pages[0].transaction_ids[0] == transaction.transaction_id
        assert pages[0].gtids[0] == transaction.gtid
