"""Ports of this machine: two servers that are started at once are not given the same one."""

import subprocess
import sys

from groupcert.members.host.loopback import claim, free_port

OTHER_PROCESS = """
from groupcert.members.host.loopback import free_port
print(*(free_port() for _ in range(400)))
"""


def test_no_port_is_given_twice_before_its_server_could_listen() -> None:
    ports = {free_port() for _ in range(400)}
    assert len(ports) == 400
    assert 20_000 <= min(ports) and max(ports) < 32_768
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS], check=True, capture_output=True, text=True
    )
    assert ports.isdisjoint(map(int, done.stdout.split()))


CLAIMING = """
import sys
from groupcert.members.host.loopback import claim
print(claim(int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_a_port_that_another_process_has_claimed_is_its_own_until_it_ends() -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", CLAIMING, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not claim(port)
    assert claim(port)
    assert claim(port)
