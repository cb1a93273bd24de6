"""A group of PostgreSQL servers that can be killed and started again, from any thread."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psycopg

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.demo.postgresql_servers import GroupAtServers, Primary
from groupcert.members.host.servers import NotReady
from tests.integration.waiting import wait_for

LINES = 15
"""Of each log, and characters of each line, that explain a failure."""
CHARACTERS = 500
LOOKS = (
    "SELECT max(version), (SELECT gtid_set FROM groupcert.executed_set) FROM groupcert.executed",
    """
SELECT pid, application_name, state, wait_event_type, wait_event, pg_blocking_pids(pid),
    clock_timestamp() - xact_start, left(query, 100)
FROM pg_stat_activity WHERE backend_type = 'client backend' ORDER BY xact_start""",
)
"""At the server, where a run has failed."""
PROBE = "UPDATE probes SET id = id WHERE id = 1"
SCHEMA = "CREATE TABLE probes (id int PRIMARY KEY); INSERT INTO probes VALUES (1);"


class Group:
    """Members, and the PostgreSQL server of each."""

    def __init__(
        self, members: LocalGroup, primaries: Sequence[Primary], starter: ThreadPoolExecutor
    ) -> None:
        """`starter` ends after the servers: a server ends with the thread that started it."""
        self.members = members
        self.primaries = primaries
        self._starter = starter
        self._members_lock = threading.Lock()
        self._refusals: dict[int, psycopg.Error] = {}

    @property
    def dsns(self) -> list[str]:
        """Where clients connect."""
        return [primary.dsn for primary in self.primaries]

    def start_server(self, place: int) -> None:
        """Starts a server; after a kill, once the last of its processes has ended."""
        primary = self.primaries[place]

        def has_started() -> bool:
            with suppress(NotReady):  # The memory of the one that was killed is still in use.
                primary.server.start()
                primary.server.wait_ready()
                return True
            primary.server.stop()
            return False

        wait_for("the server starts", lambda: self._starter.submit(has_started).result())

    def restart_server(self, place: int, number: signal.Signals) -> None:
        """Ends a server by a signal, SIGKILL or SIGQUIT (`pg_ctl stop --mode immediate`), and
        starts it again.
        """
        os.kill(self.primaries[place].server.pid, number)
        self.primaries[place].server.stop()
        self.start_server(place)

    def restart_member(self, place: int) -> None:
        """Kills a member and starts it again; one of them is away at a time."""
        name = self.members.names[place]
        with self._members_lock:
            self.members.kill(name)
            self.members.start_member(name)
            self.members.wait_online()

    def takes_commits(self, place: int) -> bool:
        """Whether a transaction commits at a server; it changes nothing."""
        try:
            self.primaries[place].query(PROBE)
            return True
        except psycopg.Error as error:
            self._refusals[place] = error
            return False

    @contextmanager
    def explaining(self, place: int) -> Iterator[None]:
        """Adds to a failed assertion what server and member of a place told last."""
        try:
            yield
        except AssertionError as error:
            for note in self._last_words(place):
                error.add_note(note)
            raise

    def _last_words(self, place: int) -> Iterator[str]:
        primary, name = self.primaries[place], self.members.names[place]
        yield f"{datetime.now(UTC)}, server and member {name}:"
        if refusal := self._refusals.get(place):
            yield f"the last transaction that was tried: {refusal.sqlstate} {refusal}"
        member = self.members.processes.get(name)
        runs = member is not None and member.is_running
        yield f"its member {'runs' if runs else 'does not run'}"
        try:
            for look in LOOKS:
                yield from map(str, primary.query(look))
        except psycopg.Error as error:
            yield f"the server does not answer: {error}"
        folder = self.members.folder.parent
        logs = (f"group/{name}.log", f"postgresql-{name}/postgresql.log")
        for log in logs:
            lines = (folder / log).read_text(errors="replace").splitlines()[-LINES:]
            yield "\n".join((f"{log} ends with:", *(line[:CHARACTERS] for line in lines)))


@contextmanager
def running_group(folder: Path, schema: str) -> Iterator[Group]:
    """Starts a group over the tables of a schema; all servers take commits."""
    with ExitStack() as stack:
        (folder / "group").mkdir()
        primaries = [Primary(name, folder) for name in ("m1", "m2", "m3")]
        members = GroupAtServers(primaries, folder / "group")
        places = range(len(primaries))
        starter = stack.enter_context(ThreadPoolExecutor(len(places)))
        group = Group(members, primaries, starter)

        def make(place: int) -> None:
            group.start_server(place)
            group.primaries[place].attach(SCHEMA + schema)

        for primary in group.primaries:
            stack.callback(primary.server.stop)
        with ThreadPoolExecutor(len(places)) as pool:
            list(pool.map(make, places))
        stack.enter_context(members)
        for place in range(len(group.primaries)):
            wait_for("the server takes commits", partial(group.takes_commits, place))
        yield group
