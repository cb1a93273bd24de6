"""Changes of a source's rows, folded: the last one of each row, all of a table together.

The source's own order is always right, and costs a statement for each change of table or kind. Most
jobs need no order but this: rows are deleted, children first, then written, parents first. Where
more is at stake, `folded` leaves the changes as they are: a row's key or a unique value moved, or a
parent is deleted while a row of its children's table is written.
"""

from collections.abc import Mapping

from .sql_tables import ChangeKind, RowChange

_K = ChangeKind
_DELETIONS = (_K.DELETE, _K.DELETE_ANY)
_WRITES = (_K.PUT, _K.INSERT)


def folded(
    changes: list[RowChange], ranks: Mapping[str, int], parents: Mapping[str, frozenset[str]]
) -> list[RowChange]:
    """Returns changes that leave the same rows, by few statements; else the changes themselves.

    Args:
        changes: in the source's order.
        ranks: for each of the target's tables, how many tables come before it, parents first.
        parents: the tables to which each has a foreign key.
    """
    deleted: dict[bytes, RowChange] = {}
    written: dict[bytes, RowChange] = {}
    for change in changes:
        name, kind = change.name, change.kind
        before = written.get(name)
        if kind in _DELETIONS:
            if before is not None:
                del written[name]
                # Whether the row was there before the first change, a whole row does not say.
                change = change._replace(kind=_K.DELETE_ANY)
            deleted.setdefault(name, change)
        elif kind in _WRITES:
            if before is not None and before.kind is _K.INSERT:
                change = change._replace(kind=_K.INSERT)
            written[name] = change
        else:
            return changes
    gone = {change.mapping.table for change in deleted.values()}
    tables = {change.mapping.table for change in written.values()}
    if any(not gone.isdisjoint(parents.get(table, ())) for table in tables) or any(
        table in parents.get(table, ()) for table in tables | gone
    ):
        return changes

    def rank(change: RowChange) -> tuple[int, str, str, bytes]:
        # Within a rank always alike: transactions that share rows lock them in one order.
        table = change.mapping.table
        return ranks.get(table, 0), table, change.kind.value, change.name

    return [*sorted(deleted.values(), key=rank, reverse=True), *sorted(written.values(), key=rank)]
