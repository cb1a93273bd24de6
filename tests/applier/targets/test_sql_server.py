"""Rows in statements, and statements in requests: all of them, in order, none too large."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.targets.sql_server import (
    ROWS_PER_STATEMENT,
    STATEMENT_BYTES,
    chunks,
    requests,
)


def test_a_statement_ends_after_so_many_rows_or_bytes() -> None:
    small = [(number, b"x") for number in range(2 * ROWS_PER_STATEMENT + 1)]
    assert [len(chunk) for chunk in chunks(small)] == [ROWS_PER_STATEMENT] * 2 + [1]
    large = [(number, b"x" * STATEMENT_BYTES) for number in range(5)]
    assert [len(chunk) for chunk in chunks(large)] == [2, 2, 1]
    assert [row for chunk in chunks(large) for row in chunk] == large
    assert list(chunks([])) == []


@given(st.lists(st.text("ab", min_size=1, max_size=9), min_size=1), st.integers(1, 40))
def test_requests_are_the_statements_in_order(statements: list[str], limit: int) -> None:
    found = list(requests(statements, limit))
    assert [statement for request in found for statement in request] == statements
    assert all(len(request) == 1 or len(";".join(request)) <= limit for request in found)
