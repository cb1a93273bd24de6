"""What one member holds of its group's log: read from its data folder, and proved by it.

A member's state follows from the messages that it has read. So its store stands for the log up to
the last of them: certification info, view and settings as of there, rows and relay queue with every
certified transaction, and the binary log with what was committed. The rule it keeps: a store is
believed only if all of it can be read and its parts agree; and nothing in its folder is written.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...applier.queue.relay_group import RelayEntry, RelayGroup
from ...applier.queue.relay_queue import decode
from ...applier.queue.target_progress import Checkpoint
from ...applier.targets.rocksdb import CHECKPOINT_KEY
from ...certifier.errors import CorruptStore, InvalidSetting
from ...certifier.gtid_set import GtidSet
from ...certifier.position import log_sequence_of
from ...certifier.storage.info_store import CertificationInfoStore
from ...certifier.storage.reading import StoreReader, reading
from ...certifier.storage.store import IDENTITY_KEY, ROCKSDB_FOLDER, Family
from ..binary_log.stored_log import stored_groups
from ..core.log_records import GroupSettings
from ..core.member import Member
from ..core.member_checkpoint import restore
from ..core.member_options import MemberOptions
from ..core.views import FORMAT_VERSION, ViewMember
from ..errors.rebuild import FolderInUse
from ..host.file_lock import lock
from ..recovery import store_swap
from ..runtime.log_start import LOG_FENCES
from ..runtime.opening import NO_ROWS_KEY
from ..runtime.state_store import (
    FENCE_KEY,
    LAST_MESSAGE_KEY,
    LOG_IDENTITY_KEY,
    MEMBER_KEY,
)
from ..total_order.port import LogIdentity

_LOCK = "LOCK"
PAGE_ENTRIES = 4_096
"""Entries between two calls of `on_read`."""
OnRead = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One member's store: `state` as of the last message that it has stored, and the `rows`, which
    are ahead of that where the member was killed.
    """

    folder: Path
    group: str
    name: str
    log: LogIdentity
    state: Member
    rows: Checkpoint
    last_message: bytes
    fence: str
    store: StoreReader

    @property
    def is_in_doubt(self) -> bool:
        """True if the member has fenced itself, and not because the log had lost something."""
        return bool(self.fence) and self.fence.partition(":")[0] not in LOG_FENCES

    @property
    def log_sequence(self) -> int:
        """The last message of the log in the state."""
        return self.state.log_sequence

    @property
    def version(self) -> int:
        """Certified transactions in the state."""
        return self.state.certifier.window.newest_version

    @property
    def last_version(self) -> int:
        """Certified transactions in the state or the rows."""
        return max(self.version, self.rows.version)

    @property
    def reach(self) -> int:
        """The last message of the log of which the member holds something."""
        return max(self.log_sequence, log_sequence_of(max(self.rows.position, 0)))

    @property
    def executed(self) -> GtidSet:
        """The GTIDs in the state or the rows."""
        return self.state.certifier.executed() | self.rows.gtid_executed

    def entries(self, first_version: int = 1) -> Iterator[RelayEntry]:
        """Yields the transactions that it still holds whole, from a version on, in order: those of
        the binary log, then those that wait in the relay queue.
        """
        for group in self._groups(first_version):
            for entry in group:
                if entry.gtid is not None and entry.version >= first_version:
                    yield entry

    def _groups(self, first_version: int) -> Iterator[RelayGroup]:
        version = self.rows.version
        for stored in stored_groups(self.store):
            if stored.entries:
                version = max(version, stored.entries.versions[-1])
                if stored.entries.versions[-1] >= first_version:
                    yield stored.entries
        for relayed in _relayed(self.store):  # With a server, of what the log has, too.
            if relayed.versions[-1] > version:
                yield relayed[_index_after(relayed, version) :]


