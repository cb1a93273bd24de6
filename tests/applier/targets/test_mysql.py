"""What MariaDB and MySQL alone are asked for; what all SQL targets promise is in `test_sql.py`."""

from contextlib import closing
from dataclasses import replace

import pytest

from groupcert.applier.errors import TransientFailure, UnsuitableTarget
from groupcert.applier.mysql_logs.source_catalogue import SourceColumn, SourceTable
from groupcert.applier.targets import mysql
from groupcert.applier.targets.source_tables import ServerTables
from groupcert.applier.targets.sql_server import REQUEST_CHARACTERS_MAX
from groupcert.certifier.errors import InvalidSetting
from tests.applier.sql_databases import Database, apply, divided, entry, job

pytestmark = pytest.mark.database


def test_a_branch_that_its_lost_session_still_has_is_transient(mariadb_url: str) -> None:
    database = Database("mariadb", mariadb_url)
    target = database.open(two_phase=True)
    part = divided(entry(1, {f"shop.orders/{number}": "x" for number in range(20)}), 2)[0]
    execution = target.execute(part)
    assert execution.branch
    lost = target._sessions.pop(execution.worker)  # Its end is still on its way to the server.
    session = target._server.connect()
    with pytest.raises(TransientFailure) as raised:
        session.run(target._server.begin(execution.branch))
    assert raised.value.kind == "lock_timeout"
    for each in (session, lost, target):
        each.close()


def test_what_the_server_forgets_without_an_error_is_refused(mariadb_url: str) -> None:
    database = Database("mariadb", mariadb_url)
    database.query("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    try:
        with pytest.raises(UnsuitableTarget, match="at_trx_commit is 0, expected 1"):
            database.open()
    finally:
        database.query("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_a_zero_is_no_next_number_and_what_is_too_long_is_not_cut(mariadb_url: str) -> None:
    database = Database("mariadb", mariadb_url)
    database.query(
        "CREATE TABLE counted (id int unsigned AUTO_INCREMENT PRIMARY KEY, body varchar(3))"
    )
    mapping = '[tables."*"]\n[tables.counted]\nkey = { id = "integer" }\nvalue = { body = "text" }'
    target = database.open(schema=mapping)
    apply(target, job(entry(1, {"counted/0": "abc", "counted/4294967295": "\\'"})))
    assert database.query("SELECT id, body FROM counted") == [(0, "abc"), (4294967295, "\\'")]
    with pytest.raises(UnsuitableTarget, match="column body takes 3 characters, not 4"):
        target.execute(job(entry(2, {"counted/1": "abcd"})))
    with pytest.raises(UnsuitableTarget, match="-1 for column id is not in 0 to 4294967295"):
        target.execute(job(entry(2, {"counted/-1": "abc"})))
    target.close()


def test_a_row_over_the_servers_packet_is_refused_with_the_size_that_it_takes(
    mariadb_url: str,
) -> None:
    database = Database("mariadb", mariadb_url)
    ((limit,),) = database.query("SELECT @@max_allowed_packet")
    target = database.open()
    fits, too_large = "x" * (limit // 2 - 1_000), "x" * (limit // 2)
    apply(target, job(entry(1, {"others/1": fits, "others/2": fits})))
    with pytest.raises(UnsuitableTarget, match=f"max_allowed_packet is {limit}, a row takes"):
        target.execute(job(entry(2, {"others/3": too_large})))
    found = database.query("SELECT length(value) FROM groupcert_rows")
    assert found == [(len(fits),), (len(fits),)]
    target.close()


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("VIEW t AS SELECT '1' AS id, x'' AS body", "is a VIEW"),
        ("TABLE t (id varchar(9) PRIMARY KEY, body blob) ENGINE=Aria", "BASE TABLE of Aria"),
        ("TABLE t (id varchar(9) PRIMARY KEY, body blob) COLLATE utf8mb4_general_ci", "differ"),
        ("TABLE t (id varchar(9) PRIMARY KEY, body blob) COLLATE utf8mb4_bin", "texts that differ"),
        ("TABLE t (id varchar(9), body blob, UNIQUE (id(3)))", "no unique key over (id)"),
        ("TABLE t (id varchar(9) PRIMARY KEY, body varchar(9))", "body is varchar(9)"),
        ("TABLE t (id varchar(9) PRIMARY KEY, body blob AS (x'') STORED)", "generated"),
    ],
)
def test_tables_that_cannot_be_written_are_refused(
    mariadb_url: str, table: str, expected: str
) -> None:
    database = Database("mariadb", mariadb_url)
    database.query(f"CREATE {table}")
    mapping = '[tables.t]\nkey = { id = "text" }\nvalue = { body = "bytes" }'
    with pytest.raises(UnsuitableTarget) as raised:
        database.open(schema=mapping)
    assert expected in raised.value.problem


@pytest.mark.parametrize("url", ["postgresql://a/b", "mysql://host", "mysql:///database"])
def test_an_address_without_server_or_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match="mysql://user:password@host:port/database"):
        mysql.MySqlServer(url)


