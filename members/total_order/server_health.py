"""Health of the log's servers: which one leads, and which have all of the log.

Three servers of which one is dead serve as well as before, and the next loss stops the group; so
the health is watched, as no failure shows it. What servers say flickers (a message is on its way to
one of them, an election is held), so a state changes only when nothing has confirmed it for
`LOST_MS`. Pure: the adapter of the log asks, and passes answers and times in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

LOST_MS = 2_000
"""Milliseconds; servers exchange heartbeats once a second, and one without for twice that is
lost."""
UNHEARD_MS = 1_500
"""Milliseconds without a word of a server that lacks some of the log; after that it does not lag,
it is not there."""


class LogServerState(Enum):
    """A server's state towards the log; numbers as on the wire."""

    UNKNOWN = 1
    """Unknown: no server answers this member."""
    CURRENT = 2
    """It has all of the log, or had it less than `LOST_MS` ago."""
    BEHIND = 3
    """It runs, and lacks a part of the log."""
    SILENT = 4
    """The others do not hear of it: it is down, or cut off."""


class ServerAnswer(NamedTuple):
    """One server as an answer of the log described it."""

    name: str
    is_current: bool
    lag: int = 0
    """Entries of the log that it lacks."""
    heard_ms: int | None = 0
    """Milliseconds since the leader heard of it; None: not since it leads."""
    is_offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogServerHealth:
    """One server of the log."""

    name: str
    state: LogServerState
    is_current: bool
    """True if it was current in the last answer, which flickers."""
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHealth:
    """The log's servers at one moment, as far as this member knows."""

    leader: str = ""
    """Name of the leader; empty: none is known."""
    leaderless_ms: int = 0
    """Milliseconds since there was a leader with a majority, or since this member began to ask; 0:
    there is one."""
    servers: tuple[LogServerHealth, ...] = ()
    """The servers by name; empty: none has answered yet."""
    acknowledged_ms: int | None = None
    """Milliseconds since the log took a message of this member; None: it has not taken one yet."""
    problem: str = ""
    """The error of the last request, or what this member waits for before it can read."""
    full: str = ""
    """Why the log takes no more messages for want of space; empty: it has some."""


class LogServers:
    """The last known states of the servers of one log."""

    def __init__(self, now_ms: int) -> None:
        self._leader = ""
        self._led_ms = self._answered_ms = now_ms
        self._answers: dict[str, ServerAnswer] = {}
        self._current_ms: dict[str, int] = {}
        self._problem = ""

    def answered(self, now_ms: int, leader: str, servers: Sequence[ServerAnswer]) -> None:
        """Takes an answer: the leader, empty if there is none, and the states of all servers, the
        leader among them.

        A leader without a majority does not lead: it is cut off, and takes a while to notice.
        """
        self._answered_ms, self._problem = now_ms, ""
        if leader and 2 * sum(each.is_current for each in servers) > len(servers):
            self._leader, self._led_ms = leader, now_ms
        self._answers = {each.name: each for each in servers}
        known = {
            # A server that is seen for the first time gets `LOST_MS` to become current.
            each.name: now_ms if each.is_current else self._current_ms.get(each.name, now_ms)
            for each in servers
        }
        self._current_ms = known

    def failed(self, problem: str) -> None:
        """Notes why there is no answer."""
        self._problem = problem

    def health(self, now_ms: int, acknowledged_ms: int | None = None, full: str = "") -> LogHealth:
        """Returns the log's health now."""
        leaderless_ms = now_ms - self._led_ms
        is_led = bool(self._leader) and leaderless_ms < LOST_MS
        return LogHealth(
            leader=self._leader if is_led else "",
            leaderless_ms=0 if is_led else leaderless_ms,
            servers=tuple(
                LogServerHealth(
                    name=name,
                    state=self._state_of(self._answers[name], now_ms),
                    is_current=self._answers[name].is_current,
                    lag=self._answers[name].lag,
                )
                for name in sorted(self._answers)
            ),
            acknowledged_ms=acknowledged_ms,
            problem=self._problem,
            full=full,
        )

    def _state_of(self, answer: ServerAnswer, now_ms: int) -> LogServerState:
        if now_ms - self._answered_ms >= LOST_MS:
            return LogServerState.UNKNOWN
        if now_ms - self._current_ms[answer.name] < LOST_MS:
            return LogServerState.CURRENT
        silent = answer.heard_ms is None or answer.heard_ms >= UNHEARD_MS
        return LogServerState.SILENT if answer.is_offline or silent else LogServerState.BEHIND
