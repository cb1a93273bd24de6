"""Histories in which records are missing that tell which GTID numbers are free."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.history.schema import RecordKind, Row
from tests.audit.faults import integer, is_decided, numbered
from tests.audit.histories import Workload, random_order, rows_of

BLOCKS = Workload(transactions=500, load=(8, 1, 1), view_every=97)
BROUGHT = Workload(transactions=300, brought_share=0.5, brought_own=True)
SKIPPED = "skipped behind"
"""The one in which a number is skipped behind what is missing."""
Wanted = Callable[[list[Row], int], bool]


def histories() -> Iterator[tuple[list[Row], set[tuple[Code, str, int]]]]:
    """Each with what an audit has to find, all of groups of their own."""
    for number, (name, (workload, wanted, count)) in enumerate(_LACKING.items()):
        workload = replace(workload, group=f"00000000-0000-0000-0004-{number:012x}")
        rows = numbered(rows_of(random_order(1, workload), "m1", workload, name=name))
        at = max(place for place in range(len(rows) - 40) if wanted(rows, place))
        del rows[at : at + count]
        expected = {(Code.RECORD_MISSING, name, integer(rows[at], "place"))}
        if name == SKIPPED:
            skipped = [row for row in rows if _is_assigned(row)][-1]
            skipped["gtid_number"] = integer(skipped, "gtid_number") + 1
            expected.add((Code.GTID_GAP, name, integer(skipped, "place")))
        yield rows, expected


def _is_assigned(row: Row) -> bool:
    return is_decided(row, "certified") and not row["gtid_brought"]


def _assigned(rows: list[Row], at: int) -> bool:
    """Whether a row has a number that the group assigned."""
    return _is_assigned(rows[at])


def _before_view(rows: list[Row], at: int) -> bool:
    """Whether five rows further there is a view change, which frees what was reserved."""
    return rows[at + 5]["kind"] == RecordKind.VIEW_CHANGE


def _fills_a_gap(rows: list[Row], at: int) -> bool:
    """Whether a transaction brought a number along that others are given around it later."""
    number = rows[at].get("gtid_number")
    is_brought = is_decided(rows[at], "certified") and rows[at]["gtid_brought"]
    later = [row["gtid_number"] for row in rows[at:] if _is_assigned(row)][3:]
    return isinstance(number, int) and bool(is_brought) and {number - 1, number + 1} <= {*later}


def _comes_again(rows: list[Row], at: int) -> bool:
    """Whether a GTID that was brought along is refused later."""
    refused = [row for row in rows[at + 1 :] if is_decided(row, "refused")]
    return is_decided(rows[at], "certified") and _gtid(rows[at]) in map(_gtid, refused)


def _gtid(row: Row) -> tuple[object, object]:
    return row.get("gtid_source"), row.get("gtid_number")


_LACKING: dict[str, tuple[Workload, Wanted, int]] = {
    **{
        f"lost view, {count} rows, {size}": (replace(BLOCKS, block_size=size), _before_view, count)
        for size in (7, 100)
        for count in (6, 11)
    },
    SKIPPED: (Workload(transactions=190), _assigned, 1),
    "lost number of another": (BROUGHT, _fills_a_gap, 1),
    "lost use": (BROUGHT, _comes_again, 1),
}
"""Of each so many rows are missing, from the last wanted one on that is not near the end."""
