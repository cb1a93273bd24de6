"""Held versions: what is reported as stable passes none of them, and never goes back."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.core.held_versions import HeldVersions


def test_the_oldest_of_several_snapshots_is_held_until_it_is_released() -> None:
    held = HeldVersions(100)
    release = held.hold_all([7, 4, 9])
    assert (held.oldest, held.advance(3), held.advance(9)) == (4, 3, 4)
    release()
    assert (held.oldest, held.advance(9)) == (0, 9)


def test_no_more_than_so_many_versions_are_held() -> None:
    held = HeldVersions(10)
    held.hold(1)
    assert [held.advance(version) for version in (11, 15)] == [1, 5]


def test_a_set_of_gtids_holds_what_was_reported() -> None:
    held = HeldVersions(100)
    held.advance(5)
    held.hold_all([9, GtidSet()])
    assert held.advance(8) == 5


def test_a_snapshot_that_was_passed_holds_nothing() -> None:
    held = HeldVersions(100)
    held.advance(5)
    held.hold_all([4])()
    held.hold_all([])()
    assert (held.oldest, held.advance(8)) == (0, 8)


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=40))
def test_what_is_reported_passes_no_version_that_could_be_held(
    steps: list[tuple[int, bool]],
) -> None:
    held = HeldVersions(1_000)
    holds: list[tuple[int, Callable[[], None]]] = []
    for version, releases in steps:
        if releases and holds:
            holds.pop(version % len(holds))[1]()
        elif version >= held.stable_version:
            holds.append((version, held.hold(version)))
        before = held.stable_version
        stable = held.advance(version)
        assert before <= stable <= max(before, version)
        assert all(stable <= held_version for held_version, _ in holds)
