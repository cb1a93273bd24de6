"""Fragments on a member's disk: written as they are read from the log, read when they are executed.

The rule it keeps: a fragment is written before anything that refers to it, and removed with the
last reference: the state's set of it, the commit of its transaction, or the file of the binary log
that has it. What a crash leaves beside that is removed at the next start.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import xxhash
import zstandard

from ...applier.queue.fragment_references import DIGEST_BYTES, FragmentSet, is_reference
from ...applier.queue.job import CommitGroup
from ...applier.queue.relay_group import RelayEntry, payloads_of
from ...applier.queue.target_progress import Checkpoint
from ...applier.targets.rocksdb import RowChanges, Rows
from ...certifier.errors import CorruptStore, InvalidWriteSet
from ...certifier.storage.store import Batch, Family, Store, integer_key
from ..core.fragment_sets import SetName
from ..core.log_records import Fragment
from ..wire.pieces import RowReader

COMPRESSION_LEVEL = 1
PIECE_BYTES_MAX = 8 << 20
"""Bytes of a piece before compression; no call and no message of the log takes a larger one."""
_KEPT = b"fragments of file "
_KEPT_END = b"fragments of file!"


def compress(piece: bytes) -> bytes:
    """Returns a piece as it is in the log and on disk, with a checksum of its own."""
    return zstandard.ZstdCompressor(COMPRESSION_LEVEL, write_checksum=True).compress(piece)


class FragmentStore:
    """The fragments of one member."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, fragments: Sequence[tuple[int, Fragment]]) -> None:
        """Stores fragments; writing one again changes nothing."""
        if fragments:
            batch = self._store.batch()
            for incarnation, (number, index, data) in fragments:
                batch.put(Family.FRAGMENTS, fragment_key(incarnation, number, index), data)
            self._store.write(batch)

    def pieces(self, payload: bytes) -> Iterator[bytes]:
        """Yields the pieces that a payload refers to.

        Raises CorruptStore if they are not what was sent; at the end, if their digest differs.
        """
        fragments = FragmentSet.of(payload)
        digest = Digest(*fragments[:2])
        for place in range(fragments.pieces):
            piece = self.piece(fragments[:2], place)
            digest.add(piece)
            yield piece
        self.check(fragments, digest)

    def piece(self, name: SetName, place: int) -> bytes:
        """Returns one piece. Raises CorruptStore if it is not there, or not what was sent."""
        piece = self.piece_if_there(name, place)
        if piece is None:
            raise self.corrupt(name, f"fragment {place} is missing")
        return piece

    def piece_if_there(self, name: SetName, place: int) -> bytes | None:
        """Returns one piece, or None. Raises CorruptStore if it is not what was sent."""
        data = self._store.get(Family.FRAGMENTS, fragment_key(*name, place))
        try:
            return None if data is None else zstandard.decompress(data, PIECE_BYTES_MAX)
        except zstandard.ZstdError as error:
            raise self.corrupt(name, f"fragment {place}: {error}") from error

    def check(self, fragments: FragmentSet, digest: "Digest") -> None:
        """Raises CorruptStore if the pieces that were read are not those of a set."""
        if digest.reference() != fragments.reference():
            raise self.corrupt(fragments[:2], f"{digest.bytes} bytes with another digest")

    def rows(self, payload: bytes) -> Iterator[Rows]:
        """Yields the rows that a payload refers to, piece by piece. Raises as `pieces` does."""
        reader = RowReader()
        try:
            for piece in self.pieces(payload):
                yield reader.read(piece)
            reader.end()
        except InvalidWriteSet as error:
            raise self.corrupt(FragmentSet.of(payload)[:2], str(error)) from error

    def discard(self, batch: Batch, group: CommitGroup[RowChanges], checkpoint: Checkpoint) -> None:
        """Adds to the batch of a commit the removal of fragments that are not needed after it: for
        a member without a binary log.
        """
        del checkpoint
        drop(batch, names_of(chain.from_iterable(payloads_of(job.entries) for job in group.jobs)))

    def discard_executed(self, entries: Sequence[RelayEntry], position: int) -> list[SetName]:
        """Removes the sets of entries up to `position`, which an earlier process has executed: they
        were read from the log again. Returns these sets.
        """
        executed = (entry.payload for entry in entries if entry.position <= position)
        if names := names_of(executed):
            batch = self._store.batch()
            drop(batch, set(names) - set(self._kept()))
            self._store.write(batch)
        return names

    def remove_strangers(self, open_sets: Iterable[SetName], payloads: Iterable[bytes]) -> int:
        """Removes the fragments that neither the state, nor the relay queue's `payloads`, nor the
        binary log refers to; returns of how many sets. Called at a start. Cost: O(sets).
        """
        known = {*open_sets, *names_of(payloads), *self._kept()}
        strangers: list[SetName] = []
        start = b""
        while found := next(self._store.scan(Family.FRAGMENTS, start), None):
            name = _name_of(found[0])
            if name not in known:
                strangers.append(name)
            start = _end(name)
        if strangers:
            batch = self._store.batch()
            drop(batch, strangers)
            self._store.write(batch)
        return len(strangers)

    def _kept(self) -> Iterator[SetName]:
        """Yields the sets that files of the binary log refer to."""
        for key, _ in self._store.scan(Family.META, _KEPT):
            if key >= _KEPT_END:
                return
            yield _name_of(key[len(_KEPT) + 8 :])

    def corrupt(self, name: SetName, problem: str) -> CorruptStore:
        """Returns the error for a set that is not what was sent."""
        text = f"large transaction {name[0]:016x}/{name[1]}: {problem}"
        return CorruptStore(path=str(self._store.path), problem=text)


