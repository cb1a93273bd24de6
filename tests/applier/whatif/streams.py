"""Streams for the tests of what-if: written down in a line a transaction, or drawn at random.

Stamps are those of a source whose snapshots are complete: rows decide what overlaps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from groupcert.applier.queue.row_parts import database_of, table_of
from groupcert.applier.source.header import SourceHeader
from groupcert.applier.whatif.costs import Costs
from groupcert.applier.whatif.workload import Work, Workload, load
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.logical_clock import LogicalClock
from groupcert.certifier.write_set import item_from_text

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


class Source:
    """Makes the work of a stream."""

    def __init__(self) -> None:
        self.clock = LogicalClock()
        self.number = 0
        self.writers: dict[str, int] = {}

    def view_change(self) -> Work:
        """What runs alone."""
        return Work(None)

    def transaction(
        self,
        rows: Sequence[str] = (),
        *,
        duration_us: int | None = None,
        databases: tuple[str, ...] | None = None,
        **header: Any,
    ) -> Work:
        """The next transaction; its lock interval is its dependency's distance, if not given."""
        self.number += 1
        if rows:
            newest = max(self.writers.get(row, 0) for row in rows)
            last_committed, sequence_number = self.clock.stamp(newest)
        else:
            last_committed, sequence_number = self.clock.stamp_alone()
        self.writers.update(dict.fromkeys(rows, sequence_number))
        tables = tuple(sorted({table_of(row.encode()) for row in rows})) if rows else None
        if databases is None and tables is not None:
            databases = tuple(sorted(set(map(database_of, tables))))
        interval = header.pop("interval", sequence_number - last_committed)
        return Work(
            Gtid(SOURCE, self.number),
            last_committed,
            sequence_number,
            interval,
            SourceHeader(
                databases=databases,
                tables=tables,
                items=tuple(map(item_from_text, rows)),
                **header,
            ),
            list(rows),
            len(rows),
            duration_us,
        )


NAMES: Mapping[str, str] = {"parent": "commit_parent", "group": "commit_id", "domain": "domain_id"}


def parse(lines: Iterable[str]) -> Iterator[Work]:
    """The work of lines such as `3us shop.t/1 shop.t/2 group=1`, or `view change`."""
    source = Source()
    for line in lines:
        if line == "view change":
            yield source.view_change()
            continue
        length, *words = line.split()
        numbers: dict[str, int] = {}
        databases = None
        for word in words:
            name, equals, value = word.partition("=")
            if name == "databases":
                databases = tuple(value.split(","))
            elif equals:
                numbers[NAMES.get(name, name)] = int(value)
        yield source.transaction(
            [word for word in words if "=" not in word],
            duration_us=int(length.removesuffix("us")),
            databases=databases,
            **numbers,
        )


def stream(*lines: str, commit_us: int = 0) -> Workload:
    """The workload of lines."""
    return load(parse(lines), Costs(commit_us=commit_us))


COSTS = st.builds(
    Costs,
    commit_us=st.integers(0, 5),
    job_us=st.integers(0, 3),
    commit_applier_us=st.integers(0, 3),
    commit_server_us=st.integers(0, 3),
    syncs_together=st.booleans(),
    applier_percent=st.integers(0, 50),
    server_percent=st.integers(0, 50),
    handover_us=st.integers(0, 2),
    cores=st.none() | st.integers(1, 4),
)
ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5)), max_size=4, unique=True
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Workloads of a few databases, tables and rows, some without write set, and view changes."""
    source = Source()
    works = []
    for _ in range(draw(st.integers(1, 25))):
        if draw(st.integers(0, 12)) == 0:
            works.append(source.view_change())
            continue
        rows = [f"d{database}.t{table}/{row}" for database, table, row in draw(ROWS)]
        duration_us = draw(st.integers(0, 9))
        works.append(source.transaction(rows, duration_us=duration_us))
    workload = load(works, draw(COSTS))
    workload.group(draw(st.integers(1, 5)))
    return workload
