"""What MariaDB and MySQL alone are asked for; what all SQL targets promise is in `test_sql.py`."""

import pytest

from groupcert.applier.errors import TransientFailure, UnsuitableTarget
from groupcert.applier.targets import mysql
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
