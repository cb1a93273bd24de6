"""A live server's stream has what its files have, and its failures are told apart.

MariaDB's is asked here; what MySQL sends otherwise is in `test_gtid_set_encoding.py`.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.applier.errors import InvalidBinaryLog, PurgedAtSource, ReplicaAhead
from groupcert.applier.mysql_logs.events import EventType
from groupcert.applier.mysql_servers.server_stream import ServerStream, mariadb_gtids
from groupcert.applier.mysql_servers.server_url import ServerUrl
from groupcert.applier.mysql_servers.source_errors import SourceLost, SourceRefused
from groupcert.certifier.errors import InvalidSetting, TransactionTooLarge
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.host.loopback import HOST
from tests import servers
from tests.applier.mysql_servers import server_streams as live
from tests.certificates import Authority

pytestmark = pytest.mark.database

LARGE = f"INSERT INTO shop.orders VALUES (1, REPEAT('x', {live.LARGE_BYTES}))"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MariaDbServer]:
    """A server that logs rows, with what it knows of their tables."""
    folder = tmp_path_factory.mktemp("stream")
    with (
        servers.where_installed(),
        servers.MariaDbServer(folder, *live.LOGGING, live.FULL) as running,
    ):
        yield running


@pytest.fixture(autouse=True)
def shop(server: servers.MariaDbServer) -> None:
    """An empty log, and an empty table."""
    assert server.is_running
    live.execute(
        server,
        "RESET MASTER",
        "SET GLOBAL log_bin_compress = OFF, GLOBAL binlog_checksum = CRC32",
        "SET GLOBAL binlog_format = ROW",
    )
    live.make_shop(server)


def opened(url: str, executed: str = "", **more: float) -> ServerStream:
    """A stream, after all that an open says."""
    stream = ServerStream(ServerUrl.parse(url), "r1", **more)  # type: ignore[arg-type]  # numbers
    try:
        stream.open(mariadb_gtids(executed))
    except Exception:
        stream.close()
        raise
    return stream


def test_a_stream_has_what_the_files_have(server: servers.MariaDbServer) -> None:
    live.insert_together(server, 1_000)
    live.execute(server, "FLUSH BINARY LOGS")
    live.execute(
        server,
        "USE shop",
        "CREATE TABLE plain (id INT) ENGINE=MyISAM",
        "INSERT INTO plain VALUES (1), (2)",
        "BEGIN",
        "INSERT INTO orders VALUES (2, 'a')",
        "SAVEPOINT s",
        "INSERT INTO plain VALUES (3)",
        "INSERT INTO orders VALUES (3, 'a')",
        "ROLLBACK TO s",
        "COMMIT",
        "XA START 'a'",
        "INSERT INTO orders VALUES (4, 'a')",
        "XA END 'a'",
        "XA PREPARE 'a'",
        "XA COMMIT 'a'",
        "XA START 'b'",
        "INSERT INTO orders VALUES (5, 'a')",
        "XA END 'b'",
        "XA COMMIT 'b' ONE PHASE",
        "SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10",
        "UPDATE orders SET note = REPEAT('z', 10000)",
        "SET GLOBAL binlog_checksum = NONE",
        "INSERT INTO orders VALUES (6, 'no checksum')",
        "SET GLOBAL binlog_checksum = CRC32",
        "CREATE TABLE copied AS SELECT * FROM orders",
        "ALTER TABLE orders ADD COLUMN more INT",
        "SET SESSION binlog_format = STATEMENT",
        "DELETE FROM copied WHERE id = 2",
        "CREATE OR REPLACE TABLE orders (id INT PRIMARY KEY, note LONGTEXT)",
    )
    live.execute(server, "SET GLOBAL log_bin_compress = OFF", LARGE)
    live.insert_together(server, 2_000)
    with live.open_stream(server) as stream:
        found = live.streamed(stream, live.last_gtids(server))
    assert live.without_rows(found) == live.without_rows(live.logged(server))
    assert len(found) > 160
    assert max(len(each.payload) for each in found) > live.LARGE_BYTES
    assert {path.name for path in live.log_files(server)} > {stream.log_file} != set()


def test_statements_are_told_beside_rows(server: servers.MariaDbServer) -> None:
    before = live.prefix(live.last_gtids(server))
    live.execute(
        server,
        "USE shop",
        "CREATE OR REPLACE TABLE copied AS SELECT 1 AS id",
        "DROP TABLE copied",
        "XA START 'a'",
        "INSERT INTO orders VALUES (4, 'a')",
        "XA END 'a'",
        "XA PREPARE 'a'",
        "XA ROLLBACK 'a'",
        "XA START 'b'",
        "INSERT INTO orders VALUES (5, 'a')",
        "XA END 'b'",
        "XA COMMIT 'b' ONE PHASE",
        "SET SESSION binlog_format = STATEMENT",
        "DELETE FROM orders WHERE id = 5",
        "BEGIN",
        "COMMIT",
    )
    with live.open_stream(server, before) as stream:
        found = live.streamed(stream, live.last_gtids(server))
    told = [
        [(each.text.split("\n")[0][:16], each.database, each.is_ddl) for each in one.statements]
        for one in found
    ]
    assert told == [
        [("CREATE OR REPLAC", "shop", True)],
        [("DROP TABLE `copi", "shop", True)],
        [("XA PREPARE X'61'", "", False)],
        [("XA ROLLBACK X'61", "shop", False)],
        [],
        [("DELETE FROM orde", "shop", False)],
    ]
    assert [bool(each.payload) for each in found] == [True, False, True, False, True, False]
    assert found[0].statements[0].payload_bytes == 0, "a table is there before its rows"


def test_a_stream_goes_on_where_the_replica_is(server: servers.MariaDbServer) -> None:
    live.insert_together(server, 1_000)
    whole = live.logged(server)
    executed = GtidSet()
    for transaction in whole[:40]:
        assert transaction.named is not None
        executed.add(transaction.named)
    with live.open_stream(server, executed) as stream:
        found = live.streamed(stream, live.last_gtids(server))
    assert live.without_rows(found) == live.without_rows(whole[40:])


def test_a_silent_server_is_given_up(server: servers.MariaDbServer) -> None:
    stream = opened(server.url, heartbeat_seconds=0.2)
    events = iter(stream)
    while next(events).type != EventType.HEARTBEAT:
        pass
    server.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(SourceLost, match="does not answer"):
            list(events)
        assert time.monotonic() - began < 5
    finally:
        server.send_signal(signal.SIGCONT)
        stream.close()


def test_heartbeats_come_without_a_load(server: servers.MariaDbServer) -> None:
    stream = opened(server.url, heartbeat_seconds=0.1)
    beats = 0
    for event in stream:
        beats += event.type == EventType.HEARTBEAT
        if beats == 5:
            break
    stream.close()
    assert beats == 5


def test_what_was_purged_is_told(server: servers.MariaDbServer) -> None:
    live.insert_together(server, 1_000)
    live.purge(server)
    stream = opened(server.url)
    with pytest.raises(PurgedAtSource, match="purged 'its log after nothing'"):
        list(stream)
    stream.close()
    stream = opened(server.url, "0-3-1")
    with pytest.raises(PurgedAtSource, match=r"'its log after 0-3-1'.* start from a newer copy"):
        list(stream)
    stream.close()


@pytest.mark.parametrize("gtid", ["0-3-999999", "9-3-1"])
def test_a_replica_that_is_ahead_is_told(server: servers.MariaDbServer, gtid: str) -> None:
    executed = GtidSet()
    source, _, number = gtid.rpartition("-")
    executed.add_interval(source, 1, int(number))
    stream = ServerStream(ServerUrl.parse(server.url), "r1")
    with pytest.raises(ReplicaAhead, match=gtid):
        stream.open(executed)
    stream.close()


def test_a_replica_with_transactions_of_another_server_is_ahead(
    server: servers.MariaDbServer,
) -> None:
    stream = opened(server.url, "0-8-1")
    with pytest.raises(ReplicaAhead, match="replica has '0-8-1'"):
        list(stream)
    stream.close()
    with pytest.raises(ReplicaAhead, match="3e11fa47-71ca-11e1-9e33-c80aa9429562:1"):
        ServerStream(ServerUrl.parse(server.url), "r1").open(
            GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1")
        )


def test_who_may_not_replicate_is_refused(server: servers.MariaDbServer) -> None:
    live.execute(server, "CREATE OR REPLACE USER known@'%' IDENTIFIED BY 'secret'")
    url = server.url.replace("root@", "known:wrong@")
    with pytest.raises(SourceRefused, match="Access denied") as raised:
        opened(url)
    assert "wrong" not in str(raised.value)
    with pytest.raises(SourceRefused, match="GRANT REPLICATION SLAVE"):
        opened(url.replace("wrong", "secret"))
    live.execute(server, "GRANT REPLICATION SLAVE ON *.* TO known@'%'")
    stream = opened(url.replace("wrong", "secret"))
    assert next(iter(stream)).type == EventType.ROTATE
    stream.close()


def test_a_server_that_logs_statements_is_refused(server: servers.MariaDbServer) -> None:
    live.execute(server, "SET GLOBAL binlog_format = MIXED")
    with pytest.raises(InvalidSetting, match=r"binlog_format of source .* is 'MIXED': .* ROW"):
        opened(server.url)


def test_a_server_without_a_log_is_refused(tmp_path: Path) -> None:
    with servers.where_installed(), servers.MariaDbServer(tmp_path) as silent:
        with pytest.raises(InvalidSetting, match=r"log_bin of source .* is 'OFF': expected ON"):
            opened(silent.url)


def test_where_no_server_is_the_source_is_lost(server: servers.MariaDbServer) -> None:
    with pytest.raises(SourceLost, match="start it, or name another"):
        opened(f"mysql://repl@{HOST}:1")


def test_a_number_that_another_replica_has_is_refused(server: servers.MariaDbServer) -> None:
    with live.open_stream(server) as first:
        assert next(iter(first)).type == EventType.ROTATE
        second = ServerStream(ServerUrl.parse(server.url), "r2", server_id=first.server_id)
        with pytest.raises(InvalidSetting, match="another one: replica groupcert-r1 has it"):
            second.open(GtidSet())
        second.close()
    third = ServerStream(ServerUrl.parse(server.url), "r3", server_id=3)
    with pytest.raises(InvalidSetting, match="another one: the source"):
        third.open(GtidSet())
    third.close()


def test_a_damaged_event_is_no_event(server: servers.MariaDbServer) -> None:
    live.execute(server, "INSERT INTO shop.orders VALUES (1, 'abcdefgh')", "FLUSH BINARY LOGS")
    [path] = (path for path in live.log_files(server) if b"abcdefgh" in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcdefgX"))
    stream = opened(server.url)
    with pytest.raises(InvalidBinaryLog, match=r"binlog\.0+\d at byte \d+: the checksum"):
        list(stream)
    stream.close()


def test_an_event_above_the_limit_is_not_taken(server: servers.MariaDbServer) -> None:
    live.execute(server, LARGE)
    stream = opened(server.url, event_bytes_max=1 << 20)
    with pytest.raises(TransactionTooLarge, match="the limit is 1048576: raise"):
        list(stream)
    stream.close()


def test_a_stream_over_tls_is_to_a_server_that_its_authority_signed(tmp_path: Path) -> None:
    tls = Authority(tmp_path / "good").issue("server")
    other = Authority(tmp_path / "other")
    files = (f"--ssl-cert={tls.certificate}", f"--ssl-key={tls.key}")
    with (
        servers.where_installed(),
        servers.MariaDbServer(tmp_path / "tls", *live.LOGGING, *files) as secure,
    ):
        live.make_shop(secure)
        live.execute(secure, LARGE)
        for mode in ("verify-identity", "verify-ca", "required", "preferred"):
            url = f"{secure.url}?ssl-ca={tls.authority}&ssl-mode={mode}"
            stream = opened(url)
            found = live.streamed(stream, live.last_gtids(secure))
            assert len(found[-1].payload) > live.LARGE_BYTES
            assert stream.is_encrypted
            stream.close()
        with pytest.raises(SourceRefused, match="certificate verify failed"):
            opened(f"{secure.url}?ssl-ca={other.path}")
        plain = opened(f"{secure.url}?ssl-mode=disabled")
        assert not plain.is_encrypted
        plain.close()
    with servers.MariaDbServer(tmp_path / "plain", *live.LOGGING) as plain_server:
        with pytest.raises(SourceRefused, match="SSL is required"):
            opened(f"{plain_server.url}?ssl-mode=required")
