"""Block-wise numbers: worked cases, and random calls against sets of single numbers."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from certifier.errors import GtidsExhausted
from certifier.gtid import NUMBER_MAX
from certifier.gtid_blocks import GtidBlocks

GROUP = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def numbers(blocks: GtidBlocks, members: str) -> list[int]:
    return [blocks.next_number(member) for member in members]


def test_members_take_their_numbers_from_blocks_of_their_own() -> None:
    blocks = GtidBlocks(GROUP, 100)
    assert numbers(blocks, "abacab") == [1, 101, 2, 201, 3, 102]


def test_a_used_up_block_is_followed_by_the_first_free_one() -> None:
    blocks = GtidBlocks(GROUP, 3)
    assert numbers(blocks, "aba") == [1, 4, 2]
    assert numbers(blocks, "aaa") == [3, 5, 6]


def test_a_round_ends_after_as_many_numbers_as_a_block_has() -> None:
    blocks = GtidBlocks(GROUP, 4)
    assert numbers(blocks, "abab") == [1, 5, 2, 6]
    assert numbers(blocks, "ba") == [3, 7]


def test_blocks_of_one_number_give_the_smallest_free_number() -> None:
    blocks = GtidBlocks(GROUP, 1)
    blocks.use(2)
    assert numbers(blocks, "abcab") == [1, 3, 4, 5, 6]


def test_a_view_change_frees_what_is_reserved_and_unused() -> None:
    blocks = GtidBlocks(GROUP, 100)
    assert numbers(blocks, "ab") == [1, 101]
    blocks.release_all()
    assert numbers(blocks, "ba") == [2, 102]


def test_numbers_brought_along_are_skipped_in_blocks_and_between_them() -> None:
    blocks = GtidBlocks(GROUP, 10)
    assert numbers(blocks, "a") == [1]
    blocks.use(2)
    blocks.use(4)
    blocks.use(12)
    assert numbers(blocks, "aabb") == [3, 5, 11, 13]
    blocks.use_interval(6, 8)
    assert numbers(blocks, "aa") == [9, 10]


def test_a_block_ends_where_used_numbers_begin() -> None:
    """A real group: server-1 went on in the first gap, server-3 behind the second interval.

    Source: executed set and first GTIDs of a MySQL 9.7.4 group's relay log.
    """
    blocks = GtidBlocks(GROUP, 1_000_000)
    blocks.use_interval(1, 58_254)
    blocks.use_interval(1_000_000, 1_055_653)
    assert numbers(blocks, "131") == [58_255, 1_055_654, 58_256]


def test_an_interval_brought_along_may_cover_a_block() -> None:
    blocks = GtidBlocks(GROUP, 5)
    assert numbers(blocks, "ab") == [1, 6]
    blocks.use_interval(2, 5)
    blocks.use_interval(7, 30)
    assert numbers(blocks, "ab") == [31, 36]


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
            self.release_all()
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
