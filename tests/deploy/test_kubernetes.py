"""`deploy/kubernetes*/`: the manifests are what Kubernetes, members and log servers take.

No cluster is here. Each check is also given manifests that are broken, which it has to find.
"""

import re
from functools import cache
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml

from groupcert.members.errors.membership import NameTaken
from tests.deploy import manifest_checks as checks
from tests.deploy.manifest_checks import CHECKS, Check
from tests.deploy.manifests import FOLDER, WITH_SERVERS, Manifests, rendered
from tests.integration.waiting import wait_for
from tests.log_servers import NatsServers
from tests.members.console.test_console import served

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@cache
def manifests(folder: Path = FOLDER) -> Manifests:
    """What is in the tree."""
    return Manifests([*rendered(folder), *rendered(FOLDER / "bootstrap")])


@pytest.mark.parametrize("folder", [FOLDER, WITH_SERVERS], ids=["members", "with servers"])
@pytest.mark.parametrize("check", CHECKS)
def test_the_manifests_are_in_order(check: Check, folder: Path) -> None:
    assert check(manifests(folder)) == []


LOG = "StatefulSet/log/spec"
MEMBER = "StatefulSet/member/spec"
IN_POD = "template/spec"
IN_CONTAINER = "template/spec/containers/0"
TOML = "ConfigMap/members/data/member.toml"
COMPONENT = "app.kubernetes.io|component"
BROKEN: tuple[tuple[Check, str, object, str], ...] = (
    (checks.check_schema, f"{LOG}/replica", 3, "'replica' was unexpected"),
    (checks.check_schema, f"{LOG}/replicas", "three", "'three' is not"),
    (checks.check_schema, "Service/log/spec/ports/0/port", None, "'port' is a required"),
    (checks.check_selectors, f"Service/group/spec/selector/{COMPONENT}", "x", "chooses no pod"),
    (checks.check_selectors, f"Service/log/spec/selector/{COMPONENT}", "member", "no names"),
    (checks.check_selectors, "Service/member/spec/clusterIP", None, "no names"),
    (
        checks.check_selectors,
        "Service/member/spec/publishNotReadyAddresses",
        False,
        "only when they are ready",
    ),
    (
        checks.check_selectors,
        f"PodDisruptionBudget/log/spec/selector/matchLabels/{COMPONENT}",
        "member",
        "PodDisruptionBudget/log chooses pods of ['member']",
    ),
    (
        checks.check_selectors,
        f"{MEMBER}/{IN_POD}/topologySpreadConstraints/0/labelSelector/matchLabels/{COMPONENT}",
        "log",
        "StatefulSet/member spread chooses pods of ['log']",
    ),
    (checks.check_ports, f"{MEMBER}/{IN_CONTAINER}/ports/0/containerPort", 7109, "no port"),
    (checks.check_ports, "Service/log/spec/ports/2/targetPort", "monitoring", "no port"),
    (checks.check_ports, f"{LOG}/{IN_CONTAINER}/livenessProbe/httpGet/port", "http", "has not"),
    (checks.check_ports, "NetworkPolicy/member/spec/ingress/1", None, "not those let in"),
    (
        checks.check_ports,
        "NetworkPolicy/member/spec/egress/0/ports/0/port",
        4223,
        "member to log:4222 is allowed by one side only",
    ),
    (checks.check_ports, "NetworkPolicy/log/spec/egress/1", None, "cannot ask for names"),
    (checks.check_addresses, TOML, 'seeds = ["member-3.member:7101"]', "no member-3.member"),
    (checks.check_addresses, TOML, 'seeds = ["member-0.members:7101"]', "no member-0.members"),
    (checks.check_addresses, TOML, 'seeds = ["member-0.member:7109"]', "no port 7109"),
    (checks.check_addresses, TOML, 'seeds = ["member-0.member:7101"]', "does not name all"),
    (checks.check_addresses, TOML, 'log_monitors = ["http://log-0.log:6222"]', "may not talk"),
    (checks.check_addresses, f"{LOG}/replicas", 5, "ROUTES does not name all"),
    (
        checks.check_addresses,
        f"{MEMBER}/{IN_CONTAINER}/env/4/value",
        "$(GROUPCERT_MEMBER).member.other.svc:7101",
        "there is no member-2.member.other.svc",
    ),
    (checks.check_budgets, "PodDisruptionBudget/log/spec/maxUnavailable", 2, "leaves 1 of 3"),
    (checks.check_budgets, f"{LOG}/replicas", 5, "log_replicas is 3 with 5 servers"),
    (checks.check_settings, f"{MEMBER}/{IN_CONTAINER}/env/3/name", "GROUPCERT_MEMBR", "membr"),
    (checks.check_settings, TOML, 'group = "shop"\nlog_replica = 3', "log_replica"),
    (checks.check_settings, f"{MEMBER}/{IN_POD}/enableServiceLinks", None, "become settings"),
    (
        checks.check_settings,
        f"{MEMBER}/{IN_CONTAINER}/ports/1/containerPort",
        7109,
        "member-0 serves at [7101, 9101, 7102]",
    ),
    (
        checks.check_settings,
        f"{MEMBER}/{IN_CONTAINER}/volumeMounts/0/mountPath",
        "/data",
        "is not on its volume",
    ),
    (
        checks.check_log_servers,
        f"{LOG}/{IN_CONTAINER}/env/4/value",
        "$(MEMBER)",
        "log-0",
    ),
    (checks.check_log_servers, f"{LOG}/{IN_CONTAINER}/env/7", None, "ROUTES"),
    (checks.check_log_servers, f"{LOG}/{IN_CONTAINER}/ports/1/containerPort", 6223, "serve at"),
    (
        checks.check_log_servers,
        f"{LOG}/{IN_CONTAINER}/volumeMounts/0/mountPath",
        "/data",
        "the log is not on the volume",
    ),
    (
        checks.check_log_servers,
        "ConfigMap/log-servers/data/nats-common.conf",
        "max_payload: 1",
        "nats-common.conf is not as in deploy/",
    ),
    (checks.check_restricted, f"{LOG}/{IN_POD}/securityContext/runAsUser", 0, "runAsUser is 0"),
    (checks.check_restricted, f"{LOG}/{IN_POD}/securityContext/fsGroup", None, "cannot write"),
    (
        checks.check_restricted,
        f"{MEMBER}/{IN_CONTAINER}/securityContext/readOnlyRootFilesystem",
        None,
        "may do more",
    ),
    (
        checks.check_restricted,
        "Job/bootstrap/spec/template/spec/automountServiceAccountToken",
        None,
        "a token",
    ),
    (checks.check_restricted, f"{MEMBER}/{IN_CONTAINER}/volumeMounts/1", None, "lack its settings"),
    (checks.check_restricted, f"{MEMBER}/{IN_CONTAINER}/volumeMounts/2", None, "for sockets"),
    (checks.check_stops, f"{MEMBER}/{IN_POD}/terminationGracePeriodSeconds", None, "after 30 s"),
    (checks.check_stops, f"{LOG}/podManagementPolicy", None, "holds up all others"),
    (checks.check_stops, f"{LOG}/minReadySeconds", None, "restarted at once"),
    (checks.check_images, "Job/bootstrap/spec/template/spec/containers/0/image", "x", "runs x"),
)


