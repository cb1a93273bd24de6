"""A MySQL server as a replica's source: one that `MYSQL_URL` names, whose log is emptied for it.

It has to run with gtid_mode=ON, and the account needs all rights:

    MYSQL_URL=mysql://admin@localhost:3306/ pytest tests/members/replica/test_mysql_sources.py
"""

import os
import random
from collections.abc import Iterator
from contextlib import closing

import pytest

from groupcert.applier.errors import PurgedAtSource, ReplicaAhead
from groupcert.applier.mysql_logs.prepared_payload import Step, prepared_step
from groupcert.applier.mysql_servers.server_url import ServerUrl
from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.gtid_set import GtidSet
from tests.members.replica.test_server_sources import Received

URL = os.environ.get("MYSQL_URL", "")
OTHER = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"

pytestmark = [
    pytest.mark.database,
    pytest.mark.skipif(not URL, reason="needs a MySQL server at MYSQL_URL"),
]


def execute(*statements: str) -> tuple[tuple[object, ...], ...]:
    """Executes statements in a session of its own; returns the rows of the last one."""
    with closing(ServerUrl.parse(URL).connect()) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return tuple(cursor.fetchall())


def executed() -> GtidSet:
    """All that the server has executed."""
    ((text,),) = execute("SELECT @@gtid_executed")
    return GtidSet.parse(str(text))


def insert(first: int, count: int) -> None:
    """Inserts rows, a transaction each."""
    keys = range(first, first + count)
    execute(*(f"INSERT INTO shop.orders VALUES ({key}, 'x')" for key in keys))


@pytest.fixture(autouse=True)
def shop() -> Iterator[None]:
    """An empty log, and an empty table."""
    execute(
        "RESET BINARY LOGS AND GTIDS",
        "CREATE DATABASE IF NOT EXISTS shop",
        "DROP TABLE IF EXISTS shop.orders",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, note LONGTEXT)",
    )
    yield
    execute("SET GLOBAL binlog_transaction_compression = OFF", "DROP DATABASE shop")


def test_versions_are_places_in_the_log_whatever_the_replica_has() -> None:
    insert(0, 100)
    execute("FLUSH BINARY LOGS", "SET GLOBAL binlog_transaction_compression = ON")
    for number in range(1, 11):
        insert(1_000 * number, 10)
        execute(
            f"SET gtid_next = '{OTHER}:tag:{number}'",
            f"INSERT INTO shop.orders VALUES ({1_000 * number + 500}, 'x')",
            "SET gtid_next = AUTOMATIC",
        )
    whole = Received(GtidSet(), URL)
    whole.take_until(executed())
    stamped = [each[1:6] for each in whole.transactions]
    assert [version for version, *_ in stamped] == [*range(1, len(stamped) + 1)]
    chance = random.Random(1)
    for _ in range(20):
        stop = chance.randrange(10, len(stamped))
        gaps = {stop - chance.randrange(1, 10) for _ in range(3)}
        has = [each.gtid for each in whole.transactions[:stop] if each.version not in gaps]
        received = Received(GtidSet.of(*(gtid for gtid in has if gtid)), URL)
        received.take_until(executed())
        assert [each[1:6] for each in received.transactions] == [
            each for each in stamped if each[1] not in has
        ]


def test_what_a_source_lacks_is_told_by_its_name() -> None:
    insert(0, 10)
    before = executed()
    ahead = before.copy()
    ahead.add_interval(OTHER, 1, 3)
    with pytest.raises(ReplicaAhead, match=f"{OTHER}:1-3"):
        Received(ahead, URL).take(lambda: False)
    execute("FLUSH BINARY LOGS")
    files = execute("SHOW BINARY LOGS")
    execute(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
    with pytest.raises(PurgedAtSource, match=str(before)):
        Received(GtidSet(), URL).take(lambda: False)
    received = Received(before, URL)
    insert(100, 1)
    received.take_until(executed())
    assert [each.version for each in received.transactions] == [before.count() + 1]


def test_a_source_whose_log_was_emptied_is_behind() -> None:
    received = Received(executed(), URL)
    received.take(lambda: received.news[-1].source)
    execute("RESET BINARY LOGS AND GTIDS")
    with pytest.raises(ReplicaAhead, match=":1-3"):
        received.take(lambda: False)


def test_a_server_that_does_not_name_all_its_transactions_is_refused() -> None:
    execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        with pytest.raises(InvalidSetting, match="gtid_mode of source"):
            Received(GtidSet(), URL).take(lambda: False)
    finally:
        execute("SET GLOBAL gtid_mode = ON")


def test_an_xa_transaction_comes_prepared_and_settled() -> None:
    received = Received(executed(), URL)
    for number, end in enumerate(("COMMIT", "ROLLBACK"), 1):
        insert = f"INSERT INTO shop.orders VALUES ({number}, 'x')"
        execute("XA START 'x','y',7", insert, "XA END 'x','y',7", "XA PREPARE 'x','y',7")
        execute(f"XA {end} 'x','y',7")
    received.take_until(executed())
    steps = [prepared_step(entry.payload) for entry in received.transactions]
    xid = "x'78',x'79',7"
    assert [(step.step, step.xid, bool(step.rows)) for step in steps if step] == [
        (Step.PREPARE, xid, True),
        (Step.COMMIT, xid, False),
        (Step.PREPARE, xid, True),
        (Step.ROLLBACK, xid, False),
    ]
    assert {entry[3:5] for entry in received.transactions} == {(0, 0)}, "each runs alone"
