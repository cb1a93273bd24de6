"""A job's time is shared out once, wherever frames of rows end: against a loop over all rows."""

import random
from collections.abc import Iterator

import polars as pl
import pytest

from groupcert.certifier.audit.rows import jobs
from groupcert.certifier.audit.rows.jobs import JOB, executed, shared, shares, with_shares

KINDS = pl.Schema(
    {
        "h": pl.Int32(),
        "number": pl.Int64(),
        "is_local": pl.Boolean(),
        **dict.fromkeys((*JOB, "committed_us"), pl.Int64()),
    }
)
NEAR = 10
"""As `ROWS_MAX`."""


def histories(chance: random.Random) -> pl.DataFrame:
    """Two histories, in whose jobs rows of others lie; some of them have neither worker nor end."""
    rows: list[tuple[object, ...]] = []
    for h in range(2):
        number = chance.randrange(100)
        while number < 400:
            worker = chance.choice((None, 1, 2))
            began = chance.randrange(3)
            ended = chance.choice((None, began - 1, began + 5, began + 100))
            for _ in range(chance.choice((1, 1, 2, 9))):
                number += chance.choice((1, 1, 1, 2, NEAR, NEAR + 1))
                rows.append((h, number, False, worker, began, ended, began + 7))
                while chance.random() < 0.5:
                    number += 1
                    is_local = chance.random() < 0.5 or None
                    rows.append((h, number, is_local, None, began if is_local else None, None, 9))
    return pl.DataFrame(rows, schema=KINDS, orient="row")


def expected(rows: pl.DataFrame) -> dict[tuple[int, int], int]:
    """The time of each transaction, by history and number."""
    found: list[list[tuple[int, int, object, int]]] = []
    for h, number, is_local, worker, began, ended, committed in rows.rows():
        if is_local or began is None:
            continue
        end = committed if ended is None else ended
        each = (h, number, (worker, began, end), max(end - began, 0))
        last = found[-1][-1] if found else (-1, 0, None, 0)
        if (last[0], last[2]) == (h, each[2]) and 1 <= number - last[1] <= NEAR:
            found[-1].append(each)
        else:
            found.append([each])
    return {(h, number): took // len(job) for job in found for h, number, _, took in job}


def framed(rows: pl.DataFrame, chance: random.Random) -> Iterator[pl.DataFrame]:
    """Rows as frames of drawn sizes."""
    size = chance.choice((1, 2, 7, 100))
    while len(rows):
        yield rows.head(size)
        rows, size = rows.slice(size), max(size + chance.choice((-1, 0, 1)), 1)


def by_row(rows: pl.DataFrame) -> dict[tuple[int, int], int]:
    """The time that is known of each transaction."""
    told = rows.filter(pl.col("took_us").is_not_null()).select("h", "number", "took_us").rows()
    return {(h, number): took for h, number, took in told}


@pytest.mark.parametrize("seed", range(30))
def test_a_job_is_shared_out_wherever_frames_end(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(jobs, "ROWS_MAX", NEAR)
    chance = random.Random(seed)
    rows = histories(chance)
    frames = list(with_shares(framed(rows, chance)))
    walked = pl.concat(frames)
    assert walked.drop("took_us").equals(rows) and by_row(walked) == expected(rows)
    cuts = sorted(chance.sample(range(len(rows)), 5))
    ends = zip([0, *cuts], [*cuts, len(rows)], strict=True)
    files = [
        rows[begin:end].with_columns(file=pl.lit(number))
        for number, (begin, end) in enumerate(ends)
    ]
    chance.shuffle(files)
    parts = [shares(executed(frame), ("file", "h")) for frame in framed(pl.concat(files), chance)]
    known = pl.concat(part.known.select("h", "number", "took_us") for part in parts)
    joined = shared(pl.concat(part.cut for part in parts), ("h",))
    assert by_row(known).keys().isdisjoint(by_row(joined))
    assert by_row(known) | by_row(joined) == expected(rows)


def test_no_more_rows_are_held_than_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ROWS_MAX", NEAR)
    local = [(0, number, True, None, 1, None, 9) for number in range(2, 100)]
    rows = pl.DataFrame([(0, 1, False, 1, 1, 2, 3), *local], schema=KINDS, orient="row")
    frames = with_shares(rows[number : number + 1] for number in range(len(rows)))
    assert [len(frame) for frame in frames] == [NEAR, *[1] * (len(rows) - NEAR)]
