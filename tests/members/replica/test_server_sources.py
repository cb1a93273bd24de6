"""A replica's way from server to server, at live MariaDB servers: each transaction once, in order,
whatever happens to them.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pymysql
import pytest

from groupcert.applier.errors import PurgedAtSource, ReplicaAhead
from groupcert.applier.mysql_logs.lock_intervals import LockIntervals
from groupcert.applier.mysql_logs.prepared_payload import Step, prepared_step
from groupcert.applier.mysql_logs.statement_payload import statements_of
from groupcert.applier.mysql_servers.source_errors import SourceRefused
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.certifier.errors import InvalidSetting, TransactionTooLarge
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.host.loopback import HOST
from groupcert.members.replica import sources as replica_sources
from groupcert.members.replica.server_sources import ServerSources
from groupcert.members.replica.sources import SourceNews
from tests import servers
from tests.applier.mysql_servers import server_streams as live

pytestmark = pytest.mark.database


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MariaDbServer]:
    """A server that logs rows, with what it knows of their tables."""
    folder = tmp_path_factory.mktemp("sources")
    with (
        servers.where_installed(),
        servers.MariaDbServer(folder, *live.LOGGING, live.FULL) as running,
    ):
        yield running


@pytest.fixture
def shop(server: servers.MariaDbServer) -> GtidSet:
    """An empty log, and an empty table; what was executed for these."""
    live.execute(server, "RESET MASTER")
    live.make_shop(server)
    return live.prefix(live.last_gtids(server))


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds would only be waited for."""
    monkeypatch.setattr(replica_sources, "PAUSE_SECONDS", 0.05)


class Received:
    """What a replica has received, and takes of its sources."""

    def __init__(self, executed: GtidSet, *urls: str, **more: object) -> None:
        self.gtids = executed.copy()
        self.entries: list[RelayEntry] = []
        self.news: list[SourceNews] = []
        self.sources = ServerSources(urls, "r1", **more)  # type: ignore[arg-type]  # of a test

    def take(self, is_enough: Callable[[], object]) -> None:
        """Takes news until they are enough."""
        position = count(1)
        for news in self.sources.follow(self.gtids, lambda: self._next(position)):
            self.news.append(news)
            for entry in news.entries:
                self.entries.append(entry)
                if entry.gtid:
                    assert entry.gtid not in self.gtids
                    self.gtids.add(entry.gtid)
            if is_enough():
                return

    def take_more(self, transactions: int) -> None:
        """Takes news until so many more transactions were received."""
        enough = len(self.transactions) + transactions
        self.take(lambda: len(self.transactions) >= enough)

    def take_until(self, newest: GtidSet) -> None:
        """Takes news until these were received."""
        self.take(lambda: newest <= self.gtids)

    @property
    def transactions(self) -> list[RelayEntry]:
        """The entries that are no rotations."""
        return [entry for entry in self.entries if entry.gtid]

    def _next(self, _: object) -> int:
        return self.entries[-1].position + 1 if self.entries else 1


def test_entries_have_what_the_log_has(server: servers.MariaDbServer, shop: GtidSet) -> None:
    live.insert_together(server, 1_000)
    live.execute(server, "FLUSH BINARY LOGS")
    live.insert_together(server, 2_000)
    received = Received(GtidSet(), server.url)
    received.take_until(live.last_gtids(server))
    transactions = live.logged(server)
    assert [each.gtid for each in received.transactions] == [each.named for each in transactions]
    assert [each.version for each in received.transactions] == [*range(1, len(transactions) + 1)]
    assert [each.position for each in received.entries] == [*range(1, len(received.entries) + 1)]
    intervals, number, file = LockIntervals(), 0, 0
    before: set[object] = set()
    for entry in received.entries:
        if entry.gtid is None:
            assert (entry.header.file, entry.version) == (file + 1, len(before))
            file, number = entry.header.file, 0
            intervals.begin_file()
            continue
        transaction, number = transactions[len(before)], number + 1
        interval = intervals.next(transaction)
        before.add(entry.gtid)
        assert entry.header.file == file
        assert entry.header.commit_parent == entry.version - interval + 1
        assert (entry.last_committed, entry.sequence_number) == (number - interval, number)
        assert entry.header._replace(commit_parent=0, file=0) == transaction.header
        assert bool(entry.payload) == bool(transaction.row_count or transaction.is_ddl)
    assert file == 2
    assert any(number - 1 > entry.last_committed for entry in received.transactions)


