"""Block-wise GTID numbers: which number of the group's source a certified transaction gets.

Each member owns a block of up to `block_size` numbers and its transactions take theirs from it in
order, so that members number transactions far apart from one another and GTIDs that arrive with a
transaction seldom meet assigned ones. The rule: a number is given out once; it is chosen from the
calls so far alone, so that every member of the group chooses the same.

A round begins empty. A member without a block, or with a used-up one, gets the first interval that
is neither used nor reserved, cut to `block_size`. When a round has given out `block_size` numbers,
or a view changes, what is reserved and unused becomes free, and a new round begins: gaps are filled
sooner or later. With a block size of 1 every round is one number, the smallest free one.

Source: MySQL 8.4 Reference Manual, 20.9.1, `group_replication_gtid_assignment_block_size`; read in
the server's gtid_generator_for_sidno.cc.
Differs: a number of a transaction that came with its own GTID splits the free intervals at once;
the server sees it there when the round ends, and until then skips it inside a block that still
counts it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from .errors import GtidsExhausted
from .gtid import NUMBER_MAX
from .gtid_set import NUMBER_STOP, GtidSet


class BlocksState(NamedTuple):
    """All of a `GtidBlocks` that decides its next numbers; for the store and for snapshots."""

    used: tuple[tuple[int, int], ...]
    """Intervals (first, last), both included, ascending."""
    unreserved_first: int
    """Every smaller number is used or in a block."""
    assigned_count: int
    """Numbers given out in this round."""
    blocks: tuple[tuple[str, int, int], ...]
    """For each member, by name, what is left of its block: (member, first, stop)."""


@dataclass(slots=True)
class _Block:
    """The rest of a member's block: [first, stop), of which [first, run_stop) is free."""

    first: int
    run_stop: int
    stop: int


