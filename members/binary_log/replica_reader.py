"""Reads a member's binary log for one replica: from a GTID set on, to its end and after it.

The rule it keeps: each transaction that the replica has not executed comes once, in the order of
commits, gaps first; and if one of them is no longer there, none comes at all. It reads in steps and
holds nothing of the store between them.

Source: WL#5569 (databases and tables of a transaction), MDEV-4506 (group commit id).
Differs: databases and tables follow from the rows' keys, and are made when they are asked for.
"""

from collections.abc import Callable, Sequence

from ...applier.errors import PurgedAtSource
from ...applier.queue.relay_group import RelayEntry
from ...applier.queue.row_parts import database_of, table_of
from ...applier.queue.siblings import commit_ids, commit_parents
from ...applier.source.header import SourceHeader
from ...certifier.gtid_set import GtidSet
from .stored_log import BinaryLog, StoredGroup

ENTRIES_MAX = 250
BYTES_MAX = 1 << 20
"""Entries and bytes of one step: a few milliseconds of a member's time."""
DATABASES_MAX = 16
"""Databases that a transaction names for replicas; one that updates more is said to update all.
MySQL's number."""

KeysOf = Callable[[bytes], Sequence[bytes]]
"""The keys of the rows that a payload changes."""


class BinaryLogReader:
    """One replica's reading at one member."""

    def __init__(
        self,
        log: BinaryLog,
        executed: GtidSet,
        *,
        source: str,
        keys_of: KeysOf,
        databases_max: int = DATABASES_MAX,
    ) -> None:
        """Finds the position to start from.

        Args:
            executed: What the replica has executed; the reader adds to it what it has read.
            source: The member, for messages.
            databases_max: A transaction that updates more of them is said to update all.

        Raises:
            PurgedAtSource: what the replica needs is no longer there.
        """
        self._log = log
        self._executed = executed
        self._source = source
        self._keys_of = keys_of
        self._databases_max = databases_max
        place = log.place_of(executed)
        if place is None:
            raise self._purged(log.files[0].previous_gtids)
        self._key, self._file = place
        self._has_rotated = False
        self.is_at_end = False
        """Whether the last `read` has reached the end."""
        self.needed = 0
        """Bytes of the next group commit, if the last `read` had no room for it alone."""

    def read(
        self, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX, room: int = 1 << 62
    ) -> list[RelayEntry]:
        """Returns the next entries; none if a step has found nothing new.

        Entries without a GTID are view changes, which have a `view_id`, and rotations; one of
        these comes first. The limits are checked between group commits; a group commit that would
        make it more than `room` bytes waits for the next call.

        Raises:
            PurgedAtSource: the log has a gap here, or was purged beyond this position.
            CorruptStore, UnsupportedFormat: it cannot be read.
        """
        entries: list[RelayEntry] = []
        size = self.needed = 0
        for group in self._log.read(self._key):
            if size + group.bytes > room:
                self.needed = 0 if size else group.bytes
                self.is_at_end = False
                break
            if group.file != self._file or not self._has_rotated:
                entries.append(self._rotation(group))
            self._key = group.key + b"\x00"
            entries += self._new_of(group)
            size += group.bytes
            if len(entries) >= entries_max or size >= bytes_max:
                self.is_at_end = False
                break
        else:
            self.is_at_end = True
        return entries

    def _rotation(self, group: StoredGroup) -> RelayEntry:
        """Returns the rotation that begins a file, or what is read of the first one."""
        assert group.file == self._file or group.header is not None, "a file without a header"
        if group.header is not None and not group.header.previous_gtids <= self._executed:
            raise self._purged(group.header.previous_gtids)
        self._file, self._has_rotated = group.file, True
        if group.header is not None:
            version = group.header.version
        else:
            version = group.entries[0].version - (group.entries[0].gtid is not None)
        return RelayEntry.rotation(version, group.file)

    def _new_of(self, group: StoredGroup) -> list[RelayEntry]:
        """Returns the entries of a group that the replica has not, with all that the log says of
        them. A view change before something that it has is not new.
        """
        executed = self._executed
        new: list[RelayEntry] = []
        entries = group.entries
        parents = commit_parents(entries, map(_last_committed, entries))
        ids = commit_ids([each.version for each in entries], parents)
        for entry, parent, commit_id in zip(entries, parents, ids, strict=True):
            if entry.gtid is None:
                header = SourceHeader(
                    committed_us=group.committed_us, file=group.file, view_id=entry.header.view_id
                )
                new.append(entry._replace(header=header))
            elif entry.gtid in executed:
                while new and new[-1].gtid is None:
                    new.pop()
            else:
                executed.add(entry.gtid)
                header = self._header(entry, group, parent, commit_id)
                new.append(RelayEntry(*entry[:5], False, entry.payload, header))
        return new

    def _header(
        self, entry: RelayEntry, group: StoredGroup, commit_parent: int, commit_id: int
    ) -> SourceHeader:
        known = entry.header
        databases, tables = self._parts(entry.payload)
        return SourceHeader(
            commit_parent=commit_parent,
            commit_id=commit_id,
            domain_id=known.domain_id,
            databases=databases,
            tables=tables,
            items=known.items,
            committed_us=group.committed_us,
            file=group.file,
        )

    def _parts(self, payload: bytes) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        """Returns databases and tables of a transaction; None for what is unknown or too many."""
        keys = self._keys_of(payload) if payload else ()
        if not keys:
            return None, None
        tables = {table_of(key) for key in keys}
        databases = {database_of(table) for table in tables}
        if len(databases) > self._databases_max:
            return None, None
        return tuple(sorted(databases)), tuple(sorted(tables))

    def _purged(self, previous: GtidSet) -> PurgedAtSource:
        return PurgedAtSource(source=self._source, missing=str(previous - self._executed))


def _last_committed(entry: RelayEntry) -> int:
    """Returns the version that the stamp stands for; stamps count from the file's beginning."""
    return entry.version - entry.sequence_number + entry.last_committed
