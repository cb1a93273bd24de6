"""The entries of the relay queue: each a record, and many of them as columns.

A member reads some tens of transactions in a message of the log. To make an object of each one
costs more than to certify it, so they go from certification to the store as columns, which are also
what the store keeps. An entry is made of them where somebody asks for one: a scheme that starts
transactions by themselves, or a replica.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from operator import eq
from typing import NamedTuple, overload

from ...certifier.gtid import Gtid
from ..source.header import NO_HEADER, SourceHeader

_NO_GTID = ("", 0)


class RelayEntry(NamedTuple):
    """One record of the total order that the applier has to execute.

    `position` is its position in that order (`certifier.position.position_of`). `version` counts
    certified transactions; a view change, which has no GTID, bears the version before it. View
    changes and local transactions have the stamps 0 and 0. `local`: its client executed it here, so
    that it only has to commit in turn. `payload`: the row changes, which only the target can read;
    empty if there are none. `header`: the other properties that the source gave it.
    """

    position: int
    version: int
    gtid: Gtid | None
    last_committed: int
    sequence_number: int
    local: bool
    payload: bytes
    header: SourceHeader = NO_HEADER

    @classmethod
    def view_change(cls, position: int, version: int, view_id: int) -> "RelayEntry":
        """Returns the entry of a view."""
        header = SourceHeader(view_id=view_id)
        return cls(position, version, None, 0, 0, local=False, payload=b"", header=header)

    @classmethod
    def rotation(cls, version: int, file: int) -> "RelayEntry":
        """Returns the entry of a binary log's new file, which is at no position of the log."""
        header = SourceHeader(file=file)
        return cls(0, version, None, 0, 0, local=False, payload=b"", header=header)


