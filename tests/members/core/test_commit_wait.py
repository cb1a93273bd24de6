"""Commits that wait for company: how many, how long, and in which order they go."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.members.core.commit_wait import CommitWait
from tests.applier.histories import VIEW_CHANGE, entries_of, remote

ENTRIES = entries_of([remote(1), remote(2), VIEW_CHANGE, remote(3), remote(4)])


def test_without_a_count_or_a_time_nothing_waits() -> None:
    for wait in (CommitWait(0, 100), CommitWait(3, 0)):
        assert wait.add(ENTRIES[:1], now_us=5) == ENTRIES[:1]
        assert wait.deadline_us is None


def test_commits_go_together_once_there_are_enough() -> None:
    wait = CommitWait(2, 100)
    assert wait.add(ENTRIES[:1], now_us=5) == ()
    assert wait.add(ENTRIES[1:2], now_us=50) == ENTRIES[:2]
    assert wait.deadline_us is None


def test_the_first_one_says_when_the_time_is_up() -> None:
    wait = CommitWait(3, 100)
    wait.add(ENTRIES[:1], now_us=5)
    wait.add(ENTRIES[1:2], now_us=50)
    assert wait.deadline_us == 105
    assert wait.release() == ENTRIES[:2]
    assert wait.deadline_us is None
    wait.add(ENTRIES[3:4], now_us=200)
    assert wait.deadline_us == 300


def test_a_view_change_waits_in_its_place_and_is_no_company() -> None:
    wait = CommitWait(2, 100)
    assert wait.add([ENTRIES[2]], now_us=5) == ()
    assert wait.deadline_us == 105
    assert wait.add([ENTRIES[3]], now_us=6) == ()
    assert wait.add([ENTRIES[4]], now_us=7) == ENTRIES[2:]


def test_nothing_added_sets_no_time() -> None:
    wait = CommitWait(2, 100)
    assert wait.add((), now_us=5) == ()
    assert wait.deadline_us is None


@given(st.lists(st.integers(0, 3)), st.integers(0, 4), st.sets(st.integers(0, 20)))
def test_everything_goes_once_and_in_order(
    sizes: list[int], count: int, timeouts: set[int]
) -> None:
    entries = entries_of(remote(number) for number in range(sum(sizes)))
    wait = CommitWait(count, 10)
    gone: list[RelayEntry] = []
    taken = 0
    for number, size in enumerate(sizes):
        gone += wait.add(entries[taken : taken + size], now_us=number)
        taken += size
        assert taken - len(gone) < max(count, 1)
        if number in timeouts:
            gone += wait.release()
            assert len(gone) == taken
    assert gone + list(wait.release()) == entries
