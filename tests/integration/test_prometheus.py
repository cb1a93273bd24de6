"""A real Prometheus that watches a member: every panel and every alert finds what it asks for.

Grafana is not here: its variables are replaced as it does that.
"""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import pytest

from groupcert import Client
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.host.servers import Server, program
from groupcert.v1 import certification_pb2, certification_pb2_grpc
from tests.integration.waiting import wait_for
from tests.servers import where_installed

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPARISON = re.compile(r" (==|>|<) ")
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")


class Prometheus(Server):
    """A server, as it is deployed but for whom it asks, and how often."""

    def __init__(self, folder: Path, target: str) -> None:
        config = (DEPLOY / "prometheus.yml").read_text()
        config = re.sub(r"targets: \[.*\]", f'targets: ["{target}"]', config)
        (folder / "prometheus.yml").write_text(
            re.sub(r"_interval: \w+", "_interval: 500ms", config)
        )
        (folder / "alerts.yml").write_text((DEPLOY / "alerts.yml").read_text())
        self.address = f"{HOST}:{free_port()}"
        command = [
            program("prometheus", server="Prometheus", advice="sudo apt-get install prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={self.address}",
        ]
        super().__init__(command, folder / "prometheus.log")

    def api(self, path: str, **parameters: str) -> Any:
        """An answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url) as page:
            return json.load(page)["data"]

    def finds(self, expression: str) -> bool:
        """Whether there is anything that an expression names; fails if it is none."""
        try:
            return bool(self.api("query", query=expression)["result"])
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode()
            assert error.code == HTTPStatus.SERVICE_UNAVAILABLE, f"{expression}: {said}"
            return False
        except OSError:  # It is still starting.
            return False

    def fires(self, alert: str) -> bool:
        """Whether an alert goes to its operator now."""
        alerts = self.api("alerts")["alerts"]
        return any(
            each["labels"]["alertname"] == alert and each["state"] == "firing" for each in alerts
        )


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """A member that has committed something."""
    settings = {"metrics_address": f"{HOST}:{free_port()}"}
    with LocalGroup(tmp_path, members=1, settings=settings) as group:
        with Client(group.addresses["m1"]) as client:
            client.run(lambda transaction: transaction.put(b"a", b"1"))
        yield group


def metrics_address(folder: Path) -> str:
    """Where the member serves its metrics."""
    lines = (folder / "m1.toml").read_text().splitlines()
    settings = dict(line.split(" = ", 1) for line in lines)
    address: str = json.loads(settings["metrics_address"])
    return address


def metrics(folder: Path) -> bytes:
    """What the member tells whoever asks."""
    with urllib.request.urlopen(f"http://{metrics_address(folder)}/metrics") as page:
        text: bytes = page.read()
    return text


def served(folder: Path) -> set[str]:
    """The names of all series that the member has."""
    return set(re.findall(r"^(\w+)[{ ]", metrics(folder).decode(), re.MULTILINE))


def names_in(file: str) -> set[str]:
    """The metrics that a file of `deploy/` names; Prometheus itself has `up`."""
    return set(re.findall(r"\b(?:groupcert|process|python)_\w+", (DEPLOY / file).read_text()))


@pytest.fixture
def prometheus(tmp_path: Path, group: LocalGroup) -> Iterator[Prometheus]:
    """It watches the member."""
    with where_installed(), Prometheus(tmp_path, metrics_address(tmp_path)) as server:
        yield server


def filled(text: str, variables: dict[str, str]) -> str:
    """A query as Grafana asks it."""
    for name, value in variables.items():
        text = text.replace(f"${name}", value)
    return text


def variables_of(dashboard: Any, prometheus: Prometheus) -> dict[str, str]:
    """The variables of the dashboard, with all of their values chosen."""
    variables = {"__rate_interval": "30s"}
    for variable in dashboard["templating"]["list"]:
        query = filled(variable["query"]["query"], variables)
        asked = LABEL_VALUES.fullmatch(query)
        assert asked is not None, query
        match, label = asked.groups()
        wait_for(variable["name"], partial(prometheus.finds, match))
        series = prometheus.api("series", **{"match[]": match})
        variables[variable["name"]] = "|".join({each[label] for each in series})
    return variables


def test_every_panel_and_alert_finds_its_metrics(prometheus: Prometheus, group: LocalGroup) -> None:
    assert "groupcert_commit_seconds_bucket" in served(group.folder)
    text = metrics(group.folder)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    variables = variables_of(dashboard, prometheus)
    assert (variables["group"], variables["member"]) == ("local", "m1")
    wait_for("a first look", partial(prometheus.finds, "groupcert_call_refusals_total"))
    with grpc.insecure_channel(group.addresses["m1"]) as channel, pytest.raises(grpc.RpcError):
        stub = certification_pb2_grpc.CertificationServiceStub(channel)
        too_long = b"an id that is far too long" * 100
        stub.GetOutcome(certification_pb2.GetOutcomeRequest(transaction_id=too_long))
    assert names_in("dashboard.json") | names_in("alerts.yml") <= served(group.folder)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = filled(target["expr"], variables)
            wait_for(panel["title"], partial(prometheus.finds, expression))
    (rules,) = prometheus.api("rules")["groups"]
    wait_for(
        "a first look at the alerts",
        lambda: (
            {"ok"} == {rule["health"] for rule in prometheus.api("rules")["groups"][0]["rules"]}
        ),
    )
    for rule in rules["rules"]:
        watched, comparison, _ = COMPARISON.split(rule["query"], maxsplit=1)
        assert comparison
        wait_for(rule["name"], partial(prometheus.finds, watched))
        prometheus.finds(rule["query"])  # The whole of it is no mistake, found or not.
    with pytest.raises(AssertionError, match="parse error"):
        prometheus.finds("rate(groupcert_problems[1m)")


def test_an_operator_is_told_of_a_log_that_is_lost_and_of_a_member_that_is(
    prometheus: Prometheus, group: LocalGroup
) -> None:
    wait_for("a first look", partial(prometheus.finds, "groupcert_problems"))
    assert not prometheus.fires("GroupcertLogHasNoLeader")
    group.log_server.kill()
    wait_for("an alert", partial(prometheus.fires, "GroupcertLogHasNoLeader"))
    group.kill("m1")
    wait_for("another alert", partial(prometheus.fires, "GroupcertMemberDown"))
    group.log_server.start()
