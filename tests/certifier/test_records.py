"""Records: positions sort as the total order does, and verdicts keep their numbers."""

import pytest

from groupcert.certifier.position import (
    POSITION_INDEX_BITS,
    log_index_of,
    log_sequence_of,
    position_of,
)
from groupcert.certifier.records import Verdict


@pytest.mark.parametrize(("sequence", "index"), [(0, 0), (7, 3), (2**40, 2**20 - 1)])
def test_a_position_gives_its_parts_back(sequence: int, index: int) -> None:
    position = position_of(sequence, index)
    assert (log_sequence_of(position), log_index_of(position)) == (sequence, index)
    assert position_of(sequence + 1, 0) > position


def test_an_index_that_does_not_fit_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="does not fit"):
        position_of(1, 1 << POSITION_INDEX_BITS)


def test_numbers_of_verdicts_are_on_the_wire_and_never_change() -> None:
    assert {verdict.name: verdict.value for verdict in Verdict} == {
        "CERTIFIED": 1,
        "CONFLICT": 2,
        "TOO_OLD": 3,
        "REFUSED": 4,
    }
