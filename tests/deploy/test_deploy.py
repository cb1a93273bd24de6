"""What `deploy/` says fits the program: metrics exist, settings are known, files are there."""

import json
import os
import re
import subprocess
import tempfile
from itertools import product
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from groupcert.members.settings.member import load_config
from groupcert.members.total_order.embedded_server import server_binary
from tests.cluster.engine import compose_command
from tests.handbook import HANDBOOK
from tests.log_servers import ETCD_FLAGS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE_FILE = DEPLOY / "compose.yaml"
METRIC = re.compile(r"\b(?:groupcert|process|python)_\w+")
SIZES = DEPLOY.parent / "tests" / "bench" / "results" / "sizing.json"
METRICS_README = DEPLOY.parent / "members" / "services" / "README.md"
"""Its tables are tested against what a member serves (`tests/members/services`)."""


def metric_names() -> set[str]:
    """Every metric that a member serves; a histogram has several."""
    names = set()
    for first, text in re.findall(
        r"^\| (`\w+`.*?) \| (.*) \|$", METRICS_README.read_text(), re.MULTILINE
    ):
        ends = ("_bucket", "_count", "_sum") if text.startswith("histogram: ") else ("",)
        names |= {name + end for name in METRIC.findall(first) for end in ends}
    return names


@pytest.mark.parametrize("name", ["dashboard.json", "alerts.yml", "alerts.test.yml"])
def test_metrics_that_are_shown_or_watched_exist(name: str) -> None:
    named = set(METRIC.findall((DEPLOY / name).read_text()))
    assert named
    assert named <= metric_names()


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard, without the headings of its rows."""
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_every_panel_asks_the_data_source_for_the_chosen_members_and_is_described() -> None:
    uid = re.search(r"uid: (\w+)", (DEPLOY / "grafana-datasources.yaml").read_text())
    assert uid is not None
    source = {"type": "prometheus", "uid": uid.group(1)}
    for panel in panels():
        assert panel["datasource"] == source
        assert len(panel["description"].split()) > 5, panel["title"]
        for target in panel["targets"]:
            metrics = METRIC.findall(target["expr"])
            assert metrics
            assert target["expr"].count('instance=~"$instance"') == len(metrics), target["expr"]


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((DEPLOY / "dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        place = set(product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not taken & place, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= place


def test_every_alert_says_what_to_do_and_has_a_paragraph_of_its_own() -> None:
    text = HANDBOOK.read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    paragraphs = dict(re.findall(r"^### (\w+)\n(.*?)(?=^###|\Z)", text, re.MULTILINE | re.DOTALL))
    alerts = (DEPLOY / "alerts.yml").read_text().split("- alert: ")[1:]
    assert [alert.split()[0] for alert in alerts] == list(paragraphs)
    for alert in alerts:
        for part in ("expr: ", "severity: ", "summary: ", "action: ", "runbook: "):
            assert alert.count(part) == 1, alert
        assert f'runbook: "deploy/README.md#{alert.split()[0].lower()}"' in alert
    for paragraph in paragraphs.values():
        said = re.findall(r"^- \*\*(.+?)\*\*", paragraph, re.MULTILINE)
        assert said == ["Means", "Look first", "Do", "Over"]


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("log, on each log server", "log, each server"),
        ("binary log", "binary log"),
        ("certification log, if there is one", "certification log"),
    ],
)
def test_the_handbook_has_the_sizes_that_were_measured(row: str, place: str) -> None:
    found = re.search(
        rf"^\| {row} \| (.*?) \| (.*?) \| (.*?) \|", HANDBOOK.read_text(), re.MULTILINE
    )
    measured = json.loads(SIZES.read_text())["loads"]
    assert found is not None
    assert list(found.groups()) == [
        f"{load['bytes_a_transaction'][place]:,.0f}" for load in measured
    ]


def promtool(*arguments: str) -> str:
    """What Prometheus' own tool says of files here, which it takes."""
    if which("promtool") is None:
        assert os.environ.get("REQUIRE_DATABASES") != "1", "prometheus is not installed"
        pytest.skip("prometheus is not installed")
    done = subprocess.run(["promtool", *arguments], cwd=DEPLOY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_its_configuration_and_its_rules() -> None:
    rules = (DEPLOY / "alerts.yml").read_text().count("- alert: ")
    assert f"{rules} rules found" in promtool("check", "config", "prometheus.yml")


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_does_not_when_it_should_not() -> None:
    tests = (DEPLOY / "alerts.test.yml").read_text().split("  - name: ")[1:]
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yml").read_text())
    assert [test.split()[0] for test in tests] == alerts
    for alert, test in zip(alerts, tests, strict=True):
        assert set(re.findall(r"alertname=\"(\w+)\"", test)) == {alert}
        assert test.count("exp_samples: []") == 2, "before it fires, and after"
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml")


def test_files_that_are_mounted_exist() -> None:
    texts = (path.read_text() for path in DEPLOY.glob("compose*.yaml"))
    mounted = re.findall(r'"\./([^:"]+):[^:"]+:ro"', "".join(texts))
    assert {"member.toml", "nats-server.conf", "prometheus.yml", "shop.sql"} <= set(mounted)
    assert [name for name in mounted if not (DEPLOY / name).is_file()] == []


@pytest.mark.parametrize(
    "over",
    [
        "compose.yaml",
        "compose.tls.yaml",
        "compose.etcd.yaml",
        "compose.postgresql.yaml",
        "compose.m4.yaml",
    ],
)
def test_compose_reads_its_file(over: str) -> None:
    if which(compose_command()[0]) is None:
        assert os.environ.get("REQUIRE_DOCKER") != "1", "docker-compose is not installed"
        pytest.skip("docker-compose is not installed")
    files = ["--file", str(COMPOSE_FILE), "--file", str(DEPLOY / over)]
    done = subprocess.run(
        [*compose_command(), *files, "config", "--services"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    services = set(done.stdout.split())
    assert {"m1", "m2", "m3", "log1", "log2", "log3"} <= services


def test_a_member_takes_its_settings() -> None:
    set_by_compose = set(re.findall(r"^ *GROUPCERT_(\w+):", COMPOSE_FILE.read_text(), re.MULTILINE))
    values = {
        "MEMBER": "m1",
        "ADDRESS": "10.213.7.11:7101",
        "LOG_SERVERS": "nats://member:a@log1:4222,nats://member:a@log2:4222",
        "LOG_TRIM_SERVERS": "nats://operator:a@log1:4222,nats://operator:a@log2:4222",
        "SEEDS": "10.213.7.11:7101,10.213.7.12:7101",
    }
    assert set_by_compose == set(values)
    environment = {f"GROUPCERT_{name}": value for name, value in values.items()}
    config = load_config(DEPLOY / "member.toml", environment=environment)
    assert config.log_replicas == len(config.log_monitors) == 3


def test_a_member_takes_the_settings_of_a_log_on_etcd() -> None:
    text = (DEPLOY / "compose.etcd.yaml").read_text()
    environment = dict(re.findall(r'^ *(GROUPCERT_\w+): "(.*)"$', text, re.MULTILINE))
    named = {"GROUPCERT_MEMBER": "m1", "GROUPCERT_ADDRESS": "10.213.7.11:7101"}
    config = load_config(DEPLOY / "member.toml", environment={**named, **environment})
    servers = tuple(f"etcd://log{number}:2379" for number in (1, 2, 3))
    assert config.log_servers == config.log_trim_servers == servers
    assert config.log_replicas == len(config.log_monitors) == 3


def test_the_etcd_of_tests_is_set_as_those_of_the_compose_file() -> None:
    text = (DEPLOY / "compose.etcd.yaml").read_text()
    flags = dict(zip(ETCD_FLAGS[::2], ETCD_FLAGS[1::2], strict=True))
    for flag, value in flags.items():
        name = f"ETCD_{flag.strip('-').replace('-', '_').upper()}"
        assert re.search(rf'^  {name}: "?{value}"?$', text, re.MULTILINE), name


def test_the_log_server_takes_its_configuration() -> None:
    """Passwords that look like numbers, too: they come quoted."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("nats-common.conf", "nats-server.conf"):
            text = (DEPLOY / name).read_text()
            path = Path(folder) / name
            path.write_text(text.replace("/var/lib/groupcert", folder))
        done = subprocess.run(
            [server_binary(), "-t", "-c", str(path)],
            env={
                "SERVER_NAME": "log1",
                "ROUTES": '["nats-route://route:1e5@log1:6222"]',
                **{f"{user}_PASSWORD": '"1e5"' for user in ("MEMBER", "OPERATOR", "ROUTE")},
            },
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
