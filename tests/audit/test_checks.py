"""How findings come to the driver: the first of each code, and how many there are."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.rows import checks
from groupcert.certifier.audit.rows.certification_log import Log
from tests.audit.histories import Workload, random_order, rows_of, write

CODES = (Code.STAMP_TOO_LOW.value, Code.STAMP_TOO_HIGH.value, "a note")
FOUND = """
    element_at(array('{}', '{}', '{}'), cast(id % 3 + 1 as int)) as code, cast(0 as int) as h,
    id as number, 1000 - id as place, cast(null as string) as expected,
    cast(null as string) as found, cast(null as string) as witness, cast(null as long) as low,
    cast(null as long) as high
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_task_keeps_its_first_findings_and_all_are_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ROWS_MAX", 5)
    workload = Workload(transactions=9)
    log = Log(spark, write(tmp_path, rows_of(random_order(1, workload), "m1", workload)))
    spark.range(99, numPartitions=7).createOrReplaceTempView("numbers")
    found, counts, notes = checks.collected(
        log, spark.sql(f"select {FOUND.format(*CODES)} from numbers")
    )
    assert counts == dict.fromkeys(CODES[:2], 33)
    for number, code in enumerate(CODES[:2]):
        places = [each.finding.place for each in found if each.finding.code.value == code]
        assert places == [1_000 - id_ for id_ in range(96 + number, 0, -3)][:5]
    assert sorted(note.number for note in notes) == list(range(2, 99, 3))
