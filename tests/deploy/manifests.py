"""The manifests of `deploy/kubernetes*/`, as kubectl renders them, and what a cluster makes of
them.

A cluster is not here. What its parts do with a pod before a process starts (names, labels that are
chosen, variables put in) is done as Kubernetes documents it, so that tests can look at the result.
"""

import copy
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDER = DEPLOY / "kubernetes"
WITH_SERVERS = DEPLOY / "kubernetes-postgresql"
SECRET = "123"
"""A password that looks like a number: the worst that an operator may choose."""

Document = dict[str, Any]
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A StatefulSet or a Job, with the pods that it makes."""

    document: Document
    pods: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.document["metadata"]["name"])

    @property
    def labels(self) -> Labels:
        """The labels of its pods."""
        labels: Labels = self.document["spec"]["template"]["metadata"]["labels"]
        return labels

    @property
    def pod(self) -> Document:
        """The specification of its pods."""
        pod: Document = self.document["spec"]["template"]["spec"]
        return pod

    @property
    def container(self) -> Document:
        """The container of each of its pods that it is named after."""
        return self.containers[0]

    @property
    def containers(self) -> list[Document]:
        """All containers of each of its pods."""
        found: list[Document] = self.pod["containers"]
        return found

    @property
    def ports(self) -> dict[str, int]:
        """The ports of its containers, by name."""
        listed = [port for each in self.containers for port in each.get("ports", ())]
        return {port["name"]: port["containerPort"] for port in listed}


class Manifests:
    """All documents that an operator applies, the Job that makes the group too."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents

    def of(self, kind: str) -> list[Document]:
        """The documents of a kind."""
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name: str) -> Document:
        """A document."""
        (found,) = (each for each in self.of(kind) if each["metadata"]["name"] == name)
        return found

    def workload(self, name: str) -> Workload:
        """A workload."""
        (found,) = (workload for workload in self.workloads() if workload.name == name)
        return found

    def workloads(self) -> Iterator[Workload]:
        """Yields all of them."""
        for document in self.of("StatefulSet"):
            replicas, name = document["spec"]["replicas"], document["metadata"]["name"]
            pods = tuple(f"{name}-{number}" for number in range(replicas))
            yield Workload(document=document, pods=pods)
        for document in self.of("Job"):
            yield Workload(document=document, pods=(f"{document['metadata']['name']}-x7k2p",))

    def chosen(self, selector: Document) -> list[Workload]:
        """The workloads whose pods a selector chooses."""
        return [each for each in self.workloads() if chooses(selector, each.labels)]

    def environment(
        self, workload: Workload, pod: str, container: Document | None = None
    ) -> dict[str, str]:
        """What a process in a pod finds as its environment, in a container or the first one."""
        values: dict[str, str] = {}
        for variable in (container or workload.container)["env"]:
            match variable:
                case {"value": text}:
                    found = re.sub(r"\$\((\w+)\)", lambda name: values.get(name[1], name[0]), text)
                case {"valueFrom": {"secretKeyRef": _}}:
                    found = SECRET
                case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
                    found = pod
                case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}:
                    found = workload.document["metadata"]["namespace"]
                case _:
                    raise AssertionError(f"{variable}: what is its value?")
            values[variable["name"]] = found
        return values

    def write_settings(self, workload: Workload, folder: Path) -> Path:
        """Writes the files of the ConfigMap that a pod mounts; returns the one that its process
        is told to read.
        """
        (named,) = (each["configMap"] for each in workload.pod["volumes"] if "configMap" in each)
        (settings,) = (v["name"] for v in workload.pod["volumes"] if "configMap" in v)
        (mount,) = (m for m in workload.container["volumeMounts"] if m["name"] == settings)
        for name, text in self.one("ConfigMap", named["name"])["data"].items():
            (folder / name).write_text(text)
        words = workload.container.get("command", []) + workload.container.get("args", [])
        path = Path(words[words.index("--config") + 1])
        assert str(path.parent) == mount["mountPath"], f"{path} is not in {mount['mountPath']}"
        return folder / path.name

    def changed(self, where: str, value: object) -> "Manifests":
        """A copy with another value at `Kind/name/key/.../key`; None removes it."""
        kind, name, *keys = where.split("/")
        changed = Manifests(copy.deepcopy(self.documents))
        at: Any = changed.one(kind, name)
        path: list[Any] = [int(key) if key.isdigit() else key.replace("|", "/") for key in keys]
        for key in path[:-1]:
            at = at[key]
        if value is None:
            del at[path[-1]]
        else:
            at[path[-1]] = value
        return changed


def chooses(selector: Document, labels: Labels) -> bool:
    """True if a label selector chooses these labels."""
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in expressions)
    return all(
        labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()
    ) and all(labels.get(each["key"]) in each["values"] for each in expressions)


def rendered(folder: Path = FOLDER) -> list[Document]:
    """The documents of a kustomization. Skips where kubectl is missing."""
    if which("kubectl") is None:
        assert os.environ.get("REQUIRE_DATABASES") != "1", "kubectl is not installed"
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # As JSON, documents share no parts that an anchor would have them share.
    documents: list[Document] = json.loads(json.dumps(list(yaml.safe_load_all(done.stdout))))
    return documents
