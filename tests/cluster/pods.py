"""The pods of `deploy/kubernetes*/` as containers of this machine's engine, without a cluster.

Each container has its pod's image, command, user, rights, variables, files, probes and names, and
its volume over restarts; started again it has another address, as a pod has. Containers of one pod
share its network. What a cluster does beside that (placing pods, enforcing policies and budgets) is
not here.
"""

import random
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Self

from tests.cluster.engine import docker, try_run
from tests.commands import CommandFailed, run
from tests.deploy.manifests import Document, Manifests, Workload

FIRST_HOST = 10


class Pods:
    """All pods of the manifests, under names and a network of their own."""

    def __init__(self, folder: Path, image: str, manifests: Manifests) -> None:
        """Prepares; nothing runs before `start`."""
        self._folder, self._image, self._manifests = folder, image, manifests
        self._project = f"groupcert-pods-{random.randrange(1 << 32):08x}"
        self._subnet = f"10.214.{random.randrange(256)}"
        self._hosts = iter(range(FIRST_HOST, 255))
        self._addresses: dict[str, str] = {}
        self.workload_of = {
            pod: workload for workload in manifests.workloads() for pod in workload.pods
        }

    def container(self, pod: str, name: str = "") -> str:
        """The name at the engine of a pod's first container, or of one of the others."""
        return "-".join(filter(None, (self._project, pod, name)))

    def address(self, pod: str) -> str:
        """A pod's address on this machine, until it is started again."""
        return self._addresses[pod]

    def start(self, pod: str) -> None:
        """Starts a pod at an address that none had before."""
        workload = self.workload_of[pod]
        self._addresses[pod] = f"{self._subnet}.{next(self._hosts)}"
        own_network = {
            "--hostname": [pod],
            "--network": [self._project],
            "--ip": [self.address(pod)],
            "--network-alias": self._names(workload, pod),
        }
        self._run(pod, workload.container, self.container(pod), own_network)
        for name, container in self._others(pod):
            self._run(pod, container, name, {"--network": [f"container:{self.container(pod)}"]})

    def _run(self, pod: str, container: Document, name: str, network: dict[str, list[str]]) -> None:
        workload = self.workload_of[pod]
        own = workload.pod["securityContext"]
        flags = {
            "--name": [name],
            **network,
            "--user": [f"{own['runAsUser']}:{own['runAsGroup']}"],
            "--cap-drop": container["securityContext"]["capabilities"]["drop"],
            "--security-opt": ["no-new-privileges:true"],
            "--memory": [container["resources"]["limits"]["memory"].removesuffix("i")],
            "--restart": ["on-failure" if "restartPolicy" in workload.pod else "no"],
            "--env": [
                f"{name}={value}"
                for name, value in self._manifests.environment(workload, pod, container).items()
            ],
            "--volume": list(self._volumes(workload, pod, container)),
        }
        if "command" in container:
            flags["--entrypoint"] = container["command"][:1]
        words = [*container.get("command", [])[1:], *container.get("args", [])]
        docker(
            "run",
            "--detach",
            "--no-healthcheck",
            "--read-only",
            "--tmpfs",
            "/tmp",
            *(f"{flag}={value}" for flag, values in flags.items() for value in values),
            self._image,
            *words,
        )

    def stop(self, pod: str) -> int:
        """Ends a pod as its machine's agent does, and removes it; the exit status of its first
        container that failed, or 0.
        """
        grace = self.workload_of[pod].pod["terminationGracePeriodSeconds"]
        containers = dict(self._containers(pod))
        with ThreadPoolExecutor(len(containers)) as pool:
            end = partial(self._end, grace)
            statuses = [*pool.map(end, containers, containers.values())]
        docker("rm", *reversed(containers))
        return next(filter(None, statuses), 0)

    def _end(self, grace: int, name: str, container: Document) -> int:
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
        if hook:
            with suppress(CommandFailed):  # The process that runs it may end with its container.
                docker("exec", name, *hook["command"])
        docker("stop", f"--time={grace}", name)
        return int(docker("inspect", "--format={{.State.ExitCode}}", name))

    def is_over(self, pod: str) -> bool:
        """Whether a job's process has ended well."""
        state = docker(
            "inspect", "--format={{.State.Status}} {{.State.ExitCode}}", self.container(pod)
        )
        return state.split() == ["exited", "0"]

    def passes(self, pod: str, probe: str) -> bool:
        """Whether a pod passes its probe now."""
        return all(
            self._passes(pod, name, container[probe])
            for name, container in self._containers(pod)
            if probe in container
        )

    def _passes(self, pod: str, name: str, probe: Document) -> bool:
        if "exec" in probe:
            with suppress(CommandFailed):
                docker("exec", name, *probe["exec"]["command"])
                return True
            return False
        asked = probe["httpGet"]
        port = self.workload_of[pod].ports[asked["port"]]
        url = f"http://{self.address(pod)}:{port}{asked['path']}"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as page:
            return bool(page.status == HTTPStatus.OK)
        return False

    def output(self, pod: str) -> str:
        """What a pod said last."""
        names = " ".join(name for name, _ in self._containers(pod))
        look = f"for each in {names}; do docker logs --tail=40 $each 2>&1 || true; done"
        return run("sh", "-c", look)

    def __enter__(self) -> Self:
        try:
            docker("network", "create", f"--subnet={self._subnet}.0/24", self._project)
            for pod in self.workload_of:
                self.start(pod)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _from: object) -> None:
        if error is not None:
            for pod in self.workload_of:
                error.add_note(f"--- {pod}\n{self.output(pod)}")
        self._remove()

    def _remove(self) -> None:
        names = [name for pod in self.workload_of for name, _ in self._containers(pod)]
        try_run("docker", "rm", "--force", "--volumes", *reversed(names))
        try_run("docker", "volume", "rm", "--force", *map(self.container, self.workload_of))
        try_run("docker", "network", "rm", self._project)

    def _containers(self, pod: str) -> Iterator[tuple[str, Document]]:
        """Yields the containers of a pod, each with its name at the engine."""
        yield self.container(pod), self.workload_of[pod].container
        yield from self._others(pod)

    def _others(self, pod: str) -> Iterator[tuple[str, Document]]:
        for container in self.workload_of[pod].containers[1:]:
            yield self.container(pod, container["name"]), container

    def _names(self, workload: Workload, pod: str) -> list[str]:
        """The names that a headless Service gives a pod."""
        service = workload.document["spec"].get("serviceName")
        namespace = workload.document["metadata"]["namespace"]
        return [f"{pod}.{service}", f"{pod}.{service}.{namespace}.svc"] if service else []

    def _volumes(self, workload: Workload, pod: str, container: Document) -> list[str]:
        """The volumes of a pod: its settings, in the links that a ConfigMap is mounted as."""
        settings = self._folder / workload.name
        if not settings.exists():
            (settings / "..1").mkdir(parents=True)
            self._manifests.write_settings(workload, settings / "..1")
            (settings / "..data").symlink_to("..1")
            for file in (settings / "..1").iterdir():
                (settings / file.name).symlink_to(f"..data/{file.name}")
        volumes = [f"{settings}:/etc/groupcert:ro"]
        for claim in workload.document["spec"].get("volumeClaimTemplates", ()):
            (mount,) = (
                each["mountPath"]
                for each in container["volumeMounts"]
                if each["name"] == claim["metadata"]["name"]
            )
            volumes.append(f"{self.container(pod)}:{mount}")
        return volumes
