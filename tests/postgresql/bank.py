"""The bank of TPC-B, and what must hold of it: each transaction changes an account, a teller and a
branch by one amount, and notes it in the history under an id.
"""

import random
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tests.postgresql.told import Answer, Connection, Told, transact

BRANCHES = 20
TELLERS = 100
ACCOUNTS = 2_000
DELTA_MAX = 5_000
SCHEMA = f"""
CREATE TABLE branches (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE tellers (id int PRIMARY KEY, branch int NOT NULL REFERENCES branches,
    balance bigint NOT NULL);
CREATE TABLE accounts (id int PRIMARY KEY, branch int NOT NULL REFERENCES branches,
    balance bigint NOT NULL);
CREATE TABLE history (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), client text NOT NULL,
    teller int NOT NULL, branch int NOT NULL, account int NOT NULL, delta int NOT NULL);
INSERT INTO branches SELECT n, 0 FROM generate_series(1, {BRANCHES}) n;
INSERT INTO tellers SELECT n, n % {BRANCHES} + 1, 0 FROM generate_series(1, {TELLERS}) n;
INSERT INTO accounts SELECT n, n % {BRANCHES} + 1, 0 FROM generate_series(1, {ACCOUNTS}) n;
"""
STATEMENTS = """
UPDATE accounts SET balance = balance + :delta WHERE id = :account;
SELECT balance FROM accounts WHERE id = :account;
UPDATE tellers SET balance = balance + :delta WHERE id = :teller;
UPDATE branches SET balance = balance + :delta WHERE id = :branch;
"""
PGBENCH_SCRIPT = rf"""
\set account random(1, {ACCOUNTS})
\set teller random(1, {TELLERS})
\set branch random(1, {BRANCHES})
\set delta random(-{DELTA_MAX}, {DELTA_MAX})
BEGIN;
{STATEMENTS}
INSERT INTO history (client, teller, branch, account, delta)
    VALUES ('pgbench', :teller, :branch, :account, :delta);
END;
"""
SUMS = {
    "accounts": "SELECT sum(balance) FROM accounts",
    "tellers": "SELECT sum(balance) FROM tellers",
    "branches": "SELECT sum(balance) FROM branches",
    "history": "SELECT coalesce(sum(delta), 0) FROM history",
}
BY_PLACE = """
SELECT '{table}', id FROM {table} WHERE balance <> (SELECT coalesce(sum(delta), 0) FROM history
    WHERE history.{column} = {table}.id) ORDER BY id"""
PLACES = {"accounts": "account", "tellers": "teller", "branches": "branch"}


class BankClient:
    """Writes an id into the history with each transaction, and runs it again, with the same id,
    after SQLSTATE 40001; `told` has the last answer by id.
    """

    def __init__(self, name: str, chance: random.Random, told: dict[uuid.UUID, Answer]) -> None:
        """`told` is shared by all clients."""
        self._name = name
        self._chance = chance
        self._told = told
        self._values: dict[str, Any] = {}

    def work(self, connection: Connection) -> Answer:
        """Runs one transaction."""
        chance = self._chance
        if not self._values:
            self._values = {
                "id": uuid.UUID(int=chance.getrandbits(128), version=4),
                "client": self._name,
                "account": chance.randint(1, ACCOUNTS),
                "teller": chance.randint(1, TELLERS),
                "branch": chance.randint(1, BRANCHES),
                "delta": chance.randint(-DELTA_MAX, DELTA_MAX),
            }
        values = self._values
        answer = transact(connection, lambda session: _transfer(session, values))
        self._told[values["id"]] = answer
        if answer.sqlstate != "40001":
            self._values = {}
        return answer


def _transfer(session: Connection, values: Mapping[str, Any]) -> None:
    for statement in STATEMENTS.strip().splitlines():
        words = statement.rstrip(";")
        for name in values:
            words = words.replace(f":{name}", f"%({name})s")
        session.execute(words.encode(), values)
    session.execute(
        "INSERT INTO history VALUES (%(id)s, %(client)s, %(teller)s, %(branch)s, %(account)s,"
        " %(delta)s)",
        values,
    )


def find_problems(
    session: Connection, told: Mapping[uuid.UUID, Answer], pgbench_processed: int
) -> Iterator[str]:
    """Yields what is wrong with the bank at a server, which has everything.

    Args:
        told: The last answer to each client of ours, by the id that it wrote.
        pgbench_processed: Transactions that `pgbench` counted as committed.
    """
    sums = {name: _rows(session, query)[0][0] for name, query in SUMS.items()}
    if len(set(sums.values())) > 1:
        yield f"the sums differ: {', '.join(f'{name} {total}' for name, total in sums.items())}"
    for table, column in PLACES.items():
        for name, number in _rows(session, BY_PLACE.format(table=table, column=column)):
            yield f"{name}/{number} is not the sum of its history"
    rows = _rows(session, "SELECT id FROM history WHERE client <> 'pgbench'")
    times = Counter(number for (number,) in rows)
    for number, answer in told.items():
        found = times.pop(number, 0)
        if answer.told is Told.COMMITTED and found != 1:
            yield f"{number} was acknowledged, and is there {found} times"
        elif answer.told is Told.REFUSED and found:
            yield f"{number} was refused with SQLSTATE {answer.sqlstate}, and is there"
        elif answer.sqlstate == "23505":
            yield f"{number} was refused with 40001, and was there when it was run again"
    for number in times:
        yield f"{number} is in the history, and nobody has written it"
    ((found,),) = _rows(session, "SELECT count(*) FROM history WHERE client = 'pgbench'")
    if found < pgbench_processed:
        yield f"pgbench was told of {pgbench_processed} commits, {found} are there"


def _rows(session: Connection, query: str) -> list[tuple[Any, ...]]:
    return session.execute(query.encode()).fetchall()
