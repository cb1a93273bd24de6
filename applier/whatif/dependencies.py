"""Dependencies: which transactions of a stream each one has to follow, whatever the scheme.

A transaction follows the last writer of each row that it writes. One whose rows are not known
follows everything before it in its databases, and everything after it there follows it; if not even
those are known, or if it has no GTID, that holds for the whole stream.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

NO_ITEM = 0
"""Instead of an item: the transaction, or the one it follows, has no write set."""


class Dependencies:
    """Keeps the edges from each transaction to those it follows, in flat arrays; numbers from 0 on.

    Cost: O(items + databases) a transaction, over the whole stream.
    """

    def __init__(self) -> None:
        self.offsets = array("Q", [0])
        """Edges of transaction i: offsets[i] to offsets[i + 1]."""
        self.followed = array("I")
        self.items = array("Q")
        """The row that makes each edge, or `NO_ITEM`."""
        self._writers: dict[int, int] = {}
        self._fence = -1
        self._database_fences: dict[str, int] = {}
        self._database_members: dict[str, array[int]] = {}

    def add(
        self,
        items: Sequence[int],
        databases: Sequence[str] | None,
        *,
        alone: bool,
        follows: Sequence[int] | None = None,
    ) -> list[int]:
        """Adds the next transaction; returns those of its items that have an earlier writer.

        `databases`: None if they are not known; used only if there are no items. `follows`: more
        that it follows, if it also wrote rows that have no items.
        """
        number, rewritten = len(self), []
        is_known = bool(items) or follows is not None
        for earlier in follows or ():
            self._edge(earlier, NO_ITEM)
        for item in items:
            writer = self._writers.get(item)
            if writer is not None and writer != number:
                rewritten.append(item)
                self._edge(writer, item)
            self._writers[item] = number
        if alone or (databases is None and not is_known):
            # Those before the last fence are followed through that.
            for earlier in range(max(self._fence, 0), number):
                self._edge(earlier, NO_ITEM)
            self._fence = number
            self._database_fences.clear()
            self._database_members.clear()
        else:
            if self._fence >= 0:
                self._edge(self._fence, NO_ITEM)
            for database in databases or ():
                self._in_database(number, database, fences=not is_known)
        self.offsets.append(len(self.followed))
        return rewritten

    def newest_followed(self, number: int) -> int:
        """Returns the number of the newest transaction that `number` follows; -1 for none."""
        edges = self.followed[self.offsets[number] : self.offsets[number + 1]]
        return max(edges, default=-1)

    def window(self, start: int, stop: int) -> "Dependencies":
        """Returns the edges among the transactions from `start` to `stop`, numbered from 0 on."""
        part = Dependencies()
        for number in range(start, stop):
            for edge in range(self.offsets[number], self.offsets[number + 1]):
                if self.followed[edge] >= start:
                    part._edge(self.followed[edge] - start, self.items[edge])
            part.offsets.append(len(part.followed))
        return part

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def edges(self) -> Iterator[tuple[int, range]]:
        """Yields each transaction and the range of its edges."""
        start = 0
        for number in range(len(self)):
            stop = self.offsets[number + 1]
            yield number, range(start, stop)
            start = stop

    def _in_database(self, number: int, database: str, *, fences: bool) -> None:
        fence = self._database_fences.get(database)
        if fence is not None:
            self._edge(fence, NO_ITEM)
        members = self._database_members.setdefault(database, array("I"))
        if fences:
            for member in members:
                self._edge(member, NO_ITEM)
            self._database_fences[database] = number
            # Later ones follow the fence, and through it these.
            del members[:]
        else:
            members.append(number)

    def _edge(self, followed: int, item: int) -> None:
        self.followed.append(followed)
        self.items.append(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The longest chain: its length, its transactions, and for each but the first the row that ties
    it to the one before it (or `NO_ITEM`).
    """

    length_us: int
    transactions: list[int] = field(default_factory=list)
    items: list[int] = field(default_factory=list)


def critical_path(dependencies: Dependencies, lengths_us: Sequence[int]) -> CriticalPath:
    """Returns the chain that takes longest if each transaction starts when those it follows ended.

    Cost: O(edges).
    """
    followed = dependencies.followed
    ends: list[int] = []
    links: list[int] = []
    for number, edges in dependencies.edges():
        start, link = 0, -1
        for edge in edges:
            end = ends[followed[edge]]
            if end > start:
                start, link = end, edge
        ends.append(start + lengths_us[number])
        links.append(link)
    if not ends:
        return CriticalPath(length_us=0)
    length_us = max(ends)
    number = ends.index(length_us)
    transactions, items = [number], []
    while (link := links[number]) >= 0:
        number = followed[link]
        transactions.append(number)
        items.append(dependencies.items[link])
    return CriticalPath(length_us=length_us, transactions=transactions[::-1], items=items[::-1])


def count_overtakers(
    dependencies: Dependencies,
    started_us: Sequence[int],
    visible_us: Sequence[int],
    jobs: Sequence[int],
) -> int:
    """Counts the transactions that started before one that they follow was visible. `jobs` has the
    job of each transaction: those of one job are executed one after the other and do not count.

    Cost: O(edges).
    """
    count, followed = 0, dependencies.followed
    for number, edges in dependencies.edges():
        start, job = started_us[number], jobs[number]
        for edge in edges:
            earlier = followed[edge]
            if visible_us[earlier] > start and jobs[earlier] != job:
                count += 1
                break
    return count
