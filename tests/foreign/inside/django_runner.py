"""Runs Django's own tests: attaches their tables once they are made, and notes what comes out.

`FOREIGN_COMMITS=1`: tests commit what they do, where Django would roll it back at the end of each.
"""

import os
import unittest
from typing import Any

from django.core.management.commands import flush
from django.db import connections
from django.test import TestCase, TransactionTestCase
from django.test.runner import DiscoverRunner
from door_call import ask, errors_of, has_group, note  # type: ignore[import-not-found]

kept: list[str] = []
"""Tables that are not emptied."""


class Result(unittest.TextTestResult):
    """Notes each test in the file `FOREIGN_OUTCOMES`."""

    def _note(self, test: object, outcome: str, error: Any = None) -> None:
        errors = errors_of(error[1]) if error else []
        note(str(test), outcome, errors)

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self._note(test, "passed")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self._note(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        note(str(test), "skipped", [(None, f"skipped: {reason}")])

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._note(test, "error", err)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, "failure", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, "failure", err)


def flush_of_filled(style: Any, connection: Any, reset_sequences: bool, **_: Any) -> Any:
    """Returns the TRUNCATE of Django's `flush`, of the tables alone that may have a row: of some
    hundred tables, nearly all are empty.
    """
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name FROM unnest(%s::text[]) name"
            " WHERE pg_relation_size(quote_ident(name)) > 0",
            [[*tables]],
        )
        filled = [name for (name,) in cursor.fetchall() if name not in kept]
    options = {"reset_sequences": reset_sequences, "allow_cascade": True}
    return connection.ops.sql_flush(style, filled, **options)


def compare_first(teardown: Any) -> Any:
    """Returns a teardown that compares the rows at all servers before it empties the tables."""

    def compared(self: Any) -> None:
        differ = ask("differences")
        teardown(self)
        assert not differ, f"rows differ: {differ}"

    return compared


class Runner(DiscoverRunner):  # type: ignore[misc]  # Django has no types.
    """Django's, with these differences."""

    def get_resultclass(self) -> type[Result]:
        return Result

    def setup_databases(self, **options: Any) -> Any:
        flush.sql_flush = flush_of_filled
        if os.environ.get("FOREIGN_COMMITS") == "1":
            never = classmethod(lambda cls: False)
            TestCase._databases_support_transactions = never
            TestCase._should_reload_connections = lambda _: False
            # Their rows would be made anew behind each test, for hundreds of models.
            kept.extend(("django_content_type", "auth_permission"))
            flush.emit_post_migrate_signal = lambda *_, **__: None
        made = super().setup_databases(**options)
        name = connections["default"].settings_dict["NAME"]
        for each in connections.all():
            each.close()
        if has_group():
            ask("spread", name)
            TransactionTestCase._fixture_teardown = compare_first(
                TransactionTestCase._fixture_teardown
            )
        return made

    def teardown_databases(self, old_config: Any, **options: Any) -> None:
        """Leaves them: their folder is removed."""
