"""The naive certifier: the rule of `members/how-a-group-works.md` word for word, with sets where
the real one has integers.

It shares nothing with the certifier: a GTID is a pair (source, number), a snapshot version is a set
of them, and every step copies or walks whatever is easiest to read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

ModelGtid = tuple[str, int]
GtidSets = frozenset[ModelGtid]


@dataclass
class Writer:
    """What certification info holds of an item's last certified writer."""

    gtid: ModelGtid
    snapshot: GtidSets
    sequence_number: int


@dataclass(frozen=True)
class Decision:
    """What became of a transaction."""

    verdict: str
    gtid: ModelGtid | None = None
    stamps: tuple[int, int] | None = None
    item: int | None = None
    winner: ModelGtid | None = None


@dataclass
class Model:
    """A certifier of one observer; `states` are the executed sets after each version."""

    group_source: str
    gc_window: str = "close"
    learn: bool = False
    executed: GtidSets = frozenset()
    collected: GtidSets = frozenset()
    info: dict[int, Writer] = field(default_factory=dict)
    states: list[GtidSets] = field(default_factory=lambda: [frozenset()])
    last_committed_global: int = 1
    sequence_number: int = 2

    def certify(
        self,
        snapshot: int | GtidSets,
        write_set: Iterable[int],
        read_set: Iterable[int] = (),
        gtid: ModelGtid | None = None,
        *,
        local: bool = False,
    ) -> Decision:
        """Rules 1 to 5."""
        write_set, read_set = list(write_set), list(read_set)
        if isinstance(snapshot, int):
            if snapshot >= len(self.states):
                return Decision("REFUSED")
            snapshot = self.states[snapshot]
        unknown = snapshot - self.executed - {gtid}
        if unknown and not self.learn:
            return Decision("REFUSED")
        if unknown:
            self.execute_elsewhere(frozenset(g for g in unknown if g is not None))
        if (write_set or read_set) and not self.collected <= snapshot:
            return Decision("TOO_OLD")
        for item in write_set + read_set:
            if item in self.info and not self.info[item].snapshot <= snapshot:
                return Decision("CONFLICT", item=item, winner=self.info[item].gtid)
        if gtid is None:
            gtid = self._next_gtid()
        elif gtid in self.executed:
            return Decision("REFUSED")
        stamps = None if local else self._stamp(write_set)
        for item in write_set:
            self.info[item] = Writer(gtid, snapshot | {gtid}, stamps[1] if stamps else 0)
        self._execute(frozenset({gtid}))
        return Decision("CERTIFIED", gtid, stamps)

    def collect(self, stable: int | GtidSets) -> int:
        """Rule 6; returns how many items were purged."""
        stable = self.states[stable] if isinstance(stable, int) else stable
        self.collected |= stable & self.executed
        purged = {item: writer for item, writer in self.info.items() if writer.gtid in stable}
        for item in purged:
            del self.info[item]
        if purged and self.gc_window == "close":
            self.last_committed_global = self.sequence_number - 1
        for writer in purged.values():
            self.last_committed_global = max(self.last_committed_global, writer.sequence_number)
        return len(purged)

    def change_view(self, *, joiner: bool) -> None:
        """Rule 7."""
        if joiner:
            self.last_committed_global, self.sequence_number = 1, 2
            for writer in self.info.values():
                writer.sequence_number = 0

    def execute_elsewhere(self, gtids: GtidSets) -> None:
        """Transactions that came by another way."""
        if gtids - self.executed:
            self._execute(gtids)

    def _execute(self, gtids: GtidSets) -> None:
        self.executed |= gtids
        self.states.append(self.executed)

    def _next_gtid(self) -> ModelGtid:
        number = 1
        while (self.group_source, number) in self.executed:
            number += 1
        return self.group_source, number

    def _stamp(self, write_set: list[int]) -> tuple[int, int]:
        """Rules 3 and 4."""
        sequence_number = self.sequence_number
        self.sequence_number += 1
        if not write_set:
            self.last_committed_global = sequence_number
            return sequence_number - 1, sequence_number
        known = [self.info[item].sequence_number for item in write_set if item in self.info]
        return max([self.last_committed_global, *known]), sequence_number
