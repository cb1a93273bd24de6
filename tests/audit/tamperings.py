"""Tamperings with one column: who has changed all copies of a row alike, and chained all anew.

Then no copy differs from another, and no chain from what its member told: only the digests that the
members exchanged, and the rule, can tell. The table says of each column which of them does.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.history.schema import RecordKind, Row
from tests.audit.faults import Scene, integer, is_decided
from tests.audit.histories import OTHER, Workload

WORKLOAD = Workload(transactions=160, stable_every=25, view_every=70, read_share=0.5, items=40)


class Tampering(NamedTuple):
    """A change of one column of a row that is `wanted`; `rule`: what the job `verify` finds of it,
    `in_digest`: whether the digests tell it; `told`: what the copy that calls the row its own says.
    """

    column: str
    wanted: Callable[[Row], bool]
    change: Callable[[Row], Row]
    rule: Sequence[Code] = ()
    in_digest: bool = False
    told: Sequence[Code] = ()

    @property
    def name(self) -> str:
        """Its name, for the scene and the test."""
        return f"tampered-{self.column}"


def apply_to_all(tampering: Tampering, scene: Scene) -> None:
    """Changes one row in all copies that have it so, and has all of them chained anew: a member
    has no stamps of what its own clients sent.
    """
    wrong = scene.pick(tampering.wanted)
    for row in filter(tampering.wanted, scene.at_all(integer(wrong, "place"))):
        row |= tampering.change(row)
    scene.chain()


def apply_to_one(tamperings: Sequence[Tampering], scene: Scene) -> None:
    """Changes a row for each tampering in one copy, all of them different rows, and chains none."""
    rows = scene.histories["m2"]
    for tampering in tamperings:
        changed = {place for _, _, place in scene.expected}
        wrong = next(row for row in rows if tampering.wanted(row) and row["place"] not in changed)
        wrong |= tampering.change(wrong)
        scene.expect(Code.RECORD_EDITED, wrong)


def _certified(row: Row) -> bool:
    """A certified transaction in the middle of what was executed."""
    return is_decided(row, "certified") and bool(row["write_set"]) and not row["gtid_brought"]


def _executed(row: Row) -> bool:
    return _certified(row) and not row["is_local"] and integer(row, "last_committed") > 5


def _conflict(row: Row) -> bool:
    return is_decided(row, "conflict") and integer(row, "winner_version") > 3


def _reading(row: Row) -> bool:
    return _certified(row) and bool(row.get("read_set"))


def _of(kind: RecordKind) -> Callable[[Row], bool]:
    return lambda row: row["kind"] == kind


def _to(column: str, value: str | bool | list[str]) -> Callable[[Row], Row]:
    return lambda _: {column: value}


def _more(column: str, by: int = 1) -> Callable[[Row], Row]:
    return lambda row: {column: integer(row, column) + by}


def _items(row: Row, column: str) -> list[int]:
    items = row[column]
    assert isinstance(items, list)
    return [*map(int, items)]


TAMPERINGS = (
    Tampering("verdict", _conflict, _to("verdict", "too_old"), [Code.TOO_OLD_FALSE], True),
    Tampering(
        "version",
        _certified,
        _more("version"),
        [Code.VERSION_WRONG, Code.WINNER_WRONG],
        in_digest=True,
    ),
    Tampering(
        "gtid_number",
        _certified,
        _more("gtid_number"),
        [Code.GTID_GAP, Code.GTID_DUPLICATE],
        in_digest=True,
    ),
    Tampering(
        "write_set",
        _certified,
        lambda row: {"write_set": [*_items(row, "write_set"), 7]},
        [Code.COLLECTION_WRONG],
        in_digest=True,
    ),
    Tampering("winner_version", _conflict, _more("winner_version", -1), [Code.WINNER_WRONG], True),
    Tampering("winner_item", _conflict, _more("winner_item"), [Code.WINNER_WRONG], True),
    Tampering("snapshot_version", _certified, _more("snapshot_version", -1)),
    Tampering("origin", _certified, _to("origin", "m9"), told=[Code.ORIGIN_WRONG]),
    Tampering("session", _certified, _to("session", "9")),
    Tampering("transaction_id", _certified, _to("transaction_id", "00")),
    Tampering("is_large", _certified, _to("is_large", value=True)),
    Tampering("reason", _conflict, _to("reason", "nobody knows")),
    Tampering("winner_origin", _conflict, _to("winner_origin", "m9")),
    Tampering("read_set", _reading, lambda row: {"read_set": _items(row, "read_set")[1:]}),
    Tampering("last_committed", _executed, _more("last_committed", -1), [Code.STAMP_TOO_LOW]),
    Tampering(
        "sequence_number",
        _executed,
        _more("sequence_number"),
        [Code.SEQUENCE_WRONG, Code.STAMP_TOO_LOW],
    ),
    Tampering(
        "purged_items", _of(RecordKind.COLLECTION), _more("purged_items"), [Code.COLLECTION_WRONG]
    ),
    Tampering(
        "stable_version",
        _of(RecordKind.STABLE_SET),
        _more("stable_version", 9),
        [Code.STABLE_SET_WRONG, Code.TOO_OLD_MISSED, Code.CONFLICT_FALSE],
        in_digest=True,
    ),
    Tampering("view_id", _of(RecordKind.VIEW_CHANGE), _to("view_id", "9")),
    Tampering("members", _of(RecordKind.VIEW_CHANGE), _to("members", ["m1"])),
    Tampering("decided_us", _certified, _more("decided_us")),
    Tampering("started_us", _executed, _more("started_us")),
    Tampering("executed_us", _executed, _more("executed_us")),
    Tampering("committed_us", _executed, _more("committed_us")),
    Tampering("worker", _executed, _more("worker")),
    Tampering("write_keys", _certified, _to("write_keys", ["shop.orders/1"])),
    Tampering("tables", _certified, _to("tables", ["shop.orders"])),
    Tampering(
        "gtid_source",
        lambda row: is_decided(row, "certified") and bool(row["gtid_brought"]),
        _to("gtid_source", OTHER[:-1] + "2"),
    ),
)
"""What the audit's README says of columns in "Tampering". A wrong row may make later ones wrong: a
version that no row has, a GTID that two have, an item that is not collected.
"""