def test_what_fills_a_gap_is_older_than_what_was_executed_beyond_it(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    live.execute(server, *(f"INSERT INTO shop.orders VALUES ({key}, '')" for key in range(20)))
    names = [each.named for each in live.logged(server)]
    executed = GtidSet.of(*(name for name in names[:12] if name and name != names[6]))
    received = Received(executed, server.url)
    received.take_until(live.last_gtids(server))
    versions = [(each.gtid, each.version) for each in received.transactions]
    assert versions == [(names[6], 7), *zip(names[12:], count(13))]


def test_a_server_that_is_killed_under_load_is_waited_for(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    received = Received(shop, server.url)
    keys = count()
    is_over = threading.Event()

    def insert() -> None:
        while not is_over.is_set():
            with suppress(pymysql.err.MySQLError):
                inserts = [f"INSERT INTO shop.orders VALUES ({next(keys)}, '')" for _ in range(50)]
                live.execute(server, *inserts)

    load = [threading.Thread(target=insert) for _ in range(4)]
    for thread in load:
        thread.start()
    for part in range(4):
        received.take_more(200)
        server.stop() if part == 2 else server.kill()
        received.take(lambda: received.news[-1].source == "")
        server.start()
        server.wait_ready()
    is_over.set()
    for thread in load:
        thread.join()
    received.take_until(live.last_gtids(server))
    names = [each.named for each in live.logged(server)]
    assert [each.gtid for each in received.transactions] == names[shop.count() :]
    versions = [each.version for each in received.transactions]
    assert versions == [*range(shop.count() + 1, len(names) + 1)]


def test_at_the_end_of_one_server_the_next_one_goes_on(tmp_path: Path) -> None:
    second_id = ("--server-id=4", "--log-slave-updates")
    with (
        servers.where_installed(),
        servers.MariaDbServer(tmp_path / "a", *live.LOGGING) as first,
        servers.MariaDbServer(tmp_path / "b", *live.LOGGING, *second_id) as second,
    ):
        live.execute(
            second,
            f"CHANGE MASTER TO master_host='{HOST}', master_port={first.port}, "
            "master_user='root', master_use_gtid=slave_pos",
            "START SLAVE",
        )
        live.make_shop(first)
        live.insert_together(first, 1_000)
        received = Received(GtidSet(), first.url, second.url)
        received.take_until(live.last_gtids(first))
        assert received.sources.connected == ""
        last = live.execute(first, "SELECT @@gtid_binlog_pos")[0][0]
        live.execute(second, f"SELECT MASTER_GTID_WAIT('{last}', 60)")
        first.kill()
        live.execute(second, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
        live.insert_together(second, 2_000)
        received.take_until(live.last_gtids(second))
        names = [each.named for each in live.logged(second)]
        assert {each.gtid for each in received.transactions} == {*names}
        assert len(received.transactions) == len(names)
        assert [each.version for each in received.transactions] == [*range(1, len(names) + 1)]


def test_how_far_the_source_is_counts_as_versions_do(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    live.insert_together(server, 1_000)
    newest = live.last_gtids(server)
    received = Received(shop, server.url)
    received.take(lambda: newest <= received.gtids and not received.news[-1].entries)
    assert received.news[-1].source_version == received.transactions[-1].version
    assert received.news[-1].source == server.url.rpartition("@")[2].rstrip("/")


def test_a_source_that_cannot_serve_is_an_error_that_says_why(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    live.execute(server, "INSERT INTO shop.orders VALUES (1, '')")
    live.purge(server)
    with pytest.raises(PurgedAtSource):
        Received(GtidSet(), server.url).take(lambda: False)
    ahead = shop.copy()
    ahead.add_interval("0-3", 1, 1_000)
    with pytest.raises(ReplicaAhead, match="0-3-1000"):
        Received(ahead, server.url).take(lambda: False)
    with pytest.raises(SourceRefused, match="Access denied"):
        Received(shop, server.url.replace("root@", "nobody:x@")).take(lambda: False)
    live.execute(server, "SET GLOBAL binlog_format = STATEMENT")
    with pytest.raises(InvalidSetting, match="binlog_format"):
        Received(shop, server.url).take(lambda: False)
    live.execute(server, "SET GLOBAL binlog_format = ROW")


def test_a_source_whose_log_was_emptied_is_behind(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    received = Received(shop, server.url)
    received.take(lambda: received.news[-1].source)
    live.execute(server, "RESET MASTER")
    with pytest.raises(ReplicaAhead, match="0-3-2"):
        received.take(lambda: False)


def test_one_that_refuses_is_left_for_one_that_serves(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    live.execute(server, "INSERT INTO shop.orders VALUES (1, '')")
    refusing = server.url.replace(f"root@{HOST}", "nobody:x@localhost")
    received = Received(shop, refusing, server.url)
    received.take_until(live.last_gtids(server))
    assert len(received.transactions) == 1


def test_statements_in_other_databases_are_left_out(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    live.execute(
        server,
        "CREATE OR REPLACE DATABASE other",
        "USE other",
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "DROP TABLE t",
    )
    received = Received(shop, f"{server.url}shop")
    received.take_until(live.last_gtids(server))
    assert [each.payload for each in received.transactions] == [b"", b"", b""]
    live.execute(server, "USE other", "ALTER TABLE shop.orders ADD COLUMN more INT")
    received.take_more(1)
    [altering] = statements_of(received.transactions[-1].payload)
    assert altering.is_table and altering.text.startswith("ALTER TABLE shop.orders")


def test_a_transaction_above_the_limit_is_not_taken(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    live.execute(
        server,
        "USE shop",
        "INSERT INTO orders SELECT seq, REPEAT('x', 1000) FROM seq_1_to_3000",
    )
    with pytest.raises(TransactionTooLarge, match="the limit is 2000000"):
        Received(shop, server.url, transaction_bytes_max=2_000_000).take(lambda: False)
    live.execute(server, f"INSERT INTO shop.orders VALUES (0, REPEAT('x', {live.LARGE_BYTES}))")
    received = Received(shop, server.url, transaction_bytes_max=30_000_000)
    received.take_until(live.last_gtids(server))
    assert [len(each.payload) > 2_000_000 for each in received.transactions] == [True, True]


def test_rows_of_other_databases_are_left_out_and_their_gtids_are_not(
    server: servers.MariaDbServer, shop: GtidSet
) -> None:
    live.execute(
        server,
        "CREATE OR REPLACE DATABASE other",
        "CREATE TABLE other.t (id INT PRIMARY KEY)",
        "INSERT INTO other.t VALUES (1)",
        "INSERT INTO shop.orders VALUES (1, '')",
        "BEGIN",
        "INSERT INTO other.t VALUES (2)",
        "INSERT INTO shop.orders VALUES (2, '')",
        "COMMIT",
        "INSERT INTO mysql.help_topic VALUES (100000, 'a', 1, '', '', '')",
    )
    payloads = {}
    for url in (f"{server.url}shop", server.url):
        received = Received(shop, url)
        received.take_until(live.last_gtids(server))
        payloads[url] = [b"other" in each.payload for each in received.transactions]
        kept = [bool(each.payload) for each in received.transactions]
        assert kept == [*[url == server.url] * 3, True, True, False]
    assert [*payloads.values()] == [[False] * 6, [True, True, True, False, True, False]]
    live.execute(server, "DELETE FROM mysql.help_topic WHERE help_topic_id = 100000")


def test_a_stop_ends_what_waits_for_a_source(server: servers.MariaDbServer, shop: GtidSet) -> None:
    received = Received(shop, server.url)
    follow = threading.Thread(target=received.take, args=(lambda: False,))
    follow.start()
    while not received.sources.connected:
        follow.join(0.01)
    received.sources.stop()
    follow.join(10)
    assert not follow.is_alive()
    assert received.sources.connected == ""
    received.take(lambda: False)
    assert received.transactions == []


def test_steps_of_an_xa_transaction_run_alone(server: servers.MariaDbServer, shop: GtidSet) -> None:
    changes = ("XA START 'x'", "INSERT INTO shop.orders VALUES (1, 'x')", "XA END 'x'")
    live.execute(server, *changes, "XA PREPARE 'x'")
    live.execute(server, "XA COMMIT 'x'")
    received = Received(shop, server.url)
    received.take_more(2)
    prepared, committed = received.transactions
    steps = [prepared_step(entry.payload) for entry in (prepared, committed)]
    assert [step and step.step for step in steps] == [Step.PREPARE, Step.COMMIT]
    for entry in (prepared, committed):
        assert (entry.last_committed, entry.sequence_number) == (0, 0)
        header = entry.header
        assert (header.commit_parent, header.commit_id, header.items) == (0, 0, ())
        assert (header.databases, header.tables) == (None, None)
