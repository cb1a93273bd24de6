"""Ports of this machine: two servers that are started at once are not given the same one."""

import subprocess
import sys

from groupcert.members.host.loopback import claim, free_port

PROCESSES, PORTS = 30, 100
CHOOSING = f"""
import os, sys
from groupcert.members.host.loopback import free_port
for _ in range({PROCESSES}):
    if not os.fork():
        ports = " ".join(str(free_port()) for _ in range({PORTS}))
        os.write(1, ports.encode() + b"\\n")  # A line, whoever else writes.
        sys.stdin.read()
        break
"""


def test_no_port_is_given_twice_before_its_server_could_listen() -> None:
    """Not to one process, nor to as many as a busy machine has."""
    ports = [free_port() for _ in range(2 * PORTS)]
    with subprocess.Popen(
        [sys.executable, "-c", CHOOSING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as others:
        assert others.stdout is not None
        for _ in range(PROCESSES):
            ports += map(int, others.stdout.readline().split())
    assert len(ports) == len(set(ports)) == (2 + PROCESSES) * PORTS
    assert 20_000 <= min(ports) and max(ports) < 32_768


CLAIMING = """
import random, sys
from groupcert.members.host.loopback import claim
ports = random.sample(range(32_000, 32_768), 768)
print(next(port for port in ports if claim(port)), flush=True)
sys.stdin.read()
"""


def test_a_port_that_another_process_has_claimed_is_its_own_until_it_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLAIMING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert not claim(port)
    assert claim(port)
    assert claim(port)
