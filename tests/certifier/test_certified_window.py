"""The window of certified transactions: rows come back as they went in, over segments' borders."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupcert.certifier.certified_window import SEGMENT_TRANSACTIONS, CertifiedWindow
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "11111111-1111-1111-1111-111111111111"


def window_of(count: int, *, newest_version: int = 0) -> CertifiedWindow:
    """Returns a window with `count` versions after `newest_version`."""
    window = CertifiedWindow(newest_version)
    append(window, count)
    return window


def append(window: CertifiedWindow, count: int) -> None:
    """Adds versions, each different."""
    for version in range(window.newest_version + 1, window.newest_version + count + 1):
        items = [version, 2**64 - version][: version % 3]
        gtid = Gtid(OTHER if version % 5 == 0 else SOURCE, version)
        origin = f"m{version % 2}"
        assert window.append(items, version + 1, version - 1, gtid, origin, 10 * version) == version


def assert_holds(window: CertifiedWindow, version: int) -> None:
    """The version is as `window_of` made it."""
    assert list(window.items(version)) == [version, 2**64 - version][: version % 3]
    assert window.sequence_number(version) == version + 1
    assert window.snapshot(version) == version - 1
    assert window.gtid(version) == Gtid(OTHER if version % 5 == 0 else SOURCE, version)
    assert window.origin(version) == f"m{version % 2}"
    assert window.position(version) == 10 * version


@pytest.mark.parametrize("newest_version", [0, 7, SEGMENT_TRANSACTIONS - 2, SEGMENT_TRANSACTIONS])
def test_each_version_is_held_as_it_was_appended(newest_version: int) -> None:
    window = window_of(SEGMENT_TRANSACTIONS + 10, newest_version=newest_version)
    window.check_invariants()
    for version in range(newest_version + 1, window.newest_version + 1):
        assert_holds(window, version)


def test_items_of_a_run_come_a_segment_at_a_time() -> None:
    window = window_of(SEGMENT_TRANSACTIONS + 10)
    runs = list(window.items_between(4, SEGMENT_TRANSACTIONS + 2))
    assert len(runs) == 2
    alone = [list(window.items(version)) for version in range(4, SEGMENT_TRANSACTIONS + 3)]
    assert [item for run in runs for item in run] == [item for items in alone for item in items]
    assert list(window.items_between(5, 4)) == []


def test_what_was_dropped_is_not_held_and_the_rest_is() -> None:
    window = window_of(3 * SEGMENT_TRANSACTIONS)
    window.drop_before(2 * SEGMENT_TRANSACTIONS + 5)
    window.drop_before(3)
    window.check_invariants()
    assert window.first_version == 2 * SEGMENT_TRANSACTIONS + 5
    assert_holds(window, window.first_version)
    with pytest.raises(AssertionError, match="version 8196 not held"):
        window.items(2 * SEGMENT_TRANSACTIONS + 4)


def test_a_window_that_was_dropped_whole_goes_on() -> None:
    window = window_of(SEGMENT_TRANSACTIONS - 1)
    window.drop_before(SEGMENT_TRANSACTIONS)
    window.append([1], 1, 0, Gtid(SOURCE, 1), "m1", 1)
    window.check_invariants()
    assert list(window.items(SEGMENT_TRANSACTIONS)) == [1]


def test_sets_go_with_the_segments_of_their_versions() -> None:
    window = window_of(SEGMENT_TRANSACTIONS + 1)
    for version in (3, SEGMENT_TRANSACTIONS + 1):
        window.snapshot_sets[version] = GtidSet.parse(f"{SOURCE}:1")
    window.append_elsewhere(GtidSet.parse(f"{OTHER}:1"), 1)
    window.drop_before(SEGMENT_TRANSACTIONS + 1)
    assert list(window.snapshot_sets) == [SEGMENT_TRANSACTIONS + 1]
    assert list(window.elsewhere) == [SEGMENT_TRANSACTIONS + 2]


@given(
    st.integers(0, 2 * SEGMENT_TRANSACTIONS),
    st.lists(st.integers(1, SEGMENT_TRANSACTIONS), min_size=1, max_size=4),
)
@settings(max_examples=10)
def test_pieces_load_into_the_window_that_was_dumped(begin: int, counts: list[int]) -> None:
    window, pieces = CertifiedWindow(begin), []
    for count in counts:
        first_version = window.newest_version + 1
        append(window, count)
        pieces += window.dump(first_version)
    loaded = CertifiedWindow(begin)
    loaded.load_names(window.names)
    for first_version, piece in pieces:
        loaded.load(first_version, piece)
    loaded.check_invariants()
    assert loaded.newest_version == window.newest_version == begin + sum(counts)
    for version in range(begin + 1, window.newest_version + 1, 97):
        assert_holds(loaded, version)
    assert loaded.dump(begin + 1) == window.dump(begin + 1)


def test_a_version_from_elsewhere_stands_for_a_set() -> None:
    window = window_of(1)
    version = window.append_elsewhere(GtidSet.parse(f"{OTHER}:1-3"), 20)
    assert window.executed(version) == GtidSet.parse(f"{OTHER}:1-3")
    assert window.executed(1) == GtidSet.parse(f"{SOURCE}:1")
    with pytest.raises(AssertionError):
        window.gtid(version)


def test_names_are_held_once() -> None:
    assert window_of(100).names == [SOURCE, "m1", "m0", OTHER]


def first_missing_one_by_one(window: CertifiedWindow, missing: GtidSet, lag_max: int) -> int:
    """`first_missing` as it is said: every version is looked at, from the newest back."""
    remaining = missing.count()
    version = window.newest_version + 1
    while remaining and version > max(window.first_version, window.newest_version + 1 - lag_max):
        version -= 1
        remaining -= (window.executed(version) & missing).count()
    return 0 if remaining else version


BEGIN, SPAN = SEGMENT_TRANSACTIONS - 100, SEGMENT_TRANSACTIONS + 300
versions = st.integers(BEGIN + 1, BEGIN + SPAN + 30)


@given(
    st.lists(st.tuples(versions, st.integers(0, 40)), min_size=1, max_size=4),
    st.integers(1, SPAN) | st.just(65_536),
    versions,
)
@settings(max_examples=5)
def test_the_first_missing_version_is_found_in_blocks_as_one_by_one(
    intervals: list[tuple[int, int]], lag_max: int, dropped: int
) -> None:
    window = window_of(70, newest_version=BEGIN)
    window.append_elsewhere(GtidSet.parse(f"{OTHER}:7-8:{BEGIN + SPAN}"), 1)
    append(window, SPAN - 71)
    found = GtidSet.of(*map(window.gtid, range(BEGIN + 1, BEGIN + 71)))
    found.update(GtidSet.of(*map(window.gtid, range(BEGIN + 72, BEGIN + SPAN + 1))))
    found.update(window.executed(BEGIN + 71))
    missing = GtidSet()
    for first, length in intervals:
        for source in (SOURCE, OTHER):
            missing.add_interval(source, first, first + length)
    for asked in (missing, missing & found):
        expected = first_missing_one_by_one(window, asked, lag_max)
        assert window.first_missing(asked, lag_max) == expected
    window.drop_before(min(dropped, window.newest_version))
    append(window, 3)
    expected = first_missing_one_by_one(window, missing & found, lag_max)
    assert window.first_missing(missing & found, lag_max) == expected


def test_looking_far_back_reads_no_version_twice() -> None:
    """A client may send a hundred snapshots a message that are 60,000 versions old."""
    window = window_of(16 * SEGMENT_TRANSACTIONS + 100)
    old = GtidSet.parse(f"{SOURCE}:4")
    assert window.first_missing(old, 1 << 20) == 4
    looked_at = 0

    def executed(self: CertifiedWindow, version: int) -> GtidSet:
        nonlocal looked_at
        looked_at += 1
        return GtidSet.of(self.gtid(version))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CertifiedWindow, "executed", executed)
        assert window.first_missing(old, 1 << 20) == 4
    assert looked_at < 200


def test_a_block_of_one_source_is_found_as_others_are() -> None:
    window = CertifiedWindow()
    for version in range(1, 200):
        window.append([version], 0, 0, Gtid(SOURCE, 1_000 - version), "m1", version)
    assert window.first_missing(GtidSet.parse(f"{SOURCE}:900-910"), 1_000) == 90