@pytest.mark.parametrize(("check", "where", "value", "expected"), BROKEN)
def test_a_broken_manifest_is_found(check: Check, where: str, value: object, expected: str) -> None:
    problems = check(manifests().changed(where, value))
    assert [problem for problem in problems if expected in problem], problems


SERVER = f"{MEMBER}/template/spec/containers/1"
BROKEN_SERVERS: tuple[tuple[Check, str, object, str], ...] = (
    (checks.check_ports, f"{SERVER}/ports/0/containerPort", 5433, "no port"),
    (checks.check_ports, "NetworkPolicy/member/spec/ingress/0/ports/1", None, "not those let in"),
    (checks.check_ports, "NetworkPolicy/member/spec/egress/1/ports/1", None, "one side only"),
    (checks.check_restricted, f"{SERVER}/securityContext/capabilities", None, "container server"),
    (checks.check_images, f"{SERVER}/image", "postgres:17", "member runs postgres:17"),
)


@pytest.mark.parametrize(("check", "where", "value", "expected"), BROKEN_SERVERS)
def test_a_broken_manifest_of_servers_is_found(
    check: Check, where: str, value: object, expected: str
) -> None:
    problems = check(manifests(WITH_SERVERS).changed(where, value))
    assert [problem for problem in problems if expected in problem], problems


def test_every_check_has_been_seen_to_find_something() -> None:
    assert {check for check, *_ in BROKEN} == set(CHECKS)


def test_the_passwords_that_pods_ask_for_are_those_that_an_operator_makes() -> None:
    asked = {
        (secret["name"], secret["key"])
        for workload in manifests(WITH_SERVERS).workloads()
        for container in workload.containers
        for variable in container["env"]
        if (secret := variable.get("valueFrom", {}).get("secretKeyRef"))
    }
    text = (FOLDER / "README.md").read_text()
    made = {
        (name, key)
        for name, flags in re.findall(r"create secret generic (\w+) (.*?[^\\])\n", text, re.DOTALL)
        for key in re.findall(r"--from-literal=\"?(\w+)=", flags)
    }
    assert asked == made


def test_what_is_deleted_takes_no_data_along() -> None:
    """Volumes end with their namespace: it is not among what is applied and deleted together."""
    (namespace,) = yaml.safe_load_all((FOLDER / "namespace.yaml").read_text())
    assert checks.check_schema(Manifests([namespace])) == []
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {each["metadata"]["namespace"] for each in manifests().documents} == {
        namespace["metadata"]["name"]
    }
    assert not {"Namespace", "PersistentVolumeClaim"} & {each["kind"] for each in rendered()}
    for document in manifests().of("StatefulSet"):
        policy = document["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert set(policy.values()) == {"Retain"}


def probes_of(name: str) -> list[str]:
    """The paths of a workload's startup, liveness and readiness probes."""
    container = manifests().workload(name).container
    return [container[kind]["httpGet"]["path"] for kind in PROBES]


async def test_a_fenced_member_has_started_and_lives_and_is_not_ready(tmp_path: Path) -> None:
    async with served(tmp_path) as console:

        async def statuses() -> list[int]:
            return [(await console.ask(path))[0] for path in probes_of("member")]

        assert await statuses() == [HTTPStatus.OK] * 3
        console.runtime.fence(NameTaken(member="m1", address="elsewhere:1"))
        ready = HTTPStatus.SERVICE_UNAVAILABLE
        assert await statuses() == [HTTPStatus.OK, HTTPStatus.OK, ready]


@pytest.mark.nats
def test_a_log_server_without_a_majority_lives_and_is_not_ready(tmp_path: Path) -> None:
    servers = NatsServers(tmp_path)

    def answers(name: str) -> list[bool]:
        return [servers.page(name, path.removeprefix("/")) is not None for path in probes_of("log")]

    try:
        first, *others = servers.names
        servers.start(first)
        wait_for("one that lives", lambda: answers(first)[1])
        assert answers(first) == [True, True, False]
        for name in others:
            servers.start(name)
        wait_for("a majority", lambda: all(all(answers(name)) for name in servers.names))
    finally:
        servers.__exit__(None, None, None)
