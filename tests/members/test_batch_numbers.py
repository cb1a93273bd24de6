"""The numbers of batches: what counts once, what is a repetition, and who left of late."""

from members.batch_numbers import GONE_MAX, BatchNumbers


def test_a_number_that_is_not_above_the_last_one_is_a_repetition() -> None:
    numbers = BatchNumbers()
    numbers.change_view([7], 3)
    assert numbers.last(7) == 3
    assert [numbers.is_repeated(7, number) for number in (2, 3, 4)] == [True, True, False]
    numbers.take(7, 9)
    assert numbers.last(7) == 9


def test_a_run_that_is_not_in_the_view_has_no_numbers() -> None:
    numbers = BatchNumbers()
    numbers.take(7, 9)
    assert numbers.last(7) is None
    assert not numbers.is_repeated(7, 0)
    assert not numbers.has_left(7)


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


def test_it_goes_on_from_what_was_dumped() -> None:
    numbers, restored = BatchNumbers(), BatchNumbers()
    numbers.change_view([1, 2], 5)
    numbers.change_view([2], 6)
    restored.restore(numbers.dump(), numbers.dump_gone())
    assert (restored.last(2), restored.has_left(1)) == (5, True)
    assert (restored.dump(), restored.dump_gone()) == (numbers.dump(), numbers.dump_gone())
