"""Kills processes of a group of PostgreSQL servers, at all servers at once, by a seed.

At each server the next kill comes when that server takes commits again, and has taken some. Each
round has every kind of kill once, in an order that the seed draws; the servers take turns in it.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psycopg

from tests.integration.postgresql_group import PostgresqlGroup, Primary
from tests.integration.waiting import wait_for
from tests.postgresql.restarted_server import RestartedServer

_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
AND application_name {} 'groupcert%' AND pid <> pg_backend_pid() ORDER BY state = 'idle', pid"""


class Kills:
    """The schedule, for the block `killing`; `counts` says what was killed, `longest` how many
    seconds the server needed at most until it took commits again.
    """

    def __init__(
        self,
        group: PostgresqlGroup,
        hosts: Sequence[RestartedServer],
        wait_for_load: Callable[[str], None],
        seed: int,
    ) -> None:
        """Takes what it kills.

        Args:
            hosts: The servers of the group's primaries, in their order.
            wait_for_load: Returns when clients have committed some more at a server, by its DSN.
        """
        self._group = group
        self._hosts = hosts
        self._wait_for_load = wait_for_load
        self._chance = random.Random(seed)
        self._dealt: list[str] = []
        self._kinds: Mapping[str, Callable[[int], None]] = {
            "session ended": self._end_session,
            "backend killed": self._kill_backend,
            "companion killed": self._kill_companion,
            "companion's session ended": self._end_companion_session,
            "server stopped at once": lambda place: self._kill_server(place, signal.SIGQUIT),
            "server killed": lambda place: self._kill_server(place, signal.SIGKILL),
            "member killed": self._kill_member,
        }
        self._lock = threading.Lock()
        self._members_lock = threading.Lock()
        self._stopped = threading.Event()
        self.counts: Counter[str] = Counter()
        self.longest: dict[str, float] = {}

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Kills, and returns when all servers take commits again."""
        places = range(len(self._hosts))
        with ThreadPoolExecutor(len(places)) as pool:
            running = [pool.submit(self._kill_on, place) for place in places]
            try:
                yield
            finally:
                self._stopped.set()
            for each in running:
                each.result()

    def _kill_on(self, place: int) -> None:
        primary = self._group.primaries[place]
        while not self._stopped.is_set():
            self._wait_for_load(primary.dsn)
            kind = self._next_kind()
            self._kinds[kind](place)
            began = time.monotonic()
            wait_for(f"{primary.dsn} takes commits after: {kind}", primary.takes_commits)
            self.longest[kind] = max(self.longest.get(kind, 0.0), time.monotonic() - began)
            self.counts[kind] += 1

    def _next_kind(self) -> str:
        with self._lock:
            if not self._dealt:
                self._dealt = self._chance.sample(list(self._kinds), len(self._kinds))
            return self._dealt.pop()

    def _end_session(self, place: int) -> None:
        primary = self._group.primaries[place]
        if pid := self._pid(primary, "NOT LIKE"):
            primary.query(f"SELECT pg_terminate_backend({pid})")

    def _kill_backend(self, place: int) -> None:
        """The whole server ends its sessions then, and recovers from its log."""
        if pid := self._pid(self._group.primaries[place], "NOT LIKE"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _end_companion_session(self, place: int) -> None:
        primary = self._group.primaries[place]
        if pid := self._pid(primary, "LIKE"):
            primary.query(f"SELECT pg_terminate_backend({pid})")

    def _kill_companion(self, place: int) -> None:
        primary = self._group.primaries[place]
        primary.kill()
        primary.start()

    def _kill_server(self, place: int, number: signal.Signals) -> None:
        self._hosts[place].kill(number)
        self._hosts[place].start()

    def _kill_member(self, place: int) -> None:
        group = self._group.group
        name = group.names[place]
        with self._members_lock:
            group.kill(name)
            group.start_member(name)
            group.wait_online()

    def _pid(self, primary: Primary, whose: str) -> int | None:
        """Returns the process of a session, rather of one that is at work."""
        with suppress(psycopg.Error):
            rows = primary.query(_BACKENDS.format(whose))
            return self._chance.choice(rows[: max(1, len(rows) // 2)])[0] if rows else None
        return None
