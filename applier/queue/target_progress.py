"""The progress of a target: the executed GTIDs, stored with the rows; and when commits are durable.

A checkpoint names exactly the transactions that the rows beside it contain, because both are one
atomic write. Durability comes after visibility: one flush of the write-ahead log, by a thread of
its own, serves all commits before it, as writing each with a sync of its own would hold the
interpreter lock for every fsync.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from itertools import chain
from queue import SimpleQueue
from time import time_ns
from typing import Self

from ...certifier.errors import InvalidSetting
from ...certifier.gtid import Gtid, parse_gtid
from ...certifier.gtid_set import GtidSet
from ...certifier.storage.store import Store
from ..errors import noted_statement
from .job import FIRST_TICK, CommitGroup, Execution, Job
from .relay_group import RelayEntry, RelayGroup, last_place

FLUSH_PERIOD_MS = 5
CAUSE_CHARACTERS_MAX = 1_000


class Stage(Enum):
    """The work of an applier in which an error ended it."""

    EXECUTING = "executing"
    COMMITTING = "committing"
    READING = "reading the source"
    OPENING = "opening the target"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastError:
    """The error that an applier ended with; kept with the checkpoint until it is over.

    `worker` -1 and `gtid` "": of none; `statement`: the beginning of the one that failed, if it is
    known. `at_us`: microseconds since 1970. `received`: how many transactions were executed by
    then, or on their way.
    """

    stage: Stage
    cause: str
    at_us: int
    worker: int = -1
    gtid: str = ""
    statement: str = ""
    received: int = 0

    @classmethod
    def of(cls, stage: Stage, error: Exception, worker: int = -1, gtid: object = None) -> Self:
        """Returns an error of now."""
        return cls(
            stage=stage,
            cause=f"{type(error).__name__}: {error}"[:CAUSE_CHARACTERS_MAX],
            at_us=time_ns() // 1000,
            worker=worker,
            gtid=str(gtid or ""),
            statement=noted_statement(error),
        )

    def is_over(self, executed: GtidSet) -> bool:
        """Returns whether its transaction was executed since or, if it had none, a new one was."""
        if self.gtid:
            return parse_gtid(self.gtid) in executed
        return executed.count() > self.received

    def encode(self) -> bytes:
        """Returns the error as JSON."""
        return json.dumps(asdict(self) | {"stage": self.stage.value}).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Returns the error that `encode` made the text of."""
        fields = json.loads(encoded)
        return cls(**fields | {"stage": Stage(fields["stage"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The executed transactions: a GTID set, which may have gaps. It is never changed.

    `version` and `position`: the newest transaction that is visible; where commits are in the
    source's order, so is all before it. `tick` is the coordinator's clock. `parts`: of transactions
    that were divided and are not executed whole, the parts that are. `domains`: the newest GTID of
    each domain (MDEV-4506). `scheme`: what executed them, which alone knows why there are gaps.
    `error`: what ended the applier last, if it is not over.
    """

    version: int = 0
    position: int = -1
    tick: int = FIRST_TICK
    gtid_executed: GtidSet = field(default_factory=GtidSet)
    parts: Mapping[Gtid, frozenset[str]] = field(default_factory=dict)
    domains: Mapping[int, Gtid] = field(default_factory=dict)
    scheme: str = ""
    error: LastError | None = None

    @property
    def missing(self) -> int:
        """Number of transactions older than the newest executed one that are not executed: versions
        count all of them.
        """
        return max(0, self.version - self.gtid_executed.count())

    def encode(self) -> bytes:
        """Returns the checkpoint as JSON; the usual part without the encoder, at each commit."""
        usual = (
            f'"version": {self.version}, "position": {self.position}, "tick": {self.tick}, '
            f'"gtid_executed": "{self.gtid_executed}"'
        )
        fields: dict[str, object] = {}
        if self.parts:
            fields["parts"] = {str(gtid): sorted(parts) for gtid, parts in self.parts.items()}
        if self.domains:
            fields["domains"] = {domain: str(gtid) for domain, gtid in self.domains.items()}
        if self.scheme:
            fields["scheme"] = self.scheme
        if self.error:
            fields["error"] = self.error.encode().decode()
        others = f", {json.dumps(fields)[1:-1]}" if fields else ""
        return f"{{{usual}{others}}}".encode()

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Returns the checkpoint that `encode` made the text of."""
        fields = json.loads(encoded)
        parts = fields.get("parts", {})
        domains = fields.get("domains", {})
        error = fields.get("error")
        return cls(
            version=fields["version"],
            position=fields["position"],
            tick=fields["tick"],
            gtid_executed=GtidSet.parse(fields["gtid_executed"]),
            parts={parse_gtid(gtid): frozenset(names) for gtid, names in parts.items()},
            domains={int(domain): parse_gtid(gtid) for domain, gtid in domains.items()},
            scheme=fields.get("scheme", ""),
            error=LastError.decode(error) if error else None,
        )

    def settled(self) -> Self:
        """Returns the checkpoint without an error that is over."""
        is_over = self.error and self.error.is_over(self.gtid_executed)
        return replace(self, error=None) if is_over else self


def version_of(encoded: bytes) -> int:
    """Returns the version in an encoded checkpoint, without the work of reading its GTID set."""
    version: int = json.loads(encoded)["version"]
    return version


class TargetProgress:
    """Keeps the checkpoint up to date, whatever the order of commits. Any thread may call."""

    __slots__ = (
        "_domains",
        "_executed",
        "_lock",
        "_parts",
        "_position",
        "_tick",
        "_version",
        "checkpoint",
    )

    checkpoint: Checkpoint

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._lock = threading.Lock()
        self._return_to(checkpoint.settled())

    def note(self, error: LastError) -> None:
        """Adds an error to the checkpoint; it goes with the transaction that ends it."""
        with self._lock:
            error = replace(error, received=max(error.received, self._executed.count()))
            self.checkpoint = replace(self.checkpoint, error=error).settled()

    def advance(self, group: CommitGroup[Execution]) -> Checkpoint:
        """Returns the checkpoint after a group. Cost: O(transactions + intervals of the set)."""
        with self.advancing(group) as checkpoint:
            return checkpoint

    @contextmanager
    def advancing(self, group: CommitGroup[Execution]) -> Iterator[Checkpoint]:
        """Yields the checkpoint after a group, to be written with the rows. It becomes current when
        the context ends, not at all if the context fails; no other group comes between.
        """
        with self._lock:
            try:
                checkpoint = self._after(group)
                yield checkpoint
            # Whatever ended the context: the rows were not written, so the sets that `_after`
            # changed in place go back to the checkpoint that was.
            except BaseException:
                self._return_to(self.checkpoint)
                raise
            self.checkpoint = checkpoint

    def _return_to(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._position, self._version = checkpoint.position, checkpoint.version
        self._tick = checkpoint.tick
        self._executed = checkpoint.gtid_executed.copy()
        self._parts = {gtid: set(parts) for gtid, parts in checkpoint.parts.items()}
        self._domains = dict(checkpoint.domains)

    def _after(self, group: CommitGroup[Execution]) -> Checkpoint:
        self._add(chain.from_iterable(map(self._not_added, group.jobs)))
        position, version = last_place(group.jobs[-1].entries)
        self._position = max(self._position, position)
        self._version = max(self._version, version)
        self._tick = max(self._tick, group.tick)
        return Checkpoint(
            version=self._version,
            position=self._position,
            tick=self._tick,
            gtid_executed=self._executed.copy(),
            parts={gtid: frozenset(parts) for gtid, parts in self._parts.items()},
            domains=dict(self._domains),
            scheme=self.checkpoint.scheme,
            error=self.checkpoint.error,
        ).settled()

    def _finished(self, job: Job[Execution]) -> Sequence[RelayEntry]:
        """Returns the job's entries; none while other parts of the entry are left, or if an earlier
        part has finished it: of the parts that an earlier process executed, any may come last.
        """
        if job.parts == 1:
            return job.entries
        gtid = job.entries[0].gtid
        if gtid is None:
            return job.entries
        # Parts that an earlier process executed come in any order, and this was not the last of
        # them.
        if gtid in self._executed:
            return ()
        parts = self._parts.setdefault(gtid, set())
        parts.add(str(job.part))
        if len(parts) < job.parts:
            return ()
        del self._parts[gtid]
        return job.entries

    def _not_added(self, job: Job[Execution]) -> Iterable[RelayEntry]:
        """Returns the entries that a job finishes; none if they are of one source, and added."""
        entries = self._finished(job)
        if not isinstance(entries, RelayGroup) or not entries.is_of_one_source:
            return entries
        # The newest GTID of each domain has to be noted one by one.
        if self._domains or any(entries.domains):
            return entries
        self._executed.add_interval(entries.sources[0], entries.numbers[0], entries.numbers[-1])
        return ()

    def _add(self, entries: Iterable[RelayEntry]) -> None:
        """Adds the entries' GTIDs; consecutive ones as one interval."""
        first, stop, source = 0, 0, ""
        for entry in entries:
            gtid = entry.gtid
            if gtid is None:
                continue
            if entry.header.domain_id or self._domains:
                self._domains[entry.header.domain_id] = gtid
            if gtid.number == stop and gtid.source == source:
                stop += 1
                continue
            if stop:
                self._executed.add_interval(source, first, stop - 1)
            source, first = gtid
            stop = first + 1
        if stop:
            self._executed.add_interval(source, first, stop - 1)


class DurabilityFlusher:
    """Flushes the store in one thread and advances a watermark: everything written up to it is
    durable.
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
            self._awake = False  # Before reading the watermark: a later request wakes again.
            if self._requested > self.durable and not self._flush(self._requested):
                return
            # Commits of the pause share the next flush; a stop ends it at once.
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
