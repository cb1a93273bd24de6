"""Rows in files that RocksDB takes in as a whole: one file for each run of ascending keys.

The rule it keeps: taken in one after the other they are the rows in the order in which they came;
rows in no order at all make no files.
"""

from collections.abc import Mapping

from certifier.store import RowsFile, Store

FILES_MAX = 64
"""Files of one large transaction; rows in no order at all are written in batches."""


class RowsFiles:
    """The files of one large transaction, while they are made."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._files: list[RowsFile] = []
        self._last_key = b""
        self._is_too_many = False

    def add(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Adds rows after those that came before."""
        for key, value in changes.items():
            if not self._is_too_many and (not self._files or key <= self._last_key):
                self._begin()
            if self._is_too_many:
                return
            self._files[-1].add(key, value)
            self._last_key = key

    def finish(self) -> list[RowsFile] | None:
        """The files, in order; None if there would be too many. Raises DiskFull."""
        if self._is_too_many:
            return None
        if self._files:
            self._files[-1].finish()
        return self._files

    def remove(self) -> None:
        """Gives the files up."""
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
