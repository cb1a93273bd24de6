"""Watches members while they are fuzzed: that they live, are ONLINE, do not grow, and log no error.

It asks each one four times a second over a connection that lasts, as an operator's console would.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from groupcert import Client
from groupcert.certifier.errors import GroupcertError
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1.group_pb2 import MEMBER_STATE_ONLINE, MemberState, MemberStatus

PERIOD_SECONDS = 0.25
STATUS_MS = 60_000
SILENT_SECONDS_MAX = 120.0
"""How long a member that nothing excuses may not answer."""
EXCUSED_SECONDS_MAX = 300.0
"""How long a member may take to come back as another run."""
SETTLED_SECONDS = 3.0
"""A member that is excused and stays ONLINE for so long will not leave any more."""
WARM_UP_SECONDS = 20.0
HELD_MS_MAX = 250
"""How long the event loop may be held on a machine with nothing else to do: by its own work, in
processor time, or by a wait."""
LATE_MS_MAX = 60_000
"""How late the loop may be while others have the processors."""
BETWEEN_RUNS = re.compile(r'members/runtime/runtime\.py", line \d+, in (__init__|close)')
"""In the stack while a run opens its store and reads its state, or ends its threads and closes it:
the member serves nothing then."""
NO_ERRORS = ("ExecuteBatchError",)
"""What gRPC's own code logs of a call whose connection has gone while it was refused."""
STORE_BYTES_MAX = 256 << 20
"""That RocksDB's write buffers come to, before it writes them to files (`certifier/storage`)."""
GROWTH_BYTES_MAX = 150 << 20
"""Of a run after its warm-up, beside the store's write buffers, which calls fill within minutes."""
GROWTH_BYTES_HOUR_MAX = 400 << 20
"""Of an hour, by the lowest points of the last two thirds of a run: write buffers come and go."""
LONG_SECONDS = 1_500.0
"""Runs from so long on are judged by the hour, too."""


@dataclass(slots=True)
class Watched:
    """What is known of one member."""

    online_since: float = 0.0
    answered: float = field(default_factory=time.monotonic)
    excused_since: float | None = None
    came_back: int = 0
    resident: list[tuple[float, int]] = field(default_factory=list)
    """Moments and bytes in memory, after the warm-up."""
    skipped_messages: int = 0
    silence: str = ""
    """Why it did not answer last."""


