"""Certification info: maps each write-set item to the version of its last certified writer.

First committer wins is decided from this map alone, in O(items of the transaction) whatever the
map's size. It is split into 256 shards: when a hash table has to grow, one shard's entries are
moved and not all of, say, five million.
"""

from collections.abc import Iterable, Iterator

SHARDS = 256
SHARD_MASK = SHARDS - 1


class CertificationInfo:
    """Maps an item (unsigned 64-bit hash) to the version of the transaction that wrote it last."""

    __slots__ = ("shards",)

    def __init__(self) -> None:
        self.shards: tuple[dict[int, int], ...] = tuple({} for _ in range(SHARDS))
        """Of each item the last writer, in shard `item & SHARD_MASK`."""

    def newest_writer(self, items: Iterable[int]) -> int:
        """Returns the largest version among the last writers of `items`; 0 if no item is known."""
        shards = self.shards
        newest = 0
        for item in items:
            writer = shards[item & SHARD_MASK].get(item, 0)
            if writer > newest:
                newest = writer
        return newest

    def writers(self, items: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yields each known item with the version of its last writer, in the order of `items`."""
        for item in items:
            writer = self.shards[item & SHARD_MASK].get(item, 0)
            if writer:
                yield item, writer

    def record(self, items: Iterable[int], version: int) -> None:
        """Makes `version` the last writer of the items."""
        shards = self.shards
        for item in items:
            shards[item & SHARD_MASK][item] = version

    def purge(self, items: Iterable[int], last: int) -> list[int]:
        """Removes the items last written at or before version `last`; returns these writers'
        versions, one for each removed item.
        """
        shards, newer = self.shards, last + 1
        purged = []
        for item in items:
            shard = shards[item & SHARD_MASK]
            writer = shard.get(item, newer)
            if writer <= last:
                del shard[item]
                purged.append(writer)
        return purged

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yields all items with their last writers, in an order that means nothing."""
        for shard in self.shards:
            yield from shard.items()

    def __len__(self) -> int:
        """Returns the number of items. Cost: O(shards)."""
        return sum(map(len, self.shards))

    def check_invariants(self) -> None:
        """Asserts that each item lies in its shard and that its writer is a version."""
        for number, shard in enumerate(self.shards):
            for item, writer in shard.items():
                assert item & SHARD_MASK == number
                assert 0 <= item < 1 << 64
                assert writer > 0
