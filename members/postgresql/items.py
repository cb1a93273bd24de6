"""Items of unique indexes and foreign keys, which a transaction's write set has beside its rows.

The key of each changed row is an item by itself (`changed_items` of `members/wire`). A unique
index adds an item for each value that a row takes or gives up, so that two inserts of one value
conflict. A foreign key adds an item for the parent's key, at a child that begins to refer to it and
at a parent that gives it up: a child and its parent's deletion conflict.

Source: WL#8440, "write set"; MySQL adds the parent's key for each child's row.
Differs: a parent whose key stays, and a child whose reference stays, add nothing, as FOR KEY SHARE
and FOR NO KEY UPDATE do not wait for each other in PostgreSQL. Two new children of one parent
conflict, as in MySQL.
"""

from collections.abc import Iterator, Mapping, Sequence

from groupcert.members.postgresql.rows import NotedRow, Values, key_texts
from groupcert.members.postgresql.tables import Table


def key_items(noted: Sequence[NotedRow], tables: Mapping[str, Table]) -> list[str]:
    """Returns the texts of the items of unique indexes and foreign keys, once each."""
    found: dict[str, None] = {}
    for name, before, after in noted:
        found.update(dict.fromkeys(_items(tables[name], before, after)))
    return list(found)


def _items(table: Table, before: Values | None, after: Values | None) -> Iterator[str]:
    for unique in table.unique_keys:
        old, new = (_texts(table, unique.columns, values) for values in (before, after))
        if old != new:
            for texts in (old, new):
                if texts is not None and not (unique.nulls_differ and None in texts):
                    yield _text(f"{table.full_name}/{unique.name}", texts)
    for parent in table.parents:
        old, new = (_texts(table, parent.child_columns, values) for values in (before, after))
        if new is not None and old != new and None not in new:
            yield _reference(parent.parent, parent.parent_columns, new)
    for child in table.children:
        old, new = (_texts(table, child.parent_columns, values) for values in (before, after))
        if old is not None and old != new and None not in old:
            yield _reference(table.full_name, child.parent_columns, old)


def _reference(parent: str, columns: Sequence[str], texts: Sequence[str | None]) -> str:
    by_name = sorted(zip(columns, texts, strict=True))
    names = ",".join(name for name, _ in by_name)
    return _text(f"{parent}/referenced ({names})", [text for _, text in by_name])


def _texts(table: Table, columns: Sequence[str], values: Values | None) -> list[str | None] | None:
    return None if values is None else key_texts(table, columns, values)


def _text(name: str, texts: Sequence[str | None]) -> str:
    """Returns the text of an item; values that differ give texts that differ."""
    return f"{name}/{','.join(map(_escaped, texts))}"


def _escaped(text: str | None) -> str:
    if text is None:
        return "NULL"
    return "'" + text.replace("'", "''") + "'"
