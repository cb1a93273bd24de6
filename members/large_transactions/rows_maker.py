"""Makes files of the rows of large transactions while their fragments still come in.

The rule it keeps: it only works ahead. The executor of a transaction takes the files made by then,
and makes and checks the rest; if there are none, it begins at the first fragment.
"""

import threading
from collections.abc import Iterable
from itertools import count
from queue import SimpleQueue

from ...applier.queue.fragment_references import FragmentSet
from ...applier.targets.ingested_files import RowsFiles
from ...applier.targets.rocksdb import changes_of
from ...certifier.errors import InvalidWriteSet
from ...certifier.storage.store import RowsFile, Store
from ..core.effects import Delivered
from ..core.fragment_sets import SetName
from ..wire.pieces import RowReader
from .fragment_store import Digest, FragmentStore


class _Making:
    """The files made of one set."""

    def __init__(self, store: Store, name: SetName, serial: int) -> None:
        """Makes files of set `name`; `serial` is unique in a process, as a set may come twice."""
        incarnation, number = name
        self.lock = threading.Lock()
        self.digest = Digest(incarnation, number)
        self.files = RowsFiles(store, f"{incarnation:016x}-{number}-{serial}")
        self._reader = RowReader()

    def add(self, piece: bytes) -> None:
        """Takes the next piece."""
        self.files.add(changes_of(self._reader.read(piece)))
        self.digest.add(piece)

    def end(self) -> None:
        """Finishes the files after the last piece."""
        self._reader.end()

    def remove(self) -> None:
        """Deletes the files."""
        with self.lock:
            self.files.remove()


class RowsMaker:
    """One thread for all open sets; `make` may be called on any thread."""

    def __init__(self, store: Store, fragments: FragmentStore) -> None:
        self._store = store
        self._fragments = fragments
        self._making: dict[SetName, _Making] = {}
        self._serials = count()
        self._lock = threading.Lock()
        self._arrived: SimpleQueue[SetName | _Making | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Removes what an earlier process made, and begins to make files; `stop` has to follow."""
        self._store.remove_rows_files()
        self._thread = threading.Thread(target=self._run, name="rows-maker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops working ahead."""
        if self._thread:
            self._arrived.put(None)
            self._thread.join()
            self._thread = None

    def take_in(self, delivered: Delivered, executed_position: int) -> None:
        """Stores the fragments of messages, and makes files of them ahead. Removes those of entries
        up to `executed_position`, which an earlier process has executed.
        """
        self._fragments.write(delivered.fragments)
        self.arrived({(run, fragment.number) for run, fragment in delivered.fragments})
        self.forget(delivered.dropped)
        self.forget(self._fragments.discard_executed(delivered.entries, executed_position))

    def arrived(self, names: Iterable[SetName]) -> None:
        """Makes files of sets that were not executed and whose fragments are stored."""
        for name in names if self._thread else ():
            with self._lock:
                if name not in self._making:
                    self._making[name] = self._begin(name)
            self._arrived.put(name)

    def forget(self, names: Iterable[SetName]) -> None:
        """Drops the files of sets that will not be executed. The thread deletes them: it may hold
        one, and a disk may be slow.
        """
        for name in names:
            if making := self._take(name):
                if self._thread:
                    self._arrived.put(making)
                else:
                    making.remove()

    def make(self, payload: bytes) -> list[RowsFile] | None:
        """Returns the files of the rows that a payload refers to; None if the rows are not sorted.

        Raises CorruptStore if they are not what was sent.
        """
        fragments = FragmentSet.of(payload)
        name = fragments[:2]
        making = self._take(name) or self._begin(name)
        with making.lock:
            try:
                for place in range(making.digest.count, fragments.pieces):
                    making.add(self._fragments.piece(name, place))
                making.end()
            except InvalidWriteSet as error:
                raise self._fragments.corrupt(name, str(error)) from error
            self._fragments.check(fragments, making.digest)
            return making.files.finish()

    def _begin(self, name: SetName) -> _Making:
        return _Making(self._store, name, next(self._serials))

    def _take(self, name: SetName) -> _Making | None:
        with self._lock:
            return self._making.pop(name, None)

    def _run(self) -> None:
        while arrived := self._arrived.get():
            if isinstance(arrived, _Making):
                arrived.remove()
                continue
            try:
                while self._makes_more(arrived):
                    pass
            except Exception:
                self.forget([arrived])  # The executor begins anew, and raises the same error.

    def _makes_more(self, name: SetName) -> bool:
        """Takes the next piece of a set, if it is there and the set is free; else returns False."""
        making = self._making.get(name)
        if making is None:
            return False
        with making.lock:
            if self._making.get(name) is not making:
                return False
            piece = self._fragments.piece_if_there(name, making.digest.count)
            if piece is not None:
                making.add(piece)
            return piece is not None
