"""A position: where a record stands in the total order, as one integer that sorts in that order."""

from typing import Final

POSITION_INDEX_BITS: Final = 20
"""Bits of a position for the record's index within its message; the log's sequence is above
them.
"""


def position_of(log_sequence: int, index: int) -> int:
    """Returns the position of the record at `index` of the message `log_sequence`.

    >>> position_of(3, 1) > position_of(2, 1_048_575)
    True
    """
    assert 0 <= index < 1 << POSITION_INDEX_BITS, f"index {index} does not fit a position"
    return log_sequence << POSITION_INDEX_BITS | index


def log_sequence_of(position: int) -> int:
    """Returns the log's sequence of the message that a position lies in."""
    return position >> POSITION_INDEX_BITS


def log_index_of(position: int) -> int:
    """Returns the index of a position's record within its message."""
    return position & (1 << POSITION_INDEX_BITS) - 1