class RelayGroup(Sequence[RelayEntry]):
    """Entries in the source's order, as columns of equal length.

    Of the headers it has what a member knows before a transaction is in its binary log: commit
    parent, domain, view, start of the lock interval and write set.

    >>> group = RelayGroup([RelayEntry.view_change(7, 3, view_id=2)])
    >>> group.positions, group[0].header.view_id, len(group[1:])
    ([7], 2, 0)
    """

    __slots__ = (
        "domains",
        "items",
        "last_committed",
        "local",
        "locked",
        "numbers",
        "parents",
        "payloads",
        "positions",
        "sequence_numbers",
        "sources",
        "versions",
        "views",
    )

    def __init__(self, entries: Iterable[RelayEntry] = ()) -> None:
        self.positions: list[int] = []
        self.versions: list[int] = []
        self.sources: list[str] = []
        """Sources of the GTIDs; empty: a view change, which has none."""
        self.numbers: list[int] = []
        self.last_committed: list[int] = []
        self.sequence_numbers: list[int] = []
        self.local: list[bool] = []
        self.payloads: list[bytes] = []
        self.parents: list[int] = []
        self.domains: list[int] = []
        self.views: list[int] = []
        self.locked: list[int | None] = []
        self.items: list[Sequence[int]] = []
        for entry in entries:
            self.append(entry)

    @classmethod
    def of(cls, entries: Sequence[RelayEntry]) -> "RelayGroup":
        """Returns entries as columns; the entries themselves if they are."""
        return entries if isinstance(entries, cls) else cls(entries)

    @classmethod
    def joined(cls, parts: Sequence[Sequence[RelayEntry]]) -> "RelayGroup":
        """Returns the entries of several sequences as one."""
        if len(parts) == 1:
            return cls.of(parts[0])
        whole = cls()
        for part in parts:
            whole += part
        return whole

    def append(self, entry: RelayEntry) -> None:
        """Adds an entry at the end."""
        position, version, gtid, last_committed, sequence_number, local, payload, header = entry
        parent, _, domain, _, _, items, _, _, view, locked, _ = header
        stamps = (last_committed, sequence_number)
        self.add(position, version, gtid, stamps, local, payload, parent, domain, locked, items)
        self.views[-1] = view

    def add(
        self,
        position: int,
        version: int,
        gtid: Gtid | None,
        stamps: tuple[int, int],
        local: bool,
        payload: bytes,
        parent: int,
        domain: int,
        locked: int | None,
        items: Sequence[int],
    ) -> None:
        """Adds the entry of a transaction at the end, without making one."""
        source, number = gtid or _NO_GTID
        self.positions.append(position)
        self.versions.append(version)
        self.sources.append(source)
        self.numbers.append(number)
        self.last_committed.append(stamps[0])
        self.sequence_numbers.append(stamps[1])
        self.local.append(local)
        self.payloads.append(payload)
        self.parents.append(parent)
        self.domains.append(domain)
        self.views.append(0)
        self.locked.append(locked)
        self.items.append(items)

    def columns(self) -> tuple[list, ...]:  # type: ignore[type-arg]  # of several types
        """Returns all columns, in one order."""
        return (
            self.positions,
            self.versions,
            self.sources,
            self.numbers,
            self.last_committed,
            self.sequence_numbers,
            self.local,
            self.payloads,
            self.parents,
            self.domains,
            self.views,
            self.locked,
            self.items,
        )

    def after(self, position: int) -> "RelayGroup":
        """Returns the entries after a position, which all ascend; itself if these are all."""
        if not self.positions or self.positions[0] > position:
            return self
        # Positions ascend, so those at or before it are the first ones.
        return self[sum(each <= position for each in self.positions) :]

    @property
    def is_of_one_source(self) -> bool:
        """True if the GTIDs are consecutive numbers of one source."""
        sources, numbers = self.sources, self.numbers
        return (
            bool(sources and sources[0])
            and sources.count(sources[0]) == len(sources)
            and all(map(eq, numbers, range(numbers[0], numbers[0] + len(numbers))))
        )

    def __iadd__(self, later: Sequence[RelayEntry]) -> "RelayGroup":
        if isinstance(later, RelayGroup):
            for mine, theirs in zip(self.columns(), later.columns(), strict=True):
                mine += theirs
        else:
            for entry in later:
                self.append(entry)
        return self

    def __iter__(self) -> Iterator[RelayEntry]:
        return starmap(_entry, zip(*self.columns(), strict=True))

    @overload
    def __getitem__(self, index: int) -> RelayEntry: ...
    @overload
    def __getitem__(self, index: slice) -> "RelayGroup": ...
    def __getitem__(self, index: int | slice) -> "RelayEntry | RelayGroup":
        if isinstance(index, int):
            return _entry(*[column[index] for column in self.columns()])
        part = RelayGroup()
        for mine, theirs in zip(part.columns(), self.columns(), strict=True):
            mine += theirs[index]
        return part

    def __len__(self) -> int:
        return len(self.positions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"RelayGroup({list(self)})"


def _entry(
    position: int,
    version: int,
    source: str,
    number: int,
    last_committed: int,
    sequence_number: int,
    local: bool,
    payload: bytes,
    parent: int,
    domain: int,
    view: int,
    locked: int | None,
    items: Sequence[int],
) -> RelayEntry:
    """Returns the entry that a value of each column makes."""
    header = SourceHeader(parent, 0, domain, None, None, items, 0, 0, view, locked)
    gtid = Gtid(source, number) if source else None
    return RelayEntry(
        position, version, gtid, last_committed, sequence_number, local, payload, header
    )


def first_gtid(entries: Sequence[RelayEntry]) -> Gtid | None:
    """Returns the GTID of the first entry, if it has one."""
    if isinstance(entries, RelayGroup):
        return Gtid(entries.sources[0], entries.numbers[0]) if entries.sources[0] else None
    return entries[0].gtid


def first_position(entries: Sequence[RelayEntry]) -> int:
    """Returns the position of the first entry."""
    return entries.positions[0] if isinstance(entries, RelayGroup) else entries[0].position


def last_gtid(entries: Sequence[RelayEntry]) -> Gtid | None:
    """Returns the GTID of the last entry, if it has one."""
    if isinstance(entries, RelayGroup):
        return Gtid(entries.sources[-1], entries.numbers[-1]) if entries.sources[-1] else None
    return entries[-1].gtid


def last_place(entries: Sequence[RelayEntry]) -> tuple[int, int]:
    """Returns the position and the version of the last entry."""
    if isinstance(entries, RelayGroup):
        return entries.positions[-1], entries.versions[-1]
    return entries[-1].position, entries[-1].version


def positions_of(entries: Sequence[RelayEntry]) -> Sequence[int]:
    """Returns the positions of entries."""
    if isinstance(entries, RelayGroup):
        return entries.positions
    return [entry.position for entry in entries]


def payloads_of(entries: Sequence[RelayEntry]) -> Sequence[bytes]:
    """Returns the payloads of entries."""
    if isinstance(entries, RelayGroup):
        return entries.payloads
    return [entry.payload for entry in entries]
