"""Replicas that are read, as real processes: of a group and of a MariaDB server, while they execute
with several workers, after they were killed, and what they do not take.

Accounts keep their sum in each transfer, so that a state that the source never had shows.
"""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pymysql
import pytest

from groupcert import Client
from groupcert.applier.schemes import Consistency
from groupcert.applier.schemes.catalogue import scheme as scheme_of
from groupcert.members.client.client_options import session_token
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.calls import ReadOnlyReplica
from groupcert.members.errors.postgresql_servers import RowsAtServer
from tests.integration.replicas import (
    ACCOUNTS,
    BALANCE,
    SCHEMES,
    SETTINGS,
    TABLES,
    History,
    Load,
    ReplicaProcess,
    Rows,
    open_accounts,
    total,
)
from tests.integration.shop_load import CONFLICTS
from tests.integration.waiting import wait_for
from tests.servers import MariaDbServer, connect_mariadb

WORKERS = ("--workers", "4")
STATES = 40
"""That are read before and after the kill."""
BACKLOG = 2_000
SUM = len(TABLES) * ACCOUNTS * BALANCE
SHOP_ACCOUNTS = 8


def is_any_time(scheme: str) -> bool:
    """Whether readers are promised states of the source at any time."""
    name, _, setting = scheme.partition(" --")
    kind, _, value = setting.partition(" ")
    found = scheme_of(
        name,
        conflicts=value if kind == "conflicts" else None,
        policy=value if kind == "policy" else None,
    )
    return found.consistency is Consistency.ANY_TIME


ANY_TIME = [scheme for scheme in SCHEMES if is_any_time(scheme)]


def read(client: Client) -> tuple[int, Rows]:
    """Version and rows of one snapshot."""
    with client.transaction() as transaction:
        return transaction.snapshot_version, dict(transaction.scan())


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """A group with accounts, and with more than a replica executes between two reads."""
    folder = tmp_path_factory.mktemp("source")
    with LocalGroup(folder, members=2, settings=SETTINGS) as group:
        with Client(group.addresses["m1"]) as client:
            open_accounts(client)
        Load(list(group.addresses.values())).run(BACKLOG, clients=16)
        yield group


@pytest.mark.nats
@pytest.mark.cluster
class TestOfAGroup:
    """Replicas of a member."""

    @pytest.mark.in_turns
    @pytest.mark.parametrize("scheme", ANY_TIME)
    def test_readers_see_states_of_the_source_also_across_a_kill(
        self, group: LocalGroup, tmp_path: Path, scheme: str
    ) -> None:
        """With `group-commit` domains go their own ways: each state keeps the sum, and is not one
        of the total order.
        """
        samples: list[tuple[int, Rows]] = []
        load = Load(list(group.addresses.values()))
        with replica_of(tmp_path, group, scheme) as replica, load.running():
            replica.start()
            with Client(replica.address, after=session_token(1)) as client:
                for run in (1, 2):
                    while len({version for version, _ in samples}) < run * STATES:
                        samples.append(read(client))
                    if run == 1:
                        replica.start()  # It is killed, and comes back with less or more.
                versions = [version for version, _ in samples]
                assert versions == sorted(versions)
        assert {total(rows) for _, rows in samples} == {SUM}
        if scheme != "group-commit":
            states = list(History(group.addresses["m1"]).states())
            assert [version for version, rows in samples if rows != states[version]] == []

    def test_a_session_sees_at_the_replica_what_it_wrote_at_a_member(
        self, group: LocalGroup, tmp_path: Path
    ) -> None:
        with replica_of(tmp_path, group, "jobs --conflicts graph") as replica:
            replica.start()
            replica.wait_for_start()
            with Client(group.addresses["m1"]) as writer:
                for number in range(20):
                    value = b"%d" % number
                    with writer.transaction() as transaction:
                        transaction.put(b"token", value)
                    with Client(replica.address, after=writer.token) as reader:
                        assert reader.run(lambda transaction: transaction.get(b"token")) == value
            assert replica.stop() == 0, replica.last_line()

    def test_a_write_is_refused_and_names_the_source(
        self, group: LocalGroup, tmp_path: Path
    ) -> None:
        with replica_of(tmp_path, group, "logical-clock") as replica:
            replica.start()
            with (
                Client(replica.address, after=session_token(1)) as client,
                pytest.raises(ReadOnlyReplica) as caught,
                client.transaction() as transaction,
            ):
                transaction.put(b"shop.b1/0", b"")
        assert (caught.value.replica, caught.value.source) == ("replica", group.addresses["m1"])

    @pytest.mark.database
    def test_rows_of_an_sql_target_are_read_there(
        self, group: LocalGroup, tmp_path: Path, target_dsn: str
    ) -> None:
        mapping = tmp_path / "mapping.toml"
        mapping.write_text('[tables."*"]\n')
        arguments = ("logical-clock", "--mapping", str(mapping))
        sources = list(group.addresses.values())
        with ReplicaProcess(tmp_path, sources, target_dsn, *arguments) as replica:
            replica.start()
            with (
                Client(replica.address) as client,
                pytest.raises(RowsAtServer, match=target_dsn.rpartition("@")[2]),
            ):
                client.transaction()


