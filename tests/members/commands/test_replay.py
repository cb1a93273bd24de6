"""`groupcert replay`: what it reads, what it prints, and what it says of a damaged trace."""

import gzip
import io
import random

import pytest

from groupcert.certifier.errors import InvalidTrace
from groupcert.members.commands.replay import ParallelismBound, read_lines


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            gzip.compress(random.Random(1).randbytes(9_000).hex().encode())[:-9],
            "line 1: .* damaged",
        ),
        (b"\x1f\x8b\x08broken", "line 1: the compressed file is damaged"),
        (b'{"type": "\xff"}\n', "line 1: it is not UTF-8"),
    ],
    ids=["truncated", "no gzip", "no text"],
)
def test_damaged_bytes_are_a_malformed_trace(content: bytes, message: str) -> None:
    with pytest.raises(InvalidTrace, match=message):
        list(read_lines(io.BufferedReader(io.BytesIO(content))))


def test_chains_count_what_waits_for_each_other() -> None:
    bound = ParallelismBound()
    for number in range(2, 10):
        bound.add(1, number)
    assert (bound.levels, bound.mean) == (1, 8.0)
    bound.add(9, 10)
    assert bound.levels == 2


def test_a_barrier_puts_everything_after_it_on_top() -> None:
    bound = ParallelismBound()
    bound.add(1, 2)
    bound.add(2, 3)
    bound.add_barrier()
    bound.add(1, 2)
    bound.add(1, 3)
    assert (bound.transactions, bound.levels) == (4, 3)


def test_an_empty_trace_has_no_parallelism() -> None:
    assert ParallelismBound().mean == 0.0
