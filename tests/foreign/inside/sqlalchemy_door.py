"""Has SQLAlchemy's tests make and drop their tables at all servers of the group.

What MetaData, tables and types would run as DDL is collected, by a session of its own that only
looks for what is there, and run by `groupcert postgresql ddl`. What is refused there, the test runs
by itself; so it does what it makes in a transaction that is rolled back behind each test, where no
other server would ever have it.
"""

import os
import re
from typing import Any

import psycopg
from door_call import ask, has_group, note  # type: ignore[import-not-found]

DDL = ("CREATE", "ALTER", "DROP", "COMMENT")
TEMPORARY = re.compile(r"CREATE\s+TEMP", re.IGNORECASE)
WRITES = ("INSERT", "UPDATE", "DELETE")
_differing: set[str] = set()


def pytest_collection_finish() -> None:
    """Has all DDL of schema elements go through the group."""
    if not has_group():
        return
    from sqlalchemy.engine import Connection as SqlConnection
    from sqlalchemy.testing.fixtures import base

    original = SqlConnection._run_ddl_visitor

    def through_group(self: Any, visitor: Any, element: Any, **options: Any) -> None:
        fixture: Any = base._connection_fixture_connection
        is_rolled_back = fixture is self and self.in_transaction()
        statements = None
        if not is_rolled_back or _is_attached(self, element):
            statements = _collected(self, original, visitor, element, options)
        if statements and any(each.startswith("DROP TABLE") for each in statements):
            _compare()
        if not statements or ask("change", ";\n".join(statements)):
            original(self, visitor, element, **options)

    setattr(SqlConnection, original.__name__, through_group)


def _is_attached(connection: Any, element: Any) -> bool:
    """Returns whether a table, or one of MetaData, is at all servers. An index is never asked
    for: its test looks in its own transaction, which would not see what another session made.
    """
    elements = getattr(element, "tables", {"": element}).values()
    tables = [each for each in elements if hasattr(each, "primary_key")]
    names = [connection.dialect.identifier_preparer.format_table(table) for table in tables]
    with psycopg.connect(os.environ["FOREIGN_DSN"]) as session:
        query = "SELECT FROM groupcert.attached, unnest(%s::text[]) name"
        query += " WHERE to_regclass(name) = relation"
        return session.execute(query.encode(), (names,)).rowcount > 0


def _collected(
    connection: Any, original: Any, visitor: Any, element: Any, options: dict[str, Any]
) -> list[str] | None:
    """Returns the statements that would change the schema; None: they are the session's own."""
    from sqlalchemy import create_engine, event, exc
    from sqlalchemy.pool import NullPool

    if connection.dialect.name != "postgresql":
        return None
    statements: list[str] = []
    written: list[str] = []

    def keep(_cursor: Any, statement: str, *_rest: object) -> bool:
        """Returns whether a statement counts as executed."""
        verb = statement.split(None, 1)[0].upper()
        if verb in DDL:
            statements.append(statement.strip().replace("%%", "%"))
        elif verb in WRITES:
            written.append(statement)
        return verb in DDL + WRITES

    url = connection.engine.url.set(drivername="postgresql+psycopg")
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    for name in ("do_execute", "do_execute_no_params"):
        event.listen(engine, name, keep)
    given = connection.get_execution_options()
    kept = {name: given[name] for name in ("schema_translate_map",) if name in given}
    try:
        with engine.connect().execution_options(**kept) as collecting:
            original(collecting, visitor, element, **options)
    except exc.SQLAlchemyError:
        return None
    is_own = written or any(TEMPORARY.match(statement) for statement in statements)
    return None if is_own else statements


def _compare() -> None:
    """Notes tables whose rows differ, once each."""
    differ = set(ask("differences")) - _differing
    if differ:
        _differing.update(differ)
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        note(test, "rows", [(None, f"rows differ: {', '.join(sorted(differ))}")])
