"""Block-wise numbers: random calls against sets of single numbers, a real group, the last ones."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from groupcert.certifier.errors import GtidsExhausted
from groupcert.certifier.gtid import NUMBER_MAX
from groupcert.certifier.gtid_blocks import GtidBlocks

GROUP = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def numbers(blocks: GtidBlocks, members: str) -> list[int]:
    return [blocks.next_number(member) for member in members]


def test_a_block_ends_where_used_numbers_begin() -> None:
    """A real group: server-1 went on in the first gap, server-3 behind the second interval.

    Source: executed set and first GTIDs of a MySQL 9.7.4 group's relay log.
    """
    blocks = GtidBlocks(GROUP, 1_000_000)
    blocks.use_interval(1, 58_254)
    blocks.use_interval(1_000_000, 1_055_653)
    assert numbers(blocks, "131") == [58_255, 1_055_654, 58_256]


def test_reserved_numbers_are_given_out_before_a_number_is_refused() -> None:
    blocks = GtidBlocks(GROUP, 3)
    blocks.use_interval(1, NUMBER_MAX - 4)
    assert numbers(blocks, "ab") == [NUMBER_MAX - 3, NUMBER_MAX]
    assert numbers(blocks, "bb") == [NUMBER_MAX - 2, NUMBER_MAX - 1]
    with pytest.raises(GtidsExhausted) as caught:
        blocks.next_number("a")
    assert caught.value.number_max == NUMBER_MAX
    blocks.check_invariants()


def test_a_number_is_used_once() -> None:
    blocks = GtidBlocks(GROUP, 3)
    assert numbers(blocks, "a") == [1]
    with pytest.raises(AssertionError, match="1 was used before"):
        blocks.use(1)
    with pytest.raises(AssertionError, match="block_size 0"):
        GtidBlocks(GROUP, 0)


class RandomCalls(RuleBasedStateMachine):
    """The model keeps used and reserved numbers one by one, and searches from 1 each time."""

    @initialize(block_size=st.integers(1, 6))
    def begin(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = GtidBlocks(GROUP, block_size)
        self.used: set[int] = set()
        self.reserved: dict[str, set[int]] = {}
        self.assigned_count = 0

    def free_for_all(self, number: int) -> bool:
        return number not in self.used.union(*self.reserved.values())

    def reserve(self, member: str) -> set[int]:
        first = 1
        while not self.free_for_all(first):
            first += 1
        block = {first}
        while len(block) < self.block_size and self.free_for_all(first + len(block)):
            block.add(first + len(block))
        self.reserved[member] = block
        return block

    @rule(member=st.sampled_from("abc"))
    def next_number(self, member: str) -> None:
        if self.assigned_count == self.block_size:
            self.begin_round()
        free = self.reserved.get(member, set()) - self.used or self.reserve(member)
        expected = min(free)
        self.used.add(expected)
        self.assigned_count += 1
        assert self.blocks.next_number(member) == expected

    @rule(first=st.integers(1, 40), length=st.integers(1, 8))
    def use(self, first: int, length: int) -> None:
        brought = set(range(first, first + length))
        if not brought & self.used:
            self.blocks.use_interval(first, first + length - 1)
            self.used |= brought

    @rule()
    def release_all(self) -> None:
        self.blocks.release_all()
        self.begin_round()

    def begin_round(self) -> None:
        self.reserved = {}
        self.assigned_count = 0

    @precondition(lambda self: self.used)
    @rule()
    def restart(self) -> None:
        state = self.blocks.state()
        self.blocks = GtidBlocks(GROUP, self.block_size)
        self.blocks.restore(state)
        assert self.blocks.state() == state

    @invariant()
    def agrees(self) -> None:
        self.blocks.check_invariants()
        intervals = self.blocks.used_intervals()
        assert {n for first, last in intervals for n in range(first, last + 1)} == self.used
        assert all(self.blocks.is_used(n) == (n in self.used) for n in range(1, 60))


TestRandomCalls = RandomCalls.TestCase
TestRandomCalls.settings = settings(max_examples=60, stateful_step_count=40)
