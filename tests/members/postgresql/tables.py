"""A table as the catalogue would have it, without a server."""

from groupcert.members.postgresql.tables import Column, Reference, Table, UniqueKey


def table(
    name: str,
    columns: dict[str, str],
    key: tuple[str, ...],
    *,
    unique_keys: tuple[UniqueKey, ...] = (),
    parents: tuple[Reference, ...] = (),
    children: tuple[Reference, ...] = (),
) -> Table:
    """An attached table of the schema `public`; `columns` have their types."""
    return Table(
        schema="public",
        name=name,
        columns=tuple(Column(column, kind, True, False) for column, kind in columns.items()),
        key=key,
        unique_keys=unique_keys,
        parents=parents,
        children=children,
        is_attached=True,
    )