def replica_of(folder: Path, group: LocalGroup, scheme: str) -> ReplicaProcess:
    """A replica of a group with several workers."""
    sources = list(group.addresses.values())
    target = f"rocksdb:{folder / 'target'}"
    return ReplicaProcess(folder, sources, target, scheme, *WORKERS)


class Transfers:
    """Clients of a MariaDB server that transfer between its accounts."""

    def __init__(self, server: MariaDbServer) -> None:
        self._server = server
        self._stopped = threading.Event()
        self.commits = 0
        with closing(connect_mariadb(server.url)) as session, session.cursor() as cursor:
            cursor.execute("CREATE DATABASE bank")
            cursor.execute("CREATE TABLE bank.account (id int PRIMARY KEY, balance int)")
            for number in range(SHOP_ACCOUNTS):
                cursor.execute("INSERT INTO bank.account VALUES (%s, 100)", (number,))

    @contextmanager
    def running(self, clients: int = 3) -> Iterator[None]:
        """Clients are at work during the block."""
        self._stopped.clear()
        threads = [threading.Thread(target=self._work, args=(each,)) for each in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def wait_for_commits(self, count: int) -> None:
        """Returns when so many more are committed."""
        wanted = self.commits + count
        wait_for(f"{count} more commits", lambda: self.commits >= wanted)

    def _work(self, seed: int) -> None:
        chance = random.Random(seed)
        with closing(connect_mariadb(self._server.url)) as session, session.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 2")
            while not self._stopped.is_set():
                one, other = sorted(chance.sample(range(SHOP_ACCOUNTS), 2))
                cursor.execute("BEGIN")
                try:
                    for number, change in ((one, -1), (other, 1)):
                        cursor.execute(
                            "UPDATE bank.account SET balance = balance + %s WHERE id = %s",
                            (change, number),
                        )
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in CONFLICTS:
                        raise
                    cursor.execute("ROLLBACK")
                else:
                    cursor.execute("COMMIT")
                    self.commits += 1


@pytest.fixture(scope="module")
def transfers(source: MariaDbServer) -> Transfers:
    """Accounts at the source."""
    return Transfers(source)


@pytest.mark.database
class TestOfAServer:
    """Replicas of a MariaDB server, whose rows are documents."""

    @pytest.mark.in_turns
    @pytest.mark.parametrize("scheme", ["logical-clock", "group-commit", "jobs --conflicts graph"])
    def test_readers_see_states_of_the_source_also_across_a_kill(
        self, source: MariaDbServer, transfers: Transfers, tmp_path: Path, scheme: str
    ) -> None:
        seen: list[tuple[int, ...]] = []
        target = f"rocksdb:{tmp_path / 'target'}"
        with (
            ReplicaProcess(tmp_path, [source.url_of("bank")], target, scheme, *WORKERS) as replica,
            transfers.running(),
        ):
            replica.start("--copy")
            wait_for("its start", lambda: replica.events("replica_started"))
            with Client(replica.address) as client:
                for run in (1, 2):
                    while len(set(seen)) < run * STATES:
                        _, rows = read(client)
                        documents = map(json.loads, rows.values())
                        seen.append(tuple(each["balance"] for each in documents))
                    if run == 1:
                        replica.kill()
                        transfers.wait_for_commits(BACKLOG)
                        replica.start()
                with pytest.raises(ReadOnlyReplica) as caught, client.transaction() as writer:
                    writer.delete(b"bank.account/0")
        assert caught.value.source == f"{source.url_of('bank').partition('@')[2].partition('/')[0]}"
        assert {(len(each), sum(each)) for each in seen} == {(SHOP_ACCOUNTS, SHOP_ACCOUNTS * 100)}
