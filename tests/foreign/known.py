"""Why tests of others fail at a server of a group, where it does not refuse what they do.

Each reason is one that members/postgresql/README.md states, or lies in how the suite is run here. A
failure that is not here is a defect.
"""

PREPARED = {r"prepared transactions.* disabled": "attach demands max_prepared_transactions = 0"}
LOST = {
    r"command send failed|backend died|closed the connection|server conn crashed": (
        "a session that was ended, and whose client was not listening, sees a lost connection"
    )
}
KNOWN: dict[str, dict[str, str]] = {
    "django": {
        r"test_crafted_xml_performance.*not less than": "it compares times, of Python alone",
    },
    "sqlalchemy": {
        **PREPARED,
        "NamedTypeTest.*::test_non_native_dialect": "it waits for DDL, which another session runs",
    },
    "psycopg": {
        **PREPARED,
        r"test_errors_raised_on_commit.*pipeline aborted": (
            "psycopg marks it as flaky: at a server alone it fails now and then, too"
        ),
    },
    "pgbench": LOST,
    "pgbouncer": LOST,
    "alembic": {
        r"at one server: stays there: purchase\.": "a table that is made at one server stays there"
    },
}
"""By program, and its variants: what is found in `TEST: what was said`, and the reason."""
