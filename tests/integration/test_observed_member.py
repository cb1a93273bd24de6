"""A member as machines watch it: its metrics, and whether it serves."""

import urllib.request
from pathlib import Path

import pytest

from groupcert import Client
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from tests.commands import groupcert
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.in_turns]


def health(address: str) -> tuple[int, str]:
    """Exit code and answer of `groupcert health`."""
    done = groupcert("health", address)
    return done.returncode, done.stdout


def test_metrics_and_health_of_a_member_that_listens_elsewhere(tmp_path: Path) -> None:
    """It is known by its name on this machine, and listens on an address of loopback."""
    metrics_address = f"{HOST}:{free_port()}"
    with LocalGroup(tmp_path, members=1, settings={"metrics_address": metrics_address}) as group:
        address = group.addresses["m1"]
        group.stop_member("m1")
        named = f"localhost:{free_port()}"
        group.start_member("m1", {"address": named, "listen_address": address})
        wait_for("it serves", lambda: health(address) == (0, f"{address} SERVING\n"))
        monitor = group.log_server.monitor
        assert health(monitor) == (0, f"{monitor} SERVING\n")
        with Client(address) as client:
            client.run(lambda transaction: transaction.put(b"a", b"1"))
            assert [member.address for member in client.status().members] == [named]
        with urllib.request.urlopen(f"http://{metrics_address}/metrics") as page:
            lines = page.read().decode().splitlines()
        assert 'groupcert_member_state{state="ONLINE"} 1.0' in lines
        assert "groupcert_member_local_transactions_total 1.0" in lines
        assert "groupcert_applier_running 1.0" in lines
        group.log_server.kill()
        code, answer = health(monitor)
        assert (code, answer.startswith(f"{monitor} UNREACHABLE: ")) == (3, True)
        group.log_server.start()
    code, answer = health(address)
    assert (code, answer.startswith(f"{address} UNREACHABLE: ")) == (3, True)
