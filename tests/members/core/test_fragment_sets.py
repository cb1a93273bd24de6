"""Sets of fragments: opened, completed, abandoned, dropped, and never more than a run may have."""

import pytest

from groupcert.applier.queue.fragment_references import FragmentSet, changes_bytes, is_reference
from groupcert.members.core import fragment_sets
from groupcert.members.core.fragment_sets import FragmentSets
from groupcert.members.core.log_records import Fragment

RUN, OTHER = 7, 8


def fragment(number: int, place: int, size: int = 1) -> Fragment:
    """One of so many bytes."""
    return Fragment(number, place, bytes(size))


def whole(number: int, pieces: int, run: int = RUN) -> FragmentSet:
    """What a transaction says of its fragments."""
    return FragmentSet(run, number, pieces, 100, bytes(16))


@pytest.mark.parametrize(("places", "pieces"), [((0, 1), 3), ((0, 2), 2), ((0, 1, 2), 2), ((), 1)])
def test_another_number_of_fragments_is_not_the_set(places: tuple[int, ...], pieces: int) -> None:
    sets = FragmentSets()
    for place in places:
        sets.take(RUN, fragment(1, place))
    assert not sets.close(whole(1, pieces))
    assert sets.names == []


def test_what_a_set_lacks_is_what_was_not_taken() -> None:
    sets = FragmentSets()
    assert sets.lacking(whole(1, 3)) == [0, 1, 2]
    sets.take(RUN, fragment(1, 1))
    sets.take(OTHER, fragment(1, 0))
    assert sets.lacking(whole(1, 3)) == [0, 2]
    assert sets.names == [(RUN, 1), (OTHER, 1)]


def test_a_run_can_leave_no_more_open_than_the_limits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_sets, "SETS_MAX", 2)
    monkeypatch.setattr(fragment_sets, "SETS_BYTES_MAX", 10)
    sets = FragmentSets()
    assert sets.take(RUN, fragment(1, 0, size=4))
    assert sets.take(RUN, fragment(2, 0, size=4))
    assert not sets.take(RUN, fragment(3, 0, size=1)), "a third set"
    assert not sets.take(RUN, fragment(2, 1, size=3)), "more bytes"
    assert not sets.take(RUN, fragment(2, fragment_sets.SET_FRAGMENTS_MAX)), "more fragments"
    assert sets.take(OTHER, fragment(3, 0, size=9)), "another run has its own limits"
    assert sets.take(RUN, fragment(2, 1, size=2))
    assert sets.bytes == 19


def test_a_reference_stands_for_changes() -> None:
    fragments = FragmentSet(2**64 - 1, 2**63, 600, 150_000_000, bytes(range(16)))
    assert FragmentSet.of(fragments.reference()) == fragments
    assert changes_bytes(fragments.reference()) == 150_000_000
    assert changes_bytes(b"abc") == 3
    assert not is_reference(b"")
    assert not is_reference(b"\x00")
    with pytest.raises(AssertionError):
        FragmentSet.of(b"abc")
