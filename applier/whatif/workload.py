"""A workload: a stream of transactions with all properties that any scheme uses.

Everything is in flat arrays, so that a stream of millions fits in memory; the entries for a scheme
are made one at a time. Properties that a source does not have are derived only here, from those
that it has.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from ...certifier.gtid import Gtid
from ..queue.relay_group import RelayEntry
from ..queue.row_parts import Part, database_of, table_of
from ..source.header import NO_HEADER, SourceHeader
from .costs import Costs
from .dependencies import NO_ITEM, Dependencies
from .durations import SPREAD_PERCENT, drawn_us, spread_percent_of
from .whole_tables import ALL_ROWS

_new_gtid = partial(tuple.__new__, Gtid)
_new_header = partial(tuple.__new__, SourceHeader)
_new_entry = partial(tuple.__new__, RelayEntry)
"""Make a value from a tuple of all fields, once for each transaction of each run: a named tuple's
own constructor is a Python function and takes twice the time.
"""

_BY_ENTRY = (
    "durations_us",
    "gtid_sources",
    "_gtid_numbers",
    "_last_committed",
    "_sequence_numbers",
    "_lock_intervals",
    "commit_parents",
    "commit_ids",
    "domains",
    "positions",
    "_places",
    "_parent_items",
)
"""The columns of a workload that have a value for each entry."""


class Stamps(Enum):
    """The origin of the stamps that the logical clock reads."""

    WRITE_SETS = "write sets"
    """The certifier's: the last writer of one of the rows (WL#8440)."""
    LOCK_INTERVALS = "lock intervals"
    """The source's: the last commit before the last lock was taken (WL#7165)."""


class Work(NamedTuple):
    """One entry of a stream, as its source describes it.

    `gtid`: None for an entry that runs alone (a view change, a rotation), with stamps 0 and 0.
    `last_committed`, `sequence_number`: by write sets. `lock_interval`: of the source, the
    transactions from the newest that was committed when this one had its locks, up to this one
    (`sequence_number` - `last_committed` of WL#7165), 1 at least. `keys`: the texts of
    `header.items`. `duration_us`: its execution, None if that is not known. `follows`: the entries
    that it follows by tables that stand for their rows, ascending; None if it writes none of these.
    `passed`: transactions of the stream before it that are not read.
    """

    gtid: Gtid | None
    last_committed: int = 0
    sequence_number: int = 0
    lock_interval: int = 1
    header: SourceHeader = NO_HEADER
    keys: Sequence[str] = ()
    rows: int = 0
    duration_us: int | None = None
    follows: Sequence[int] | None = None
    passed: int = 0

    @property
    def row_items(self) -> Sequence[int]:
        """Items without those of tables that stand for their rows."""
        if self.follows is None:
            return self.header.items
        items = zip(self.header.items, self.keys, strict=True)
        return [item for item, key in items if not key.endswith(ALL_ROWS)]


