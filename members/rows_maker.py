"""Makes files of the rows of large transactions while their fragments still come in.

The rule it keeps: it is only ahead. Whoever executes a transaction takes what is made by then, and
makes and checks the rest; what it does not find it makes from the first fragment on.
"""

import threading
from collections.abc import Iterable
from itertools import count
from queue import SimpleQueue

from applier.fragments import FragmentSet
from applier.targets.rocksdb import changes_of
from applier.targets.rows_files import RowsFiles
from certifier.errors import InvalidWriteSet
from certifier.store import RowsFile, Store
from members.fragment_sets import SetName
from members.fragment_store import Digest, FragmentStore
from members.large_changes import RowReader
from members.member_state import Delivered


class _Making:
    """What is made of one set."""

    def __init__(self, store: Store, name: SetName, serial: int) -> None:
        """`serial`: of this process; files of a set that comes twice must not be the same."""
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
        """That was the last one."""
        self._reader.end()


class RowsMaker:
    """One thread for all open sets; `make` is for any."""

    def __init__(self, store: Store, fragments: FragmentStore) -> None:
        self._store = store
        self._fragments = fragments
        self._making: dict[SetName, _Making] = {}
        self._serials = count()
        self._lock = threading.Lock()
        self._arrived: SimpleQueue[SetName | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Removes what an earlier process made, and begins to make files; `stop` has to follow."""
        self._store.remove_rows_files()
        self._thread = threading.Thread(target=self._run, name="rows-maker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Makes nothing ahead any more."""
        if self._thread:
            self._arrived.put(None)
            self._thread.join()
            self._thread = None

    def take_in(self, delivered: Delivered, executed_position: int) -> None:
        """Stores the fragments of messages, and makes files of them ahead. What belongs to entries
        up to `executed_position`, which an earlier process has executed, goes.
        """
        self._fragments.write(delivered.fragments)
        self.arrived({(run, fragment.number) for run, fragment in delivered.fragments})
        self.forget(delivered.dropped)
        self.forget(self._fragments.discard_executed(delivered.entries, executed_position))

    def arrived(self, names: Iterable[SetName]) -> None:
        """Fragments of sets that were not executed are stored."""
        for name in names if self._thread else ():
            with self._lock:
                if name not in self._making:
                    self._making[name] = self._begin(name)
            self._arrived.put(name)

    def forget(self, names: Iterable[SetName]) -> None:
        """Nobody will ask for some sets."""
        for name in names:
            if making := self._take(name):
                with making.lock:
                    making.files.remove()

    def make(self, payload: bytes) -> list[RowsFile] | None:
        """The files of the rows that a payload refers to; None if they are in no order.

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
        while name := self._arrived.get():
            try:
                while self._makes_more(name):
                    pass
            except Exception:
                self.forget([name])  # Who executes it begins anew, meets the same, and says so.

    def _makes_more(self, name: SetName) -> bool:
        """Takes the next piece of a set, if it is there and nobody has taken the set."""
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
