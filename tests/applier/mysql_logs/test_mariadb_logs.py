"""What a MariaDB server writes is read as its own `mariadb-binlog` reads it."""

import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pymysql
import pytest

from groupcert.applier.mysql_logs.binary_log_reader import (
    BinaryLogReader,
    BinaryLogTransaction,
    read_binary_log,
)
from groupcert.applier.mysql_logs.column_types import Column, ColumnType, value_of
from groupcert.applier.mysql_logs.source_catalogue import read_catalogue
from groupcert.applier.mysql_logs.table_maps import keys_from
from groupcert.certifier.write_set import TableKeys, table_item
from tests import servers
from tests.applier.mysql_logs.logged_rows import catalogue_of
from tests.row_items import Row, RowChange, row_items

pytestmark = pytest.mark.database

Session: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"
GTID_LINE = re.compile(r"\tGTID (\d+-\d+-\d+)(?: cid=(\d+))?")
SESSIONS = 32
ROWS_A_SESSION = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MariaDbServer]:
    """A server that logs rows, with what it knows of their tables."""
    folder = tmp_path_factory.mktemp("binlog")
    rows = ("--binlog-format=ROW", "--binlog-row-metadata=FULL")
    options = ("--log-bin=binlog", "--server-id=3", *rows)
    with servers.where_installed(), servers.MariaDbServer(folder, *options) as running:
        yield running


@pytest.fixture
def session(server: servers.MariaDbServer) -> Iterator[Session]:
    """A session in an empty database `shop`."""
    connection = servers.connect_mariadb(server.url)
    execute(connection, "CREATE OR REPLACE DATABASE shop", "USE shop")
    yield connection
    execute(
        connection,
        "SET GLOBAL binlog_row_metadata = FULL",
        "SET GLOBAL log_bin_compress = OFF",
        "SET GLOBAL binlog_checksum = CRC32",
        "SET GLOBAL binlog_commit_wait_count = 0",
    )
    connection.close()


def execute(session: Session, *statements: str) -> tuple[tuple[object, ...], ...]:
    """Executes statements; returns the rows of the last one."""
    with session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return tuple(cursor.fetchall())


def logged(
    server: servers.MariaDbServer, session: Session, *work: str | Callable[[], None]
) -> Path:
    """The log file that has what was done, and nothing else."""
    execute(session, "FLUSH BINARY LOGS")
    ((name, *_),) = execute(session, "SHOW MASTER STATUS")
    for each in work:
        if isinstance(each, str):
            execute(session, each)
        else:
            each()
    execute(session, "FLUSH BINARY LOGS")
    return server.data / str(name)


def read(path: Path, **keys: TableKeys) -> tuple[list[BinaryLogTransaction], BinaryLogReader]:
    """All transactions of a log, and the reader after that; `keys` are of tables of shop."""
    reader = read_binary_log(path, keys={f"shop.{table}": key for table, key in keys.items()})
    return list(reader), reader


def printed(path: Path) -> list[tuple[str | None, int]]:
    """GTID and commit id of each transaction, as the server's own program prints them."""
    program = shutil.which("mariadb-binlog")
    assert program is not None, "a server without its programs"
    output = subprocess.run([program, str(path)], check=True, capture_output=True).stdout
    found = GTID_LINE.findall(output.decode(errors="replace"))
    return [(gtid, int(commit_id or 0)) for gtid, commit_id in found]


def names(transactions: Sequence[BinaryLogTransaction]) -> list[tuple[str | None, int]]:
    """GTID and commit id of each transaction."""
    return [(each.gtid, each.commit_id) for each in transactions]


