"""The certifier's state in the member's store, in one batch with everything that must agree with
it.
"""

import json
from collections import deque

from ..certified_window import SEGMENT_TRANSACTIONS, CertifiedWindow
from ..certifier_state import dump, restore
from ..core import Certifier
from ..errors import CorruptStore
from .reading import Reads
from .store import Batch, Family, integer_key


class CertificationInfoStore:
    """Stores the certifier's state: a checkpoint, and the certified transactions not collected yet.

    The map from items to writers is not stored: it is rebuilt from the window's
    write sets, read in order. So a batch costs one write whatever the number of items, and a
    collection deletes the pieces that it passed.
    """

    CHECKPOINT_KEY = b"certifier"

    def __init__(self, store: Reads, certifier: Certifier) -> None:
        self._store = store
        self.certifier = certifier
        self._saved_version = 0
        self._piece_versions: deque[int] = deque()

    def save(self, batch: Batch) -> None:
        """Adds the certifier's decisions and collections since the last call to the batch."""
        window = self.certifier.window
        for first, rows in window.dump(max(self._saved_version + 1, window.first_version)):
            batch.put(Family.CERTIFICATION, integer_key(first), _piece(window, first, rows))
            self._piece_versions.append(first)
        self._saved_version = window.newest_version
        self._delete_collected(batch, window.first_version)
        checkpoint = json.dumps(dump(self.certifier), separators=(",", ":"))
        batch.put(Family.META, self.CHECKPOINT_KEY, checkpoint.encode())

    def load(self) -> bool:
        """Restores the saved state into a new certifier; returns False if there is none.

        Raises:
            CorruptStore: some of the state is not there.

        Cost: O(items in the window); about 0.5 s a million.
        """
        saved = self._store.get(Family.META, self.CHECKPOINT_KEY)
        if saved is None:
            return False
        pieces = []
        for key, piece in self._store.scan(Family.CERTIFICATION):
            first_version = int.from_bytes(key, "big")
            self._piece_versions.append(first_version)
            pieces.append((first_version, *_rows_and_sets(piece)))
        try:
            restore(self.certifier, json.loads(saved), pieces)
        except ValueError as error:
            raise CorruptStore(path=str(self._store.path), problem=str(error)) from error
        self._saved_version = self.certifier.window.newest_version
        return True

    def _delete_collected(self, batch: Batch, first_version: int) -> None:
        """Deletes the pieces whose successor starts at `first_version` or before, and the last
        piece if nothing is left.
        """
        versions = self._piece_versions
        while len(versions) > 1 and versions[1] <= first_version:
            batch.delete(Family.CERTIFICATION, integer_key(versions.popleft()))
        if versions and self._saved_version < first_version:
            batch.delete(Family.CERTIFICATION, integer_key(versions.popleft()))


def _piece(window: CertifiedWindow, first_version: int, rows: bytes) -> bytes:
    """Returns a piece as it is stored: the rows' length, the rows, and the GTID sets of its
    versions, if any has one.
    """
    last_version = min(window.newest_version, first_version | SEGMENT_TRANSACTIONS - 1)
    versions = range(first_version, last_version + 1)
    sets = {
        name: {version: str(found[version]) for version in versions if version in found}
        for name, found in (("read", window.snapshot_sets), ("elsewhere", window.elsewhere))
    }
    tail = json.dumps(sets).encode() if any(sets.values()) else b""
    return len(rows).to_bytes(4, "little") + rows + tail


def _rows_and_sets(piece: bytes) -> tuple[bytes, dict[str, dict[str, str]]]:
    length = 4 + int.from_bytes(piece[:4], "little")
    return piece[4:length], json.loads(piece[length:]) if len(piece) > length else {}
