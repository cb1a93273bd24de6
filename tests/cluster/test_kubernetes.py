"""The pods of `deploy/kubernetes/` in containers: they come up in any order, and are upgraded."""

from functools import partial
from pathlib import Path

import pytest

from groupcert import Client, Consistency, Transaction
from tests.cluster.pods import Pods
from tests.deploy.manifests import FOLDER, Manifests, rendered
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
