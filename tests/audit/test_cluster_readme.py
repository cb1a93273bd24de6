"""The commands of the README on a cluster, as they stand: a master and two workers of pyspark's
package, whose Python has nothing of what an audit needs, and an archive that brings it.

What is of this machine is put in their place: addresses, sizes, folders. Packages come from where
pip finds them.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.audit_run import known_jobs
from groupcert.certifier.audit.spark.java import find_java
from tests.audit.anomalies import write_skew
from tests.audit.faults import Scene
from tests.audit.histories import Workload, write_as_is
from tests.audit.test_cluster import said
from tests.handbook import labelled_block, put

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(1_500)]
BARE = "bare/bin/python"
"""A Python without packages."""
HERE = "spark.driver.host=127.0.0.1 --memory 1g"
AUDIT_SECONDS = 1_200


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What the commands need to be found, as in an environment that is activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = {"PATH": path, "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1"}
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
    return kept | here | {"SPARK_WORKER_DIR": str(tmp_path / "work")}


@pytest.fixture
def master(tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a master with two workers, that the block has started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here = {"10.0.0.1": "127.0.0.1", "7077": port, "--cores 4 --memory 8g": "--cores 1 --memory 1g"}
    text = put(labelled_block("certifier/audit/README.md", "cluster"), here)
    log = tmp_path / "cluster.log"
    with log.open("wb") as stream:
        shell = subprocess.Popen(
            ["sh", "-e", "-c", text],
            cwd=tmp_path,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        said(log, r"(?s)Successfully registered with master.*Successfully (registered) with master")
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(120)


def test_packages_travel_to_workers_that_lack_them(
    master: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    shared = tmp_path / "shared"
    scene = Scene("skewed", 0, Workload(transactions=1))
    write_skew(scene)
    write_as_is(shared / "logs", *scene.histories.values())
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "bare"], cwd=tmp_path, check=True
    )
    text = put(
        labelled_block("certifier/audit/README.md", "packages"),
        {
            "10.0.0.1:7077": master,
            "/shared": str(shared),
            "spark.executor.memory=7g": f"{HERE} --spark-setting spark.sql.shuffle.partitions=4",
        },
    )
    *packed, audit = text.replace("\\\n", " ").splitlines()
    lacking = audit.replace("./packages/bin/python", str(tmp_path / BARE)).partition("--spark-s")
    run = _run(
        f"{lacking[0]} --job agree --spark-setting {HERE}",
        tmp_path,
        environment,
    )
    assert run.returncode == 3 and "No module named 'p" in run.stderr
    run = _run("\n".join([*packed, audit]), tmp_path, environment)
    assert run.returncode == 1, run.stderr
    summary = json.loads((shared / "audited" / "summary.json").read_text())
    assert summary["spark"]["master"] == f"spark://{master}"
    assert [each["name"] for each in summary["jobs"]] == list(known_jobs())
    assert [each["code"] for each in summary["findings"]["by_code"]] == [Code.CONFLICT_MISSED]
    shutil.rmtree(tmp_path / "packages")


def _run(text: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-e", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=AUDIT_SECONDS,
    )