class Workload:
    """Keeps the columns of a stream, its dependencies, and the texts of rows written twice.

    The columns have a number for each entry; `gtid_sources` has 0 for one that has no GTID. The
    items of entry i are `all_items[item_offsets[i]:item_offsets[i + 1]]`. After the last entry
    `draw` gives durations to those that have none.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.dependencies = Dependencies()
        self.durations_us = array("Q")
        self.spread_percent = 0
        """Standard deviation of durations that were drawn, in percent of their mean."""
        self._timed_us = array("Q")
        self._untimed = array("I")
        self.transactions = 0
        """Entries that have a GTID."""
        self.passed = 0
        """Transactions of the stream that are not in here."""
        self.starts = [0]
        """The first entry, and each that has such ones right before it."""
        self.positions = array("Q")
        """The place of each entry in the stream, from 0 on."""
        self.without_write_set = 0
        self.texts: dict[int, str] = {}
        self.table_names: list[str] = []
        self._last_committed = array("Q")
        self._sequence_numbers = array("Q")
        self._lock_intervals = array("Q")
        self.commit_parents = array("Q")
        self.commit_ids = array("Q")
        self.domains = array("q")
        self._places = array("I")
        self._parent_items: list[Sequence[int]] = []
        self._place_list: list[tuple[tuple[str, ...] | None, tuple[str, ...] | None]] = []
        self._place_numbers: dict[object, int] = {}
        self.item_offsets = array("Q", [0])
        self.all_items = array("Q")
        self._item_tables = array("I")
        self._table_numbers: dict[str, int] = {}
        self.gtid_sources = array("I")
        self._gtid_numbers = array("Q")
        self._sources: list[str] = [""]
        self._source_numbers: dict[str, int] = {}

    def add(self, work: Work) -> None:
        """Adds the next entry of the stream. Cost: O(items)."""
        header, gtid = work.header, work.gtid
        if work.passed > self.passed:
            self.passed = work.passed
            self.starts.append(len(self))
        self.positions.append(len(self) + work.passed)
        tables = [self._table_number(table_of(key.encode())) for key in work.keys]
        databases = header.databases
        if databases is None and tables:
            databases = tuple({database_of(self.table_names[table]) for table in tables})
        rewritten = self.dependencies.add(
            work.row_items, databases, alone=gtid is None, follows=work.follows
        )
        if rewritten:
            texts = dict(zip(header.items, work.keys, strict=True))
            self.texts.update((item, texts[item]) for item in rewritten)
        self.all_items.extend(header.items)
        self._item_tables.extend(tables)
        self.item_offsets.append(len(self.all_items))
        self._last_committed.append(work.last_committed)
        self._sequence_numbers.append(work.sequence_number)
        self._lock_intervals.append(work.lock_interval)
        self.commit_parents.append(header.commit_parent)
        self.commit_ids.append(header.commit_id)
        self.domains.append(header.domain_id)
        self._places.append(self._place_number((header.databases, header.tables)))
        self._parent_items.append(header.parent_items)
        self.gtid_sources.append(self._source_number(gtid.source) if gtid else 0)
        self._gtid_numbers.append(gtid.number if gtid else 0)
        duration_us = work.duration_us
        if gtid is not None:
            self.transactions += 1
            self.without_write_set += not header.items
            if duration_us is None:
                self._untimed.append(len(self))
                duration_us = self.costs.execution_us(work.rows)
            else:
                self._timed_us.append(duration_us)
        self.durations_us.append(duration_us or 0)

    def __len__(self) -> int:
        return len(self.durations_us)

    @property
    def timed(self) -> int:
        """Transactions with a duration from the source."""
        return len(self._timed_us)

    def draw(self) -> None:
        """Draws the durations that the stream does not say, around what their rows cost."""
        spread_percent = self.costs.spread_percent
        if spread_percent is None:
            # Where few are known, that may be because they took long: binary logs have seconds.
            are_many = self.timed * 2 >= self.transactions
            spread_percent = spread_percent_of(self._timed_us) if are_many else SPREAD_PERCENT
        for number in self._untimed:
            mean_us = self.durations_us[number]
            position = self.positions[number]
            self.durations_us[number] = drawn_us(mean_us, position, spread_percent)
        self.spread_percent = spread_percent

    def window(self, start: int, stop: int) -> "Workload":
        """Returns the entries from `start` to `stop` as a stream of its own; what they follow
        before it is visible there. Cost: O(edges of the window).
        """
        part = Workload(self.costs)
        part.dependencies = self.dependencies.window(start, stop)
        rewritten = set(part.dependencies.items) - {NO_ITEM}
        part.texts = {item: self.texts[item] for item in rewritten}
        for name in _BY_ENTRY:
            setattr(part, name, getattr(self, name)[start:stop])
        offsets = self.item_offsets[start : stop + 1]
        part.all_items = self.all_items[offsets[0] : offsets[-1]]
        part._item_tables = self._item_tables[offsets[0] : offsets[-1]]
        part.item_offsets = array("Q", [offset - offsets[0] for offset in offsets])
        part.transactions = len(part) - part.gtid_sources.count(0)
        part.table_names, part._table_numbers = self.table_names, self._table_numbers
        part._place_list, part._sources = self._place_list, self._sources
        return part

    def group(self, transactions_max: int) -> None:
        """Assigns commit ids to a stream that has none: to runs of at most `transactions_max`
        consecutive transactions of which none follows another. A group of one has none.
        """
        first, commit_id = 0, 0
        for number in range(len(self) + 1):
            if number < len(self) and self._may_join(number, first, transactions_max):
                continue
            if number - first > 1:
                commit_id += 1
                for member in range(first, number):
                    self.commit_ids[member] = commit_id
            first = number

    def _may_join(self, number: int, first: int, transactions_max: int) -> bool:
        """Returns whether an entry may be in the group that begins with `first`."""
        if number == first:
            return True
        has_rows = self.items(number) and self.items(first)
        newest = self.dependencies.newest_followed(number)
        return bool(has_rows) and number - first < transactions_max and newest < first

    @property
    def has_commit_ids(self) -> bool:
        """True if any transaction was committed as part of a group."""
        return any(self.commit_ids)

    def gtid(self, number: int) -> Gtid | None:
        """Returns the GTID of an entry; None if it has none."""
        source = self.gtid_sources[number]
        return Gtid(self._sources[source], self._gtid_numbers[number]) if source else None

    def name(self, number: int) -> str:
        """Returns an entry's name as its source writes it; MariaDB has a dash before the number."""
        gtid = self.gtid(number)
        if gtid is None:
            return f"entry {self.positions[number] + 1}"
        domain, dash, server = gtid.source.partition("-")
        is_mariadb = dash and domain.isdecimal() and server.isdecimal()
        return f"{gtid.source}-{gtid.number}" if is_mariadb else str(gtid)

    def items(self, number: int) -> Sequence[int]:
        """Returns the write set of an entry."""
        return self.all_items[self.item_offsets[number] : self.item_offsets[number + 1]]

    def place(self, number: int) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        """Returns the databases and the tables in an entry's header, None where it has none."""
        return self._place_list[self._places[number]]

    def tables(self, number: int) -> set[str]:
        """Returns the tables that an entry is known to write."""
        rows = self._item_tables[self.item_offsets[number] : self.item_offsets[number + 1]]
        if rows:
            return {self.table_names[table] for table in rows}
        return set(self.place(number)[1] or ())

    def stamps(self, stamps: Stamps) -> Iterator[tuple[int, int]]:
        """Yields each entry's `last_committed` and `sequence_number`; (0, 0) if it runs alone."""
        if stamps is Stamps.WRITE_SETS:
            yield from zip(self._last_committed, self._sequence_numbers, strict=True)
            return
        counter = 0
        for source, interval in zip(self.gtid_sources, self._lock_intervals, strict=True):
            counter += source > 0
            yield (max(0, counter - interval), counter) if source else (0, 0)

    def entries(self, stamps: Stamps) -> Iterator[RelayEntry]:
        """Yields the stream as relay entries; positions are numbers from 1 on."""
        columns = zip(
            self.stamps(stamps),
            self.commit_parents,
            self.commit_ids,
            self.domains,
            self._places,
            self.gtid_sources,
            self._gtid_numbers,
            pairwise(self.item_offsets),
            self._parent_items,
            strict=True,
        )
        places, items, sources = self._place_list, self.all_items, self._sources
        for position, column in enumerate(columns, 1):
            stamp, parent, group, domain, place, source, number, rows, parents = column
            databases, tables = places[place]
            written = items[slice(*rows)]
            header = _new_header(
                (parent, group, domain, databases, tables, written, 0, 0, 0, None, parents)
            )
            gtid = _new_gtid((sources[source], number)) if source else None
            yield _new_entry((position, position, gtid, *stamp, False, b"", header))

    def execution_us(self, number: int, part: Part | None, parts: int) -> int:
        """Returns the execution time of one part of an entry in microseconds, None being all of it:
        its share of the rows, rounded up; an equal share if the rows are not known.
        """
        duration_us = self.durations_us[number]
        if part is None:
            return duration_us
        start, stop = self.item_offsets[number], self.item_offsets[number + 1]
        if start == stop:
            return -(-duration_us // parts)
        if part.slots:
            rows = sum(item % part.slots == part.slot for item in self.all_items[start:stop])
        else:
            rows = self._item_tables[start:stop].count(self._table_numbers.get(part.table, -1))
        return -(-duration_us * rows // (stop - start))

    def _table_number(self, table: str) -> int:
        number = self._table_numbers.get(table)
        if number is None:
            number = self._table_numbers[table] = len(self.table_names)
            self.table_names.append(table)
        return number

    def _source_number(self, source: str) -> int:
        number = self._source_numbers.get(source)
        if number is None:
            number = self._source_numbers[source] = len(self._sources)
            self._sources.append(source)
        return number

    def _place_number(self, place: tuple[tuple[str, ...] | None, tuple[str, ...] | None]) -> int:
        number = self._place_numbers.get(place)
        if number is None:
            number = self._place_numbers[place] = len(self._place_list)
            self._place_list.append(place)
        return number


def load(works: Iterable[Work], costs: Costs) -> Workload:
    """Returns the workload of a stream, with all durations."""
    workload = Workload(costs)
    for work in works:
        workload.add(work)
    workload.draw()
    return workload


def interval_mean(stamps: Iterable[tuple[int, int]]) -> float:
    """Returns the average modified interval length: how many transactions a replica may have at
    work on average when it schedules one; 0 for none.

    Source: J.-F. Gagné, "A metric for tuning parallel replication in MySQL 5.7": the interval from
    `last_committed` to `sequence_number`, where a `last_committed` below an earlier one counts as
    that, because a replica schedules in order. Nothing before a barrier is at work after it.

    >>> interval_mean([(1, 2), (1, 3), (2, 4), (1, 5)])
    2.0
    """
    total = count = newest = last = 0
    for last_committed, sequence_number in stamps:
        if not sequence_number:
            newest = last
            continue
        if sequence_number <= last:
            newest = 0  # The numbers have begun again.
        last = sequence_number
        newest = max(newest, last_committed)
        total += sequence_number - newest
        count += 1
    return total / count if count else 0.0
