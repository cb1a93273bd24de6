"""What `deploy/` says fits the program: metrics exist, settings are known, files are there."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from shutil import which

import pytest
from prometheus_client.registry import Collector

from groupcert.members.benchmarks import etcd_servers
from groupcert.members.services.metrics import ApplierCollector, MemberCollector
from groupcert.members.settings.member import load_config
from groupcert.members.total_order.embedded_server import server_binary
from groupcert.v1 import applier_pb2, group_pb2
from tests.cluster.engine import compose_command

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE_FILE = DEPLOY / "compose.yaml"
METRIC = re.compile(r"\bgroupcert_\w+")


def metric_names() -> set[str]:
    """Every metric that a member serves."""
    collectors: tuple[Collector, ...] = (
        MemberCollector(group_pb2.GroupStatus),
        ApplierCollector(applier_pb2.GetApplierStatusResponse),
    )
    return {
        metric.name + ("_total" if metric.type == "counter" else "")
        for collector in collectors
        for metric in collector.collect()
    }


@pytest.mark.parametrize("name", ["dashboard.json", "alerts.yml"])
def test_metrics_that_are_shown_or_watched_exist(name: str) -> None:
    named = set(METRIC.findall((DEPLOY / name).read_text()))
    assert named
    assert named <= metric_names()


def test_the_dashboard_asks_its_data_source_in_every_panel() -> None:
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    uid = re.search(r"uid: (\w+)", (DEPLOY / "grafana-datasources.yaml").read_text())
    assert uid is not None
    assert dashboard["panels"]
    for panel in dashboard["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": uid.group(1)}
        assert all(target["expr"] for target in panel["targets"])


def test_every_alert_says_what_to_do() -> None:
    alerts = (DEPLOY / "alerts.yml").read_text().split("- alert: ")[1:]
    assert alerts
    for alert in alerts:
        for part in ("expr: ", "severity: ", "summary: ", "action: "):
            assert alert.count(part) == 1, alert


def test_files_that_are_mounted_exist() -> None:
    texts = (path.read_text() for path in DEPLOY.glob("compose*.yaml"))
    mounted = re.findall(r'"\./([^:"]+):[^:"]+:ro"', "".join(texts))
    assert {"member.toml", "nats-server.conf", "prometheus.yml", "shop.sql"} <= set(mounted)
    assert [name for name in mounted if not (DEPLOY / name).is_file()] == []


@pytest.mark.parametrize(
    "over", ["compose.yaml", "compose.tls.yaml", "compose.etcd.yaml", "compose.postgresql.yaml"]
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


def test_the_etcd_of_tests_and_benchmarks_are_set_as_those_of_the_compose_file() -> None:
    text = (DEPLOY / "compose.etcd.yaml").read_text()
    flags = dict(zip(etcd_servers.FLAGS[::2], etcd_servers.FLAGS[1::2], strict=True))
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
