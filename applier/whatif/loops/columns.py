"""The columns of a workload that each rule reads, made once for all numbers of workers.

A column that the workload has is taken as it is, not copied.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...queue.row_parts import Part
from ...schemes.by_database import DATABASES_MAX
from ..workload import Stamps, Workload
from .state import (
    BARRIER,
    CLOCK,
    GRAPH,
    GROUPS,
    PARENT,
    PARTITIONS,
    ROWS,
    Columns,
)

Numbers = Sequence[int]
TYPES = "QIQQQQIIQQQIQIQBQI"
"""Type codes of `Columns`: one compiled loop takes all of them, the empty ones too."""
SHARES = (
    *("shares", "share_entries", "share_us"),
    *("share_alone", "partition_offsets", "partitions"),
)


@dataclass(slots=True)
class _Shares:
    """Shares of entries, as they are added."""

    firsts: "array[int]" = field(default_factory=lambda: array("Q", [0]))
    entries: "array[int]" = field(default_factory=lambda: array("I"))
    times_us: "array[int]" = field(default_factory=lambda: array("Q"))
    alone: "array[int]" = field(default_factory=lambda: array("B"))
    offsets: "array[int]" = field(default_factory=lambda: array("Q", [0]))
    partitions: "array[int]" = field(default_factory=lambda: array("I"))
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, time_us: int, partitions: Iterable[str]) -> None:
        """Adds a share of the entry that is being added."""
        numbers = self.numbers
        self.entries.append(len(self.alone))
        self.times_us.append(time_us)
        self.partitions.extend([numbers.setdefault(name, len(numbers)) for name in partitions])
        self.offsets.append(len(self.partitions))

    def end(self, *, alone: bool) -> None:
        """Ends an entry."""
        self.alone.append(alone)
        self.firsts.append(len(self.entries))


class ColumnsOf:
    """Makes columns of a workload, and keeps those that it made last: they take some 30 bytes an
    entry, and runs of one rule, which share them, follow each other.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._kept: dict[str, tuple[Numbers, ...]] = {}
        self.lane_firsts: Numbers = ()
        """The first entry of each lane, after columns of the group commit were made."""
        self.partitions: dict[str, int] = {}
        """How many partitions there are, by scheme, after columns of it were made."""

    def columns(self, kind: int, stamps: Stamps, scheme: str) -> Columns:
        """Returns the columns that a rule of a kind reads, the others empty; `scheme` names the one
        that assigns partitions.
        """
        workload = self._workload
        read: dict[str, Numbers] = {
            "durations_us": workload.durations_us,
            "sources": workload.gtid_sources,
        }
        if kind == CLOCK:
            names = ("last_committed", "sequence_numbers")
            read |= zip(names, self._once(stamps.value, partial(self._stamps, stamps)), strict=True)
        elif kind == PARENT:
            read["parents"] = workload.commit_parents
        elif kind == GROUPS:
            read["commit_ids"] = workload.commit_ids
            read |= zip(("lanes", "next_in_lane"), self._once("lanes", self._lanes), strict=True)
        elif kind == PARTITIONS:
            read |= zip(SHARES, self._once(scheme, partial(self._shares, scheme)), strict=True)
        elif kind == ROWS:
            read |= {"item_offsets": workload.item_offsets, "items": workload.all_items}
        elif kind in (BARRIER, GRAPH):
            read["item_offsets"] = workload.item_offsets
            names = ("written_offsets", "written")
            read |= zip(names, self._once("written", self._written), strict=True)
        empty = {name: array(code) for name, code in zip(Columns._fields, TYPES, strict=True)}
        return Columns(**{**empty, **read})

    def _once(self, name: str, make: Callable[[], tuple[Numbers, ...]]) -> tuple[Numbers, ...]:
        if name not in self._kept:
            self._kept = {name: make()}
        return self._kept[name]

    def _stamps(self, stamps: Stamps) -> tuple[Numbers, ...]:
        last_committed, sequence_numbers = array("Q"), array("Q")
        for last, number in self._workload.stamps(stamps):
            last_committed.append(last)
            sequence_numbers.append(number)
        return last_committed, sequence_numbers

    def _lanes(self) -> tuple[Numbers, ...]:
        """Returns each entry's lane, and the next entry in it."""
        domains = self._workload.domains
        numbers: dict[int, int] = {}
        lanes = array("I", [numbers.setdefault(domain, len(numbers)) for domain in domains])
        following = array("I", bytes(4 * len(lanes)))
        newest = [len(lanes)] * len(numbers)
        # From the end, where the next entry of each lane is known.
        for entry in range(len(lanes) - 1, -1, -1):
            following[entry] = newest[lanes[entry]]
            newest[lanes[entry]] = entry
        self.lane_firsts = newest
        return lanes, following

    def _written(self) -> tuple[Numbers, ...]:
        """Returns the items that are written more than once: others make nobody wait."""
        workload = self._workload
        numbers = {item: number for number, item in enumerate(workload.texts)}
        offsets, written = array("Q", [0]), array("I")
        for entry in range(len(workload)):
            written.extend([numbers[item] for item in workload.items(entry) if item in numbers])
            offsets.append(len(written))
        return offsets, written

    def _shares(self, scheme: str) -> tuple[Numbers, ...]:
        """Returns the shares of each entry: all of it, or its changes of one table."""
        workload, shares = self._workload, _Shares()
        by_database = scheme == "database"
        for entry, duration_us in enumerate(workload.durations_us):
            used = workload.place(entry)[not by_database]
            alone = used is None or not workload.gtid_sources[entry]
            if used is None or alone or (by_database and len(used) > DATABASES_MAX):
                shares.add(duration_us, ())
                shares.end(alone=True)
                continue
            if by_database or len(used) < 2:
                shares.add(duration_us, used)
            else:
                for table in used:
                    share_us = workload.execution_us(entry, Part(table=table), len(used))
                    shares.add(share_us, (table,))
            shares.end(alone=False)
        self.partitions[scheme] = len(shares.numbers)
        return (
            *(shares.firsts, shares.entries, shares.times_us),
            *(shares.alone, shares.offsets, shares.partitions),
        )
