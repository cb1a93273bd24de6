"""The bank of TPC-B, and what must hold of it: each transaction changes an account, a teller and a
branch by one amount, and notes it in the history under an id.
"""

import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tests.laboratory.at_work import AtWork
from tests.laboratory.history import Outcome
from tests.laboratory.sql_clients import Connection, SqlSession
from tests.laboratory.transactions import Answer, Begin, Decision

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
NOTE = "INSERT INTO history VALUES (:id, :client, :teller, :branch, :account, :delta)"
BEGIN = Begin(version_min=0, latest=False, serializable=False)
PAUSE_SECONDS = 0.05
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


class BankClients(AtWork):
    """A client at each server, which writes an id into the history with each transaction, and runs
    it again, with the same id, after SQLSTATE 40001; `told` has the last answer by id.
    """

    def __init__(self, dsns: Sequence[str], seed: int) -> None:
        super().__init__(len(dsns))
        self._dsns = dsns
        self._seed = seed
        self.told: dict[uuid.UUID, Decision] = {}
        self.answers: Counter[str] = Counter()
        self._committed: Counter[str] = Counter()

    def wait_for_commits(self, count: int, dsn: str) -> None:
        """Returns when so many more transactions are committed at a server."""
        self.wait_for_more(f"commits at {dsn}", count, lambda: self._committed[dsn])

    def work(self, number: int) -> None:
        """Transfers at the server of that number."""
        dsn, chance = self._dsns[number], random.Random(f"{self._seed}/{number}")
        session, values = SqlSession(dsn, dsn), _values(number, chance)
        while not self.stopped.is_set():
            answer = _transfer(session, values)
            self.told[values["id"]] = answer
            self.answers[f"{answer.outcome} {answer.cause}".rstrip()] += 1
            self._committed[dsn] += answer.outcome is Outcome.COMMITTED
            if answer.cause != "40001":
                values = _values(number, chance)
            if answer.outcome not in (Outcome.COMMITTED, Outcome.CONFLICT):
                self.stopped.wait(PAUSE_SECONDS)
        session.close()


def _values(client: int, chance: random.Random) -> dict[str, Any]:
    return {
        "id": uuid.UUID(int=chance.getrandbits(128), version=4),
        "client": f"{client}",
        "account": chance.randint(1, ACCOUNTS),
        "teller": chance.randint(1, TELLERS),
        "branch": chance.randint(1, BRANCHES),
        "delta": chance.randint(-DELTA_MAX, DELTA_MAX),
    }


def _transfer(session: SqlSession, values: Mapping[str, Any]) -> Decision:
    """Runs one transaction of the load."""
    steps: list[Callable[[], Answer]] = [lambda: session.answer(BEGIN)]
    for statement in (*STATEMENTS.strip().splitlines(), NOTE):
        words = re.sub(r":(\w+)", r"%(\1)s", statement.rstrip(";"))
        steps.append(partial(session.execute, words.encode(), values))
    for step in (*steps, session.commit):
        if isinstance(answer := step(), Decision):
            return answer
    raise AssertionError(f"{answer} is no answer to a commit")


def find_problems(
    session: Connection, told: Mapping[uuid.UUID, Decision], pgbench_processed: int
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
        if answer.outcome is Outcome.COMMITTED and found != 1:
            yield f"{number} was acknowledged, and is there {found} times"
        elif answer.outcome.is_aborted and found:
            yield f"{number} was refused with SQLSTATE {answer.cause}, and is there"
        elif answer.cause == "23505":
            yield f"{number} was refused with 40001, and was there when it was run again"
    for number in times:
        yield f"{number} is in the history, and nobody has written it"
    ((found,),) = _rows(session, "SELECT count(*) FROM history WHERE client = 'pgbench'")
    if found < pgbench_processed:
        yield f"pgbench was told of {pgbench_processed} commits, {found} are there"


def _rows(session: Connection, query: str) -> list[tuple[Any, ...]]:
    return session.execute(query.encode()).fetchall()
