"""What a schema does not see of `deploy/kubernetes*/`: each check returns its problems as texts."""

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from groupcert.members.errors.usage import InvalidConfig
from groupcert.members.settings.member import load_config
from groupcert.members.total_order.embedded_server import server_binary
from tests.deploy.manifests import DEPLOY, Document, Manifests, Workload, chooses

Check = Callable[[Manifests], list[str]]
RELEASES = ("1.27", "1.37")
"""The oldest release of Kubernetes that the README names, and the newest that has a schema here."""
OTHERS_LABELS = {"groupcert-client", "groupcert-observer"}
"""Labels that pods of others have, which the group lets in."""
NAMES_PORT = 53
ADDRESS = re.compile(r"^(?:\w+://)?(?:.*@)?([a-z0-9.-]+):(\d+)$")


def check_schema(manifests: Manifests) -> list[str]:
    """Kubernetes knows every field, and each has a value of its kind."""
    problems = []
    for document in manifests.documents:
        for release in RELEASES:
            try:
                kubernetes_validate.validate(document, release, strict=True)
            except kubernetes_validate.ValidationError as error:
                at = "/".join(map(str, error.path))
                problems.append(f"{_name(document)}: {at}: {error.message} in {release}")
    return problems


def check_selectors(manifests: Manifests) -> list[str]:
    """What is about pods chooses those that it is named after, and each pod has what it needs."""
    problems = []
    for where, selector in _selectors(manifests):
        chosen = [workload.name for workload in manifests.chosen(selector)]
        if not chosen and not OTHERS_LABELS & selector.get("matchLabels", {}).keys():
            problems.append(f"{where} chooses no pod")
        elif where.startswith(("StatefulSet", "PodDisruptionBudget", "NetworkPolicy")):
            own = [where.split("/")[1].split(" ")[0]]
            if " lets " not in where and chosen != own:
                problems.append(f"{where} chooses pods of {chosen}")
    for document in manifests.of("StatefulSet"):
        spec, name = document["spec"], document["metadata"]["name"]
        service = manifests.one("Service", spec["serviceName"])["spec"]
        chosen = [each.name for each in manifests.chosen({"matchLabels": service["selector"]})]
        if chosen != [name] or service.get("clusterIP") != "None":
            problems.append(f"{_name(document)}: {spec['serviceName']} gives its pods no names")
        elif not service.get("publishNotReadyAddresses"):
            problems.append(f"{_name(document)}: its pods have names only when they are ready")
        problems += [
            f"{_name(document)} has no {kind}"
            for kind in ("PodDisruptionBudget", "NetworkPolicy")
            if name not in [each["metadata"]["name"] for each in manifests.of(kind)]
        ]
    return problems


def check_ports(manifests: Manifests) -> list[str]:
    """Services and probes name ports of containers; the network lets in each, and no other one."""
    problems = []
    for service in manifests.of("Service"):
        for workload in manifests.chosen({"matchLabels": service["spec"]["selector"]}):
            problems += [
                f"{_name(service)}: {workload.name} has no port {port}"
                for port in service["spec"]["ports"]
                if workload.ports.get(port["targetPort"]) != port["port"]
            ]
    for workload in manifests.workloads():
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            for container in workload.containers:
                asked = container.get(kind, {}).get("httpGet")
                if asked and asked["port"] not in workload.ports:
                    problems.append(f"{workload.name}: {kind} asks at a port that it has not")
        rules = _policy(manifests, workload).get("ingress", ())
        let_in = {port["port"] for rule in rules for port in rule["ports"]}
        if let_in != set(workload.ports.values()):
            problems.append(f"{workload.name}: {workload.ports} are not those let in, {let_in}")
        problems += _one_sided(manifests, workload)
    return problems


def check_addresses(manifests: Manifests) -> list[str]:
    """Addresses are of pods that there are, at ports that these have; lists name all of them."""
    problems = []
    for workload in manifests.workloads():
        for setting, addresses in _addresses(manifests, workload):
            named = set()
            for host, port in addresses:
                pod, service, *rest = host.split(".")
                owners = [
                    each
                    for each in manifests.workloads()
                    if pod in each.pods and each.document["spec"].get("serviceName") == service
                ]
                namespace = workload.document["metadata"]["namespace"]
                if not owners or rest not in ([], [namespace, "svc"]):
                    problems.append(f"{workload.name}: {setting}: there is no {host}")
                elif port not in owners[0].ports.values():
                    problems.append(f"{workload.name}: {setting}: {host} has no port {port}")
                elif not _may_talk(manifests, workload, owners[0], port):
                    problems.append(f"{workload.name}: {setting}: may not talk to {host}:{port}")
                else:
                    named.add(owners[0].name)
            listed = {each for each in named for pod in manifests.workload(each).pods}
            hosts = {host.split(".")[0] for host, _ in addresses}
            if not setting.endswith("ADDRESS") and not all(
                set(manifests.workload(each).pods) == hosts for each in listed
            ):
                problems.append(f"{workload.name}: {setting} does not name all")
    return problems


