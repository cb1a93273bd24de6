"""What real servers logged, through `groupcert export` and the audit: there are no findings.

Source: `tests/data/mysql-9.7.4-relay/README.md`; the log of MariaDB is made here.
"""

import gzip
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from groupcert.certifier.audit.answers.result import JsonObject
from groupcert.certifier.audit.audit_run import audit, has_findings, known_jobs
from groupcert.members.commands.cli import app
from tests import servers
from tests.members.certification_logs import read_log
from tests.members.mariadb_binary_logs import (
    DOMAINS,
    ROWS_A_SESSION,
    SESSIONS,
    logging_server,
    make_logs,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.in_turns]
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


def sampled(summary: JsonObject, out: Path) -> list[JsonObject]:
    """Returns the transactions of the sample, which `groupcert whatif` schedules."""
    profile = summary["profile"]
    assert isinstance(profile, dict)
    path = out / "sample.jsonl.gz"
    assert profile["whatif"] == f"groupcert whatif {path}"
    with gzip.open(path, "rt") as trace:
        lines = [json.loads(line) for line in trace]
    found = [line for line in lines if line["type"] == "transaction"]
    assert profile["sample"]["transactions"] == len(found)
    return found


@pytest.mark.timeout(900)
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
    out = tmp_path / "out"
    assert len(sampled(summary, out)) == 11_280
    flags = ["--workers", "1,8", "--scheme", "logical-clock", "--json"]
    done = CliRunner().invoke(app, ["whatif", str(out / "sample.jsonl.gz"), *flags])
    told = json.loads(done.stdout)
    assert told["source"]["conflicts"] == told["source"]["too_old"] == 0
    assert told["workload"]["transactions"] == 11_280


@pytest.mark.database
@pytest.mark.timeout(900)
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
    found = sampled(audited(spark, log, tmp_path / "out"), tmp_path / "out")
    names = ("domain_id", "commit_id", "commit_parent")
    assert [[line[name] for name in names] for line in found] == [
        [row[name] for name in names] for row in transactions
    ]
