"""Rows of PostgreSQL as the group carries them: keys and values as bytes.

    key    public.accounts/7            schema.table/value of the key
           public.lines/7/2             of a key of several columns; "/" in a value is %2F, "%" %25
    value  {"id": 7, "owner": "Ann", "opened": "2026-11-24", "note": null}

A value is a JSON object of all columns, generated ones included. Integers are numbers, NULL is
null, everything else is the text that PostgreSQL gives and takes. The server itself writes keys and
values (`functions.py`). A value that is longer than members take goes on in rows of its own, whose
keys are the row's, a zero byte and a number; no text of PostgreSQL has a zero byte. Replicas on
other servers map these columns (`groupcert replica --mapping`), but for divided values; the
embedded store of each member holds the rows as they are.
"""

import json
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from groupcert.v1.transaction_pb2 import Changes

from ...certifier.write_set import item_from_text, store_key_item
from ..wire.pieces import RowReader
from .tables import Table

VALUE_BYTES = 16 << 20
"""Bytes of a value, with those of one frame at most, from which on it goes on in another row."""
_CONTINUES = b"\x00"
_ITEM, _TRUNCATED, _DELETED = b"!", b"T", b"-"
TRANSACTION_BYTES_MAX = 1 << 30
"""Bytes of a transaction's rows: no group's `transaction_bytes_max` is larger."""


class ChangedRows:
    """The rows that a transaction has changed and its items, as its backend sends them at COMMIT:
    frame by frame, each one part of the transaction (see `members/wire/pieces.py`).
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        """Serialized `Changes` messages."""
        self.size = 0
        """Bytes of the parts."""
        self.items: list[int] = []
        """Items beside the rows' own."""
        self.tables: set[str] = set()
        self.problem = ""
        """Over which limit they are."""
        self.truncated: list[str] = []
        """Tables of which all rows were removed, those too that the snapshot does not see."""
        self._names: dict[int, bytes] = {}
        self._continued_bytes = 0
        """Of a value that goes on, in the row of the group that has it now."""
        self._suffix = b""
        """Of that row's key."""

    def add(self, lines: Iterable[bytes], *, continued: bool) -> None:
        """Adds the lines of a frame (see `backends.py`). `continued`: the last value goes on in the
        next frame. What is over a limit is not kept.
        """
        if self.problem:
            return
        changes = Changes(continued=continued)
        for line in lines:
            kind, text = line[:1], line[1:]
            if kind == _ITEM:
                self.items.append(item_from_text(text.decode()))
                self._names[self.items[-1]] = text
                continue
            if kind == _TRUNCATED:
                self.truncated.append(text.decode())
                continue
            path, _, value = text.partition(b"\n")
            name = path[1:-1] if b"\\" not in path else json.loads(path).encode()
            # Only the first row of a frame goes on with a value of the frame before.
            key, self._suffix = name + self._suffix, b""
            self._names[store_key_item(key)] = name
            self.tables.add(table_name(key))
            if kind == _DELETED:
                changes.delete_keys.append(key)
            else:
                changes.put_keys.append(key)
                changes.put_values.append(value)
        if continued:
            self._go_on(changes)
        self.parts.append(changes.SerializeToString())
        self.size += len(self.parts[-1])
        if self.size > TRANSACTION_BYTES_MAX:
            self.problem = f"Its rows have {self.size} bytes, {TRANSACTION_BYTES_MAX} at most."
            self.parts.clear()

    def _go_on(self, changes: Changes) -> None:
        """Notes where the last value goes on: in its row, or in the next one."""
        _, mark, number = changes.put_keys[-1].partition(_CONTINUES)
        self._continued_bytes += len(changes.put_values[-1])
        self._suffix = mark + number
        if self._continued_bytes > VALUE_BYTES:
            changes.continued, self._continued_bytes = False, 0
            self._suffix = _CONTINUES + b"%d" % (int(number or b"0") + 1)

    @property
    def write_set(self) -> AbstractSet[int]:
        """The items of all."""
        return self._names.keys()

    def name_of(self, item: int) -> str:
        """Returns a row or a key in words."""
        name = self._names.get(item)
        return name.decode() if name is not None else f"item {item:016x}"


def rows_in(parts: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yields keys and values of a transaction's rows; None: the row is deleted.

    Raises:
        InvalidWriteSet: These are no parts.
    """
    reader = RowReader()
    key, pieces = b"", list[bytes]()
    for part in parts:
        keys, values, deleted = reader.read(part)
        yield from ((each, None) for each in deleted)
        for name, value in zip(keys, values, strict=True):
            if _CONTINUES not in name:
                if pieces:
                    yield key, b"".join(pieces)
                key, pieces = name, []
            pieces.append(value)
    if pieces:
        yield key, b"".join(pieces)


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
