"""Rows of PostgreSQL as the group carries them: keys and values as bytes.

    key    public.accounts/7            schema.table/value of the key
           public.lines/7/2             of a key of several columns; "/" in a value is %2F, "%" %25
    value  {"id": 7, "owner": "Ann", "opened": "2026-11-24", "note": null}

A value is a JSON object of all columns, generated ones included. Integers are numbers, NULL is
null, everything else is the text that PostgreSQL gives and takes. The server itself writes keys and
values (`functions.py`). Replicas on other servers map these columns (`groupcert replica
--mapping`), and the embedded store of each member holds the rows as they are.
"""

from collections.abc import Iterable
from typing import NamedTuple

from groupcert.members.postgresql.tables import Table
from groupcert.v1 import transaction_pb2


class Changes(NamedTuple):
    """The last change of each row: its value, or None where it is deleted."""

    rows: dict[bytes, bytes | None]

    @property
    def puts(self) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of the rows that are put."""
        kept = [(key, value) for key, value in self.rows.items() if value is not None]
        return [key for key, _ in kept], [value for _, value in kept]

    @property
    def deletes(self) -> list[bytes]:
        """Keys of the rows that are deleted."""
        return [key for key, value in self.rows.items() if value is None]

    def encode(self) -> bytes:
        """Returns them as members carry them."""
        keys, values = self.puts
        message = transaction_pb2.Changes(
            put_keys=keys, put_values=values, delete_keys=self.deletes
        )
        return message.SerializeToString()


def changes_of(rows: Iterable[tuple[str, str | None]]) -> Changes:
    """Returns the changes of a transaction, as its backend has sent them."""
    return Changes({key.encode(): None if value is None else value.encode() for key, value in rows})


def table_name(key: bytes) -> str:
    """Returns the full name of a row's table."""
    return key.partition(b"/")[0].decode(errors="replace")


def key_of(table: Table, key: bytes) -> dict[str, str]:
    """Returns the values of a row's key by their columns."""
    text = key.decode().partition("/")[2]
    if len(table.key) == 1:
        return {table.key[0]: text}
    parts = [part.replace("%2F", "/").replace("%25", "%") for part in text.split("/")]
    return dict(zip(table.key, parts, strict=True))
