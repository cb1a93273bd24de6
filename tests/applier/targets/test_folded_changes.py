"""Folded changes leave the rows that the source's own order leaves, and break no key on the way: by
a model of a server that checks each of them.
"""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.targets.folded_changes import folded
from groupcert.applier.targets.sql_tables import (
    ChangeKind,
    Column,
    ColumnType,
    Row,
    RowChange,
    TableMapping,
)

INTEGER = ColumnType.INTEGER
PARENT = TableMapping(
    source="s.parent",
    table="parent",
    key=(Column("id", INTEGER),),
    values=(Column("code", INTEGER), Column("note", INTEGER)),
)
CHILD = TableMapping(
    source="s.child",
    table="child",
    key=(Column("id", INTEGER),),
    values=(Column("parent", INTEGER),),
)
RANKS = {"parent": 0, "child": 1}
PARENTS = {"parent": frozenset[str](), "child": frozenset({"parent"})}
STEPS = st.lists(st.tuples(st.integers(0, 5), *[st.integers(0, 3)] * 3), max_size=30)


class Server:
    """Two tables: a parent's code is unique, a child has a parent, and goes with it."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[object, Row]] = {"parent": {}, "child": {}}

    def execute(self, change: RowChange) -> bool:
        """Makes a change; returns False, and makes none, if a key does not allow it."""
        kind, table = change.kind, change.mapping.table
        rows, key = self.rows[table], change.row[0]
        if kind in (ChangeKind.DELETE, ChangeKind.DELETE_ANY):
            if kind is ChangeKind.DELETE and key not in rows:
                return False
            rows.pop(key, None)
            if table == "parent":
                children = self.rows["child"]
                self.rows["child"] = {k: row for k, row in children.items() if row[1] != key}
            return True
        if kind is ChangeKind.INSERT and key in rows:
            return False
        value = change.row[1]
        if table == "child" and value not in self.rows["parent"]:
            return False
        if table == "parent" and any(row[1] == value and k != key for k, row in rows.items()):
            return False
        rows[key] = change.row
        return True

    def copy(self) -> "Server":
        """A server with the same rows."""
        copied = Server()
        copied.rows = {table: dict(rows) for table, rows in self.rows.items()}
        return copied


def change(kind: ChangeKind, mapping: TableMapping, row: Row) -> RowChange:
    """A change as a source's log has it."""
    return RowChange(f"{mapping.source}/{row[0]!r}".encode(), 1, kind, mapping, (), row)


def logged(server: Server, steps: list[tuple[int, int, int, int]]) -> list[RowChange]:
    """What clients change at a source, as far as its keys let them; it has their changes."""
    log = []
    for what, key, value, note in steps:
        there = server.rows["parent"].get(key)
        made = (
            change(ChangeKind.INSERT, PARENT, (key, value, note)),
            # An update that leaves the unique value as it is.
            change(ChangeKind.PUT, PARENT, (key, there[1] if there else -1, note)),
            change(ChangeKind.DELETE, PARENT, (key,)),
            change(ChangeKind.PUT, CHILD, (key, value)),
            change(ChangeKind.DELETE, CHILD, (key,)),
            change(ChangeKind.UPDATE, PARENT, (value, key)),
        )[what]
        if made.kind is ChangeKind.PUT and made.mapping is PARENT and there is None:
            continue
        if made.kind is not ChangeKind.UPDATE and server.execute(made):
            log.append(made)
    return log


@given(STEPS, STEPS)
def test_folded_changes_leave_the_rows_of_the_source(
    before: list[tuple[int, int, int, int]], steps: list[tuple[int, int, int, int]]
) -> None:
    source = Server()
    logged(source, before)
    target = source.copy()
    for each in folded(logged(source, steps), RANKS, PARENTS):
        assert target.execute(each), each
    assert target.rows == source.rows


def test_changes_of_a_table_come_together() -> None:
    changes = [
        change(kind, mapping, row)
        for number in (3, 1, 2)
        for kind, mapping, row in (
            (ChangeKind.PUT, PARENT, (number, number, 0)),
            (ChangeKind.PUT, CHILD, (number, number)),
            (ChangeKind.PUT, PARENT, (number, number, 9)),
            (ChangeKind.DELETE, CHILD, (number + 3,)),
        )
    ]
    found = [
        (each.kind.value, each.mapping.table, each.row) for each in folded(changes, RANKS, PARENTS)
    ]
    assert found == [
        *[("delete", "child", (number,)) for number in (6, 5, 4)],
        *[("put", "parent", (number, number, 9)) for number in (1, 2, 3)],
        *[("put", "child", (number, number)) for number in (1, 2, 3)],
    ]


def test_changes_whose_order_matters_stay_as_they_are() -> None:
    moved = change(ChangeKind.UPDATE, PARENT, (5, 1))
    gone = change(ChangeKind.DELETE, PARENT, (1,))
    child = change(ChangeKind.PUT, CHILD, (1, 2))
    for changes in ([child, moved, gone], [child, gone]):
        assert folded(changes, RANKS, PARENTS) is changes
    self_referring = {"child": frozenset({"child"})}
    assert folded([child, child], RANKS, self_referring) == [child, child]


def test_a_new_row_that_changes_is_still_new() -> None:
    new = change(ChangeKind.INSERT, PARENT, (1, 1, 0))
    changed = change(ChangeKind.PUT, PARENT, (1, 1, 9))
    assert folded([new, changed], RANKS, PARENTS) == [changed._replace(kind=ChangeKind.INSERT)]
