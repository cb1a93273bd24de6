"""Ports of this machine: two servers that are started at once are not given the same one."""

from groupcert.members.host.loopback import free_port


def test_no_port_is_given_twice_before_its_server_could_listen() -> None:
    ports = [free_port() for _ in range(3_000)]
    assert len(set(ports)) == len(ports)
    assert 20_000 <= min(ports) and max(ports) < 32_768
