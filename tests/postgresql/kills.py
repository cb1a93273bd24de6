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
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from tests.integration.waiting import wait_for
from tests.laboratory.at_work import AtWork
from tests.postgresql.group import Group

_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
AND application_name {} 'groupcert%' AND pid <> pg_backend_pid() ORDER BY state = 'idle', pid"""


class Kills(AtWork):
    """The schedule, for a block at whose end all servers take commits again; `counts` says what was
    killed, `longest` how many seconds the server needed at most until it took commits again.
    """

    def __init__(self, group: Group, wait_for_load: Callable[[str], None], seed: int) -> None:
        """`wait_for_load` returns when clients have committed some more at a server, by its DSN."""
        super().__init__(len(group.primaries))
        self._group = group
        self._wait_for_load = wait_for_load
        self._chance = random.Random(seed)
        self._dealt: list[str] = []
        self._kinds: Mapping[str, Callable[[int], None]] = {
            "session ended": self._end_session,
            "backend killed": self._kill_backend,
            "member's session ended": self._end_member_session,
            "server stopped at once": lambda place: group.restart_server(place, signal.SIGQUIT),
            "server killed": lambda place: group.restart_server(place, signal.SIGKILL),
            "member killed": group.restart_member,
        }
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.longest: dict[str, float] = {}

    def work(self, place: int) -> None:
        """Kills at one server."""
        dsn = self._group.primaries[place].dsn
        while not self.stopped.is_set():
            with self._group.explaining(place):
                self._wait_for_load(dsn)
                kind = self._next_kind()
                self._kinds[kind](place)
                began = time.monotonic()
                is_back = partial(self._group.takes_commits, place)
                wait_for(f"{dsn} takes commits after: {kind}", is_back)
            self.longest[kind] = max(self.longest.get(kind, 0.0), time.monotonic() - began)
            self.counts[kind] += 1

    def _next_kind(self) -> str:
        with self._lock:
            if not self._dealt:
                self._dealt = self._chance.sample(list(self._kinds), len(self._kinds))
            return self._dealt.pop()

    def _end_session(self, place: int) -> None:
        self._end(place, self._pid(place, "NOT LIKE"))

    def _end_member_session(self, place: int) -> None:
        self._end(place, self._pid(place, "LIKE"))

    def _end(self, place: int, pid: int) -> None:
        self._group.primaries[place].query(f"SELECT pg_terminate_backend({pid})")

    def _kill_backend(self, place: int) -> None:
        """The whole server ends its sessions then, and recovers from its log."""
        with suppress(ProcessLookupError):
            os.kill(self._pid(place, "NOT LIKE"), signal.SIGKILL)

    def _pid(self, place: int, whose: str) -> int:
        """Returns the process of a session, rather of one that is at work."""
        query = _BACKENDS.format(whose)
        rows = wait_for("a session", lambda: self._group.primaries[place].query(query))
        return int(self._chance.choice(rows[: max(1, len(rows) // 2)])[0])
