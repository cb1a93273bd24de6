"""How the log's servers are, as one member was told: who leads them, who has all that the log has.

Three servers of which one is dead serve as well as before, and the next loss stops the group; so
this is watched, not noticed. What servers say flickers (a message is on its way to one of them, an
election is held), so a state is given up only when nothing has spoken for it for `LOST_MS`. Pure:
the adapter of the log asks, and passes answers and times in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

LOST_MS = 2_000
"""Servers tell each other once a second that they live; what was not so for twice that is lost."""
UNHEARD_MS = 1_500
"""Of one that lacks some of the log: it does not lag, it is not there."""


class LogServerState(Enum):
    """What a server is to the log; numbers as on the wire."""

    UNKNOWN = 1
    """Nobody tells: no server answers this member."""
    CURRENT = 2
    """It has all of the log, or had it less than `LOST_MS` ago."""
    BEHIND = 3
    """It lives, and lacks a part of the log."""
    SILENT = 4
    """The others do not hear of it: it is down, or cut off."""


class ServerAnswer(NamedTuple):
    """What one server was said to be."""

    name: str
    is_current: bool
    lag: int = 0
    """Entries of the log that it lacks."""
    heard_ms: int | None = 0
    """How long ago the leader heard of it; None: not since it leads."""
    is_offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogServerHealth:
    """One server of the log."""

    name: str
    state: LogServerState
    is_current: bool
    """What the last answer said, which flickers."""
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHealth:
    """The log's servers at one moment, as far as this member knows."""

    leader: str = ""
    """Empty: none is known."""
    leaderless_ms: int = 0
    """How long ago there was one with a majority, or this member began to ask; 0: there is one."""
    servers: tuple[LogServerHealth, ...] = ()
    """By name; empty: none has answered yet."""
    acknowledged_ms: int | None = None
    """How long ago the log took a message of this member; None: it has not taken one yet."""
    problem: str = ""
    """What went wrong when it was asked last, or what this member waits for before it can read."""


class LogServers:
    """What was last heard of the servers of one log."""

    def __init__(self, now_ms: int) -> None:
        self._leader = ""
        self._led_ms = self._answered_ms = now_ms
        self._answers: dict[str, ServerAnswer] = {}
        self._current_ms: dict[str, int] = {}
        self._problem = ""

    def answered(self, now_ms: int, leader: str, servers: Sequence[ServerAnswer]) -> None:
        """Takes an answer: who leads, or nobody, and how all servers are, the leader among them.

        One that leads no majority does not lead: it is cut off, and takes a while to notice.
        """
        self._answered_ms, self._problem = now_ms, ""
        if leader and 2 * sum(each.is_current for each in servers) > len(servers):
            self._leader, self._led_ms = leader, now_ms
        self._answers = {each.name: each for each in servers}
        known = {
            each.name: now_ms if each.is_current else self._current_ms.get(each.name, now_ms)
            for each in servers
        }
        self._current_ms = known

    def failed(self, problem: str) -> None:
        """Notes why there is no answer."""
        self._problem = problem

    def health(self, now_ms: int, acknowledged_ms: int | None = None) -> LogHealth:
        """How the log is now."""
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
        )

    def _state_of(self, answer: ServerAnswer, now_ms: int) -> LogServerState:
        if now_ms - self._answered_ms >= LOST_MS:
            return LogServerState.UNKNOWN
        if now_ms - self._current_ms[answer.name] < LOST_MS:
            return LogServerState.CURRENT
        silent = answer.heard_ms is None or answer.heard_ms >= UNHEARD_MS
        return LogServerState.SILENT if answer.is_offline or silent else LogServerState.BEHIND
