"""An etcd for one test after another: whoever comes finds no key, and a revision above the last."""

from groupcert.etcd.rpc_pb2 import DeleteRangeRequest
from groupcert.members.benchmarks.etcd_servers import EtcdServers
from groupcert.members.total_order.etcd import EtcdOptions
from groupcert.members.total_order.etcd_connection import DELETE_RANGE, EtcdConnection

EVERY_KEY = DeleteRangeRequest(key=b"\0", range_end=b"\0")


async def wiped(servers: EtcdServers) -> EtcdOptions:
    """Removes every key; returns options for the group of a test."""
    connection = EtcdConnection(servers.addresses)
    await connection.ask_until(10_000, DELETE_RANGE, EVERY_KEY)
    await connection.close()
    return EtcdOptions(servers=servers.addresses, group="test", connect_ms_max=5_000)