class GtidBlocks:
    """Gives out the numbers of the group's source.

    >>> blocks = GtidBlocks("3e11fa47-71ca-11e1-9e33-c80aa9429562", block_size=100)
    >>> [blocks.next_number(member) for member in ("m1", "m2", "m1", "m2")]
    [1, 101, 2, 102]
    >>> blocks.use(3)
    >>> blocks.next_number("m1")
    4
    """

    def __init__(self, group_source: str, block_size: int) -> None:
        """Begins the first round, with no number used.

        Numbers that were executed before enter through `use_interval`, or with all else through
        `restore`.

        Args:
            group_source: in canonical spelling.
            block_size: 1 or more; the same at all members.
        """
        assert block_size >= 1, f"block_size {block_size}"
        self.group_source = group_source
        self.block_size = block_size
        self._used = GtidSet()
        self._unreserved_first = 1
        self._assigned_count = 0
        self._blocks: dict[str, _Block] = {}

    def next_number(self, member: str) -> int:
        """Returns the number for the next transaction of a member.

        Raises:
            GtidsExhausted: if all numbers are used.

        Cost: amortised O(1); O(log intervals) at the start of each run of free numbers.
        """
        block = self._free_block(member)
        number = block.first
        block.first = number + 1
        self._assigned_count += 1
        self._used.add_number(self.group_source, number)
        return number

    def next_numbers(self, member: str, count: int) -> list[int]:
        """Returns the numbers for the next `count` transactions of a member, as `next_number`."""
        numbers: list[int] = []
        while len(numbers) < count:
            block = self._free_block(member)
            first, left = block.first, self.block_size - self._assigned_count
            # Up to what is asked for, the next used number, or the end of the round.
            block.first = min(first + count - len(numbers), block.run_stop, first + left)
            self._assigned_count += block.first - first
            self._used.add_interval(self.group_source, first, block.first - 1)
            numbers += range(first, block.first)
        return numbers

    def use(self, number: int) -> None:
        """Marks a number of the group's source, with which a transaction came, as used.

        Cost: O(members + log intervals).
        """
        self.use_interval(number, number)

    def use_interval(self, first: int, last: int) -> None:
        """Marks numbers, `first` to `last`, both included, that were not assigned here as used.

        Cost: O(members + log intervals).
        """
        used = self._used.first_used(self.group_source, first, last + 1)
        assert used is None, f"{self.group_source}:{used} was used before"
        self._used.add_interval(self.group_source, first, last)
        for block in self._blocks.values():
            # The run of free numbers ends before it; the rest of the block is found when that is
            # used up.
            if block.first <= last and first < block.run_stop:
                block.run_stop = max(first, block.first)

    def is_used(self, number: int) -> bool:
        """Returns whether a number was assigned, or used by a transaction with its own GTID. Cost:
        O(log intervals).
        """
        return self._used.contains_number(self.group_source, number)

    def release_all(self) -> None:
        """Begins a new round: numbers that are reserved and unused become free. Cost: O(1)."""
        self._blocks = {}
        self._unreserved_first = 1
        self._assigned_count = 0

    def resize(self, block_size: int) -> None:
        """Begins a new round, of another block size. Cost: O(1)."""
        assert block_size >= 1, f"block_size {block_size}"
        self.block_size = block_size
        self.release_all()

    def used_intervals(self) -> list[tuple[int, int]]:
        """Returns the used numbers as intervals (first, last), both included, ascending."""
        return self._used.intervals(self.group_source)

    def state(self) -> BlocksState:
        """Returns the state that decides the next numbers. Cost: O(intervals + members log
        members).
        """
        return BlocksState(
            used=tuple(self.used_intervals()),
            unreserved_first=self._unreserved_first,
            assigned_count=self._assigned_count,
            blocks=tuple((m, b.first, b.stop) for m, b in sorted(self._blocks.items())),
        )

    def restore(self, state: BlocksState) -> None:
        """Replaces the present state by `state`. Cost: as `state`."""
        self._used = GtidSet()
        for first, last in state.used:
            self._used.add_interval(self.group_source, first, last)
        self._unreserved_first = state.unreserved_first
        self._assigned_count = state.assigned_count
        # An empty run: the next call finds the free numbers, which follow from the used ones.
        self._blocks = {m: _Block(first, first, stop) for m, first, stop in state.blocks}
        self.check_invariants()

    def check_invariants(self) -> None:
        """Asserts that blocks do not overlap, runs are free, and no number is lost."""
        self._used.check_invariants()
        assert 0 <= self._assigned_count <= self.block_size
        assert 1 <= self._unreserved_first <= NUMBER_STOP
        taken = self._used.copy()
        stop_before = 0
        for block in sorted(self._blocks.values(), key=lambda block: block.stop):
            assert stop_before <= block.first <= block.run_stop <= block.stop, block
            assert block.stop <= self._unreserved_first, block
            assert self._used.first_used(self.group_source, block.first, block.run_stop) is None
            if block.first < block.stop:
                taken.add_interval(self.group_source, block.first, block.stop - 1)
            stop_before = block.stop
        assert taken.next_free(self.group_source, 1) >= self._unreserved_first

    def _free_block(self, member: str) -> _Block:
        """Returns the member's block, or a new one, whose first number is free."""
        if self._assigned_count == self.block_size:
            self.release_all()
        block = self._blocks.get(member)
        if block is None or block.first == block.run_stop:
            return self._next_run(member, block)
        return block

    def _next_run(self, member: str, block: _Block | None) -> _Block:
        """Moves to the next free number of the member's block, or to a new block if it has none."""
        if block is not None:
            block.first = self._used.next_free(self.group_source, block.first)
            if block.first < block.stop:
                block.run_stop = self._run_stop(block.first, block.stop)
                return block
        reserved = self._blocks[member] = self._reserve()
        return reserved

    def _reserve(self) -> _Block:
        """Cuts a block from the first interval that is neither used nor reserved."""
        first = self._used.next_free(self.group_source, self._unreserved_first)
        if first == NUMBER_STOP:
            self.release_all()
            # Rounds before have left gaps that are free now.
            first = self._used.next_free(self.group_source, 1)
        if first == NUMBER_STOP:
            raise GtidsExhausted(source=self.group_source, number_max=NUMBER_MAX)
        stop = self._run_stop(first, min(first + self.block_size, NUMBER_STOP))
        self._unreserved_first = stop
        return _Block(first, stop, stop)

    def _run_stop(self, first: int, stop: int) -> int:
        """Returns the end of the free numbers from `first` on, at most `stop`."""
        return self._used.first_used(self.group_source, first, stop) or stop
