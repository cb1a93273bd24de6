"""Large transactions of PostgreSQL servers, and slow work at a COMMIT: others go on meanwhile."""

import os
import time
from contextlib import closing

import psycopg
import pytest

from groupcert.members.postgresql.rows import VALUE_BYTES
from tests.integration.postgresql_group import (
    TRANSACTION_BYTES_MAX,
    Commit,
    PostgresqlGroup,
    increments,
)

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database]
ROWS = 20_000
FRAME_CHARACTERS = 131_072
"""As PART in triggers.sql."""


def test_a_copy_of_many_rows_is_at_every_server_while_others_commit(
    servers3: PostgresqlGroup,
) -> None:
    copying = servers3.primaries[0]
    with increments(servers3.primaries, range(1, 31)) as running:
        with closing(copying.connect()) as session, session.transaction():
            with session.cursor().copy("COPY bulk (id, note) FROM STDIN") as copy:
                for number in range(ROWS):
                    copy.write_row((number, f"note {number} \u00e9"))
        copying.query("UPDATE bulk SET note = note || '!' WHERE id % 2 = 0")
        copying.query("DELETE FROM bulk WHERE id % 3 = 0")
    assert all(running.done)
    assert servers3.settle()
    left = sum(number % 3 > 0 for number in range(ROWS))
    assert copying.query("SELECT count(*) FROM bulk") == [(left,)]


@pytest.mark.parametrize("more", [-60, 0, 60])
def test_a_value_that_is_longer_than_a_frame_comes_whole(
    servers3: PostgresqlGroup, more: int
) -> None:
    long = "\u00e9\u4e2d" * ((FRAME_CHARACTERS + more) // 2)
    random = os.urandom(500_000)
    with closing(servers3.primaries[1].connect()) as session, session.transaction():
        for number, note in enumerate((long, "short", 3 * long)):
            session.execute(
                "INSERT INTO bulk VALUES (%s, %s, %s)",
                (ROWS + 1_000 + 10 * more + number, note, random),
            )
    assert servers3.settle()


def test_what_is_over_the_limit_is_refused_and_what_is_below_comes_whole(
    servers3: PostgresqlGroup,
) -> None:
    primary = servers3.primaries[0]
    with closing(primary.connect()) as session:
        session.execute("INSERT INTO bulk VALUES (-1, %s)", ("a" * TRANSACTION_BYTES_MAX,))
        with pytest.raises(psycopg.errors.ProgramLimitExceeded) as failure:
            session.commit()
        assert str(TRANSACTION_BYTES_MAX) in str(failure.value.diag.message_detail)
        assert failure.value.diag.message_hint
        session.rollback()
        session.execute("INSERT INTO bulk VALUES (-1, %s)", ("a" * (VALUE_BYTES + 1_000_000),))
        session.commit()
    servers3.settle()
    primary.query("UPDATE bulk SET note = 'short' WHERE id = -1")
    assert servers3.settle()
    assert primary.takes_commits()


def test_a_backend_that_dies_while_its_rows_are_ordered_loses_none(
    servers3: PostgresqlGroup,
) -> None:
    """Its server executes for it what the group has certified, or nobody has it."""
    primary = servers3.primaries[2]
    for number in range(4):
        session = primary.connect()
        session.execute(
            "INSERT INTO bulk SELECT 1000000 + %s + n, repeat('x', 200) FROM"
            " generate_series(1, 10000) n",
            (number * 10_000,),
        )
        commit = Commit(session)
        time.sleep(0.1 * number)
        with psycopg.connect(primary.dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (commit.pid,))
        commit.ended()
        found = servers3.settle()
        assert found
        ((rows,),) = primary.query(
            f"SELECT count(*) FROM bulk WHERE id > {1_000_000 + number * 10_000}"
        )
        assert rows in (0, 10_000)
