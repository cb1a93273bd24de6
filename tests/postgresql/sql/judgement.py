"""What has to hold after a case, by queries of a superuser at each server."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

Connection = psycopg.Connection[Any]

SETTINGS = (
    "SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET timezone = 'UTC';"
    " SET extra_float_digits = 3; SET search_path = pg_catalog; SET bytea_output = 'hex';"
    " SET row_security = off; SET lc_monetary = 'C'"
)
"""Of the session that reads rows as text."""
ROWS_SHOWN_MAX = 4
_RIGHTS = """
SELECT 'role ' || (to_jsonb(r) - 'oid' - 'rolpassword' - 'rolconfig')::text FROM pg_roles r
UNION ALL SELECT format('%s is a member of %s', member::regrole, roleid::regrole)
FROM pg_auth_members
UNION ALL SELECT format('relation %s of %s: %s', c.oid, relowner::regrole, acl)
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace, unnest(relacl) acl
WHERE n.nspname ~ '^(groupcert$|case_)' AND relname !~ '^(child|late)_'
UNION ALL SELECT format('database %s: %s', datname, datacl) FROM pg_database
UNION ALL SELECT format('parameter %s: %s', parname, paracl) FROM pg_parameter_acl
UNION ALL SELECT format('function %s of %s: %s', p.oid::regprocedure, proowner::regrole, proacl)
FROM pg_proc p WHERE pronamespace = 'groupcert'::regnamespace"""
_REFERENCES = """
SELECT f.conname, conrelid::regclass::text, confrelid::regclass::text,
    ARRAY(SELECT quote_ident(attname) FROM unnest(conkey) WITH ORDINALITY k(number, place)
        JOIN pg_attribute ON attrelid = conrelid AND attnum = number ORDER BY place),
    ARRAY(SELECT quote_ident(attname) FROM unnest(confkey) WITH ORDINALITY k(number, place)
        JOIN pg_attribute ON attrelid = confrelid AND attnum = number ORDER BY place)
FROM pg_constraint f WHERE contype = 'f' AND convalidated
AND (SELECT format('%%s.%%s', nspname, relname) FROM pg_class c JOIN pg_namespace n
    ON n.oid = relnamespace WHERE c.oid = conrelid) = ANY(%(attached)s::text[])
AND (SELECT format('%%s.%%s', nspname, relname) FROM pg_class c JOIN pg_namespace n
    ON n.oid = relnamespace WHERE c.oid = confrelid) = ANY(%(attached)s::text[])"""


class Problem(NamedTuple):
    """What is wrong: `kind` is the same for other cases of one fault, as far as can be told."""

    kind: str
    text: str


def compare_rows(sessions: Sequence[Connection], attached: Sequence[str]) -> list[Problem]:
    """Returns the attached tables whose rows differ between servers."""
    for session in sessions:
        session.execute(SETTINGS.encode())
    problems = []
    for name in attached:
        rows = [_rows_of(session, name) for session in sessions]
        for place, others in enumerate(rows[1:], 2):
            if others == rows[0]:
                continue
            ours, theirs = (
                [row for row in one if row not in other][:ROWS_SHOWN_MAX]
                for one, other in ((rows[0], others), (others, rows[0]))
            )
            text = f"{name}: server 1 alone has {ours}, server {place} alone has {theirs}"
            problems.append(Problem("rows differ", text))
            break
    return problems


def _rows_of(session: Connection, name: str) -> list[str]:
    schema, _, table = name.partition(".")
    found = session.execute(
        "SELECT format('%%I.%%I', %s::text, %s::text)", (schema, table)
    ).fetchone()
    assert found is not None, "a query without FROM has a row"
    try:
        rows = session.execute(
            f"SELECT format('%s', t) FROM {found[0]} t ORDER BY 1".encode()
        ).fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        return [f"no such table: {error.sqlstate}"]
    return [str(row) for (row,) in rows]


def find_orphans(session: Connection, attached: Sequence[str]) -> list[Problem]:
    """Returns the foreign keys between attached tables that have children without a parent."""
    problems = []
    found = session.execute(_REFERENCES, {"attached": [*attached]}).fetchall()
    for name, child, parent, columns, keys in found:
        pairs = zip(columns, keys, strict=True)
        same = " AND ".join(f"c.{column} OPERATOR(pg_catalog.=) p.{key}" for column, key in pairs)
        given = " AND ".join(f"c.{column} IS NOT NULL" for column in columns)
        ((count,),) = session.execute(
            f"SELECT count(*) FROM {child} c WHERE {given}"
            f" AND NOT EXISTS (SELECT FROM {parent} p WHERE {same})".encode()
        ).fetchall()
        if count:
            problems.append(Problem("orphans", f"{count} of {child} by {name}"))
    return problems


def read_rights(session: Connection) -> set[str]:
    """Returns what roles may, and who may what in the schema `groupcert`."""
    return {str(row) for (row,) in session.execute(_RIGHTS.encode()).fetchall()}