def check_budgets(manifests: Manifests) -> list[str]:
    """What may be away on purpose leaves a majority, and the log is on all of its servers."""
    problems = []
    for budget in manifests.of("PodDisruptionBudget"):
        for workload in manifests.chosen(budget["spec"]["selector"]):
            left = len(workload.pods) - budget["spec"]["maxUnavailable"]
            if 2 * left <= len(workload.pods):
                problems.append(f"{_name(budget)} leaves {left} of {len(workload.pods)}")
    settings = tomllib.loads(manifests.one("ConfigMap", "members")["data"]["member.toml"])
    servers = len(manifests.workload("log").pods)
    if settings["log_replicas"] != servers:
        problems.append(f"log_replicas is {settings['log_replicas']} with {servers} servers")
    return problems


def check_settings(manifests: Manifests) -> list[str]:
    """A member takes the settings that its pod gives it; they fit the pod."""
    problems = []
    for workload in manifests.workloads():
        if workload.name == "log":
            continue
        if workload.pod.get("enableServiceLinks") is not False:
            problems.append(f"{workload.name}: names of Services become settings")
        for pod in workload.pods:
            flags = {"member": "bootstrap"} if workload.name == "bootstrap" else {}
            environment = manifests.environment(workload, pod)
            with tempfile.TemporaryDirectory() as folder:
                path = manifests.write_settings(workload, Path(folder))
                try:
                    config = load_config(path, flags, environment)
                except InvalidConfig as error:
                    problems.append(f"{pod}: {error}")
                    continue
            if workload.name == "bootstrap":
                continue
            served = [config.listen_address or "", config.metrics_address or ""]
            ports = [int(address.rpartition(":")[2]) for address in served]
            ports.append(config.session_frames_port)
            if ports != [workload.ports.get(each) for each in ("grpc", "http", "frames")]:
                problems.append(f"{pod} serves at {ports}, its ports are {workload.ports}")
            if not config.address.startswith(f"{pod}.") or config.member != pod:
                problems.append(f"{pod} is {config.member} at {config.address}")
            if str(config.data_folder.parent) != _data_mount(workload):
                problems.append(f"{pod}: {config.data_folder} is not on its volume")
    return problems


def check_log_servers(manifests: Manifests) -> list[str]:
    """The log server takes its configuration, and serves at the ports of its pod."""
    workload = manifests.workload("log")
    files = manifests.one("ConfigMap", "log-servers")["data"]
    problems = [
        f"{name} is not as in deploy/"
        for name, text in files.items()
        if text != (DEPLOY / name).read_text()
    ]
    text = "".join(files.values())
    at = {int(port) for port in re.findall(r'"0\.0\.0\.0:(\d+)"', text)}
    if at != set(workload.ports.values()):
        problems.append(f"log servers serve at {at}, their ports are {workload.ports}")
    mount = _data_mount(workload)
    if f'store_dir: "{mount}"' not in text:
        problems.append(f"the log is not on the volume, {mount}")
    for pod in workload.pods:
        with tempfile.TemporaryDirectory() as folder:
            path = manifests.write_settings(workload, Path(folder))
            for file in Path(folder).iterdir():
                file.write_text(file.read_text().replace(str(mount), f"{folder}/data"))
            done = subprocess.run(
                [server_binary(), "-t", "-c", str(path)],
                env=manifests.environment(workload, pod),
                capture_output=True,
                text=True,
            )
        if done.returncode != 0:
            problems.append(f"{pod}: {done.stderr.strip()}")
    return problems


