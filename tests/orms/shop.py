"""The shop as both frameworks have it: what it sells, and what must hold at the end.

Each order has a reference of its client's in a unique column. So a client may run an order again
after any error, even if it cannot know whether that was committed: it looks for the reference, and
one that it does not see yet conflicts with its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = "psycopg.Connection[Any]"
STOCK = 1_000
PRODUCTS = ("apple", "bread", "cheese")
CUSTOMERS = 4


def find_problems(session: Connection, prefix: str, orders: int) -> Iterator[str]:
    """Yields what is wrong with a shop whose tables begin with `prefix`, after so many orders."""
    names = {"product": f"{prefix}product", "line": f"{prefix}line", "order": f"{prefix}order"}
    names["customer"] = f"{prefix}customer"
    for name, stock, sold in _rows(
        session,
        "SELECT name, stock, coalesce((SELECT sum(quantity) FROM {line} WHERE product_id ="
        " {product}.id), 0) FROM {product}",
        names,
    ):
        if stock + sold != STOCK:
            yield f"{name}: {stock} left and {sold} sold are not {STOCK}"
    ((count,),) = _rows(session, "SELECT count(*) FROM {order}", names)
    if count != orders:
        yield f"{count} orders, {orders} were placed"
    for (number,) in _rows(
        session,
        "SELECT id FROM {order} WHERE total <> (SELECT sum(quantity) FROM {line} WHERE order_id ="
        " {order}.id)",
        names,
    ):
        yield f"the lines of order {number} are not its total"
    emails = _rows(session, "SELECT email FROM {customer}", names)
    if len(set(emails)) != len(emails) or len(emails) != CUSTOMERS:
        yield f"{len(emails)} customers, {CUSTOMERS} have ordered"


def _rows(session: Connection, query: str, names: Mapping[str, str]) -> list[tuple[Any, ...]]:
    return session.execute(query.format(**names).encode()).fetchall()
