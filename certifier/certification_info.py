"""Certification info: each write-set item and the version of its last certified writer.

The rule it keeps: first committer wins is decided from this map alone, at O(items) whatever its
size. A collection costs nothing here: writers up to `collected_version` do not count any more, and
their entries are garbage from then on. Their memory comes back shard by shard, in `sweep`, at a
pace that keeps the garbage a fraction of the rest. The shards also bound what a growing hash table
moves at a time.
"""

from collections.abc import Iterable, Iterator, Sequence

SHARDS = 256
_SHARD_MASK = SHARDS - 1
_SHARD_BITS = 8
assert 1 << _SHARD_BITS == SHARDS

GARBAGE_PARTS = 4
"""Sweeping begins where garbage is more than one part in so many of what counts."""

SWEEP_ENTRIES_MAX = 4096
"""A call of `sweep` begins no further shard once it has looked at so many entries."""


class CertificationInfo:
    """Item (unsigned 64-bit hash) to the version of the transaction that wrote it last.

    An item's lowest bits name its shard and the others are its key there: an integer below 2^60
    takes 32 bytes, a larger one 48.
    """

    __slots__ = ("_entries", "_garbage", "_next_shard", "_shards", "collected_version")

    def __init__(self) -> None:
        self.collected_version = 0
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._entries = 0
        self._garbage = 0
        self._next_shard = 0

    def newest_writer(self, items: Iterable[int]) -> int:
        """The largest version among the items' last writers; at most `collected_version` where none
        of them counts.
        """
        shards = self._shards
        newest = 0
        for item in items:
            writer = shards[item & _SHARD_MASK].get(item >> _SHARD_BITS, 0)
            if writer > newest:
                newest = writer
        return newest

    def writers(self, items: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Each known item with the version of its last writer, in the items' order."""
        for item in items:
            writer = self._shards[item & _SHARD_MASK].get(item >> _SHARD_BITS, 0)
            if writer > self.collected_version:
                yield item, writer

    def record(self, items: Sequence[int], version: int) -> Sequence[int]:
        """Makes `version` the last writer of the items; returns those that it replaced, once for
        each item.
        """
        shards = self._shards
        replaced = []
        for item in items:
            shard = shards[item & _SHARD_MASK]
            key = item >> _SHARD_BITS
            if key in shard:
                replaced.append(shard[key])
            shard[key] = version
        self._entries += len(items) - len(replaced)
        return self._counting(replaced) if replaced else ()

    def collect(self, version: int, purged: int) -> None:
        """Makes all writers up to `version` count no more; they are the last ones of `purged`
        items. Cost: O(1).
        """
        assert version >= self.collected_version
        self.collected_version = version
        self._garbage += purged

    def remove(self, items: Iterable[int], version: int) -> int:
        """Removes those of the items that `version` wrote last, and returns how many those were."""
        removed = 0
        for item in items:
            shard = self._shards[item & _SHARD_MASK]
            key = item >> _SHARD_BITS
            if shard.get(key) == version:
                del shard[key]
                removed += 1
        self._entries -= removed
        return removed

    def sweep(self) -> bool:
        """Gives memory of garbage back if there is much of it; returns whether there was.

        Cost: O(SWEEP_ENTRIES_MAX + entries of a shard).
        """
        looked_at = 0
        while self._garbage * GARBAGE_PARTS > len(self) and looked_at < SWEEP_ENTRIES_MAX:
            looked_at += self._sweep_shard()
        return looked_at > 0

    def entries(self) -> Iterator[tuple[int, int]]:
        """All items with their last writers, in no order that means anything."""
        for number, shard in enumerate(self._shards):
            for key, writer in shard.items():
                if writer > self.collected_version:
                    yield key << _SHARD_BITS | number, writer

    def __len__(self) -> int:
        """The number of items. Cost: O(1)."""
        return self._entries - self._garbage

    def check_invariants(self) -> None:
        """Counts agree with the shards, and every writer is a version."""
        assert self._entries == sum(map(len, self._shards))
        assert len(self) == sum(1 for _ in self.entries())
        for shard in self._shards:
            for key, writer in shard.items():
                assert 0 <= key < 1 << 64 - _SHARD_BITS
                assert writer > 0

    def _counting(self, writers: Sequence[int]) -> Sequence[int]:
        """Those of replaced writers that counted; the others' entries are no garbage any more."""
        counting = [writer for writer in writers if writer > self.collected_version]
        self._garbage -= len(writers) - len(counting)
        return counting

    def _sweep_shard(self) -> int:
        """Copies what counts of the next shard: a copy has the right size, as a hash table that
        only loses entries has not. Returns the number of entries looked at.
        """
        collected = self.collected_version
        shard = self._shards[self._next_shard]
        kept = {key: writer for key, writer in shard.items() if writer > collected}
        self._shards[self._next_shard] = kept
        self._next_shard = (self._next_shard + 1) & _SHARD_MASK
        self._garbage -= len(shard) - len(kept)
        self._entries -= len(shard) - len(kept)
        return len(shard)