def names_of(payloads: Iterable[bytes]) -> list[SetName]:
    """Returns the sets that payloads refer to."""
    return [FragmentSet.of(payload)[:2] for payload in payloads if is_reference(payload)]


def drop(batch: Batch, names: Iterable[SetName]) -> None:
    """Adds the removal of sets to a batch."""
    for name in names:
        batch.delete_range(Family.FRAGMENTS, fragment_key(*name, 0), _end(name))


def keep(batch: Batch, file: int, names: Iterable[SetName]) -> None:
    """Adds to a batch that a file of the binary log refers to sets."""
    for name in names:
        batch.put(Family.META, _KEPT + integer_key(file) + fragment_key(*name, 0)[:-8], b"")


def drop_kept(store: Store, batch: Batch, first_file: int) -> None:
    """Adds to a batch the removal of sets that only files before `first_file` refer to."""
    end = _KEPT + integer_key(first_file)
    for key, _ in store.scan(Family.META, _KEPT):
        if key >= end:
            return
        batch.delete(Family.META, key)
        drop(batch, [_name_of(key[len(_KEPT) + 8 :])])


class Digest:
    """Digest, count and size of a large transaction's pieces."""

    def __init__(self, incarnation: int, number: int) -> None:
        self._name = incarnation, number
        self._sum = xxhash.xxh3_128()
        self.count = 0
        self.bytes = 0

    def add(self, piece: bytes) -> None:
        """Takes the next piece."""
        self._sum.update(piece)
        self.count += 1
        self.bytes += len(piece)

    def reference(self) -> bytes:
        """Returns the payload that stands for all pieces."""
        digest = self._sum.digest()
        assert len(digest) == DIGEST_BYTES
        return FragmentSet(*self._name, self.count, self.bytes, digest).reference()


def fragment_key(incarnation: int, number: int, index: int) -> bytes:
    """Returns the key of a fragment in a store."""
    return integer_key(incarnation) + integer_key(number) + integer_key(index)


def _end(name: SetName) -> bytes:
    incarnation, number = name
    return fragment_key(incarnation, number + 1, 0)


def _name_of(key: bytes) -> SetName:
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:16], "big")
