"""Opens a replica's target by its name: the embedded store, or an SQL server.

The rule it keeps: the driver of a server is imported only if that server is named.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...applier.errors import UnsuitableTarget
from ...applier.queue.job import CommitGroup
from ...applier.queue.target_progress import DurabilityFlusher, TargetProgress
from ...applier.targets import Target
from ...applier.targets.rocksdb import RocksDbTarget, RowChanges
from ...applier.targets.sql_schema import SqlSchema
from ...certifier.errors import InvalidSetting
from ...certifier.storage.store import Store, StoreIdentity
from ..wire.row_changes import decode_changes

CLOSE_SECONDS = 10.0


def opens_target(
    target: str, mapping: Path | None, *, replica: str, workers: int, two_phase: bool
) -> Callable[[], Target[Any]]:
    """Returns a function that opens the target; called again after a lost connection.

    Raises:
        InvalidSetting: there is no such kind of target.
        UnsuitableTarget: the mapping is missing or malformed; from the call, the server is not fit.
    """
    kind, _, rest = target.partition(":")
    if kind == "rocksdb" and rest:
        return lambda: EmbeddedTarget(Path(rest), replica)
    if kind in ("postgresql", "postgres"):
        from ...applier.targets.postgresql import open_target as open_postgresql

        schema = _schema(target, mapping)
        return lambda: open_postgresql(
            target, schema, decode_changes, replica=replica, workers=workers, two_phase=two_phase
        )
    if kind in ("mysql", "mariadb"):
        from ...applier.targets.mysql import open_target as open_mysql

        schema = _schema(target, mapping)
        return lambda: open_mysql(
            target, schema, decode_changes, replica=replica, workers=workers, two_phase=two_phase
        )
    raise InvalidSetting(
        name="target",
        value=target,
        expected="rocksdb:FOLDER, postgresql://user@host/database or mysql://user@host/database",
    )


class EmbeddedTarget(RocksDbTarget):
    """A store of the replica's own, flushed in the background."""

    def __init__(self, folder: Path, replica: str) -> None:
        self.store = Store(folder, StoreIdentity(group="replica", member=replica))
        super().__init__(self.store, decode_changes)
        self._error: Exception | None = None
        self._flusher = DurabilityFlusher(self.store, lambda _: None, self._note)

    def commit(self, group: CommitGroup[RowChanges], progress: TargetProgress) -> None:
        """Commits, and asks for a flush.

        Raises DiskFull: nothing of it was written, or an earlier flush has failed.
        """
        if self._error:
            raise self._error
        super().commit(group, progress)
        self._flusher.request(group.tick)

    def close(self) -> None:
        """Flushes and closes the store."""
        self._flusher.stop(CLOSE_SECONDS)
        self.store.close()

    def _note(self, error: Exception) -> None:
        self._error = error


def _schema(target: str, mapping: Path | None) -> SqlSchema:
    if mapping is None:
        raise UnsuitableTarget(
            target=target.partition("@")[2] or target,
            problem="there is no mapping of rows to its tables",
            expected="--mapping FILE, a TOML file (see applier/targets/sql_schema.py)",
        )
    return SqlSchema.parse(mapping.read_text(encoding="utf-8"), str(mapping))
