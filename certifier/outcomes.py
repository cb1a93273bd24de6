"""The outcomes of recent transactions, by the id that their clients chose.

A client that got no answer sends its transaction again with the same id: every member returns the
known outcome and does not certify it twice. The table is bounded and forgets by position in the
total order, never by time, so all members forget the same. It is also bounded in bytes: of what a
client sends, an entry holds only the id, at most `TRANSACTION_ID_BYTES_MAX`.

A transaction that is sent again once its outcome is forgotten is decided anew, and loses to itself.
Such a decision is `Doubtful`: certification has to take it as it is, its client must not.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Final

from .records import Outcome

TRANSACTION_ID_BYTES_MAX: Final = 32
"""Length of an id; transactions with a longer one are refused when they are read."""
REASON_CHARACTERS_MAX: Final = 200
"""Length of a reason: the longest contains a GTID, or a value that `certifier.errors.quoted` has
cut.
"""


class Doubtful(Outcome):
    """A decision on a transaction that may have been certified before, and then was forgotten: its
    snapshot is older than the outcomes that are remembered. Where it is negative, nobody can say
    what became of the transaction; where it is certified, perhaps it is for the second time.
    """

    __slots__ = ()


class OutcomeTable:
    """Holds the outcomes of the last `outcomes_max` / 2 to `outcomes_max` transactions that had an
    id.

    Outcomes are numbered from 0 on. Two generations are held, each of the same length: when the
    young one is full, the old one is forgotten whole. No entry is ever moved.
    """

    __slots__ = ("_generation_max", "_old", "_young", "forgotten_version", "next_number")

    def __init__(self, outcomes_max: int, first_number: int = 0) -> None:
        """Creates an empty table; `first_number` is where a generation begins."""
        assert outcomes_max >= 2
        self._generation_max = outcomes_max // 2
        assert first_number % self._generation_max == 0, "not where a generation begins"
        self._young: dict[bytes, Outcome] = {}
        self._old: dict[bytes, Outcome] = {}
        self.next_number = first_number
        self.forgotten_version = 0

    @property
    def first_number(self) -> int:
        """Number of the oldest outcome that is held, and where its generation begins."""
        return self.next_number - len(self)

    @property
    def young_number(self) -> int:
        """Number of the young generation's first outcome."""
        return self.next_number - len(self._young)

    @property
    def room(self) -> int:
        """Outcomes that are remembered before a generation is forgotten."""
        return self._generation_max - len(self._young)

    def get(self, transaction_id: bytes) -> Outcome | None:
        """Returns the outcome of a transaction, or None if it is not known any more."""
        return self._young.get(transaction_id) or self._old.get(transaction_id)

    def remember(self, transaction_id: bytes, outcome: Outcome) -> None:
        """Adds the outcome of a transaction that the table does not have."""
        assert len(outcome.reason) <= REASON_CHARACTERS_MAX, outcome.reason
        if not self.room:
            # A transaction with an older snapshot may be a repetition of one that is forgotten now.
            self.forgotten_version = max(
                [self.forgotten_version, *(known.version for known in self._old.values())]
            )
            self._old, self._young = self._young, {}
        assert transaction_id not in self._young and transaction_id not in self._old
        self._young[transaction_id] = outcome
        self.next_number += 1

    def knows_any(self, transaction_ids: Iterable[bytes]) -> bool:
        """Returns whether the outcome of one of several transactions is known."""
        return any(map(self._young.get, transaction_ids)) or any(
            map(self._old.get, transaction_ids)
        )

    def remember_all(self, outcomes: Mapping[bytes, Outcome]) -> None:
        """Adds the outcomes of several transactions, in order; as `remember` for each of them."""
        # A generation ends among them, and which outcomes it has must not depend on the call.
        if len(outcomes) > self.room:
            for transaction_id, outcome in outcomes.items():
                self.remember(transaction_id, outcome)
        else:
            self._young.update(outcomes)
            self.next_number += len(outcomes)

    def since(self, number: int) -> list[tuple[bytes, Outcome]]:
        """Returns the outcomes held from `number` on, in order. Cost: O(outcomes returned)."""
        # From the end: callers ask for the few newest of a large table.
        newest_first = chain(reversed(self._young.items()), reversed(self._old.items()))
        return list(islice(newest_first, self.next_number - number))[::-1]

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[tuple[bytes, Outcome]]:
        yield from self._old.items()
        yield from self._young.items()
