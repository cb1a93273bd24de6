"""No figure depends on where a batch of rows ends, or a file.

Method: one log, whose applier executed several transactions in one job, is audited in one batch and
one file a history, and again in batches and files of drawn sizes, which cut jobs. All that the six
jobs tell is equal, leaf by leaf.
"""

import gzip
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.agree import agree
from groupcert.certifier.audit.answers.result import SAMPLE
from groupcert.certifier.audit.apply import apply
from groupcert.certifier.audit.isolation import isolation
from groupcert.certifier.audit.profile import profile
from groupcert.certifier.audit.proof import proof
from groupcert.certifier.audit.rows import states, stretches
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.spark import walks
from groupcert.certifier.audit.verify import verify
from groupcert.certifier.history.schema import Cursor, Row
from groupcert.members.certification_log.files import write_file
from tests.audit.histories import OPENED_US, Workload, random_order, rows_of

JOBS = (verify, agree, isolation, apply, proof, profile)
WORKLOAD = Workload(transactions=240, items=40, block_size=7, period=0)
MEMBERS = ("m1", "m2")
TABLES = ("shop.orders", "shop.lines", "bank.account")
JOB_MAX = 6
SELDOM = pytest.mark.nightly
Leaves = dict[str, object]


def as_jobs(rows: Sequence[Row], chance: random.Random) -> list[list[Row]]:
    """Makes the transactions that an applier executed one after the other run as jobs, and returns
    these.
    """
    ran = [row for row in rows if row.get("started_tick")]
    jobs: list[list[Row]] = []
    while ran:
        job, ran = ran[: (size := chance.randint(1, JOB_MAX))], ran[size:]
        told = {name: job[0][name] for name in ("worker", "started_us", "started_tick")}
        told |= {name: job[-1][name] for name in ("executed_us", "committed_us", "committed_tick")}
        for row in job:
            row |= told
        jobs.append(job)
    return jobs


def with_keys(rows: Iterable[Row]) -> None:
    """Names the tables of items."""
    for row in rows:
        items = row.get("write_set")
        if isinstance(items, list):
            row["write_keys"] = [f"{TABLES[int(item) % 3]}/{int(item)}" for item in items]


def write(folder: Path, rows: Sequence[Row], cuts: Iterable[int]) -> None:
    """Writes a history as files that end at some of its rows."""
    cursor, begin = Cursor(), 0
    for end in (*sorted(cuts), len(rows)):
        file = write_file(folder, [dict(row) for row in rows[begin:end]], cursor)
        assert file
        cursor, begin = file.cursor, end


def told(spark: SparkSession, folder: Path) -> Leaves:
    """Returns all that the jobs tell of a log."""
    log = Log(spark, [str(folder)])
    log.opened_us = OPENED_US
    found: Leaves = {}
    for job in JOBS:
        result = job.run(log)
        tables = {name: sorted(map(str, rows.collect())) for name, rows in result.tables.items()}
        files = {name: gzip.decompress(text).decode() for name, text in result.files.items()}
        each = (result.summary, result.counts, result.findings, tables, files)
        found |= leaves(each, job.__name__.rpartition(".")[2])
    return found


def leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Yields the values in a summary, by their names."""
    if isinstance(value, dict | Counter):
        for key, each in value.items():
            yield from leaves(each, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from leaves(each, f"{name}.{number}")
    else:
        yield name, value


def number(row: Row, name: str) -> int:
    """Returns a number of a row."""
    value = row[name]
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SELDOM) for seed in range(2, 6))])
def test_no_figure_depends_on_where_a_batch_or_a_file_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(states, "SEGMENT_ROWS", 100)
    monkeypatch.setattr(stretches, "STRETCH_ROWS_MAX", 105)
    chance = random.Random(seed)
    records = random_order(chance.randrange(1_000), WORKLOAD)
    histories = {name: rows_of(records, name, WORKLOAD) for name in MEMBERS}
    jobs = {name: as_jobs(rows, chance) for name, rows in histories.items()}
    for name, rows in histories.items():
        with_keys(rows)
        write(tmp_path / "whole", rows, [])
        # The last of these rows is within a job: another one of it stands in the next file.
        cut = chance.sample([each for each in jobs[name] if len(each) > 1], 3)
        write(tmp_path / "cut", rows, [rows.index(job[0]) + 1 for job in cut])
    whole = told(spark, tmp_path / "whole")
    for observer, name in enumerate(MEMBERS):
        times = [
            (number(job[0], "executed_us") - number(job[0], "started_us"), len(job))
            for job in jobs[name]
        ]
        work = sum(took // count * count for took, count in times)
        busy = [
            value
            for leaf, value in whole.items()
            if leaf.startswith(f"apply.0.observers.{observer}.worker_busy")
            and leaf.endswith("busy_us")
        ]
        assert sum(map(int, map(str, busy))) == work
        assert whole[f"profile.0.parallelism.{observer}.work"] == work
    assert f"profile.4.{SAMPLE}" in whole
    for batch_rows in (chance.choice((2, 3, 5)), chance.choice((7, 11, 13, 17, 19, 23, 29, 31))):
        monkeypatch.setattr(walks, "FRAME_ROWS", batch_rows)
        # That of the survey, which sets it for all that follows.
        spark.conf.set(walks.BATCH_ROWS, batch_rows)
        other = told(spark, tmp_path / "cut")
        assert whole.keys() == other.keys()
        differs = [leaf for leaf, value in whole.items() if other[leaf] != value]
        assert not differs, (batch_rows, [(leaf, whole[leaf], other[leaf]) for leaf in differs[:9]])
