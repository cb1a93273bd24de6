"""What real servers logged, through `groupcert export` and the audit: there are no findings.

Source: `tests/data/mysql-9.7.4-relay/README.md`; the log of MariaDB is made here.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from certifier.audit.jobs import audit, has_findings, known_jobs
from certifier.audit.result import JsonObject
from certifier.history import Row
from members.cli import app
from tests import servers
from tests.members.certification_logs import read_log
from tests.members.mariadb_binary_logs import (
    DOMAINS,
    ROWS_A_SESSION,
    SESSIONS,
    logging_server,
    make_logs,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MYSQL = Path(__file__).parents[1] / "data" / "mysql-9.7.4-relay" / "trace.jsonl.gz"


def export(out: Path, *flags: str) -> None:
    """Runs `groupcert export`."""
    done = CliRunner().invoke(app, ["export", "--out", str(out), *flags])
    assert done.exit_code == 0, done.output


def audited(spark: SparkSession, log: Path, out: Path) -> JsonObject:
    """The summary of an audit by all jobs."""
    summary = audit(spark, [str(log)], str(out))
    assert not has_findings(summary), summary["findings"]
    jobs = summary["jobs"]
    assert isinstance(jobs, list) and [job["name"] for job in jobs] == [*known_jobs()]
    return summary


def schemes(summary: JsonObject) -> dict[str, JsonObject]:
    """The schemes that the log lets one know, by name."""
    profile = summary["profile"]
    assert isinstance(profile, dict)
    return {each["scheme"]: each for each in profile["schemes"] if each["known"]}


@pytest.mark.timeout(600)
def test_the_relay_log_of_a_real_mysql_group_has_no_findings(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    export(log, "--trace", str(MYSQL), "--gtid-assignment-block-size", "1000000")
    summary = audited(spark, log, tmp_path / "out")
    verify = summary["verify"]
    assert isinstance(verify, dict)
    assert verify["observers"] == [
        {
            "observer": "trace",
            "transactions": 11_280,
            "certified": 11_280,
            "conflict": 0,
            "too_old": 0,
            "refused": 0,
            "begins_late": False,
            "stamps_checked": 11_280,
        }
    ]
    assert schemes(summary)["logical-clock"]["transactions"] == 11_280
    assert "table" not in schemes(summary), "which only keys would tell"


@pytest.mark.database
@pytest.mark.timeout(600)
def test_the_binary_log_of_a_real_mariadb_has_no_findings_and_shows_its_group_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    try:
        with logging_server(tmp_path / "server") as server:
            export(log, *(f"--binlog={path}" for path in make_logs(server)))
    except servers.ServerMissing as error:
        pytest.skip(str(error))
    rows = read_log(log, "binary-log")
    transactions = [row for row in rows if row["kind"] == "transaction"]
    assert len({row["domain_id"] for row in transactions}) == DOMAINS
    assert len(transactions) >= 2 * SESSIONS * ROWS_A_SESSION
    known = schemes(audited(spark, log, tmp_path / "out"))
    assert "logical-clock" not in known
    groups = known["group-commit"]
    assert groups["transactions"] == len(transactions)
    speedup = round(len(transactions) / rounds(rows), 3)
    assert groups["speedup_max"] == speedup > DOMAINS
    assert known["commit-parent"]["speedup_max"] != 1.0


def rounds(rows: Iterable[Row]) -> int:
    """How many group commits follow each other at least: in each file those of the domain that has
    the most.
    """
    count = 0
    for is_break, part in groupby(rows, lambda row: row["kind"] == "view_change"):
        of_domain: Counter[object] = Counter()
        last: dict[object, object] = {}
        for row in part:
            domain, group = row["domain_id"], row["commit_id"]
            of_domain[domain] += not group or group != last.get(domain)
            last[domain] = group
        count += 0 if is_break else max(of_domain.values())
    return count
