"""Files of rows that RocksDB ingests as a whole: one file for each run of ascending keys.

Ingested one after the other they give the rows in the order in which they were added. Rows in no
order would make too many files, and make none.
"""

from collections.abc import Mapping

from ...certifier.storage.store import RowsFile, Store

FILES_MAX = 64
"""Most files of one large transaction; rows in no order are written in batches."""


class RowsFiles:
    """Makes the files of one large transaction."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._files: list[RowsFile] = []
        self._last_key = b""
        self._is_too_many = False

    def add(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Adds rows after the earlier ones."""
        for key, value in changes.items():
            if not self._is_too_many and (not self._files or key <= self._last_key):
                self._begin()
            if self._is_too_many:
                return
            self._files[-1].add(key, value)
            self._last_key = key

    def finish(self) -> list[RowsFile] | None:
        """Returns the files, in order; None if there would be too many. Raises DiskFull."""
        if self._is_too_many:
            return None
        if self._files:
            self._files[-1].finish()
        return self._files

    def remove(self) -> None:
        """Deletes the files."""
        for file in self._files:
            file.remove()

    def _begin(self) -> None:
        if len(self._files) >= FILES_MAX:
            self._is_too_many = True
        if self._files:
            self._files[-1].finish()
        if self._is_too_many:
            self.remove()
            return
        self._files.append(self._store.rows_file(f"{self._name}-{len(self._files)}"))
