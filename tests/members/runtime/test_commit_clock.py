"""The commit clock wakes whoever waits for a version when it is passed, in order, and only then."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.members.runtime.answers import CommitClock


def test_whoever_comes_late_does_not_wait() -> None:
    woken: list[str] = []
    CommitClock(version=5).wait(5, lambda: woken.append("now"))
    assert woken == ["now"]


def test_going_back_wakes_nobody_and_changes_nothing() -> None:
    clock, woken = CommitClock(version=5), list[int]()
    clock.wait(6, lambda: woken.append(6))
    clock.advance(4)
    assert (clock.version, woken, len(clock)) == (5, [], 1)


def test_the_end_lets_everybody_go() -> None:
    clock, woken = CommitClock(), list[int]()
    for version in (9, 7, 8):
        clock.wait(version, lambda version=version: woken.append(version))  # type: ignore[misc]
    clock.end()
    assert (woken, len(clock), clock.version) == ([7, 8, 9], 0, 0)


@given(
    waits=st.lists(st.integers(min_value=1, max_value=20), max_size=20),
    steps=st.lists(st.integers(min_value=1, max_value=20), min_size=1, max_size=6),
)
def test_each_is_woken_once_as_soon_as_its_version_is_there(
    waits: list[int], steps: list[int]
) -> None:
    clock, woken = CommitClock(), list[tuple[int, int]]()
    for number, version in enumerate(waits):
        clock.wait(version, lambda each=(version, number): woken.append(each))  # type: ignore[misc]
    for step in steps:
        clock.advance(step)
        expected = sorted((v, n) for n, v in enumerate(waits) if v <= clock.version)
        assert sorted(woken) == expected
    assert clock.version == max(steps)
    assert len(clock) == len(waits) - len(woken)
