"""A store that is only read: nothing in its folder is written, not even a note of RocksDB's own.

Somebody who looks at the store of a member that is down, or at a copy on a read-only file system,
must leave it as it is: it may be the last one that has something.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rocksdict import AccessType, Rdict

from .rocksdb_errors import explained
from .store import (
    ROCKSDB_FOLDER,
    Family,
    open_families,
    scan_whole,
)


class Reads(Protocol):
    """The reading that a store and a `StoreReader` have in common."""

    path: Path

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Returns the value of a key; None if the family does not have it."""
        ...

    def scan(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values of a family from `start` on, in byte order."""
        ...


class StoreReader:
    """Reads the families of a store that no process has open; see `reading`."""

    def __init__(self, path: Path, families: dict[Family, Rdict]) -> None:
        self.path = path
        self._families = families

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Returns the value of a key; None if the family does not have it.

        Raises CorruptStore: it cannot be read.
        """
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:
            raise explained(self.path, error) from error
        return value

    def scan(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values of a family from `start` on, in byte order.

        Raises CorruptStore: they cannot be read.
        """
        return scan_whole(self._families[family], start, self.path)


@contextmanager
def reading(path: Path) -> Iterator[StoreReader]:
    """Yields a store for reading, as it is at the beginning of the block.

    RocksDB and rocksdict write notes where they open a store: that is another folder here, with
    links to the files.

    Raises:
        CorruptStore: RocksDB cannot read it.
    """
    with tempfile.TemporaryDirectory(prefix="groupcert-") as other:
        links = Path(other) / ROCKSDB_FOLDER
        links.mkdir()
        for file in (path / ROCKSDB_FOLDER).glob("*"):
            if file.suffix == ".json":  # rocksdict writes it again at each start.
                shutil.copyfile(file, links / file.name)
            else:
                (links / file.name).symlink_to(file.absolute())
        rdict = open_families(Path(other), AccessType.read_only(False))
        families = {family: rdict.get_column_family(family.value) for family in Family}
        families[Family.META] = rdict
        try:
            yield StoreReader(path, families)
        finally:
            families.clear()
            rdict.close()
