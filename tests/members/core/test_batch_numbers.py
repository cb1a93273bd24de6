"""The numbers of batches: what counts once, what is a repetition, and who left of late."""

from groupcert.members.core.members import GONE_MAX, BatchNumbers


def test_who_stays_in_the_view_keeps_its_number_and_who_left_is_known_for_a_while() -> None:
    numbers = BatchNumbers()
    numbers.change_view([1], 5)
    numbers.change_view([1, 2], 1)
    assert (numbers.last(1), numbers.last(2)) == (5, 1)
    numbers.change_view([2], 6)
    assert numbers.has_left(1)
    for run in range(10, 10 + GONE_MAX + 1):
        numbers.change_view([2, run], 1)
    assert not numbers.has_left(1)
    assert numbers.has_left(10)
