"""The operator's handbook at groups on this machine: each block of commands does what it says.

Blocks about containers are run by `tests/cluster/test_handbook.py`.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from groupcert import Client
from groupcert.members.commands.cli_up import Ready
from groupcert.v1 import group_pb2
from tests.handbook import commands_under, run_commands
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

LOG = "nats://127.0.0.1:7100"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the commands are typed in."""
    return tmp_path_factory.mktemp("operator")


@pytest.fixture(scope="module")
def groups(folder: Path) -> Iterator[dict[str, Ready]]:
    """Two groups on one log server, by name."""
    first, second, *others = commands_under("Several groups on one log").splitlines()
    assert others == []
    ready: dict[str, Ready] = {}
    try:
        ready["shop"] = json.loads(run_commands(f"{first} --json", folder))
        log_server = ready["shop"]["log_server"]
        second = f"{second} --json --members 1"
        ready["billing"] = json.loads(run_commands(second, folder, put_in={LOG: log_server}))
        yield ready
    finally:
        for name in ("billing", "shop"):
            run_commands(f"groupcert down --data-folder {name}", folder)


@pytest.fixture
def shop(groups: dict[str, Ready]) -> dict[str, str]:
    """The addresses of the first group's members, by name."""
    return groups["shop"]["members"]


def state_of(address: str) -> str:
    with Client(address) as client:
        return group_pb2.MemberState.Name(client.status().observer.state)


def departed_at(address: str) -> list[str]:
    with Client(address) as client:
        return [each.name for each in client.status().departed]


def test_groups_on_one_log_know_nothing_of_each_other(groups: dict[str, Ready]) -> None:
    assert groups["billing"]["log_server"] == groups["shop"]["log_server"]
    for name, ready in groups.items():
        with Client(ready["members"]["m1"]) as client, client.transaction() as transaction:
            assert transaction.get(b"row") is None
            transaction.put(b"row", name.encode())
    for name, ready in groups.items():
        with Client(ready["members"]["m1"]) as client, client.transaction() as transaction:
            assert transaction.get(b"row") == name.encode()
            assert client.status().observer.certified_version == 1


def test_a_member_leaves_for_a_while_and_returns(shop: dict[str, str], folder: Path) -> None:
    leave, rejoin = commands_under("Take a member out for a while").splitlines()
    here = {"127.0.0.1:7103": shop["m3"]}
    run_commands(leave, folder, put_in=here)
    wait_for("m3 is out", lambda: departed_at(shop["m1"]) == ["m3"])
    with Client(shop["m3"]) as client, client.transaction() as transaction:
        transaction.get(b"row")
    run_commands(rejoin, folder, put_in=here)
    wait_for("m3 is back", lambda: state_of(shop["m3"]) == "MEMBER_STATE_ONLINE")
    assert wait_for("m1 knows", partial(is_whole, shop["m1"]))


@pytest.mark.in_turns
def test_a_lost_log_is_rebuilt(tmp_path: Path) -> None:
    """The log server's folder is destroyed while the group runs. While it is down others may take
    its ports: members are where the last command says.
    """
    commands = commands_under("Rebuild a lost log")
    as_json = {"groupcert up --detach": "groupcert up --detach --json"}
    up = "groupcert up --detach --data-folder shop --group shop --json"
    members: dict[str, str] = json.loads(run_commands(up, tmp_path))["members"]
    try:
        with Client(members["m1"]) as client, client.transaction() as transaction:
            transaction.put(b"row", b"acknowledged")
        (ports,) = (tmp_path / "shop" / "log-server").glob("nats-server_*.ports")
        shutil.rmtree(tmp_path / "shop" / "log-server")
        os.kill(int(ports.stem.partition("_")[2]), signal.SIGKILL)
        printed = run_commands(commands, tmp_path, put_in=as_json)
        assert "nothing was changed: with --yes the log is made\n" in printed
        assert "the log is made: start the members\n" in printed
        members = json.loads(printed.splitlines()[-1])["members"]
        assert list(members) == ["m1", "m2", "m3"]
        for address in members.values():
            with Client(address) as client, client.transaction() as transaction:
                assert transaction.get(b"row") == b"acknowledged"
                transaction.put(address.encode(), b"goes on")
    finally:
        run_commands("groupcert down --data-folder shop", tmp_path)


def is_whole(address: str) -> bool:
    with Client(address) as client:
        status = client.status()
    return len(status.members) == 3 and not status.departed
