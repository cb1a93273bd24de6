"""Replicas of a MariaDB server, as `groupcert demo --replicas` runs them: ours, each a process with
a scheme and a target of its own, and MariaDB's own, in a server.

Both are asked for one number: how many of their source's transactions they have executed, without
a gap. Of a source whose GTIDs are of one domain and one server that says all.
"""

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import psycopg
import pymysql
import pymysql.cursors

from groupcert.v1 import applier_pb2, applier_pb2_grpc

from ...certifier.gtid_set import GtidSet
from ..errors.usage import ReplicaEnded
from ..host.loopback import HOST, free_port
from ..host.mariadb_server import MARIADB_USER, MariaDbServer
from ..host.postgresql_server import PostgreSqlServer
from ..security.credentials import ANONYMOUS
from ..wire.channels import open_channel
from .command_process import CommandProcess
from .shop_clients import DATABASE

ORIGIN = "0-1"
"""Domain and server of the source's GTIDs."""
SOURCE_OPTIONS = (
    "--log-bin=binlog",
    "--server-id=1",
    "--binlog-format=ROW",
    "--sync-binlog=1",
)
WORKERS = 4
ASK_SECONDS = 1.0
PREPARE_SECONDS_MAX = 60

Rows = Sequence[tuple[Any, ...]]


class Database(NamedTuple):
    """A database in which a replica keeps its rows."""

    kind: str
    """Of its server, as tables show it."""
    url: str
    query: Callable[[str], Rows]
    """Runs a statement, which commits, and returns its rows."""


def at_mariadb(server: MariaDbServer, name: str) -> Database:
    """Makes a database at a MariaDB server."""
    server.query(f"CREATE DATABASE {name}")
    return Database("MariaDB", server.url_of(name), lambda statement: server.query(statement, name))


def at_postgresql(server: PostgreSqlServer) -> Database:
    """Returns the database of a PostgreSQL server."""

    def query(statement: str) -> Rows:
        with psycopg.connect(server.dsn) as session:
            return session.execute(statement.encode()).fetchall()

    return Database("PostgreSQL", server.dsn, query)


class Source:
    """A server that is followed."""

    def __init__(self, server: MariaDbServer) -> None:
        """Opens a session, for who asks again and again."""
        self.server = server
        self._session = server.connect(autocommit=True)

    def position(self) -> int:
        """Returns the number of the newest transaction in its binary log."""
        with self._session.cursor() as cursor:
            cursor.execute("SELECT @@gtid_binlog_pos")
            return _number(cursor.fetchone()[0])

    def close(self) -> None:
        """Ends the session."""
        self._session.close()


