"""Copies that a donor holds open: checkpoints of its store, in folders of its own.

The rule it keeps: a copy is as of one position in the log. The state is saved and the checkpoint
made without anything else running on the event loop, so that rows, certification info and relay
queue are of what was delivered by then; commits of the applier in between only move what is in the
relay queue to the rows. What takes time (writing tables, checksums) happens before and after, in
threads.
"""

import asyncio
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from ...certifier.errors import NotServing
from ...certifier.storage.store import (
    ROCKSDB_FOLDER,
    Family,
    Store,
    StoreIdentity,
    drop_families,
)
from ..core.log_records import LARGE_NUMBER_MAX
from ..core.member import Member
from ..core.views import MemberState, View
from ..errors.recovery import CopyExpired, TooManyCopies
from ..large_transactions.fragment_store import drop_kept
from ..runtime.opening import NO_ROWS_KEY, ROWS_AT_SERVER_KEY
from ..runtime.runtime import MemberRuntime
from ..runtime.state_store import LOG_IDENTITY_KEY
from ..total_order.port import LogIdentity
from .manifest import CopyManifest, described

READING_SECONDS = 1_200
"""Seconds for which the log is kept for a member that took a copy and has not joined: it verifies
the copy, and reads on. A larger value would fill the log's disk for a joiner that has died."""
COPIES_MAX = 2
"""Copies at a time: each keeps files on disk that the store itself has no use for any more."""
LEASE_SECONDS = 60
"""Seconds until a copy that is not read is removed."""
OF_ROWS = (Family.DATA, Family.RELAY, Family.BINARY_LOG, Family.FRAGMENTS)
"""What a member that keeps no rows does without."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(slots=True)
class Copy:
    """An open copy. `folder` holds its files; `read_seconds`: when it was read last; `is_read`: its
    last byte was sent.
    """

    copy_id: str
    folder: Path
    manifest: CopyManifest
    read_seconds: float
    is_read: bool = False

    def sent(self, file: str, offset: int) -> None:
        """Notes that a file is sent up to `offset`."""
        # Files without bytes are never sent: the reader makes them itself.
        last = next((each for each in reversed(self.manifest.files) if each.bytes), None)
        if last is not None and (file, offset) == (last.name, last.bytes):
            self.is_read = True


@dataclass(slots=True)
class _Place:
    """The position from which a reader needs the log; `run`: of the asker in the view, or 0."""

    asker: str
    run: int
    log_sequence: int


class Copies:
    """All open copies of one member. For one event loop."""

    def __init__(
        self, folder: Path, *, copies_max: int = COPIES_MAX, lease_seconds: int = LEASE_SECONDS
    ) -> None:
        """Keeps copies in `folder`, which holds nothing else, on the file system of the member's
        store. What an earlier process left there is removed with the first copy, as only then it is
        sure that the folder is this process's own.
        """
        self._folder = folder
        self._copies_max = copies_max
        self._lease_seconds = lease_seconds
        self._open: dict[str, Copy] = {}
        self._places: dict[str, _Place] = {}
        self._opening = 0
        self._is_clean = False

    async def open(self, runtime: MemberRuntime, asker: str, *, without_rows: bool = False) -> Copy:
        """Makes a copy of a member's state as of now.

        Raises:
            NotServing: The member is not ONLINE.
            RowsNotKept: It has no rows, and the asker needs some.
            TooManyCopies: Close one first.
            DiskFull: There is no space.
        """
        check_donor(runtime)
        if runtime.config.rows == "none" and not without_rows:
            runtime.check_readable()
        if len(self._open) + self._opening >= self._copies_max:
            taken = len(self._open) + self._opening
            raise TooManyCopies(open=taken, open_max=self._copies_max)
        # Before the first wait: whoever asks while the copy is made has to see it.
        self._opening += 1
        copy_id = secrets.token_hex(8)
        folder = self._folder / copy_id
        try:
            await self._clean()
            manifest, seconds = await self._make(runtime, folder, asker)
            if without_rows:
                await asyncio.to_thread(leave_out_rows, folder, manifest)
            manifest = await asyncio.to_thread(described, manifest, folder)
        except BaseException:
            self._forget(copy_id)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        finally:
            self._opening -= 1
        copy = Copy(copy_id, folder, manifest, time.monotonic())
        self._open[copy_id] = copy
        self._expire_later(copy)
        log.info(
            "copy_opened",
            copy=copy_id,
            asker=asker,
            bytes=manifest.bytes_total,
            files=len(manifest.files),
            log_sequence=manifest.log_sequence,
            stall_ms=round(seconds * 1000, 1),
        )
        return copy

    def get(self, copy_id: str) -> Copy:
        """Returns an open copy, which counts as read now. Raises CopyExpired."""
        copy = self._open.get(copy_id)
        if copy is None:
            raise CopyExpired(copy_id=copy_id, lease_seconds=self._lease_seconds)
        copy.read_seconds = time.monotonic()
        return copy

    async def close(self, copy_id: str, *, reads_on: bool = False) -> None:
        """Removes a copy, if it is there. `reads_on`: its reader needs the log after it."""
        copy = self._open.pop(copy_id, None)
        if copy is not None:
            log.info("copy_closed", copy=copy_id)
            self._end(copy_id, reads_on=reads_on)
            await asyncio.to_thread(shutil.rmtree, copy.folder, ignore_errors=True)

    def log_sequences(self, view: View) -> list[int]:
        """Returns the last message of each copy whose reader has not joined the view since."""
        for copy_id, place in [*self._places.items()]:
            # A run of the reader that was not in the view when it asked is: it has joined since.
            if copy_id not in self._open and _run_of(place.asker, view) not in (0, place.run):
                self._forget(copy_id)
        return [place.log_sequence for place in self._places.values()]

    def _end(self, copy_id: str, *, reads_on: bool) -> None:
        """Removes a copy, and keeps the log from its position on only if its reader needs that."""
        if reads_on:
            asyncio.get_running_loop().call_later(READING_SECONDS, self._forget, copy_id)
        else:
            self._forget(copy_id)

    def _forget(self, copy_id: str) -> None:
        self._places.pop(copy_id, None)

    async def _make(
        self, runtime: MemberRuntime, folder: Path, asker: str
    ) -> tuple[CopyManifest, float]:
        """Makes a copy; returns its manifest without files, and the seconds in which nothing else
        ran.
        """
        try:
            await asyncio.to_thread(runtime.store.flush_tables)
        # Of a store that was closed meanwhile, what counts is that the member does not serve.
        except Exception:
            check_donor(runtime)
            raise
        await asyncio.to_thread(folder.mkdir, parents=True)
        # The member may have stopped serving in each of these waits.
        check_donor(runtime)
        while not runtime.is_whole:  # A message is being certified, in steps.
            await asyncio.sleep(0)
            check_donor(runtime)
        began = time.perf_counter()
        runtime.save()
        manifest = manifest_of(runtime.config.group, runtime.member, runtime.store)
        run = _run_of(asker, runtime.member.view)
        # In the same turn of the event loop as the manifest: no trim comes between.
        self._places[folder.name] = _Place(asker, run, manifest.log_sequence)
        runtime.store.checkpoint(folder / ROCKSDB_FOLDER)
        return manifest, time.perf_counter() - began

    async def _clean(self) -> None:
        if not self._is_clean:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._is_clean = True

    def _expire_later(self, copy: Copy) -> None:
        left = copy.read_seconds + self._lease_seconds - time.monotonic()
        asyncio.get_running_loop().call_later(max(left, 0.0) + 0.01, self._expire, copy)

    def _expire(self, copy: Copy) -> None:
        if copy.copy_id not in self._open:
            return
        if time.monotonic() - copy.read_seconds < self._lease_seconds:
            self._expire_later(copy)
            return
        del self._open[copy.copy_id]
        self._end(copy.copy_id, reads_on=copy.is_read)  # The message of its reader may be lost.
        log.warning("copy_expired", copy=copy.copy_id, lease_seconds=self._lease_seconds)
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, copy.folder, True)


def _run_of(name: str, view: View) -> int:
    member = view.named(name)
    return member.incarnation if member else 0


def check_donor(runtime: MemberRuntime) -> None:
    """Raises NotServing unless the member is ONLINE and its store open."""
    if runtime.closed or runtime.member.state is not MemberState.ONLINE:
        raise NotServing(member=runtime.member.me.name, state=runtime.member.state.name)


def leave_out_rows(folder: Path, manifest: CopyManifest) -> None:
    """Makes of a copy's files the store of a member that keeps no rows."""
    drop_families(folder, OF_ROWS)
    identity = StoreIdentity(group=manifest.group, member=manifest.member)
    with Store(folder, identity) as store:
        batch = store.batch()
        drop_kept(store, batch, LARGE_NUMBER_MAX)
        batch.delete(Family.META, ROWS_AT_SERVER_KEY)
        batch.put(Family.META, NO_ROWS_KEY, b"")
        store.write(batch)


def manifest_of(group: str, member: Member, store: Store) -> CopyManifest:
    """Returns the manifest of a copy made now, without files, just after the state was saved."""
    identity = store.get(Family.META, LOG_IDENTITY_KEY)
    assert identity is not None, "a member that is ONLINE knows its log"
    return CopyManifest(
        group=group,
        member=member.me.name,
        log=LogIdentity.decode(identity),
        log_sequence=member.log_sequence,
        version=member.certifier.window.newest_version,
        gtid_executed=str(member.certifier.executed()),
        certification_digest=member.certifier.digest().hex(),
        created_us=time.time_ns() // 1000,
        files=(),
    )
