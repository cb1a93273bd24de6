"""What became of recent transactions, by the id that their clients chose.

The rule it keeps: a transaction that comes again with the same id is answered and not certified
again, on every member alike. The table is bounded and forgets by place in the order, never by time,
so all members forget the same.
"""

from collections.abc import Iterator

from certifier.records import Outcome


class OutcomeTable:
    """The outcomes of the last `outcomes_max` / 2 to `outcomes_max` transactions that had an id.

    Two generations: when the young one is full, the old one is forgotten whole. No entry is ever
    moved.
    """

    __slots__ = ("_generation_max", "_old", "_young", "forgotten_version")

    def __init__(self, outcomes_max: int) -> None:
        assert outcomes_max >= 2
        self._generation_max = outcomes_max // 2
        self._young: dict[bytes, Outcome] = {}
        self._old: dict[bytes, Outcome] = {}
        self.forgotten_version = 0

    def get(self, transaction_id: bytes) -> Outcome | None:
        """The outcome of a transaction, if it is still known."""
        return self._young.get(transaction_id) or self._old.get(transaction_id)

    def remember(self, transaction_id: bytes, outcome: Outcome) -> bool:
        """Adds an outcome; True if a generation was forgotten to make room."""
        turned = len(self._young) >= self._generation_max
        if turned:
            self.forgotten_version = max(
                [self.forgotten_version, *(known.version for known in self._old.values())]
            )
            self._old, self._young = self._young, {}
        self._young[transaction_id] = outcome
        return turned

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[tuple[bytes, Outcome]]:
        yield from self._old.items()
        yield from self._young.items()