def check_restricted(manifests: Manifests) -> list[str]:
    """Pods are what the namespace demands, and run as the image's user."""
    problems = []
    found = re.search(r"^USER (\d+):(\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    user = {"runAsUser": int(found[1]), "runAsGroup": int(found[2])}
    wanted = {**user, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    own = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for workload in manifests.workloads():
        pod = workload.pod["securityContext"]
        for key, value in wanted.items():
            if pod.get(key) != value:
                problems.append(f"{workload.name}: {key} is {pod.get(key)}")
        if workload.document["kind"] == "StatefulSet" and pod.get("fsGroup") != user["runAsGroup"]:
            problems.append(f"{workload.name} cannot write to its volume")
        for container in workload.containers:
            if container["securityContext"] != own:
                name = f"{workload.name}: container {container['name']}"
                problems.append(f"{name} may do more than it needs")
            if "/tmp" not in [each["mountPath"] for each in container["volumeMounts"]]:
                problems.append(f"{workload.name}: {container['name']} lacks a place for sockets")
        if workload.pod.get("automountServiceAccountToken") is not False:
            problems.append(f"{workload.name} gets a token of the cluster")
        mounts = {each["mountPath"] for each in workload.container["volumeMounts"]}
        if "/etc/groupcert" not in mounts:
            problems.append(f"{workload.name}: {mounts} lack its settings")
    return problems


def check_stops(manifests: Manifests) -> list[str]:
    """A pod has as long to stop as its container has with Compose, and the next one waits."""
    problems = []
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    seconds = int(compose["x-service"]["stop_grace_period"].removesuffix("s"))
    for document in manifests.of("StatefulSet"):
        spec = document["spec"]
        grace = spec["template"]["spec"].get("terminationGracePeriodSeconds", 30)
        if grace < seconds:
            problems.append(f"{_name(document)} is killed after {grace} s")
        if spec.get("podManagementPolicy") != "Parallel":
            problems.append(f"{_name(document)}: one that is not ready holds up all others' start")
        if spec.get("minReadySeconds", 0) < 5:
            problems.append(f"{_name(document)}: the next one is restarted at once")
    return problems


def check_images(manifests: Manifests) -> list[str]:
    """All pods run one image, of this release."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    wanted = f"{project['name']}:{project['version']}"
    return [
        f"{workload.name} runs {container['image']}"
        for workload in manifests.workloads()
        for container in workload.containers
        if container["image"] != wanted
    ]


CHECKS: tuple[Check, ...] = (
    check_schema,
    check_selectors,
    check_ports,
    check_addresses,
    check_budgets,
    check_settings,
    check_log_servers,
    check_restricted,
    check_stops,
    check_images,
)


def _name(document: Document) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def _selectors(manifests: Manifests) -> Iterator[tuple[str, Document]]:
    """Yields every selector of pods, and whose it is."""
    for document in manifests.documents:
        name, spec = _name(document), document.get("spec", {})
        match document["kind"]:
            case "Service":
                yield name, {"matchLabels": spec["selector"]}
            case "PodDisruptionBudget":
                yield name, spec["selector"]
            case "StatefulSet":
                yield name, spec["selector"]
                for each in spec["template"]["spec"]["topologySpreadConstraints"]:
                    yield f"{name} spread", each["labelSelector"]
            case "NetworkPolicy":
                yield name, spec["podSelector"]
                for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
                    for peer in (*rule.get("from", ()), *rule.get("to", ())):
                        yield f"{name} lets {rule['ports']}", peer["podSelector"]


def _policy(manifests: Manifests, workload: Workload) -> dict[str, Any]:
    """The one network policy of a workload's pods."""
    (policy,) = (
        each["spec"]
        for each in manifests.of("NetworkPolicy")
        if chooses(each["spec"]["podSelector"], workload.labels)
    ) or ({},)
    found: dict[str, Any] = policy
    return found


def _allows(rules: Iterable[Document], side: str, other: Workload, port: int) -> bool:
    return any(
        port in [each["port"] for each in rule["ports"]]
        and any(chooses(peer["podSelector"], other.labels) for peer in rule.get(side, ()))
        for rule in rules
    )


def _may_talk(manifests: Manifests, one: Workload, other: Workload, port: int) -> bool:
    out = _policy(manifests, one).get("egress", ())
    into = _policy(manifests, other).get("ingress", ())
    return _allows(out, "to", other, port) and _allows(into, "from", one, port)


def _one_sided(manifests: Manifests, workload: Workload) -> Iterator[str]:
    """Yields what one side's network policy allows and the other's does not."""
    policy = _policy(manifests, workload)
    for other in manifests.workloads():
        for port in {*other.ports.values()}:
            sends = _allows(policy.get("egress", ()), "to", other, port)
            takes = _allows(_policy(manifests, other).get("ingress", ()), "from", workload, port)
            if sends != takes:
                yield f"{workload.name} to {other.name}:{port} is allowed by one side only"
    names = [rule["ports"] for rule in policy.get("egress", ()) if "to" not in rule]
    if [{each["protocol"]: each["port"] for each in ports} for ports in names] != [
        {"UDP": NAMES_PORT, "TCP": NAMES_PORT}
    ]:
        yield f"{workload.name} cannot ask for names"


def _addresses(
    manifests: Manifests, workload: Workload
) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yields each setting that has addresses of pods, and these."""
    values: dict[str, object] = {}
    for pod in workload.pods:
        values |= manifests.environment(workload, pod)
    if workload.name == "member":
        values |= tomllib.loads(manifests.one("ConfigMap", "members")["data"]["member.toml"])
    for setting, value in values.items():
        texts = value if isinstance(value, list) else re.split(r'[\[\]", ]+', str(value))
        found = [ADDRESS.fullmatch(str(text)) for text in texts]
        addresses = [(each[1], int(each[2])) for each in found if each is not None]
        if addresses and addresses[0][0] != "0.0.0.0":
            yield setting, addresses


def _data_mount(workload: Workload) -> str:
    templates = workload.document["spec"]["volumeClaimTemplates"]
    claims = {each["metadata"]["name"] for each in templates}
    mounts = workload.container["volumeMounts"]
    return next((each["mountPath"] for each in mounts if each["name"] in claims), "")