class Follower(Protocol):
    """A replica of either kind."""

    scheme: str
    database: Database

    def prepare(self, position: int) -> None:
        """Has it get all up to a transaction of the source, and rest. Raises ReplicaEnded."""
        ...

    def start(self) -> None:
        """Has it follow its source."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...

    def executed(self) -> int | None:
        """Returns the number of the newest transaction before which nothing is missing; None where
        the replica does not say.

        Raises:
            ReplicaEnded: It cannot go on.
        """
        ...


class SchemeReplica:
    """`groupcert replica` with a scheme, as a process."""

    def __init__(
        self, scheme: str, database: Database, source: MariaDbServer, folder: Path
    ) -> None:
        """Describes it; nothing runs before `prepare`. `scheme`: its name, and further flags."""
        self.scheme = scheme.replace("--conflicts ", "")
        self.database = database
        address = f"{HOST}:{free_port()}"
        name = f"{self.scheme}-{database.kind}".lower().replace(" ", "-")
        self.process = CommandProcess(
            f"replica {source.url_of(DATABASE)} --target {database.url} --scheme {scheme}"
            f" --workers {WORKERS} --replica {name} --address {address}".split(),
            folder / f"{name}.log",
            name=name,
        )
        self._address = address
        self._channel: grpc.Channel | None = None

    def prepare(self, position: int) -> None:
        """Copies the source's tables. Raises ReplicaEnded."""
        self.process.start("--copy", "--until-after-gtids", f"{ORIGIN}:1-{position}")
        with suppress(subprocess.TimeoutExpired):
            if not self.process.wait(PREPARE_SECONDS_MAX):
                return
        raise self._ended()

    def start(self) -> None:
        """Starts its process."""
        self.process.start()
        # A new one: that of a process that was killed would wait before it tries again.
        self._channel = open_channel(self._address, ANONYMOUS)

    def kill(self) -> None:
        """Ends its process as a crash would."""
        self.process.kill()
        self._close_channel()

    def close(self) -> None:
        """Stops its process."""
        self.process.stop()
        self._close_channel()

    def executed(self) -> int | None:
        """Asks its process. Raises ReplicaEnded."""
        if self._channel is None:
            return None
        if not self.process.is_running:
            raise self._ended()
        stub = applier_pb2_grpc.ApplierServiceStub(self._channel)
        request = applier_pb2.GetApplierStatusRequest()
        with suppress(grpc.RpcError):  # It starts.
            answer = stub.GetApplierStatus(request, timeout=ASK_SECONDS)
            gtids = GtidSet.parse(answer.coordinator.gtid_executed)
            return gtids.next_free(ORIGIN, 1) - 1
        return None

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ended(self) -> ReplicaEnded:
        how, last_line = self.process.how_it_ended() or "late", self.process.last_line()
        log = str(self.process.log)
        return ReplicaEnded(replica=self.scheme, how=how, last_line=last_line, log=log)


class OwnReplica:
    """A MariaDB server's own parallel replica, with as many threads as ours have workers."""

    scheme = "MariaDB's own"

    def __init__(self, server: MariaDbServer, source: MariaDbServer, password: str) -> None:
        """Describes it; `password`: of the source's user `root`."""
        self._change = (
            f"CHANGE MASTER TO master_host='{HOST}', master_port={source.port},"
            f" master_user='{MARIADB_USER}', master_password='{password}',"
            " master_use_gtid=slave_pos"
        )
        self.database = Database(
            "MariaDB", server.url, lambda statement: server.query(statement, DATABASE)
        )
        self._log = server.log
        self._session = server.connect(autocommit=True, cursorclass=pymysql.cursors.DictCursor)

    def prepare(self, position: int) -> None:
        """Executes the source's binary log from its beginning. Raises ReplicaEnded."""
        self._run(f"SET GLOBAL slave_parallel_threads = {WORKERS}")
        self._run("SET GLOBAL slave_parallel_mode = 'optimistic'")
        self._run(self._change)
        self.start()
        gtid = f"{ORIGIN}-{position}"
        (answer,) = self._run(f"SELECT MASTER_GTID_WAIT('{gtid}', {PREPARE_SECONDS_MAX}) AS late")
        if answer["late"]:
            raise self._ended(self._status())
        self._run("STOP SLAVE")

    def start(self) -> None:
        """Starts its threads."""
        self._run("START SLAVE")

    def close(self) -> None:
        """Ends the session to its server, which goes on."""
        self._session.close()

    def executed(self) -> int | None:
        """Asks its server. Raises ReplicaEnded."""
        status = self._status()
        if status["Last_SQL_Error"]:
            raise self._ended(status)
        return _number(status["Gtid_Slave_Pos"])

    def _status(self) -> dict[str, Any]:
        (status,) = self._run("SHOW ALL SLAVES STATUS")
        return status

    def _run(self, statement: str) -> Sequence[dict[str, Any]]:
        with self._session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def _ended(self, status: dict[str, Any]) -> ReplicaEnded:
        last_line = status["Last_SQL_Error"] or status["Last_IO_Error"] or "nothing"
        log = str(self._log)
        return ReplicaEnded(replica=self.scheme, how="too early", last_line=last_line, log=log)


def _number(gtids: str) -> int:
    """Returns the number of the one GTID of a position; 0 if there is none."""
    return int(gtids.rpartition("-")[2] or 0)
