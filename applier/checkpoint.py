"""Checkpoints: what was executed, stored with the rows; and the thread that makes commits durable.

The rule it keeps: a checkpoint names exactly what the rows beside it contain, because both are one
atomic write. Durability comes after visibility: one flush of the write-ahead log serves all commits
before it, as writing each with a sync of its own would hold the interpreter lock for every fsync.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Self

from applier.job import FIRST_TICK, CommitGroup, Execution
from certifier.errors import InvalidSetting
from certifier.gtid_set import GtidSet
from certifier.store import Store

FLUSH_PERIOD_MS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything up to `position` in the total order is executed: `version` certified
    transactions; `tick` is the coordinator's clock. The set is never changed once it is in here.
    """

    version: int = 0
    position: int = -1
    tick: int = FIRST_TICK
    gtid_executed: GtidSet = field(default_factory=GtidSet)

    def encode(self) -> bytes:
        """The checkpoint as JSON."""
        fields = {
            "version": self.version,
            "position": self.position,
            "tick": self.tick,
            "gtid_executed": str(self.gtid_executed),
        }
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """What `encode` gave."""
        fields = json.loads(encoded)
        return cls(
            version=fields["version"],
            position=fields["position"],
            tick=fields["tick"],
            gtid_executed=GtidSet.parse(fields["gtid_executed"]),
        )


def version_of(encoded: bytes) -> int:
    """The version in an encoded checkpoint, without the work of reading its GTID set."""
    version: int = json.loads(encoded)["version"]
    return version


class Progress:
    """The checkpoint as it moves; the thread that commits has it to itself."""

    __slots__ = ("_executed", "_position")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._position = checkpoint.position
        self._executed = checkpoint.gtid_executed.copy()

    def advance(self, group: CommitGroup[Execution]) -> Checkpoint:
        """The checkpoint after a group. Cost: O(transactions + intervals of the set)."""
        first, stop, source = 0, 0, ""
        for job in group.jobs:
            for entry in job.entries:
                gtid = entry.gtid
                if gtid is None:
                    continue
                if gtid.number == stop and gtid.source == source:
                    stop += 1
                    continue
                if stop:
                    self._executed.add_interval(source, first, stop - 1)
                source, first = gtid
                stop = first + 1
        if stop:
            self._executed.add_interval(source, first, stop - 1)
        last = group.jobs[-1].entries[-1]
        assert last.position > self._position, "the total order goes forward"
        self._position = last.position
        return Checkpoint(
            version=last.version,
            position=last.position,
            tick=group.tick,
            gtid_executed=self._executed.copy(),
        )


class DurabilityFlusher:
    """One thread that flushes the store, and a watermark that follows: everything written up to it
    is durable.
    """

    def __init__(
        self,
        store: Store,
        on_advance: Callable[[int], None],
        on_error: Callable[[Exception], None],
        *,
        period_ms: int = FLUSH_PERIOD_MS,
    ) -> None:
        """Starts the thread.

        Args:
            on_advance: called in that thread with the new watermark.
            on_error: called there, once, with what `Store.flush` raised; no flush follows.
            period_ms: the pause after a flush, so that more commits share the next one. The first
                request after a pause is served at once.
        """
        if period_ms < 0:
            raise InvalidSetting(name="flush_period_ms", value=period_ms, expected="0 or more")
        self.durable = 0
        self._store = store
        self._on_advance = on_advance
        self._on_error = on_error
        self._period_seconds = period_ms / 1000
        self._requested = 0
        self._awake = False
        self._wakeups: SimpleQueue[bool] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="durability-flusher", daemon=True)
        self._thread.start()

    def request(self, watermark: int) -> None:
        """Asks for durability of what was written up to `watermark`, which ascends. Returns at
        once; costs nothing while the thread is awake.
        """
        self._requested = max(self._requested, watermark)
        if not self._awake:
            self._awake = True
            self._wakeups.put(True)

    def stop(self, timeout_seconds: float) -> bool:
        """Flushes what was requested and ends the thread; False if that takes longer."""
        self._stopping.set()
        self._wakeups.put(False)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        go_on = True
        while go_on:
            go_on = self._wakeups.get()
            self._awake = False  # Before the watermark is read: a later request wakes again.
            if self._requested > self.durable and not self._flush(self._requested):
                return
            self._stopping.wait(self._period_seconds)

    def _flush(self, watermark: int) -> bool:
        try:
            self._store.flush()
        except Exception as error:
            self._on_error(error)
            return False
        self.durable = watermark
        self._on_advance(watermark)
        return True