def test_group_commits_of_concurrent_sessions_are_told_apart(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(
        session,
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))",
        "SET GLOBAL binlog_commit_wait_count = 8",
        "SET GLOBAL binlog_commit_wait_usec = 20000",
    )
    failures: list[Exception] = []

    def insert(number: int) -> None:
        try:
            own = servers.connect_mariadb(server.url_of("shop"))
            execute(own, f"SET gtid_domain_id = {number % 3}")
            for row in range(ROWS_A_SESSION):
                execute(own, f"INSERT INTO orders VALUES ({number * 100 + row}, 'x')")
            own.close()
        except Exception as error:
            failures.append(error)

    def together() -> None:
        threads = [threading.Thread(target=insert, args=(number,)) for number in range(SESSIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    path = logged(server, session, together)
    transactions, reader = read(path)
    assert not failures
    assert names(transactions) == printed(path)
    assert len(transactions) == SESSIONS * ROWS_A_SESSION
    assert {each.domain_id for each in transactions} == {0, 1, 2}
    sizes = Counter(each.commit_id for each in transactions if each.commit_id)
    assert max(sizes.values()) > 1
    numbers = {number * 100 + row for number in range(SESSIONS) for row in range(ROWS_A_SESSION)}
    assert {each.items for each in transactions} == {
        (item("orders", number),) for number in numbers
    }
    assert reader.cut_short is None
    assert reader.tables_without_keys == {}


def item(table: str, number: int) -> int:
    """The item of a row with a number for its key."""
    change = RowChange(database="shop", table=table, before=None, after={"id": number})
    return row_items(change, TableKeys(primary=("id",)))[0]


@pytest.mark.parametrize("compress", ["OFF", "ON"])
@pytest.mark.parametrize("checksum", ["CRC32", "NONE"])
@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL", "NO_LOG"])
def test_every_way_to_write_a_log_gives_the_same_transactions(
    server: servers.MariaDbServer, session: Session, compress: str, checksum: str, metadata: str
) -> None:
    execute(
        session,
        f"SET GLOBAL log_bin_compress = {compress}",
        f"SET GLOBAL binlog_checksum = {checksum}",
        f"SET GLOBAL binlog_row_metadata = {metadata}",
    )
    path = logged(
        server,
        session,
        "CREATE TABLE orders (id INT UNSIGNED, note MEDIUMTEXT, PRIMARY KEY (id)) "
        f"COMMENT = '{'long ' * 100}'",
        f"INSERT INTO orders VALUES (1, REPEAT('a', 500)), (4000000000, '{'b' * 900}')",
        "UPDATE orders SET id = 2, note = REPEAT('c', 500) WHERE id = 1",
        "DELETE FROM orders",
    )
    transactions, reader = read(path)
    assert names(transactions) == printed(path)
    assert [each.row_count for each in transactions] == [0, 2, 1, 2]
    assert [each.is_ddl for each in transactions] == [True, False, False, False]
    assert [each.tables for each in transactions] == [None, *[("shop.orders",)] * 3]
    if metadata == "FULL":
        first, last = item("orders", 1), item("orders", 4_000_000_000)
        second = item("orders", 2)
        expected = [(), (first, last), (first, second), (second, last)]
        assert [each.items for each in transactions] == expected
    else:
        whole = (table_item("shop", "orders"),)
        assert [each.items for each in transactions] == [(), whole, whole, whole]
        assert list(reader.tables_without_keys) == ["shop.orders"]
        transactions, reader = read(path, orders=TableKeys(primary=("@1",)))
        assert [len(each.items) for each in transactions] == [0, 2, 2, 2]
        assert reader.tables_without_keys == {}


KEYS = [
    ("TINYINT UNSIGNED", "250", "250"),
    ("TINYINT", "-1", "-1"),
    ("SMALLINT", "-300", "-300"),
    ("MEDIUMINT UNSIGNED", "16000000", "16000000"),
    ("BIGINT UNSIGNED", "18446744073709551615", "18446744073709551615"),
    ("DECIMAL(10,3)", "-1234567.125", "-1234567.125"),
    (
        "DECIMAL(65,30)",
        "12345678901234567890123456789012345.5",
        f"{'1234567890' * 3}12345.5{'0' * 29}",
    ),
    ("DECIMAL(4,0)", "17", "17"),
    ("YEAR", "1987", "1987"),
    ("BIT(10)", "b'1000000011'", "515"),
    ("DATE", "'2024-02-29'", "2024-02-29"),
    ("DATETIME", "'2024-02-29 23:59:58'", "2024-02-29 23:59:58"),
    ("DATETIME(3)", "'2024-02-29 23:59:58.125'", "2024-02-29 23:59:58.125000"),
    ("DATETIME(6)", "'2024-02-29 23:59:58.000001'", "2024-02-29 23:59:58.000001"),
    ("TIME", "'-838:59:58'", "-838:59:58"),
    ("TIME(2)", "'-01:02:03.04'", "-01:02:03.040000"),
    ("TIME(6)", "'10:11:12.345678'", "10:11:12.345678"),
    ("TIMESTAMP(1)", "FROM_UNIXTIME(1700000000.5)", "1700000000.500000"),
    ("TIMESTAMP", "FROM_UNIXTIME(1700000000)", "1700000000"),
    ("ENUM('a','b','c')", "'b'", "2"),
    ("SET('a','b','c')", "'a,c'", "5"),
    ("VARCHAR(20)", "'Ab c  '", "ab c"),
    ("VARCHAR(300) COLLATE utf8mb4_bin", "'Größe'", "Größe"),
    ("CHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "'Long'", "Long"),
    ("VARBINARY(20)", "X'00ff20'", "0x00ff20"),
    ("BINARY(4)", "X'01020304'", "0x01020304"),
    ("UUID", "'00112233-4455-6677-8899-aabbccddeeff'", "0x00112233445566778899aabbccddeeff"),
    ("INET6", "'::1'", "0x00000000000000000000000000000001"),
]


@pytest.mark.parametrize("type_name,value,text", KEYS, ids=[each[0] for each in KEYS])
def test_keys_of_every_type_are_read(
    server: servers.MariaDbServer, session: Session, type_name: str, value: str, text: str
) -> None:
    execute(
        session,
        f"CREATE TABLE t (a YEAR, doc JSON, g GEOMETRY, k {type_name}, n TINYINT UNSIGNED, "
        "f FLOAT, e ENUM('x') CHARACTER SET latin1, z VARCHAR(9) COMPRESSED, PRIMARY KEY (k, n))",
    )
    path = logged(
        server,
        session,
        f"INSERT INTO t VALUES (2000, '{{}}', POINT(1, 2), {value}, 200, 1.5, 'x', 'zz'), "
        f"(NULL, NULL, NULL, {value}, 201, NULL, NULL, NULL)",
    )
    (transaction,), reader = read(path)
    assert transaction.keys == (f"shop.t/PRIMARY/{text},200", f"shop.t/PRIMARY/{text},201")
    assert reader.tables_without_keys == {}


@pytest.mark.parametrize(
    ("columns", "value", "why"),
    [
        ("k FLOAT PRIMARY KEY", "1.5", "FLOAT"),
        ("k INT", "1", "no primary key"),
        ("k VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY", "'ö'", "outside ASCII"),
        ("k VARCHAR(20) COLLATE utf8mb4_lithuanian_ci PRIMARY KEY", "'y'", "not known here"),
    ],
)
def test_rows_whose_keys_cannot_be_told_stand_for_their_table(
    server: servers.MariaDbServer, session: Session, columns: str, value: str, why: str
) -> None:
    execute(session, f"CREATE TABLE t ({columns})")
    (transaction,), reader = read(logged(server, session, f"INSERT INTO t VALUES ({value})"))
    assert transaction.items == (table_item("shop", "t"),)
    assert why in reader.tables_without_keys["shop.t"]


def test_the_beginning_of_a_text_is_the_key_where_the_index_has_no_more(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(session, "CREATE TABLE t (k TEXT CHARACTER SET utf8mb4, PRIMARY KEY (k(3)))")
    (transaction,), _ = read(logged(server, session, "INSERT INTO t VALUES ('ABCDEF'), ('x')"))
    assert transaction.keys == ("shop.t/PRIMARY/abc", "shop.t/PRIMARY/x")


def test_a_minimal_row_image_has_the_key(server: servers.MariaDbServer, session: Session) -> None:
    execute(
        session,
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, mail VARCHAR(20), UNIQUE (mail))",
        "INSERT INTO t VALUES (1, 2, 'a'), (2, 3, 'b')",
        "SET binlog_row_image = MINIMAL",
    )
    path = logged(
        server,
        session,
        "UPDATE t SET a = 5 WHERE id = 1",
        "UPDATE t SET id = 9 WHERE id = 2",
        "UPDATE t SET mail = 'c' WHERE id = 1",
    )
    transactions, _ = read(path)
    expected = [(item("t", 1),), (item("t", 2), item("t", 9)), (item("t", 1),)]
    assert [each.items for each in transactions] == expected
    # The old mail is in no image: the last update may free any.
    keys = TableKeys(primary=("id",), unique={"mail": ("mail",)})
    transactions, reader = read(path, t=keys)
    assert [each.items for each in transactions] == [*expected[:2], ()]
    assert "mail" in reader.tables_without_keys["shop.t"]


def test_unique_keys_that_the_caller_names_are_in_the_write_set(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(session, "CREATE TABLE t (id INT PRIMARY KEY, mail VARCHAR(20), UNIQUE (mail))")
    path = logged(
        server,
        session,
        "INSERT INTO t VALUES (1, 'A'), (2, NULL)",
        "UPDATE t SET mail = 'b' WHERE id = 1",
    )
    keys = TableKeys(primary=("id",), unique={"mail": ("mail",)})
    transactions, _ = read(path, t=keys)
    before, after = ({"id": 1, "mail": mail} for mail in ("a", "b"))
    change = RowChange(database="shop", table="t", before=before, after=after)
    assert transactions[1].items == tuple(row_items(change, keys))
    assert [len(each.items) for each in transactions] == [3, 3]


def test_keys_of_the_catalogue_stand_in_for_those_that_the_log_leaves_out(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(
        session,
        "SET GLOBAL binlog_row_metadata = NO_LOG",
        "CREATE TABLE t (a INT, id INT PRIMARY KEY, v INT AS (a) VIRTUAL, mail VARCHAR(20) UNIQUE)",
        "CREATE TABLE u (a INT, code INT NOT NULL UNIQUE) WITH SYSTEM VERSIONING",
    )
    path = logged(
        server,
        session,
        "INSERT INTO t (a, id, mail) VALUES (5, 1, 'x'), (5, 2, NULL)",
        "INSERT INTO u VALUES (1, 7)",
        "UPDATE u SET a = 2",
    )
    reader = read_binary_log(path, keys=keys_from(catalogue_of(session, "shop")))
    assert [each.keys for each in reader] == [
        ("shop.t/PRIMARY/1", "shop.t/mail/x", "shop.t/PRIMARY/2"),
        ("shop.u/PRIMARY/7",),
        ("shop.u/PRIMARY/7",),
    ]
    assert reader.tables_without_keys == {}


def parents_of(
    server: servers.MariaDbServer, session: Session, *statements: str
) -> list[tuple[int, ...]]:
    """The parents' items of each statement, whose tables are looked up in the catalogue."""
    path = logged(server, session, *statements)

    def query(statement: str, values: Sequence[object]) -> Sequence[tuple[object, ...]]:
        with session.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()

    reader = read_binary_log(path, keys=keys_from(read_catalogue(query, "shop")))
    return [tuple(sorted(each.parent_items)) for each in reader]


def items(table: str, *numbers: int) -> tuple[int, ...]:
    """The items of rows, in the order of `parents_of`."""
    return tuple(sorted(item(table, number) for number in numbers))


@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_a_row_refers_to_its_parent_when_it_comes_goes_or_gets_another(
    server: servers.MariaDbServer, session: Session, metadata: str
) -> None:
    execute(
        session,
        f"SET GLOBAL binlog_row_metadata = {metadata}",
        "CREATE TABLE p (id INT PRIMARY KEY, n INT)",
        "INSERT INTO p VALUES (1, 0), (2, 0)",
        "CREATE TABLE c (id INT PRIMARY KEY, n INT, Parent INT, FOREIGN KEY (pArent) REFERENCES"
        " p (ID))",
        "CREATE TABLE own (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES own (id))",
    )
    found = parents_of(
        server,
        session,
        "INSERT INTO c VALUES (5, 0, 1), (6, 0, 2), (7, 0, NULL)",
        "UPDATE c SET n = 1 WHERE id = 5",
        "UPDATE c SET Parent = 2 WHERE id = 5",
        "UPDATE c SET Parent = NULL WHERE id = 5",
        "DELETE FROM c WHERE id = 6",
        "UPDATE p SET n = 1",
        "INSERT INTO own VALUES (1, 1), (2, 1), (3, 2)",
        "INSERT INTO own VALUES (4, 3)",
    )
    both, first, second = items("p", 1, 2), items("p", 1), items("p", 2)
    assert found == [both, (), both, second, second, (), (), items("own", 3)]
    assert first != second


def test_a_row_that_its_parent_may_change_refers_to_it_with_each_change(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(
        session,
        "CREATE TABLE p (a INT, b INT, code VARCHAR(9) UNIQUE, PRIMARY KEY (a, b))",
        "INSERT INTO p VALUES (1, 2, 'x')",
        "CREATE TABLE c (id INT PRIMARY KEY, n INT, b INT, a INT, code VARCHAR(20),"
        " FOREIGN KEY (a, b) REFERENCES p (a, b) ON UPDATE CASCADE,"
        " FOREIGN KEY (code) REFERENCES p (code) ON DELETE SET NULL)",
    )
    found = parents_of(
        server,
        session,
        "INSERT INTO c VALUES (5, 0, 2, 1, 'X')",
        "UPDATE c SET n = 1",
        "UPDATE p SET a = 7",
        "DELETE FROM c",
    )
    keys = TableKeys(primary=("a", "b"), unique={"code": ("code",)})
    parent: Row = {"a": 1, "b": 2, "code": "x"}
    change = RowChange(database="shop", table="p", before=None, after=parent)
    before = tuple(sorted(row_items(change, keys)))
    change = RowChange(database="shop", table="p", before=None, after={**parent, "a": 7})
    assert found == [before, before, (), tuple(sorted(row_items(change, keys)))]


def test_parents_that_cannot_be_compared_are_their_whole_table(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(
        session,
        "CREATE TABLE p (id FLOAT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, p FLOAT, FOREIGN KEY (p) REFERENCES p (id))",
    )
    found = parents_of(
        server, session, "INSERT INTO p VALUES (1)", "INSERT INTO c VALUES (1, 1), (2, NULL)"
    )
    assert found == [(), (table_item("shop", "p"),)]


def test_without_the_columns_of_a_foreign_key_no_parent_is_known(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(
        session,
        "SET SESSION binlog_row_image = MINIMAL",
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "INSERT INTO p VALUES (1), (2)",
        "CREATE TABLE c (id INT PRIMARY KEY, n INT, p INT, FOREIGN KEY (p) REFERENCES p (id))",
    )
    found = parents_of(
        server,
        session,
        "INSERT INTO c VALUES (1, 0, 1)",
        "UPDATE c SET n = 1",
        "UPDATE c SET p = 2",
        "DELETE FROM c",
    )
    assert found == [items("p", 1), (), items("p", 2), ()]


def test_statements_and_xa_end_where_the_server_ends_them(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(session, "CREATE TABLE t (id INT PRIMARY KEY) ENGINE = InnoDB")
    execute(session, "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM")
    path = logged(
        server,
        session,
        "XA START 'a'",
        "INSERT INTO t VALUES (1)",
        "XA END 'a'",
        "XA PREPARE 'a'",
        "XA COMMIT 'a'",
        "INSERT INTO m VALUES (1)",
        "CREATE TABLE c SELECT * FROM t",
        "SET binlog_format = STATEMENT",
        "UPDATE t SET id = 2",
        "SET binlog_format = ROW",
        "BEGIN",
        "INSERT INTO t VALUES (3)",
        "SAVEPOINT s",
        "INSERT INTO m VALUES (4)",
        "ROLLBACK TO s",
        "COMMIT",
        "DROP TABLE c",
    )
    transactions, reader = read(path)
    assert names(transactions) == printed(path)
    assert reader.cut_short is None
    prepared, committed, other, made, update, *_, dropped = transactions
    assert prepared.items == (item("t", 1),)
    assert (committed.items, committed.tables) == ((), None)
    assert other.items == (item("m", 1),)
    assert (made.is_ddl, made.row_count, made.items) == (True, 1, ())
    assert (update.is_ddl, update.items, update.databases) == (False, (), None)
    assert dropped.is_ddl


def test_big_rows_are_read_and_the_write_set_has_a_limit(
    server: servers.MariaDbServer, session: Session
) -> None:
    execute(session, "CREATE TABLE t (id INT PRIMARY KEY, body LONGBLOB)")
    path = logged(
        server,
        session,
        "INSERT INTO t VALUES (1, REPEAT('x', 3000000))",
        "INSERT INTO t SELECT seq + 1, 'small' FROM seq_1_to_5000",
    )
    (big, many), _ = read(path)
    assert (big.items, big.size_bytes > 3_000_000) == ((item("t", 1),), True)
    assert (many.row_count, len(many.items)) == (5000, 5000)
    _, many = read_binary_log(path, items_max=100)
    assert (many.row_count, many.items) == (5000, ())


def test_texts_that_a_collation_holds_equal_are_equal_keys(session: Session) -> None:
    known = {8, 11, 33, 45, 46, 47, 65, 83, 192, 224, 246}
    chosen = ",".join(str(number) for each in known for number in (each, each + 1024))
    collations = execute(
        session,
        "SELECT id, character_set_name, collation_name FROM information_schema.collations "
        f"WHERE id IN ({chosen})",
    )
    assert len(collations) > len(known)
    for number, character_set, collation in collations:
        assert isinstance(number, int)
        weights = execute(
            session,
            f"SELECT seq, HEX(WEIGHT_STRING(CONVERT(CHAR(seq) USING {character_set}) "
            f"COLLATE {collation})) FROM seq_0_to_127",
        )
        column = Column(ColumnType.VARCHAR, b"\x14\0", 0, 1, collation=number)
        keys_of: dict[object, set[object]] = {}
        for code, weight in weights:
            assert isinstance(code, int)
            keys_of.setdefault(weight, set()).add(value_of(column, bytes([code])))
        assert all(len(keys) == 1 for keys in keys_of.values()), (collation, keys_of)
