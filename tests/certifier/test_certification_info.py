"""Certification info against a dict: whatever is recorded and purged, by itself or together.

Method: items are drawn so that many share a bucket, whose slots then do not suffice, and one is 0,
which no slot can hold.
"""

from random import Random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from groupcert.certifier import certification_info
from groupcert.certifier.certification_info import (
    FIRST_BUCKETS,
    LOAD,
    SLOTS,
    TOGETHER_MIN,
    CertificationInfo,
)

ITEMS = st.one_of(
    st.integers(0, 5), st.integers(0, 30).map(lambda number: 7 + (number << 40)), st.integers(0, 99)
)


class RandomChanges(RuleBasedStateMachine):
    """The table, and the dict that it must be equal to."""

    def __init__(self) -> None:
        super().__init__()
        self.info = CertificationInfo()
        self.known: dict[int, int] = {}
        self.version = 0

    @rule(items=st.lists(ITEMS, max_size=TOGETHER_MIN + 8))
    def record(self, items: list[int]) -> None:
        self.version += 1
        self.info.record(items, self.version)
        self.known |= dict.fromkeys(items, self.version)

    @rule(items=st.lists(ITEMS.filter(bool), max_size=40, unique=True))
    def record_together(self, items: list[int]) -> None:
        found = self.info.look_up(np.array(items, np.uint64))
        assert found.writers.tolist() == [self.known.get(item, 0) for item in items]
        versions = range(self.version + 1, self.version + 1 + len(items))
        self.info.record_all(found, np.array(versions, np.uint64))
        self.known |= dict(zip(items, versions, strict=True))
        self.version += len(items)

    @rule(items=st.lists(ITEMS, max_size=40))
    def record_again(self, items: list[int]) -> None:
        versions = range(self.version + 1, self.version + 1 + len(items))
        self.info.record_versions(np.array(items, np.uint64), np.array(versions, np.uint64))
        self.known |= dict(zip(items, versions, strict=True))
        self.version += len(items)

    @rule(items=st.lists(ITEMS, max_size=40), kept=st.integers(0, 9))
    def purge(self, items: list[int], kept: int) -> None:
        last = max(self.version - kept, 0)
        old = {item: self.known[item] for item in items if self.known.get(item, last + 1) <= last}
        assert sorted(self.info.purge(items, last)) == sorted(old.values())
        for item in old:
            del self.known[item]

    @rule(items=st.lists(ITEMS, max_size=TOGETHER_MIN + 8))
    def ask(self, items: list[int]) -> None:
        known = [(item, self.known[item]) for item in items if item in self.known]
        assert list(self.info.writers(items)) == known
        assert self.info.newest_writer(items) == max((writer for _, writer in known), default=0)

    @invariant()
    def they_are_equal(self) -> None:
        self.info.check_invariants()
        assert dict(self.info.entries()) == self.known
        assert len(self.info) == len(self.known)


TestRandomChanges = RandomChanges.TestCase
TestRandomChanges.settings = settings(max_examples=60, stateful_step_count=25)


@pytest.mark.parametrize("count", [TOGETHER_MIN - 1, TOGETHER_MIN])
def test_few_items_and_many_are_recorded_and_found_alike(count: int) -> None:
    info, items = CertificationInfo(), [*range(count - 1), 0]
    info.record(items, 1)
    info.record(items[:1], 2)
    assert info.newest_writer(items) == 2
    assert list(info.writers(items)) == [(0, 2), *((item, 1) for item in items[1:-1]), (0, 2)]
    assert len(info) == count - 1
    info.check_invariants()


def test_a_growing_table_keeps_all_items() -> None:
    chance, info = Random(1), CertificationInfo()
    known = {chance.getrandbits(64): version for version in range(1, 20 * LOAD * FIRST_BUCKETS)}
    for item, version in known.items():
        info.record([item], version)
    info.check_invariants()
    assert dict(info.entries()) == known
    assert len(info._spilled) < len(known) / 50


def test_what_no_bucket_has_room_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certification_info, "BUCKETS_MAX", 2 * FIRST_BUCKETS)
    chance, info = Random(1), CertificationInfo()
    items = [chance.getrandbits(64) for _ in range(3 * FIRST_BUCKETS * SLOTS)]
    for begin in range(0, len(items), 64):
        found = info.look_up(np.array(items[begin : begin + 64], np.uint64))
        info.record_all(found, np.full(len(found.items), begin + 1, np.uint64))
    info.check_invariants()
    assert len(info) == len(items)
    assert info.newest_writer(items[:64]) == 1
    assert len(info.purge(items, len(items))) == len(items)
    info.check_invariants()
