"""The digest of a store's content without its identity: copies with equal digests are equal.

Every block of every column family is read, so that RocksDB checks its checksum. A block that cannot
be read raises CorruptStore; it never makes a shorter digest.
"""

from array import array
from collections.abc import Callable
from pathlib import Path

from xxhash import xxh3_128

from groupcert.certifier.storage.store import IDENTITY_KEY, Family, open_read_only, scan_whole

PAGE_ROWS = 4_096
PAGE_BYTES = 4 << 20
"""Limits of what is hashed at a time, and in memory at once."""


def content_digest(path: Path, on_rows: Callable[[int], None] = lambda rows: None) -> str:
    """Returns the digest, in hexadecimal, of a store that no process has open.

    Args:
        on_rows: called with the number of rows read since its last call.

    Raises:
        CorruptStore: some of it cannot be read.

    Cost: reads all; some million rows a second.
    """
    digest = xxh3_128()
    families = open_read_only(path)

    def fold(keys: list[bytes], values: list[bytes]) -> None:
        for column in (keys, values):
            digest.update(array("Q", [len(column), *map(len, column)]).tobytes())
            digest.update(b"".join(column))
        on_rows(len(keys))

    try:
        for family, rdict in families.items():
            digest.update(family.value.encode())
            keys: list[bytes] = []
            values: list[bytes] = []
            size = 0
            for key, value in scan_whole(rdict, b"", path):
                if family is Family.META and key == IDENTITY_KEY:
                    continue
                keys.append(key)
                values.append(value)
                size += len(value)
                if size >= PAGE_BYTES or len(keys) >= PAGE_ROWS:
                    fold(keys, values)
                    keys, values, size = [], [], 0
            fold(keys, values)
    finally:
        families.pop(Family.META).close()
    return digest.hexdigest()
