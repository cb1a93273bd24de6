"""Digests a member's rows as of a comparison's position, beside everything else that it does.

The rule it keeps: the snapshot is taken by the thread that has committed what comes before, while
nothing after it is visible; reading it takes as long as the rate says, and holds nobody up. So all
members digest the same rows, whatever they apply meanwhile.
"""

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from ..core.log_records import RANGE_BYTES, RANGES, RowDigests
from ..errors.membership import NotComparable

ROW_BYTES = 100
"""Bytes that each row counts for beside its own: digesting a small one takes as long."""
BYTES_PER_SECOND = 16 << 20
"""Bytes of rows that an ONLINE member reads a second: a twentieth of a processor, where rows have
100 bytes."""
PAUSE_BYTES = 64 << 10
"""Bytes between two pauses: at full speed less than a millisecond of work."""
KEPT_SECONDS = 900.0
"""How long the rows of a comparison can be read again."""
PAGE_ROWS, PAGE_KEY_BYTES, PAGE_SCANNED = 1_000, 512 << 10, 50_000
"""Rows of a page, bytes of keys after which it ends, and rows that are looked through for it."""
_RANGE_SHIFT, _DIGEST_MASK = 56, (1 << 64) - 1


class Rows(Protocol):
    """Rows as they were at a position, whatever is committed later; for one thread."""

    def scan(self, start: bytes = b"", /) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values from the key `start` on, or from behind a key: that with a zero
        byte. The order of keys is always the same.
        """

    def close(self) -> None:
        """Lets go of them."""


class ComparedRow(NamedTuple):
    """A row of a comparison, without its value."""

    key: bytes
    digest: int


def key_hash(key: bytes) -> int:
    """Returns the hash of a key, of which the highest 8 bits are its range. `log.proto` says what
    members make of the rows.
    """
    return xxh3_64_intdigest(key)


def digest_in_steps(position: int, rows: Rows) -> Generator[int, None, RowDigests]:
    """Returns the digests of all rows; yields after some of them how many bytes it has read."""
    sums, count, read_bytes = [0] * RANGES, 0, 0
    for key, value in rows.scan():
        hashed = xxh3_64_intdigest(key)
        sums[hashed >> _RANGE_SHIFT] += xxh3_64_intdigest(value, hashed)
        count += 1
        read_bytes += ROW_BYTES + len(key) + len(value)
        if read_bytes > PAUSE_BYTES:
            yield read_bytes
            read_bytes = 0
    digests = ((each & _DIGEST_MASK).to_bytes(RANGE_BYTES, "little") for each in sums)
    return RowDigests(position, count, b"".join(digests))


class RowComparison:
    """The comparison that one run takes part in, and the rows that it has compared."""

    def __init__(
        self,
        open_rows: Callable[[], Rows],
        bytes_per_second: Callable[[], int],
        on_digested: Callable[[RowDigests], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Begins without a comparison; the callbacks are called on a thread of its own.

        Args:
            bytes_per_second: How fast rows may be read now; 0: as fast as they can be.
        """
        self._open_rows = open_rows
        self._bytes_per_second = bytes_per_second
        self._on_digested = on_digested
        self._on_error = on_error
        self._is_stopped = False
        self._woken = threading.Event()
        self._thread = ThreadPoolExecutor(1, "comparison")
        self._expected = -1
        self._position = 0
        self._rows: Rows | None = None
        self._kept_until = 0.0

    def expect(self, position: int) -> None:
        """Takes part in the comparison at `position`, once all before it is committed."""
        self._expected = position

    def committed(self, position: int) -> None:
        """Takes the rows if this is where they are compared; for the thread that has committed, and
        before anything after it is.
        """
        if position == self._expected:
            self._expected = -1
            self._position = position
            self._woken.set()
            self._submit(self._digest, position, self._open_rows())

    def read(
        self, position: int, ranges: Collection[int], start: bytes
    ) -> "Future[tuple[list[ComparedRow], bytes | None]]":
        """Returns the rows in some ranges from key `start` on, and where to go on, None at the end.

        Raises:
            NotComparable: From the future, the rows of that comparison are not kept.
        """
        return self._thread.submit(self._page, position, ranges, start)

    def forget(self, *, is_settled: bool) -> None:
        """Lets go of the rows if all members have equal ones, or nobody has asked for too long:
        they keep on disk what was overwritten since.
        """
        if self._rows is not None and (is_settled or time.monotonic() >= self._kept_until):
            self._submit(self._drop)

    def stop(self) -> None:
        """Ends what runs, and releases the rows, which keep the store open."""
        self._is_stopped = True
        self._woken.set()
        self._thread.shutdown(cancel_futures=True)
        self._drop()

    def _submit(self, act: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # It was stopped.
            self._thread.submit(act, *arguments)

    def _drop(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _digest(self, position: int, rows: Rows) -> None:
        self._drop()
        self._rows, self._kept_until = rows, time.monotonic() + KEPT_SECONDS
        try:
            digests = self._digests(position, rows)
        except Exception as error:
            self._drop()
            self._on_error(error)
            return
        self._kept_until = time.monotonic() + KEPT_SECONDS
        if digests is not None:
            self._on_digested(digests)

    def _digests(self, position: int, rows: Rows) -> RowDigests | None:
        """Returns the digests of all rows; None if it was stopped, or another comparison began."""
        self._woken.clear()
        steps = digest_in_steps(position, rows)
        while True:
            try:
                read_bytes = next(steps)
            except StopIteration as end:
                digests: RowDigests = end.value
                return digests
            rate = self._bytes_per_second()
            if self._is_over(position) or (
                self._woken.wait(read_bytes / rate if rate else 0) and self._is_over(position)
            ):
                return None

    def _is_over(self, position: int) -> bool:
        return self._is_stopped or position != self._position

    def _page(
        self, position: int, ranges: Collection[int], start: bytes
    ) -> tuple[list[ComparedRow], bytes | None]:
        if position != self._position or self._rows is None:
            problem = f"those of the comparison at {position} are not kept: compare again"
            raise NotComparable(problem=problem)
        found: list[ComparedRow] = []
        key, key_bytes = start, 0
        for scanned, (key, value) in enumerate(self._rows.scan(start), 1):
            hashed = xxh3_64_intdigest(key)
            if hashed >> _RANGE_SHIFT in ranges:
                found.append(ComparedRow(key, xxh3_64_intdigest(value, hashed)))
                key_bytes += len(key)
            is_full = len(found) == PAGE_ROWS or key_bytes > PAGE_KEY_BYTES
            if is_full or scanned == PAGE_SCANNED:
                return found, key + b"\0"
        return found, None
