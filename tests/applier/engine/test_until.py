"""Where a replica stops: each condition over a stream whose end is known."""

from collections.abc import Callable, Sequence

import pytest

from groupcert.applier.engine.until import (
    AfterGaps,
    AfterGtids,
    AfterPosition,
    AfterView,
    BeforeGtids,
    Until,
)
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.source.header import SourceHeader
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def transaction(number: int, file: int = 1, sequence_number: int | None = None) -> RelayEntry:
    return RelayEntry(
        position=number,
        version=number,
        gtid=Gtid(GROUP, number),
        last_committed=0,
        sequence_number=number if sequence_number is None else sequence_number,
        local=False,
        payload=b"",
        header=SourceHeader(file=file),
    )


def view_change(position: int, view_id: int) -> RelayEntry:
    return RelayEntry(position, position, None, 0, 0, False, b"", SourceHeader(view_id=view_id))


def gtids(text: str) -> GtidSet:
    return GtidSet.parse(f"{GROUP}:{text}")


def executed(until: Until, stream: Sequence[RelayEntry]) -> list[int]:
    """The positions that a replica executes until the condition is met."""
    positions = []
    for entry in stream:
        if until.is_met or not until.admits(entry):
            assert until.is_met
            assert not until.admits(entry), "nothing more is executed"
            break
        positions.append(entry.position)
    return positions


STREAM = [
    transaction(1),
    transaction(2),
    view_change(3, view_id=7),
    transaction(4, file=2, sequence_number=1),
    transaction(5, file=2, sequence_number=2),
    transaction(6, file=2, sequence_number=3),
]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (lambda: AfterGtids(gtids("2:4"), GtidSet()), [1, 2, 3, 4]),
        (lambda: AfterGtids(gtids("1-2"), gtids("1-2")), []),
        (lambda: AfterGtids(gtids("1-2:5"), gtids("2")), [1, 2, 3, 4, 5]),
        (lambda: BeforeGtids(gtids("4-9")), [1, 2, 3]),
        (lambda: BeforeGtids(gtids("99")), [1, 2, 3, 4, 5, 6]),
        (lambda: AfterPosition(2, 2), [1, 2, 3, 4, 5]),
        (lambda: AfterPosition(1, 1), [1]),
        (lambda: AfterPosition(2, 3), [1, 2, 3, 4, 5, 6]),
        (lambda: AfterPosition(1, 9), [1, 2, 3]),
        (lambda: AfterView(7), [1, 2, 3]),
        (lambda: AfterView(8), [1, 2, 3, 4, 5, 6]),
        (lambda: AfterGaps(Checkpoint(version=4)), [1, 2, 3, 4]),
        (lambda: AfterGaps(Checkpoint(version=2, gtid_executed=gtids("1-2"))), []),
        (lambda: AfterGaps(Checkpoint(version=9, gtid_executed=gtids("3-9"))), [1, 2]),
    ],
)
def test_executes_up_to_its_condition(condition: Callable[[], Until], expected: list[int]) -> None:
    assert executed(condition(), STREAM) == expected
