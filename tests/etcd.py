"""Real etcd for tests: started, and emptied from one test to the next."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupcert.etcd.rpc_pb2 import DeleteRangeRequest
from groupcert.members.benchmarks.etcd_servers import EtcdServers
from groupcert.members.host.server_missing import ServerMissing
from groupcert.members.total_order.etcd import EtcdOptions
from groupcert.members.total_order.etcd_connection import DELETE_RANGE, EtcdConnection

EVERY_KEY = DeleteRangeRequest(key=b"\0", range_end=b"\0")


@contextmanager
def running_etcd(
    folder: Path, servers: int = 3, *, flags: tuple[str, ...] = (), scheme: str = ""
) -> Iterator[EtcdServers]:
    """Servers, as `EtcdServers` has them; where there is no etcd, tests are skipped.

    `REQUIRE_DATABASES=1`, where it is installed for the tests, makes a failure of that.
    """
    started = EtcdServers(folder, servers, flags=flags, scheme=scheme)
    try:
        started.__enter__()
    except ServerMissing as missing:
        if os.environ.get("REQUIRE_DATABASES") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    try:
        yield started
    finally:
        started.__exit__(None, None, None)


async def wiped(servers: EtcdServers) -> EtcdOptions:
    """Removes every key; returns options for the group of a test. The revision goes on."""
    connection = EtcdConnection(servers.addresses)
    await connection.ask_until(10_000, DELETE_RANGE, EVERY_KEY)
    await connection.close()
    return EtcdOptions(servers=servers.addresses, group="test", connect_ms_max=60_000)