@contextmanager
def holding(folder: Path, on_read: OnRead = lambda entries: None) -> Iterator[Holding]:
    """Yields the holding of the member with this data folder, or of the one that a backup was taken
    of.

    Nobody else can start on the folder within the block.

    Args:
        on_read: Is called with the number of entries read since the last call.

    Raises:
        InvalidSetting: There is no store, or none of a member that has read a log.
        FolderInUse: A member runs with it.
        CorruptStore, UnsupportedFormat: It cannot be read, or its parts do not agree.
    """
    # A verified copy counts before it is in its place, see `store_swap`: the store there is older.
    place = folder / "adopted" if store_swap.is_adopted(folder) else folder
    if not (place / ROCKSDB_FOLDER).is_dir():
        expected = f"the data folder of a member, which has a folder {ROCKSDB_FOLDER}"
        raise InvalidSetting(name="DATA_FOLDER", value=str(folder), expected=expected)
    with _alone(place), reading(place) as store:
        for family in Family:
            _read_all(store, family, on_read)
        found = _found(folder, store)
        _check(found)
        yield found


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Takes the lock that RocksDB takes for a process that writes.

    Raises:
        FolderInUse: A process has it.
        InvalidSetting: The folder's file system has no locks.
    """
    path = folder / ROCKSDB_FOLDER / _LOCK
    try:
        file = path.open("r+b")
    except OSError:  # A backup has none, and what is read-only nobody writes to.
        yield
        return
    with file:
        if not lock(file, folder, fcntl.lockf):
            raise FolderInUse(folder=str(folder))
        yield


def _read_all(store: StoreReader, family: Family, on_read: OnRead) -> None:
    """Reads every block of a family, so that RocksDB checks its checksum."""
    entries = 0
    for _ in store.scan(family):
        entries += 1
        if entries == PAGE_ENTRIES:
            on_read(entries)
            entries = 0
    on_read(entries)


def _found(folder: Path, store: StoreReader) -> Holding:
    if store.get(Family.META, NO_ROWS_KEY) is not None:
        expected = (
            "the data folder of a member that keeps rows: this one has no transactions; leave it "
            "out, with --without and its name"
        )
        raise InvalidSetting(name="DATA_FOLDER", value=str(folder), expected=expected)
    parts = [store.get(Family.META, key) for key in (IDENTITY_KEY, LOG_IDENTITY_KEY, MEMBER_KEY)]
    if None in parts:
        expected = (
            "the data folder of a member that has read its group's log: leave this one out, it "
            "copies another member"
        )
        raise InvalidSetting(name="DATA_FOLDER", value=str(folder), expected=expected)
    identity, log, saved = (part or b"" for part in parts)
    owner = json.loads(identity)
    rows = store.get(Family.DATA, CHECKPOINT_KEY)
    return Holding(
        folder=folder,
        group=owner["group"],
        name=owner["member"],
        log=LogIdentity.decode(log),
        state=_state(owner["member"], saved, store),
        rows=Checkpoint.decode(rows) if rows else Checkpoint(),
        last_message=store.get(Family.META, LAST_MESSAGE_KEY) or b"",
        fence=(store.get(Family.META, FENCE_KEY) or b"").decode(),
        store=store,
    )


def _state(name: str, saved: bytes, store: StoreReader) -> Member:
    """Returns the stored state as a member that looks on. Raises CorruptStore."""
    checkpoint = json.loads(saved)
    settings = GroupSettings(*checkpoint["settings"])
    me = ViewMember(name=name, incarnation=-1, address="", format_version=FORMAT_VERSION)
    options = MemberOptions(me=me, settings=settings, looks_on=True)
    state = Member(options)
    restore(state, checkpoint)
    if not CertificationInfoStore(store, state.certifier).load():
        raise CorruptStore(path=str(store.path), problem="it has a view, and no certification info")
    return state


def _check(found: Holding) -> None:
    """Raises CorruptStore unless rows, relay queue and binary log have what the state says."""
    problem = _why_incomplete(found)
    if problem:
        raise CorruptStore(path=str(found.folder), problem=problem)


def _why_incomplete(found: Holding) -> str:
    """Returns the first thing that is missing, in words; empty: the holding is whole."""
    version = found.rows.version
    gtids = found.rows.gtid_executed.copy()
    for group in _relayed(found.store):
        for entry in group:
            if entry.gtid is None or entry.version <= found.rows.version:
                continue
            if entry.version != version + 1:
                return f"its relay queue has version {entry.version} next after {version}"
            version = entry.version
            gtids.add(entry.gtid)
    if version < found.version:
        return f"it has certified version {found.version}, its relay queue ends with {version}"
    if lacking := found.state.certifier.executed() - gtids:
        return f"it has certified {lacking}, and neither rows nor relay queue have that"
    return _why_broken(found)


def _why_broken(found: Holding) -> str:
    """Returns the fault of the binary log, in words; empty: none, or there is no binary log.
    Between two files there may be transactions of a time in which it was switched off.
    """
    version = 0
    for stored in stored_groups(found.store):
        if stored.header is not None:
            version = stored.header.version
        for entry_version, source in zip(
            stored.entries.versions, stored.entries.sources, strict=True
        ):
            if source and entry_version != version + 1:
                return f"its binary log has version {entry_version} next after {version}"
            version = entry_version
    return "" if version <= found.rows.version else f"its rows end before version {version}"


def _relayed(store: StoreReader) -> Iterator[RelayGroup]:
    """Yields the groups of the relay queue."""
    for _, stored in store.scan(Family.RELAY):
        yield decode(stored, str(store.path))


def _index_after(group: RelayGroup, version: int) -> int:
    """Returns the index of the first entry of a group that is after a version."""
    return next((at for at, each in enumerate(group.versions) if each > version), len(group))
