"""Certification info: maps each write-set item to the version of its last certified writer.

First committer wins is decided from this map alone, in O(items of the transaction) whatever the
map's size. With a million items each lookup waits for memory. A dict makes it wait three or four
times (index, entry, key, value), for one item after the other. Here a bucket of eight items is a
line of the processor's cache, and the items of a whole message are looked up at once, so that their
waits overlap. An item that finds its bucket full goes into a dict, which stays small.

The table grows by linear hashing, a few buckets at a time: nobody waits while it grows, and as it
lies in arrays that are reserved and not yet used, nothing is moved.

Source: W. Litwin, "Linear hashing: a new tool for file and table addressing", VLDB 1980.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.uint64]
"""Items, or versions: uint64[n]."""

SLOTS: Final = 8
"""Items of a bucket: 64 bytes."""
LOAD: Final = 2
"""Items of a bucket, in the mean, above which the table grows: 1 of 300 finds its bucket full."""
FIRST_BUCKETS: Final = 1 << 9
BUCKETS_MAX: Final = 1 << 22
"""Buckets for which room is reserved; what no longer fits is in the dict."""
MARKS_A_BUCKET: Final = 64
"""A bucket that was full once is marked; after so many marks they are made anew."""
RECORDED_AT_ONCE: Final = 4_096
"""Items that a restart looks up at once."""
SPLIT_BUCKETS: Final = 64
"""Buckets that are split at a time."""
TOGETHER_MIN: Final = 32
"""Items from which on it is faster to look them up together."""


class LookUp(NamedTuple):
    """The items of a message, as they are in the table."""

    items: Items
    buckets: NDArray[np.intp]
    slots: Items
    """The contents of the slots of their buckets: uint64[n, SLOTS]."""
    there: NDArray[np.intp]
    """The items that are in their buckets, by index; `places`: their slots in the table."""
    places: NDArray[np.intp]
    writers: Items
    """The last writers; 0: the item is not known."""


class CertificationInfo:
    """Maps an item (unsigned 64-bit hash) to the version of the transaction that wrote it last."""

    __slots__ = (
        "_count",
        "_grow_above",
        "_key_slots",
        "_keys",
        "_level",
        "_marked",
        "_overflowed",
        "_spilled",
        "_split",
        "_writer_slots",
        "_writers",
    )

    _keys: NDArray[np.uint64]
    _writers: NDArray[np.uint64]
    _overflowed: NDArray[np.bool_]
    _grow_above: int

    def __init__(self) -> None:
        self._level, self._split = FIRST_BUCKETS, 0
        """Buckets when this round of splitting began, and how many of them are split."""
        self._count = self._marked = 0
        self._spilled: dict[int, int] = {}
        self._reserve(2 * FIRST_BUCKETS)

    def newest_writer(self, items: Sequence[int]) -> int:
        """Returns the largest version among the last writers of `items`; 0 if no item is known."""
        if len(items) >= TOGETHER_MIN:
            return int(self.look_up(np.array(items, np.uint64)).writers.max())
        newest, find, writers, spilled = 0, self._find, self._writer_slots, self._spilled
        for item in items:
            place, _ = find(item)
            if place >= 0 or spilled:
                writer = writers[place] if place >= 0 else spilled.get(item, 0)
                if writer > newest:
                    newest = writer
        return newest

    def writers(self, items: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yields each known item with the version of its last writer, in the order of `items`."""
        writers: Iterable[int] = map(self._writer, items)
        if len(items) >= TOGETHER_MIN:
            writers = self.look_up(np.array(items, np.uint64)).writers.tolist()
        return ((item, writer) for item, writer in zip(items, writers, strict=True) if writer)

    def record(self, items: Sequence[int], version: int) -> None:
        """Makes `version` the last writer of the items."""
        if len(items) >= TOGETHER_MIN:
            versions = np.full(len(items), version, np.uint64)
            self.record_versions(np.array(items, np.uint64), versions)
            return
        for item in items:
            place, free = self._find(item)
            if place >= 0:
                self._writer_slots[place] = version
                continue
            self._count += item not in self._spilled
            # It stays in the dict though its bucket may have room again: of an item in both, the
            # older writer could be found.
            if item in self._spilled or free < 0:
                self._spill(item, version)
            else:
                self._key_slots[free] = item
                self._writer_slots[free] = version
        if self._count > self._grow_above:
            self._grow()

    def look_up(self, items: Items) -> LookUp:
        """Looks up many items at once; what `record_all` takes has none that is 0. Cost: 0.1 µs an
        item, whatever the size of the table.
        """
        buckets = self._buckets_of(items)
        slots = self._keys.take(buckets, axis=0)
        hits = (slots == items[:, None]).reshape(-1).nonzero()[0]
        there = hits // SLOTS
        places = buckets[there] * SLOTS + hits % SLOTS
        writers = np.zeros(len(items), np.uint64)
        writers[there] = self._writers.reshape(-1)[places]
        if self._spilled:
            # Only an item of a marked bucket can be in the dict: the mark spares all others the
            # look-up.
            for index in (self._overflowed[buckets] & (writers == 0)).nonzero()[0].tolist():
                writers[index] = self._spilled.get(int(items[index]), 0)
        return LookUp(items, buckets, slots, there, places, writers)

    def record_all(self, found: LookUp, versions: Items) -> None:
        """Makes each of `versions` the last writer of an item that was looked up, each of them
        once, since the last change.
        """
        items, buckets, slots, there, known_places, known_writers = found
        keys, writers = self._keys.reshape(-1), self._writers.reshape(-1)
        writers[known_places] = versions[there]
        # More items have a writer than are in buckets: the others are in the dict.
        if len(there) < np.count_nonzero(known_writers):
            self._record_spilled(found, versions)
        new = (known_writers == 0).nonzero()[0]
        self._count += len(new)
        slots = slots[new]
        while len(new):
            places = buckets[new] * SLOTS + (slots == 0).argmax(axis=1)
            # Without a free slot `argmax` gives slot 0, which is taken then.
            is_full = keys[places] > 0
            if is_full.any():
                for index in new[is_full].tolist():
                    self._spill(int(items[index]), int(versions[index]))
                new, places = new[~is_full], places[~is_full]
            keys[places] = items[new]
            writers[places] = versions[new]
            new = new[keys[places] != items[new]]  # Another one took the same slot.
            slots = self._keys.take(buckets[new], axis=0)
        self._grow()

    def record_versions(self, items: Items, versions: Items) -> None:
        """Records items of any number of transactions, each with its version, in their order."""
        for begin in range(0, len(items), RECORDED_AT_ONCE):
            # Reversed, so that `unique`, which keeps the first of equal items, keeps its last
            # writer.
            part = items[begin : begin + RECORDED_AT_ONCE][::-1]
            of_part = versions[begin : begin + RECORDED_AT_ONCE][::-1]
            known, newest = np.unique(part, return_index=True)
            # `record_all` takes no 0, which stands for a free slot.
            if known[0] == 0:
                self.record([0], int(of_part[newest[0]]))
                known, newest = known[1:], newest[1:]
            self.record_all(self.look_up(known), of_part[newest])

    def purge(self, items: Sequence[int], last: int) -> list[int]:
        """Removes the items last written at or before version `last`; returns these writers'
        versions, one for each removed item.
        """
        keys, writers = self._keys.reshape(-1), self._writers.reshape(-1)
        places = self._places_of(np.asarray(items, np.uint64))
        places = places[writers[places] - np.uint64(1) < last]  # A free slot has writer 0.
        places.sort()
        # Several of the purged versions may have written an item: it is removed, and counted, once.
        places = np.concatenate((places[:1], places[1:][places[1:] > places[:-1]]))
        purged: list[int] = writers[places].tolist()
        keys[places] = writers[places] = 0
        if self._spilled:
            spilled = [item for item in self._spilled.keys() & set(items)]
            old = [item for item in spilled if self._spilled[item] <= last]
            purged += map(self._spilled.pop, old)
        self._count -= len(purged)
        return purged

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yields all items with their last writers, in an order that means nothing."""
        used = self._level + self._split
        keys, writers = self._keys[:used].reshape(-1), self._writers[:used].reshape(-1)
        places = keys.nonzero()[0]
        yield from zip(keys[places].tolist(), writers[places].tolist(), strict=True)
        yield from self._spilled.items()

    def __len__(self) -> int:
        """Returns the number of items."""
        return self._count

    def _writer(self, item: int) -> int:
        """Returns the version of an item's last writer; 0 if it is not known."""
        place, _ = self._find(item)
        return self._writer_slots[place] if place >= 0 else self._spilled.get(item, 0)

    def _find(self, item: int) -> tuple[int, int]:
        """Returns the slot of an item, or -1, and a free slot of its bucket, or -1."""
        # One bit more than the round began with; buckets that are not split yet have one bit less.
        bucket = item & (2 * self._level - 1)
        if bucket >= self._level + self._split:
            bucket &= self._level - 1
        start = bucket * SLOTS
        slots = self._key_slots[start : start + SLOTS].tolist()
        # The item 0 looks like a free slot. It is always in the dict.
        if item in slots and item:
            return start + slots.index(item), -1
        return -1, start + slots.index(0) if 0 in slots and item else -1

    def _places_of(self, items: Items) -> NDArray[np.intp]:
        """Returns the slots of those items that are in their buckets."""
        buckets = self._buckets_of(items)
        hits = (self._keys.take(buckets, axis=0) == items[:, None]).reshape(-1).nonzero()[0]
        places: NDArray[np.intp] = buckets[hits // SLOTS] * SLOTS + hits % SLOTS
        return places

    def _record_spilled(self, found: LookUp, versions: Items) -> None:
        """Records those items of a message that are in the dict."""
        spilled = found.writers > 0
        spilled[found.there] = False
        for index in spilled.nonzero()[0].tolist():
            self._spilled[int(found.items[index])] = int(versions[index])

    def _buckets_of(self, items: Items) -> NDArray[np.intp]:
        buckets = (items & np.uint64(2 * self._level - 1)).astype(np.intp)
        unused = buckets >= self._level + self._split
        if unused.any():
            buckets[unused] &= self._level - 1
        return buckets

    def _spill(self, item: int, version: int) -> None:
        """Records an item in the dict, because its bucket is full or was so."""
        self._spilled[item] = version
        self._overflowed[self._buckets_of(np.array([item], np.uint64))] = True
        self._marked += 1
        # A mark stays when its item is purged, as other items of the bucket may be in the dict. So
        # marks only gather, and are made anew from what the dict has.
        if self._marked > self._level // MARKS_A_BUCKET:
            self._overflowed[: self._level + self._split] = False
            self._overflowed[self._buckets_of(np.array([*self._spilled], np.uint64))] = True
            self._marked = len(self._spilled) // 2

    def _grow(self) -> None:
        """Splits buckets while there are too many items for them."""
        while self._count > self._grow_above:
            count = min(SPLIT_BUCKETS, self._level - self._split)
            if self._level + self._split + count > len(self._keys):
                if len(self._keys) >= BUCKETS_MAX:
                    return
                # All that there may ever be, at once: what is not written to takes no memory, and
                # only the small first table is copied.
                self._reserve(BUCKETS_MAX)
            old = slice(self._split, self._split + count)
            new = slice(self._level + old.start, self._level + old.stop)
            # The next bit of the item decides; a free slot has none and stays.
            moves = (self._keys[old] & np.uint64(self._level)) > 0
            for table in (self._keys, self._writers):
                table[new][moves] = table[old][moves]
                table[old][moves] = 0
            # Its items in the dict may belong to either half now, so both have the mark.
            self._overflowed[new] = self._overflowed[old]
            self._split += count
            if self._split == self._level:
                self._level, self._split = 2 * self._level, 0
            self._grow_above = LOAD * (self._level + self._split)

    def _reserve(self, buckets: int) -> None:
        """Makes room for so many buckets: the system gives it memory where it is written to."""
        keys = np.zeros((buckets, SLOTS), np.uint64)
        writers = np.zeros((buckets, SLOTS), np.uint64)
        overflowed = np.zeros(buckets, bool)
        if self._count:
            keys[: len(self._keys)] = self._keys
            writers[: len(self._writers)] = self._writers
            overflowed[: len(self._overflowed)] = self._overflowed
        self._keys, self._writers, self._overflowed = keys, writers, overflowed
        # A view as `memoryview`, which gives plain integers: numpy makes an object of its own of
        # each number that is read alone.
        self._key_slots = keys.reshape(-1).data
        self._writer_slots = writers.reshape(-1).data
        self._grow_above = LOAD * (self._level + self._split)

    def check_invariants(self) -> None:
        """Asserts that each item is in its bucket or in the dict, and has a version."""
        used = self._level + self._split
        assert 0 <= self._split < self._level
        assert not self._keys[used:].any()
        keys, writers = self._keys.reshape(-1), self._writers.reshape(-1)
        places = keys.nonzero()[0]
        assert ((keys > 0) == (writers > 0)).all()
        assert (self._buckets_of(keys[places]) == places // SLOTS).all()
        assert len(places) + len(self._spilled) == self._count
        for item, writer in self._spilled.items():
            assert writer > 0
            assert self._overflowed[self._buckets_of(np.array([item], np.uint64))].all()
            assert self._find(item)[0] < 0, "in both"
