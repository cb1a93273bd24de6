"""Parallelism over columns of numbers: waits, longest chains and levels of transactions.

A transaction starts when all up to the one that it waits for are done; one that runs alone waits
for all before it, as all after it wait for it. Workers are unlimited here. These functions do not
import Spark; they run in its Python workers, on one stretch of a history.
"""

from array import array
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

BLOCK_ROWS = 65_536
"""Rows that are held as Python numbers at a time."""


def filled(sequence_numbers: Ints) -> Ints:
    """Returns the numbers of a clock; a record without one (0) gets the clock's number before the
    next transaction.

    >>> filled(np.array([5, 0, 6, 0, 2]))
    array([5, 5, 6, 1, 2])
    """
    rows = len(sequence_numbers)
    places = np.where(sequence_numbers > 0, np.arange(rows), rows)
    following = np.minimum.accumulate(places[::-1])[::-1]
    known = np.append(sequence_numbers, 0)
    last = sequence_numbers.max(initial=0) + 1
    begun = np.where(following < rows, known[following], last) - 1
    return np.where(sequence_numbers > 0, sequence_numbers, begun)


def waits(numbers: Ints, awaited: Ints, alone: Flags) -> Ints:
    """Returns the number of first rows that have to be done before each row starts: int64[n].

    Args:
        numbers: int64[n]; where they fall a clock was reset, and all before is waited for.
        awaited: int64[n]: each waits for all rows of its clock up to this number.
        alone: bool[n]: each of these waits for all, and all after it wait for it.
    Cost: O(n log n), vectorized but for the resets.
    """
    rows = len(numbers)
    places = np.arange(rows, dtype=np.int64)
    floor = np.maximum.accumulate(np.where(alone, places + 1, 0))
    waited = np.zeros(rows, dtype=np.int64)
    resets = np.flatnonzero(np.diff(numbers) < 0) + 1
    for begin, end in zip([0, *resets], [*resets, rows], strict=True):
        clock = numbers[begin:end]
        waited[begin:end] = begin + np.searchsorted(clock, awaited[begin:end], "right")
    return np.where(alone, places, np.minimum(np.maximum(waited, floor), places))


def chain(waited: Ints, lengths: Ints) -> Ints:
    """Returns the time when the first k rows are done, for k from 0 on: int64[n + 1].

    A row starts at `chain(...)[waited]`. Cost: O(n), a plain loop: each step needs the ones before.
    """
    done = array("q", [0])
    append, last = done.append, 0
    for begin in range(0, len(waited), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        for before, length in zip(waited[block].tolist(), lengths[block].tolist(), strict=True):
            end = done[before] + length
            if end > last:
                last = end
            append(last)
    return np.frombuffer(done, dtype=np.int64)


def epochs(waited: Ints, counted: Flags) -> int:
    """Counts the rows that, with everything after them, wait for everything before them; the
    beginning counts as one.

    >>> epochs(np.array([0, 0, 2]), np.array([True, True, True]))
    2
    """
    following = np.minimum.accumulate(waited[::-1])[::-1]
    return int(((following >= np.arange(len(waited))) & counted).sum())
