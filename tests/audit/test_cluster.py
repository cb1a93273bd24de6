"""A real Spark cluster: a master and two workers as processes on loopback, from the pip package.

Executors start a Python that cannot import this project, so that what they run must have travelled
to them; the answers must be those of local mode.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet as parquet
import pyspark
import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.archive import write_archive
from groupcert.certifier.audit.audit_run import audit, known_jobs
from groupcert.certifier.audit.spark.java import find_java
from tests.audit.histories import Workload, random_order, rows_of, write
from tests.audit.java_options import FAST_START

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(900)]
SPARK = Path(pyspark.__file__).parent
UP_SECONDS = 300
MEMBERS = ("m1", "m2", "m3")
JOBS = known_jobs()

ASKED = [word for job in JOBS for word in ("--job", job)]
SETTINGS = (
    "spark.driver.host=127.0.0.1",
    f"spark.driver.extraJavaOptions={FAST_START}",
    f"spark.executor.extraJavaOptions={FAST_START}",
)
# Without `site` no file of the environment leads to this project.
ISOLATED = """#!/bin/sh
PYTHONPATH="$PYTHONPATH:{packages}" exec "{python}" -S "$@"
"""
BY_VALUE = """
import sys
from pyspark.sql import functions as F
from groupcert.certifier.audit.spark.spark_session import spark_session
from groupcert.certifier.history.schema import RecordKind, place_of

def place(number):
    try:
        import groupcert.certifier
    except ImportError:
        return place_of(number, RecordKind.TRANSACTION)
    return -1

settings = {"spark.driver.host": "127.0.0.1"}
with spark_session(sys.argv[1], memory="1g", settings=settings) as spark:
    places = spark.range(4, numPartitions=2).select(F.udf(place, "long")("id").alias("place"))
    print([row.place for row in places.collect()])
"""


class Cluster(NamedTuple):
    """Where the master is, and what a process needs to use it."""

    url: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers of one core and 1 GB each."""
    folder = tmp_path_factory.mktemp("cluster")
    python = folder / "python"
    packages = Path(pyarrow.__file__).parent.parent
    python.write_text(ISOLATED.format(packages=packages, python=sys.executable))
    python.chmod(0o700)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as stream:
            command = [str(SPARK / "bin" / "spark-class"), *arguments]
            processes.append(
                subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT
                )
            )
        return log

    where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    try:
        master = start("master", "org.apache.spark.deploy.master.Master", *where)
        url = said(master, r"Starting Spark master at (spark://\S+)")
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work")]
        kind = "org.apache.spark.deploy.worker.Worker"
        workers = [start(f"worker-{number}", kind, *where, *size, url) for number in (1, 2)]
        for worker in workers:
            said(worker, r"Successfully registered with master (\S+)")
        yield Cluster(url, environment)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(120)


def said(log: Path, pattern: str) -> str:
    """What a process has written to its log, once it has."""
    deadline = time.monotonic() + UP_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found.group(1)
        time.sleep(0.1)
    raise AssertionError(f"no {pattern} in {log.name}:\n{log.read_text(errors='replace')}")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The logs of a small group."""
    workload = Workload(transactions=120)
    order = random_order(5, workload)
    folder = tmp_path_factory.mktemp("logs")
    return write(folder, *(rows_of(order, member, workload) for member in MEMBERS))[0]


@pytest.fixture(scope="module")
def local(spark: SparkSession, logs: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answers of local mode."""
    out = tmp_path_factory.mktemp("local") / "out"
    audit(spark, [logs], str(out), jobs=JOBS)
    return out


def flags(name: str) -> list[str]:
    """The settings of all runs, each behind the flag of a name."""
    return [word for setting in SETTINGS for word in (name, setting)]


def run(command: Sequence[str], environment: dict[str, str]) -> str:
    """Runs a command that must end well; returns its standard output."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(out: Path) -> tuple[Any, dict[str, list[str]]]:
    """The summary without times, versions and folder, and the rows of all tables, in no order."""
    summary = json.loads((out / "summary.json").read_text())
    for name in ("started_us", "seconds", "spark"):
        del summary[name]
    for job in summary["jobs"]:
        del job["seconds"]
    assert str(out) in summary["profile"].pop("whatif")
    tables = {
        table.name: sorted(map(str, parquet.read_table(table).to_pylist()))
        for table in (out / "tables").iterdir()
    }
    return summary, tables


def test_functions_travel_by_value_to_executors_without_this_project(cluster: Cluster) -> None:
    environment = cluster.environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
    told = run([sys.executable, "-c", BY_VALUE, cluster.url], environment)
    assert told.strip() == "[3, 19, 35, 51]"


def test_command_on_a_cluster_answers_as_in_local_mode(
    cluster: Cluster, logs: str, local: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "groupcert.members", "audit", logs, "--out", str(out), *ASKED]
    there = ["--master", cluster.url, "--memory", "1g"]
    environment = cluster.environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run([*command, *there, *flags("--spark-setting")], environment)
    assert json.loads((out / "summary.json").read_text())["spark"]["master"] == cluster.url
    assert answers(out) == answers(local)


def test_one_file_for_spark_submit_answers_as_in_local_mode(
    cluster: Cluster, logs: str, local: Path, tmp_path: Path
) -> None:
    archive, out = tmp_path / "groupcert-audit.py", tmp_path / "out"
    write_archive(archive)
    command = [str(SPARK / "bin" / "spark-submit"), "--master", cluster.url]
    # The driver cannot import this project either: all that it needs is in the file.
    environment = cluster.environment | {
        "PYSPARK_DRIVER_PYTHON": cluster.environment["PYSPARK_PYTHON"]
    }
    asked = [logs, "--out", str(out), *ASKED, "--json"]
    told = run([*command, *flags("--conf"), str(archive), *asked], environment)
    assert json.loads(told.splitlines()[-1]) == json.loads((out / "summary.json").read_text())
    assert answers(out) == answers(local)
