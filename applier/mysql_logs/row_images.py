"""Row images: the values of a row's columns, found and read with as little per row as there can be.

An image is a bit for each of its columns that is NULL, then the others' values one behind the
other. For each pattern of NULLs the columns are put together as steps: widths that are fixed are
read at once, up to the length of the next value that has one.

Source: MySQL 8.4 source documentation of Rows_event.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from .column_types import Column, ColumnType
from .events import Event
from .row_errors import UnreadableValue

PATTERNS_MAX = 1_024
"""Patterns of NULLs that are kept for one set of columns."""
_LENGTH_CODES = {1: "B", 2: "H", 3: "3s", 4: "I"}

T = TypeVar("T")
Values: TypeAlias = tuple[T | None, ...]


class Field(NamedTuple, Generic[T]):
    """A column of an image. `read`: its values' reader; None for one that is passed over.
    `code`: what `struct` reads such a value by, in place of `read`; empty if it cannot.
    """

    column: Column
    name: str
    read: Callable[[bytes], T] | None
    code: str = ""


class _Step(NamedTuple, Generic[T]):
    """Values of fixed widths, then the length of one that has no fixed width.

    `converted`: the readers of all these; None for what `struct` gives, and if that is all of them.
    `length_bytes`: of the last one's length, 0 if there is none. `read`: its reader, None if it is
    passed over.
    """

    unpack: Callable[[bytes, int], tuple[Any, ...]]
    width: int
    converted: tuple[Callable[[bytes], T] | None, ...] | None
    length_bytes: int
    read: Callable[[bytes], T] | None


class _Plan(NamedTuple, Generic[T]):
    """The way to read images with a pattern of NULLs; `nulls`: their places among the values."""

    steps: tuple[_Step[T], ...]
    nulls: tuple[int, ...]


class RowImage(Generic[T]):
    """Reads the images of a table's rows that have the same columns, `fields`."""

    def __init__(self, table: str, fields: Sequence[Field[T]]) -> None:
        self._table = table
        self._fields = tuple(fields)
        self._null_bytes = (len(self._fields) + 7) // 8
        self._plans: dict[bytes, _Plan[T]] = {}

    def read(self, event: Event, content: bytes, position: int) -> tuple[Values[T], int]:
        """Returns the values of the image at a position, without those passed over, and the
        position of its end.

        Raises:
            InvalidBinaryLog: it ends beyond its event.
            UnreadableValue: a reader refuses a value.
        """
        start = position
        position += self._null_bytes
        pattern = content[start:position]
        steps, nulls = self._plans.get(pattern) or self._planned(pattern)
        values: list[T | None] = []
        length: Any = 0
        try:
            for unpack, width, converted, length_bytes, read in steps:
                found = unpack(content, position)
                position += width
                if converted is None:
                    values += found
                else:
                    for value, convert in zip(found, converted, strict=True):
                        values.append(value if convert is None else convert(value))
                if length_bytes:
                    length = values.pop()
                    if length_bytes == 3:
                        length = int.from_bytes(length, "little")
                    if read is not None:
                        values.append(read(content[position : position + length]))
                    position += length
                    length = 0
        except struct.error:
            position = len(content) + 1
        except (ValueError, LookupError) as error:
            if position + length <= len(content):
                raise self._unreadable(pattern, len(values), error) from None
            position += length
        if position > len(content):
            raise event.invalid(
                f"a row of {self._table} that ends beyond its event",
                "rows as the table map describes them",
            )
        for place in nulls:
            values.insert(place, None)
        return tuple(values), position

    def _planned(self, pattern: bytes) -> _Plan[T]:
        nulls = int.from_bytes(pattern, "little")
        wanted = [place for place, field in enumerate(self._fields) if field.read]
        if len(self._plans) >= PATTERNS_MAX:
            self._plans.clear()
        plan = _Plan(
            tuple(_steps([f for place, f in enumerate(self._fields) if not nulls >> place & 1])),
            tuple(number for number, place in enumerate(wanted) if nulls >> place & 1),
        )
        self._plans[pattern] = plan
        return plan

    def _unreadable(self, pattern: bytes, number: int, error: Exception) -> UnreadableValue:
        """Returns the error for the value after so many that were read."""
        nulls = int.from_bytes(pattern, "little")
        field = [
            field
            for place, field in enumerate(self._fields)
            if field.read and not nulls >> place & 1
        ][number]
        return UnreadableValue(
            table=self._table,
            column=field.name,
            type=ColumnType(field.column.type).name,
            cause=str(error),
        )


def _steps(fields: Sequence[Field[T]]) -> Iterator[_Step[T]]:
    code: str = ""
    readers: list[Callable[[bytes], T] | None] = []
    for field in fields:
        column = field.column
        if column.length_bytes:
            code += _LENGTH_CODES[column.length_bytes]
            yield _step(code, [*readers, None], column.length_bytes, field.read)
            code, readers = "", []
        elif field.read is None:
            code += f"{column.width}x"
        else:
            code += field.code or f"{column.width}s"
            readers.append(None if field.code else field.read)
    if code:
        yield _step(code, readers, 0, None)


def _step(
    code: str,
    readers: Sequence[Callable[[bytes], T] | None],
    length_bytes: int,
    read: Callable[[bytes], T] | None,
) -> _Step[T]:
    layout = struct.Struct(f"<{code}")
    converted = tuple(readers) if any(readers) else None
    return _Step(layout.unpack_from, layout.size, converted, length_bytes, read)
