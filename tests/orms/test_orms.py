"""Applications on two servers at once: nothing of them knows of the group but the isolation level.

Both run their transactions again after a serialization failure, as their frameworks say it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from groupcert.members.demo.postgresql_servers import GroupAtServers, Primary
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.sequences import Numbering
from tests import servers
from tests.integration.waiting import wait_for
from tests.orms import sqlalchemy_shop
from tests.orms.shop import find_problems
from tests.sources import ROOT

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]

PROBE = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; UPDATE sqlalchemy_product SET stock = stock"
)
ORDERS = 20
"""That each client places."""


def django_shop(dsn: str, *arguments: str) -> "subprocess.Popen[str]":
    """Starts Django's application at a server; it waits for its standard input to end."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.orms.django_shop", *arguments],
        env={**os.environ, "SHOP_DSN": dsn},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(application: "subprocess.Popen[str]") -> str:
    """Lets an application go on; returns what it prints."""
    printed, problem = application.communicate()
    assert application.returncode == 0, problem
    return printed


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Primary]]:
    """Two servers; each application has made its tables and products at both."""
    folder = tmp_path_factory.mktemp("shops")
    (folder / "group").mkdir()
    with servers.where_installed(), ExitStack() as stack:
        primaries = [Primary(name, folder) for name in ("m1", "m2")]
        for offset, primary in enumerate(primaries, 1):
            stack.enter_context(primary.server)
            sqlalchemy_shop.create(primary.dsn)
            with django_shop(primary.dsn, "create") as making:
                end_of(making)
            attach(primary.dsn, ["public.*"], numbering=Numbering(offset, 3))
        stack.enter_context(GroupAtServers(primaries, folder / "group"))
        yield primaries


def check_shop(primaries: list[Primary], prefix: str, orders: int) -> None:
    """Asserts that the shop is right, and has the same rows at both servers."""

    def rows(primary: Primary) -> list[object]:
        tables = (f"{prefix}{name}" for name in ("customer", "product", "order", "line"))
        return [primary.query(f'SELECT * FROM "{table}" ORDER BY id') for table in tables]

    wait_for("rows are equal", lambda: len({str(rows(each)) for each in primaries}) == 1)
    with closing(primaries[0].connect()) as session:
        assert [*find_problems(session, prefix, orders)] == []


def test_sqlalchemy_at_two_servers(shops: list[Primary]) -> None:
    places = [primary.dsn for primary in shops for _ in range(2)]
    with ThreadPoolExecutor(len(places)) as pool:
        seeds = range(len(places))
        retries = sum(pool.map(partial(sqlalchemy_shop.place_orders, count=ORDERS), places, seeds))
    assert retries > 0
    check_shop(shops, sqlalchemy_shop.PREFIX, len(places) * ORDERS)


def test_django_at_two_servers(shops: list[Primary]) -> None:
    with ExitStack() as stack:
        shopping = [
            stack.enter_context(django_shop(primary.dsn, "place", str(seed), str(ORDERS)))
            for seed, primary in enumerate(shops)
        ]
        assert [each.stdout.readline() for each in shopping if each.stdout] == ["ready\n"] * 2
        pool = stack.enter_context(ThreadPoolExecutor(len(shopping)))
        retries = sum(map(int, pool.map(end_of, shopping)))
    assert retries > 0
    check_shop(shops, "django_shop_", len(shops) * ORDERS)


def test_sqlalchemy_is_told_what_it_has_to_know(shops: list[Primary]) -> None:
    first, second = (sqlalchemy_shop.engine_of(primary.dsn) for primary in shops)
    failure = wait_for("a conflict", lambda: conflict_of(first, second))
    for engine in (first, second):
        engine.dispose()
    assert failure is not None
    assert getattr(failure.orig, "sqlstate", None) == "40001"
    assert not failure.connection_invalidated


def conflict_of(first: Engine, second: Engine) -> OperationalError | None:
    """Returns what the second of two that commit is told: one that is slow is in the way of the
    first one, and its session is ended before it can be told.
    """
    with Session(first) as one, Session(second) as other:
        try:
            for session in (one, other):
                sqlalchemy_shop.place_order(session, uuid4(), "0@shop", {"apple": 1})
                session.flush()
            one.commit()
            other.commit()
        except OperationalError as error:
            return error if "was written by" in str(error) else None
    pytest.fail("both have committed")
