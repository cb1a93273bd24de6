"""Cycles among a few transactions: each kind of edge, each name, and what is no cycle."""

import time

import pytest

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.isolation.cycles import Cycle, Operation, cycles_through

X, Y, Z = 1, 2, 3
KEYS = {X: "x", Y: "y", Z: "z"}
REACH = 1_000_000


def operation(
    version: int,
    snapshot: int | str | None,
    writes: tuple[int, ...] = (),
    reads: tuple[int, ...] = (),
) -> Operation:
    """A transaction of GTID a:version; its snapshot is a version, a GTID set, or not known."""
    return Operation(
        version=version,
        snapshot=snapshot if isinstance(snapshot, int) else None,
        snapshot_set=snapshot if isinstance(snapshot, str) else None,
        source="a",
        number=version,
        writes=frozenset(writes),
        reads=frozenset(reads + writes),
        keys=KEYS,
    )


def cycle(*operations: Operation, reach: int = REACH) -> Cycle | None:
    """The one through the last transaction."""
    version = operations[-1].version
    return cycles_through(operations, [version], reach).get(version)


LOST_UPDATE = (operation(1, 0, (X,)), operation(2, 0, (X,)))
READ_SKEW = (
    operation(1, 0, (X,)),
    operation(2, "a:1", (Y,), (X,)),
    operation(3, "a:2", (), (X, Y)),
)
WRITE_SKEW = (operation(1, 0, (X,), (Y,)), operation(2, 0, (Y,), (X,)))
SERIALIZATION_CYCLE = (
    operation(1, 0, (X,)),
    operation(2, 0, (Y,), (X,)),
    operation(3, 1, (), (X, Y)),
)
INFORMATION_CYCLE = (operation(1, 2, (X,), (Y,)), operation(2, 1, (Y,), (X,)))


@pytest.mark.parametrize(
    ("operations", "code", "words"),
    [
        (
            LOST_UPDATE,
            Code.LOST_UPDATE,
            "a:2 read x as it was before a:1 wrote it; a:1 wrote x, which a:2 overwrote",
        ),
        (
            READ_SKEW,
            Code.READ_SKEW,
            "a:3 read x as it was before a:1 wrote it; a:1 wrote x as a:2 read it; "
            "a:2 wrote y as a:3 read it",
        ),
        (
            WRITE_SKEW,
            Code.WRITE_SKEW,
            "a:2 read x as it was before a:1 wrote it; a:1 read y as it was before a:2 wrote it",
        ),
        (
            SERIALIZATION_CYCLE,
            Code.SERIALIZATION_CYCLE,
            "a:3 read y as it was before a:2 wrote it; a:2 read x as it was before a:1 wrote it; "
            "a:1 wrote x as a:3 read it",
        ),
        (
            INFORMATION_CYCLE,
            Code.INFORMATION_CYCLE,
            "a:2 wrote y as a:1 read it; a:1 wrote x as a:2 read it",
        ),
    ],
)
def test_each_cycle_has_its_name_and_its_words(
    operations: tuple[Operation, ...], code: Code, words: str
) -> None:
    found = cycle(*operations)
    assert found is not None
    assert (found.code, found.in_words()) == (code, words)


def test_a_cycle_is_a_graph_whose_edges_lead_to_the_next_transaction() -> None:
    found = cycle(*READ_SKEW)
    assert found is not None
    assert found.drawn() == {
        "transactions": [
            {"gtid": "a:3", "version": 3, "member": None},
            {"gtid": "a:1", "version": 1, "member": None},
            {"gtid": "a:2", "version": 2, "member": None},
        ],
        "edges": [
            {"dependency": "rw", "row": "x"},
            {"dependency": "wr", "row": "x"},
            {"dependency": "wr", "row": "y"},
        ],
    }


def test_an_item_without_key_and_a_transaction_without_gtid_are_told_by_number_and_version() -> (
    None
):
    wrote = frozenset([7])
    found = cycle(
        Operation(version=1, snapshot=0, origin="m1", writes=wrote, reads=wrote),
        Operation(version=2, snapshot=0, writes=wrote, reads=wrote),
    )
    assert found is not None
    assert found.in_words() == (
        "version 2 read item 0000000000000007 as it was before version 1 of m1 wrote it; "
        "version 1 of m1 wrote item 0000000000000007, which version 2 overwrote"
    )


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param((operation(1, 0, (X,)), operation(2, 1, (X,))), id="seen"),
        pytest.param((operation(1, 0, (X,)), operation(2, 0, (Y,), (X,))), id="serial"),
        pytest.param((operation(1, 0, (X,)), operation(2, "a:1", (X,))), id="seen by a set"),
        pytest.param((operation(1, 0, (X,)), operation(2, None, (X,))), id="snapshot not known"),
        pytest.param(
            (operation(1, 0, (X,)), operation(2, 1, (X,)), operation(3, "a:2", (X,))),
            id="a set with the newest writer",
        ),
    ],
)
def test_what_has_a_serial_order_has_no_cycle(operations: tuple[Operation, ...]) -> None:
    assert cycle(*operations) is None


def test_a_set_reads_the_newest_writer_that_it_names() -> None:
    found = cycle(
        operation(1, 0, (X,)),
        operation(2, 1, (X,)),
        operation(3, 2, (X,)),
        operation(4, "a:1", (Y,), (X,)),
        operation(5, "a:1-2:4", (X,), (Y,)),
    )
    assert found is not None
    assert found.code is Code.LOST_UPDATE
    assert found.in_words().startswith("a:5 read x as it was before a:3 wrote it")


def test_a_cycle_has_no_later_transaction_and_none_out_of_reach() -> None:
    operations = (operation(1, 0, (X,), (Y,)), operation(2, 0, (Y,), (X,)))
    assert cycles_through(operations, [1], REACH) == {}
    assert set(cycles_through(operations, [1, 2], REACH)) == {2}
    assert cycle(operations[0], operation(9, 0, (Y,), (X,)), reach=8) is None
    assert cycle(operations[0], operation(9, 0, (Y,), (X,)), reach=9) is not None


@pytest.mark.parametrize("kind", ["versions", "sets"])
def test_an_item_of_many_writers_costs_no_more_for_each(kind: str) -> None:
    """As many writers as would take minutes if each met all others."""
    count = 20_000
    lagging = {version: max(version - 3, 0) for version in range(1, count + 1)}
    operations = [
        operation(version, back if kind == "versions" else f"a:1-{back}" if back else "", (X,))
        for version, back in lagging.items()
    ]
    began = time.process_time()
    found = cycles_through(operations, [count], REACH)
    assert time.process_time() - began < 30
    assert found[count].code is Code.LOST_UPDATE
