"""The pods of `deploy/kubernetes*/` in containers: they come up in any order, and are upgraded."""

from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from groupcert import Client, Consistency, Transaction
from tests.cluster.engine import docker
from tests.cluster.pods import Pods
from tests.deploy.manifests import FOLDER, SECRET, WITH_SERVERS, Manifests, rendered
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.nightly

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
PORT = 7101
COUNTER = b"counter"


def increment(transaction: Transaction) -> None:
    """Adds one."""
    transaction.put(COUNTER, b"%d" % (int(transaction.get(COUNTER) or b"0") + 1))


def test_each_pod_is_replaced_at_another_address_and_no_commit_is_lost(
    image: str, tmp_path: Path
) -> None:
    manifests = Manifests([*rendered(), *rendered(FOLDER / "bootstrap")])
    replaced = [
        *reversed(manifests.workload("log").pods),
        *reversed(manifests.workload("member").pods),
    ]
    with Pods(tmp_path, image, manifests) as pods:

        def client() -> Client:
            members = [f"{pods.address(pod)}:{PORT}" for pod in manifests.workload("member").pods]
            return Client(members, consistency=Consistency.BEFORE)

        (job,) = manifests.workload("bootstrap").pods
        wait_for(job, partial(pods.is_over, job))
        for pod in replaced:
            for probe in PROBES:
                wait_for(f"{probe} of {pod}", partial(pods.passes, pod, probe))
        for pod in replaced:
            assert pods.stop(pod) == 0
            with client() as session:
                session.run(increment)
            pods.start(pod)
            wait_for(pod, partial(pods.passes, pod, "readinessProbe"))
        with client() as session:
            found = session.run(lambda transaction: transaction.get(COUNTER))
            status = session.status()
    assert found == b"%d" % len(replaced)
    assert len(status.members) == len(manifests.workload("member").pods)
    assert status.observer.log_durable


def test_each_pod_with_a_server_is_replaced_and_no_row_is_lost(image: str, tmp_path: Path) -> None:
    manifests = Manifests([*rendered(WITH_SERVERS), *rendered(FOLDER / "bootstrap")])
    members = manifests.workload("member").pods
    with Pods(tmp_path, image, manifests) as pods:

        def insert(number: int) -> bool:
            hosts = ",".join(map(pods.address, members))
            dsn = f"postgresql://shop:{SECRET}@{hosts}/shop?target_session_attrs=read-write"
            with suppress(psycopg.OperationalError), psycopg.connect(dsn) as session:
                session.execute("INSERT INTO visits VALUES (%s) ON CONFLICT DO NOTHING", (number,))
                session.commit()
                return True
            return False

        def count(pod: str) -> int:
            with psycopg.connect(f"postgresql://shop:{SECRET}@{pods.address(pod)}/shop") as session:
                ((found,),) = session.execute("SELECT count(*) FROM visits").fetchall()
            return int(found)

        def is_ready(pod: str) -> bool:
            return pods.passes(pod, "readinessProbe")

        for pod in members:
            wait_for(pod, partial(is_ready, pod))
        flags = [f"--dsn=postgresql://postgres@{pod}.member/shop" for pod in members]
        statement = "CREATE TABLE visits (number int PRIMARY KEY)"
        change = f"echo '{statement}' | groupcert postgresql ddl - --attach --role shop"
        words = f"{change} --member {members[0]}.member:{PORT} {' '.join(flags)}"
        docker("exec", pods.container(members[0]), "sh", "-c", words)
        for number, pod in enumerate(members):
            assert pods.stop(pod) == 0
            wait_for("a commit", partial(insert, number))
            pods.start(pod)
            wait_for(pod, partial(is_ready, pod))
        for pod in members:
            wait_for("all rows", lambda: count(pod) == len(members))  # noqa: B023
