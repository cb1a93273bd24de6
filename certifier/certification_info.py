"""Certification info: each write-set item and the version of its last certified writer.

The rule it keeps: first committer wins is decided from this map alone, at O(items) whatever its
size. It is split into shards, so that when a hash table has to grow, one shard's worth is moved and
not five million entries.
"""

from collections.abc import Iterable, Iterator

SHARDS = 256
_SHARD_MASK = SHARDS - 1


class CertificationInfo:
    """Item (unsigned 64-bit hash) to the version of the transaction that wrote it last."""

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: tuple[dict[int, int], ...] = tuple({} for _ in range(SHARDS))

    def newest_writer(self, items: Iterable[int]) -> int:
        """The largest version among the items' last writers; 0 where none of them is known."""
        shards = self._shards
        newest = 0
        for item in items:
            writer = shards[item & _SHARD_MASK].get(item, 0)
            if writer > newest:
                newest = writer
        return newest

    def writers(self, items: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Each known item with the version of its last writer, in the items' order."""
        for item in items:
            writer = self._shards[item & _SHARD_MASK].get(item, 0)
            if writer:
                yield item, writer

    def record(self, items: Iterable[int], version: int) -> None:
        """Makes `version` the last writer of the items."""
        shards = self._shards
        for item in items:
            shards[item & _SHARD_MASK][item] = version

    def purge(self, items: Iterable[int], last: int) -> list[int]:
        """Forgets those of the items that were last written by versions up to `last`, and returns
        these versions, one for each item.
        """
        shards, newer = self._shards, last + 1
        purged = []
        for item in items:
            shard = shards[item & _SHARD_MASK]
            writer = shard.get(item, newer)
            if writer <= last:
                del shard[item]
                purged.append(writer)
        return purged

    def entries(self) -> Iterator[tuple[int, int]]:
        """All items with their last writers, in no order that means anything."""
        for shard in self._shards:
            yield from shard.items()

    def __len__(self) -> int:
        """The number of items. Cost: O(shards)."""
        return sum(map(len, self._shards))

    def check_invariants(self) -> None:
        """Each item lies in its shard, and its writer is a version."""
        for number, shard in enumerate(self._shards):
            for item, writer in shard.items():
                assert item & _SHARD_MASK == number
                assert 0 <= item < 1 << 64
                assert writer > 0
