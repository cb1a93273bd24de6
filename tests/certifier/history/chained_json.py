"""Rows of a certification log as JSON that loses nothing: integers and bytes are strings."""

from collections.abc import Iterable, Iterator

from groupcert.certifier.history.schema import CHAIN_START, COLUMNS, Row, link, text_of

JsonValue = str | bool | list[str]
_NAMES = frozenset(column.name for column in COLUMNS)


def as_json(rows: Iterable[Row]) -> Iterator[dict[str, JsonValue]]:
    """Yields the rows of one history, numbered and chained, without absent columns."""
    chain = CHAIN_START
    for number, row in enumerate(rows, 1):
        numbered = {**row, "number": number}
        chain = link(chain, text_of(numbered))
        told = {**numbered, "chain": chain}.items()
        yield {name: _told(value) for name, value in told if name in _NAMES and value is not None}


def _told(value: object) -> JsonValue:
    if isinstance(value, list):
        return [str(each) for each in value]
    if isinstance(value, bytes):
        return value.hex().upper()
    return value if isinstance(value, bool) else str(value)
