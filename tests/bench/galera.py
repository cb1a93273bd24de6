"""A MariaDB Galera Cluster of three nodes on loopback, and its clients: the peer to compare with.

The rule it keeps: each node is as durable as a member: a commit is on its disk before it is
answered. Nodes begin with copies of the first one's files, so that none needs a state transfer.
"""

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pymysql

from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.host.servers import ServerMissing
from tests.bench.clients import ROWS, VALUE_BYTES, Answers, for_seconds
from tests.bench.targets import statements
from tests.integration.waiting import wait_for
from tests.servers import MariaDbServer, connect_mariadb

NODES = 3
DATABASE = "bench"
INSERTED_AT_ONCE = 1_000
PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so")
LOST = {1020, 1205, 1213}
"""MariaDB's numbers for a transaction that lost to another one."""
_LEFT_OUT = shutil.ignore_patterns("galera.cache", "gvwstate.dat", "*.sock", "*.pid")


@contextmanager
def galera_cluster(folder: Path) -> Iterator[list[MariaDbServer]]:
    """Starts a cluster whose table has all rows; stops it at the end.

    Raises:
        ServerMissing: MariaDB or Galera is not installed.
    """
    provider = next((path for path in PROVIDERS if Path(path).exists()), None)
    if provider is None:
        advice = "sudo apt-get install galera-4 mariadb-server rsync"
        raise ServerMissing(server="Galera", advice=advice)
    listen, transfer, state = ([free_port() for _ in range(NODES)] for _ in range(3))
    members = ",".join(f"{HOST}:{port}" for port in listen)

    def node(number: int, *options: str) -> list[str]:
        wires = f"gmcast.listen_addr=tcp://{HOST}:{listen[number]};"
        wires += f"ist.recv_addr={HOST}:{transfer[number]};socket.checksum=2"
        return [
            "--wsrep-on=ON",
            f"--wsrep-provider={provider}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            f"--wsrep-cluster-address=gcomm://{members}",
            f"--wsrep-node-name=n{number}",
            f"--wsrep-node-address={HOST}:{listen[number]}",
            f"--wsrep-provider-options={wires}",
            f"--innodb-buffer-pool-size={256 << 20}",
            f"--wsrep-sst-receive-address={HOST}:{state[number]}",
            *options,
        ]

    folders = [folder / f"node{number}" for number in range(NODES)]
    with MariaDbServer(folders[0], *node(0, "--wsrep-new-cluster")) as server:
        _fill(server)
    for other in folders[1:]:
        shutil.copytree(folders[0], other, ignore=_LEFT_OUT)
        _open_to_rsync(other)
    with ExitStack() as stack:
        new = (("--wsrep-new-cluster",), (), ())
        servers = [
            stack.enter_context(MariaDbServer(folders[number], *node(number, *new[number])))
            for number in range(NODES)
        ]
        wait_for("the cluster is whole", lambda: _is_whole(servers))
        yield servers


def run_clients(
    servers: Sequence[MariaDbServer], clients: int, seconds: float, statement: str = "update"
) -> Answers:
    """Has threads, each with a session at one of the nodes, write one row after the other.

    Args:
        statement: `update` of a row, or `insert` of a new one.
    """
    goes_on = for_seconds(seconds)

    def work(number: int) -> Answers:
        answers, picker = Answers(), random.Random()
        with statements(connect_mariadb(servers[number % len(servers)].url_of(DATABASE))) as run:
            while goes_on() or not answers.certified:
                value = picker.randbytes(VALUE_BYTES // 2).hex()
                query = f"UPDATE item SET value = '{value}' WHERE id = {picker.randrange(ROWS)}"
                if statement == "insert":
                    query = f"INSERT INTO added VALUES ({picker.randrange(1 << 60)}, '{value}')"
                began = time.perf_counter()
                try:
                    run(query)
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in LOST:
                        raise
                    answers.rejected += 1
                else:
                    answers.certified += 1
                    answers.latencies_ms.append((time.perf_counter() - began) * 1e3)
        return answers

    with ThreadPoolExecutor(clients) as threads:
        told = list(threads.map(work, range(clients)))
    return Answers(
        sum(each.certified for each in told),
        sum(each.rejected for each in told),
        [latency for each in told for latency in each.latencies_ms],
    )


def _open_to_rsync(node: Path) -> None:
    """Lets a node's rsync write into its folder: root's runs as nobody, and takes a marker even if
    there is no state to transfer.
    """
    for folder in (node.parent.parent, node.parent, node):
        folder.chmod(folder.stat().st_mode | 0o055)
    (node / "mariadb").chmod(0o777)


def _fill(server: MariaDbServer) -> None:
    with statements(connect_mariadb(server.url)) as run:
        run(f"CREATE DATABASE {DATABASE}")
        for table, key in (("item", "INT"), ("added", "BIGINT")):
            columns = f"id {key} PRIMARY KEY, value VARCHAR({VALUE_BYTES})"
            run(f"CREATE TABLE {DATABASE}.{table} ({columns})")
        for first in range(0, ROWS, INSERTED_AT_ONCE):
            rows = ", ".join(f"({row}, '')" for row in range(first, first + INSERTED_AT_ONCE))
            run(f"INSERT INTO {DATABASE}.item VALUES {rows}")


def _is_whole(servers: Sequence[MariaDbServer]) -> bool:
    """True if every node is in the cluster and has its state."""
    for server in servers:
        with statements(connect_mariadb(server.url)) as run:
            status = dict(run("SHOW STATUS LIKE 'wsrep_%'"))
        if status["wsrep_cluster_size"] != str(NODES):
            return False
        if status["wsrep_local_state_comment"] != "Synced":
            return False
    return True