class Watcher:
    """Asks until it is stopped; `problems` says what no member may do."""

    def __init__(
        self, group: LocalGroup, delays: Callable[[str], Path], held_ms_max: int = HELD_MS_MAX
    ) -> None:
        """Prepares; `delays` has the file of a member's delays, by its name; `held_ms_max` is how
        long an event loop may be held.
        """
        self._group = group
        self._held_ms_max = held_ms_max
        self._delays = delays
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.members = {name: Watched() for name in group.names}
        self.problems: list[str] = []
        tls, token = group.credentials.tls, group.credentials.token
        self._clients = {
            name: Client(address, timeout_ms=STATUS_MS, tls=tls, token=token)
            for name, address in group.addresses.items()
        }
        self._thread = threading.Thread(target=self._run, name="watcher")

    def start(self) -> None:
        """Begins; the group is ONLINE."""
        self._thread.start()

    def stop(self) -> None:
        """Ends, and adds what delays and growth say."""
        self._stopped.set()
        self._thread.join()
        for client in self._clients.values():
            client.close()
        for name, watched in self.members.items():
            self.problems += hold_problems(name, self.delays(name), self._held_ms_max)
            self.problems += growth_problems(name, watched.resident)
            lines = (self._group.folder / f"{name}.log").read_text(errors="replace").splitlines()
            self.problems += error_problems(name, lines)

    def excuse(self, name: str) -> None:
        """Lets a member come back as another run: somebody wrote in the name of its present one."""
        with self._lock:
            watched = self.members[name]
            watched.excused_since = time.monotonic()
            watched.came_back += 1
            watched.online_since = 0.0

    def all_are_online(self) -> bool:
        """Returns whether nobody is excused, and nobody has failed."""
        with self._lock:
            return all(each.excused_since is None for each in self.members.values())

    def delays(self, name: str) -> list[dict[str, object]]:
        """Returns the delays of a member's event loop so far, of lines that are whole."""
        path = self._delays(name)
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_all_online(self) -> None:
        """Returns when nobody is excused any more, or somebody has failed."""
        while not self.problems and not self.all_are_online():
            time.sleep(PERIOD_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD_SECONDS):
            for name in self._group.names:
                self._look(name)

    def _look(self, name: str) -> None:
        process, now = self._group.processes[name], time.monotonic()
        if (code := process.poll()) is not None:
            self._found(f"{name} ended with {code}")
            return
        try:
            status: MemberStatus | None = self._clients[name].status().observer
        except GroupcertError as error:
            status, self.members[name].silence = None, str(error)
        with self._lock:
            self._judge(name, status, now)
        if now - self._began > WARM_UP_SECONDS:
            resident: int = psutil.Process(process.pid).memory_info().rss
            self.members[name].resident.append((now, resident))

    def _judge(self, name: str, status: MemberStatus | None, now: float) -> None:
        watched = self.members[name]
        if status is not None:
            watched.answered = now
            watched.skipped_messages = status.skipped_messages
        is_online = status is not None and status.state == MEMBER_STATE_ONLINE
        since = watched.excused_since
        if since is not None:
            watched.online_since = (watched.online_since or now) if is_online else 0.0
            if watched.online_since and now - watched.online_since > SETTLED_SECONDS:
                watched.excused_since = None
            elif now - since > EXCUSED_SECONDS_MAX:
                self._found(f"{name} did not come back within {EXCUSED_SECONDS_MAX:.0f} s")
        elif status is None:
            if now - watched.answered > SILENT_SECONDS_MAX:
                self._found(
                    f"{name} did not answer for {SILENT_SECONDS_MAX:.0f} s: {watched.silence}"
                )
        elif not is_online:
            self._found(f"{name} became {MemberState.Name(status.state)}: {status.reason}")

    def _found(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def held_ms(delay: dict[str, object]) -> int:
    """Returns how long the loop was held by its own work, or by what it waited for."""
    late_ms, loop_ms, blocked_ms = (
        int(str(delay[name])) for name in ("late_ms", "loop_ms", "blocked_ms")
    )
    return min(late_ms, max(loop_ms, blocked_ms))


def serving_delays(delays: list[dict[str, object]]) -> list[dict[str, object]]:
    """Returns the delays without those of a run that begins or has ended."""
    return [each for each in delays if not BETWEEN_RUNS.search(str(each["stack"]))]


def hold_problems(
    name: str, delays: list[dict[str, object]], held_ms_max: int = HELD_MS_MAX
) -> list[str]:
    """Returns where a member's event loop was held for too long."""
    problems = []
    for delay in serving_delays(delays):
        late_ms, held = int(str(delay["late_ms"])), held_ms(delay)
        if held > held_ms_max or late_ms > LATE_MS_MAX:
            problems.append(
                f"{name}: its event loop was {late_ms} ms late, {held} ms of it held: "
                f"{delay['stack']}"
            )
    return problems


def growth_problems(name: str, resident: list[tuple[float, int]]) -> list[str]:
    """Returns how a member grew without bound."""
    third = len(resident) // 3
    if not third:
        return []
    parts = resident[:third], resident[third : 2 * third], resident[2 * third :]
    first, middle, last = (min(size for _, size in part) for part in parts)
    seconds = resident[-1][0] - resident[0][0]
    if last - first > GROWTH_BYTES_MAX + STORE_BYTES_MAX:
        return [f"{name} grew from {first >> 20} to {last >> 20} MiB"]
    hourly = (last - middle) * 3_600 / (seconds / 3) if seconds else 0
    if seconds > LONG_SECONDS and hourly > GROWTH_BYTES_HOUR_MAX:
        return [f"{name} grows by {int(hourly) >> 20} MiB an hour, at last"]
    return []


def error_problems(name: str, lines: list[str]) -> list[str]:
    """Returns the exceptions that a member's code raised and did not expect, each once."""
    found = {}
    for line in lines:
        if '"level": "error"' in line or '"level": "critical"' in line:
            if any(words in line for words in NO_ERRORS):
                continue
            if not line.endswith("}"):  # It is being written.
                continue
            event = json.loads(line)
            words = str(event.get("exception", "")).strip().rpartition("\n")[2]
            found[f"{event['event']} {words}"] = line
        elif line.startswith("Traceback"):
            found[line] = line
    return [f"{name} has logged an error: {each[:500]}" for each in found]
