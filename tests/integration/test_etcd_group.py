"""A group of real members whose log is in etcd: it commits, recovers and is exported as any other.

The leader of the log is killed under load: nothing acknowledged is lost, and members agree.
"""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from groupcert import Client
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST
from groupcert.members.process.log_trimmer import trim_log
from groupcert.members.total_order.etcd import EtcdOptions
from groupcert.v1 import group_pb2
from tests.integration.conftest import SETTINGS
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole
from tests.log_servers import EtcdServers, running_etcd

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.cluster,
    pytest.mark.nats,
    pytest.mark.slow,
    pytest.mark.in_turns,
]

COMMITS = 100
LARGE_VALUE = bytes(range(256)) * 8_000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    """Three etcd."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers


@pytest.fixture(scope="module")
def etcd_group(logs: EtcdServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Three members on that log; the log server that comes with them has no part in it."""
    settings = {
        **SETTINGS,
        "transaction_bytes_max": 64 << 20,
        "log_servers": [",".join(logs.addresses).replace(",etcd://", ",")],
        "log_monitors": [],
    }
    folder = tmp_path_factory.mktemp("group")
    with LocalGroup(folder, settings=settings, certification_logs=folder / "logs") as group:
        yield group


def leader_of(group: LocalGroup, former: str = "") -> str:
    """The log's leader as a member sees it, once that is another one than before."""

    def found() -> str:
        leader = str(group.status("m1").observer.log.leader)
        return leader if leader != former else ""

    return wait_for("a leader of the log", found)


def test_nothing_is_lost_when_the_leader_of_the_log_is_killed(
    etcd_group: LocalGroup, logs: EtcdServers
) -> None:
    load = BankLoad()
    with load.running(list(etcd_group.addresses.values()), seed=1):
        for _ in range(2):
            load.wait_for_commits(COMMITS)
            leader = leader_of(etcd_group)
            logs.kill(leader)
            load.wait_for_commits(COMMITS)
            leader_of(etcd_group, leader)
            logs.start(leader)
            logs.wait_ready()
        load.wait_for_commits(COMMITS)
    assert_whole(etcd_group, load)


def test_a_server_that_lost_its_disk_is_replaced_as_the_handbook_says(
    etcd_group: LocalGroup, logs: EtcdServers
) -> None:
    """The calls of `etcdctl member`, as etcd takes them over HTTP: not while it calls the cluster
    unhealthy, some seconds after a loss.
    """
    load = BankLoad()
    leader = leader_of(etcd_group)
    lost, other = (name for name in logs.names if name != leader)

    def ask(call: str, **values: object) -> Any:
        url = f"http://{HOST}:{logs.ports[other]}/v3/cluster/member/{call}"
        with suppress(HTTPError), urllib.request.urlopen(url, json.dumps(values).encode()) as page:
            return json.load(page)

    with load.running(list(etcd_group.addresses.values()), seed=2):
        load.wait_for_commits(COMMITS)
        logs.kill(lost)
        shutil.rmtree(logs.folder / lost)
        ids = {each["name"]: each["ID"] for each in ask("list")["members"]}
        wait_for("it is removed", lambda: ask("remove", ID=ids[lost]))
        wait_for("it is added", lambda: ask("add", peerURLs=[logs.peers[lost]]))
        logs.start(lost, "--initial-cluster-state", "existing")
        logs.wait_ready()
        load.wait_for_commits(COMMITS)
        wait_for("all are current", lambda: current_servers(etcd_group) == set(logs.names))
        leader_of(etcd_group)
    assert_whole(etcd_group, load)


def current_servers(group: LocalGroup) -> set[str]:
    servers = group.status("m1").observer.log.servers
    return {each.name for each in servers if each.state == group_pb2.LOG_SERVER_STATE_CURRENT}


def test_the_status_says_that_the_log_is_durable(etcd_group: LocalGroup) -> None:
    def durable() -> int:
        """Servers, once they have said so; those that are busy are asked again."""
        observer = etcd_group.status("m2").observer
        return observer.log_replicas if observer.log_durable else 0

    assert wait_for("a durable log", durable) == 3


def test_a_large_transaction_goes_through_the_log_in_fragments(etcd_group: LocalGroup) -> None:
    with Client(etcd_group.addresses["m1"]) as client, client.transaction() as transaction:
        for number in range(4):
            transaction.put(b"large/%d" % number, LARGE_VALUE)
    with Client(etcd_group.addresses["m3"]) as client:
        value = wait_for("the rows at another member", lambda: _value(client))
        assert value == LARGE_VALUE


def _value(client: Client) -> bytes | None:
    with client.transaction() as transaction:
        return transaction.get(b"large/3")


async def test_a_member_that_was_away_while_the_log_was_trimmed_copies_another_one(
    etcd_group: LocalGroup, logs: EtcdServers
) -> None:
    etcd_group.kill("m3")
    with Client(etcd_group.addresses["m1"]) as client:
        for words in (b"one message", b"and another one", b"while it was away"):
            with client.transaction() as transaction:
                transaction.put(b"large/3", words)
    last = etcd_group.status("m1").observer.log_sequence
    await trim_log(EtcdOptions(servers=logs.addresses, group="local"), last)
    etcd_group.start_member("m3")
    etcd_group.wait_online()
    with Client(etcd_group.addresses["m3"]) as client:
        assert _value(client) == b"while it was away"
    assert '"recovery_copied"' in (etcd_group.folder / "m3.log").read_text()


def test_the_verbs_take_addresses_of_etcd(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd", 1) as servers:
        where = ("--log-server", *servers.addresses, "--group", "shop")
        made = groupcert("bootstrap", *where)
        assert made.startswith("group shop bootstrapped, at 20")
        assert "was bootstrapped before" in groupcert("bootstrap", *where, "--if-absent")


def groupcert(*arguments: str) -> str:
    """What the command prints."""
    command = [str(Path(sys.executable).parent / "groupcert"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_log_can_be_exported(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd", 1) as servers:
        settings = {"log_servers": list(servers.addresses), "log_monitors": []}
        with LocalGroup(tmp_path / "group", members=1, settings=settings) as group:
            with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
                transaction.put(b"key", b"value")
        where = ("--log-server", *servers.addresses, "--group", "local", "--json")
        text = groupcert("export", *where, "--out", str(tmp_path / "out"))
        assert json.loads(text)["kinds"]["transaction"] == 1