def test_a_password_is_in_no_message() -> None:
    server = mysql.MySqlServer("mysql://u:secret@127.0.0.1:1/x")
    with pytest.raises(TransientFailure) as raised:
        server.connect()
    assert raised.value.kind == "connection_lost"
    assert "secret" not in f"{raised.value} {server.name}"


OF_MYSQL = """CREATE TABLE `made` (
  `id` int unsigned NOT NULL AUTO_INCREMENT,
  `a` tinyint(1) DEFAULT '1',
  `c` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs DEFAULT NULL,
  `d` text,
  `e` year DEFAULT NULL,
  `f` geomcollection DEFAULT NULL,
  `g` json DEFAULT NULL,
  `h` decimal(10,3) DEFAULT '1.500',
  `i` timestamp(3) NULL DEFAULT NULL,
  `n` enum('a','it''s') DEFAULT NULL,
  `p` bit(9) DEFAULT NULL,
  `t` point DEFAULT NULL,
  `u` char(3) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL,
  `w` int DEFAULT NULL /*!80023 INVISIBLE */,
  PRIMARY KEY (`id`),
  UNIQUE KEY `c` (`c`),
  KEY `d` (`d`(10)),
  CONSTRAINT `made_chk_1` CHECK ((`w` > 0))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci COMMENT='what'"""
"""SHOW CREATE TABLE of MySQL 9.7.4."""
TYPES_OF_MYSQL = (
    "int unsigned,tinyint(1),varchar(20),text,year,geomcollection,json,decimal(10.3),timestamp(3),"
    "enum('a';'it''s'),bit(9),point,char(3),int"
)
"""`column_type` of its information_schema, with other commas within a type."""


def test_a_table_of_mysql_is_made_and_fits(mariadb_url: str) -> None:
    types = [each.translate(str.maketrans(".;", ",,")) for each in TYPES_OF_MYSQL.split(",")]
    names = ("id", *"acdefghinptuw")
    columns = [
        SourceColumn(name=name, data_type=each.split("(")[0].split()[0], column_type=each)
        for name, each in zip(names, types, strict=True)
    ]
    source = SourceTable(
        database="t1",
        name="made",
        columns=(replace(columns[0], nullable=False), *columns[1:]),
        primary_key=("id",),
    )
    server = mysql.MySqlServer(mariadb_url)
    with closing(server.connect()) as session:
        session.run(*server.define(source, {"t1.made": "made"}, OF_MYSQL))
        found = server.find(session, ["made"])
        assert ServerTables({"t1.made": source}, database="t1").bind(found, "there")
        ((_, made),) = session.run("SHOW CREATE TABLE made")
    assert "COLLATE=utf8mb4_uca1400_nopad_ai_ci" in made


def test_events_are_for_a_user_that_may_and_a_server_that_refuses_missing_rows(
    mariadb_url: str,
) -> None:
    database = Database("mariadb", mariadb_url)
    database.query("CREATE USER IF NOT EXISTS plain@'%'")
    database.query("GRANT ALL ON *.* TO plain@'%'")
    assert replays(mariadb_url)
    database.query("REVOKE SUPER, BINLOG REPLAY ON *.* FROM plain@'%'")
    assert not replays(mariadb_url.replace("root@", "plain@"))
    database.query("SET GLOBAL slave_exec_mode = 'IDEMPOTENT'")
    try:
        assert not replays(mariadb_url)
    finally:
        database.query("SET GLOBAL slave_exec_mode = 'STRICT'")


def replays(url: str) -> bool:
    """Whether a server of this URL executes events."""
    server = mysql.MySqlServer(url)
    server.connect().close()
    return server.replaying is not None


def test_events_larger_than_the_servers_packet_are_told_as_rows(mariadb_url: str) -> None:
    server = mysql.MySqlServer(mariadb_url)
    with closing(server.connect()):
        limit = min(server._packet_bytes_max, REQUEST_CHARACTERS_MAX)
        found = server.replay([bytes(limit // 4)] * 3)
        assert found is not None and [len(each) < limit for each in found] == [True, True]
        assert server.replay([b"", bytes(limit)]) is None
