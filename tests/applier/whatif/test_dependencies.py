"""Who follows whom."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.whatif.dependencies import (
    NO_ITEM,
    Dependencies,
    count_overtakers,
    critical_path,
)

Entry = tuple[list[int], list[str] | None, bool]


def edges(*entries: Entry) -> list[list[tuple[int, int]]]:
    """The transactions that each entry follows, with the row."""
    made = of(*entries)
    return [
        [(made.followed[edge], made.items[edge]) for edge in numbers] for _, numbers in made.edges()
    ]


def of(*entries: Entry) -> Dependencies:
    """The dependencies of entries: items, databases, whether one is alone."""
    made = Dependencies()
    for items, databases, alone in entries:
        made.add(items, databases, alone=alone)
    return made


def test_a_transaction_follows_the_last_writer_of_each_of_its_rows() -> None:
    assert edges(
        ([7], None, False), ([8], None, False), ([7, 8], None, False), ([7], None, False)
    ) == [
        [],
        [],
        [(0, 7), (1, 8)],
        [(2, 7)],
    ]


def test_a_row_that_is_written_twice_by_one_transaction_makes_it_not_follow_itself() -> None:
    assert edges(([7, 7], None, False)) == [[]]


def test_rewritten_rows_are_reported_once_they_have_an_earlier_writer() -> None:
    made = Dependencies()
    assert made.add([7, 8], None, alone=False) == []
    assert made.add([8, 9], None, alone=False) == [8]
    assert (made.newest_followed(0), made.newest_followed(1)) == (-1, 0)


def test_what_is_alone_follows_all_since_the_one_before_it_and_all_follow_it() -> None:
    view: Entry = ([], None, True)
    assert edges(([7], None, False), ([8], None, False), view, ([9], None, False), view) == [
        [],
        [],
        [(0, NO_ITEM), (1, NO_ITEM)],
        [(2, NO_ITEM)],
        [(2, NO_ITEM), (3, NO_ITEM)],
    ]


def test_unknown_rows_in_known_databases_follow_and_precede_only_those() -> None:
    assert edges(
        ([7], ["a"], False), ([8], ["b"], False), ([], ["a"], False), ([9], ["a"], False)
    ) == [[], [], [(0, NO_ITEM)], [(2, NO_ITEM)]]


def test_unknown_rows_in_unknown_databases_are_alone() -> None:
    assert edges(([7], ["a"], False), ([], None, False), ([8], ["b"], False)) == [
        [],
        [(0, NO_ITEM)],
        [(1, NO_ITEM)],
    ]


def test_the_critical_path_is_the_longest_chain_not_the_one_with_most_transactions() -> None:
    made = of(([7], None, False), ([7], None, False), ([7], None, False), ([8], None, False))
    path = critical_path(made, [1, 1, 1, 2])
    assert (path.length_us, path.transactions, path.items) == (3, [0, 1, 2], [7, 7])
    path = critical_path(made, [1, 1, 1, 9])
    assert (path.length_us, path.transactions, path.items) == (9, [3], [])


def test_overtakers_started_before_the_one_they_follow_was_visible_unless_in_one_job() -> None:
    made = of(([7], None, False), ([7], None, False), ([7], None, False))
    assert count_overtakers(made, [0, 5, 9], [5, 9, 12], [1, 2, 3]) == 0
    assert count_overtakers(made, [0, 4, 8], [5, 9, 12], [1, 2, 3]) == 2
    assert count_overtakers(made, [0, 0, 0], [9, 9, 9], [1, 1, 1]) == 0


DATABASES = st.one_of(st.none(), st.lists(st.sampled_from("abc"), max_size=2, unique=True))


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 5), max_size=3, unique=True), DATABASES, st.booleans()),
        max_size=20,
    )
)
def test_edges_lead_back_and_say_who_must_wait_for_whom(entries: list[Entry]) -> None:
    made = of(*entries)
    reaches: list[set[int]] = []
    for number, numbers in made.edges():
        followed = {made.followed[edge] for edge in numbers}
        assert all(earlier < number for earlier in followed)
        reaches.append(followed.union(*(reaches[earlier] for earlier in followed)))
    for later in range(len(entries)):
        for earlier in range(later):
            if _meet(entries[earlier], entries[later]):
                assert earlier in reaches[later]


def _meet(one: Entry, other: Entry) -> bool:
    """Whether two entries may not run at once, by the rule itself."""
    if any(
        alone or not (items or databases is not None) for items, databases, alone in (one, other)
    ):
        return True
    if set(one[0]) & set(other[0]):
        return True
    unknown = not one[0] or not other[0]
    return unknown and bool(set(one[1] or ()) & set(other[1] or ()))
