"""Takes large transactions in: cuts rows into fragments, as fast as the log takes them.

The rule it keeps: a client sends no faster than its fragments are read back, so that no more than a
few of them are in memory; and if a client ends before its transaction is decided, for any reason,
the group drops its fragments.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from ...certifier.errors import (
    GroupcertError,
    InvalidWriteSet,
    Overloaded,
    TransactionTooLarge,
)
from ..core.admission import check_space, takes_anything
from ..core.fragment_sets import SETS_MAX
from ..core.member import Member
from ..host.turns import Turns
from ..settings.member import MemberConfig
from ..wire.pieces import RowReader, split_payload
from .fragment_store import Digest, compress

PART_BYTES_MAX = 1 << 20
"""Bytes of a part that a client sends."""
AHEAD = 2
"""Fragments of a transaction that are handed in and not read back."""


class Uploads:
    """The large transactions that a member is taking in."""

    def __init__(
        self,
        member: Member,
        schedule: Callable[[], None],
        why_not: Callable[[], GroupcertError],
        config: MemberConfig,
    ) -> None:
        """Begins without uploads; `schedule` sends messages, `why_not` returns why it may not."""
        self.member = member
        self.schedule = schedule
        self.why_not = why_not
        self.fragment_bytes = config.fragment_bytes
        self.count = 0
        self.bytes = 0
        self._bytes_max = config.ingress_bytes_max

    def begin(self, size: int) -> "LargeUpload":
        """Makes room for a large transaction of `size` bytes; a context manager.

        Raises:
            NotServing, NotPrimary: The group takes no transactions from this member.
            LogFull: The log has no space.
            Overloaded: Other uploads leave no room for it.
        """
        if not takes_anything(self.member) or not self.member.may_write:
            raise self.why_not()
        check_space(self.member)
        if self.count and (self.bytes + size > self._bytes_max or self.count + 1 >= SETS_MAX):
            raise Overloaded(
                waiting=self.bytes,
                waiting_max=self._bytes_max,
                cause=f"{self.count} large transactions",
                what="bytes of large transactions",
            )
        return LargeUpload(self, size)

    async def send(self, payload: bytes) -> "LargeUpload":
        """Sends changes that are in memory; the caller ends it. Raises as `begin` and `add` do."""
        upload = self.begin(2 * len(payload))  # A key is in each piece of its value.
        turns = Turns()
        try:
            for piece in split_payload(payload, self.fragment_bytes):
                await upload.add(piece)
                await turns.others()
            await upload.finish()
        except BaseException:
            upload.end()
            raise
        return upload


class LargeUpload:
    """One upload; its end, in any way, gives back the room it held."""

    def __init__(self, uploads: Uploads, size: int) -> None:
        self.is_submitted = False
        """Its transaction is on its way, and will end its fragments."""
        self._uploads = uploads
        self.size = size
        """Bytes, as announced."""
        self._changed = asyncio.Event()
        publisher = uploads.member.publisher
        self._upload = publisher.begin_upload(self._changed.set)
        self._digest = Digest(uploads.member.me.incarnation, self._upload.number)
        self._reader = RowReader()
        self._buffer = b""
        self._ended = False
        uploads.count += 1
        uploads.bytes += size

    async def add(self, part: bytes) -> list[bytes]:
        """Takes the next part, and returns the keys of its rows; waits while the log is behind.

        Raises:
            InvalidWriteSet: It is no part, or none that may follow the one before.
            TransactionTooLarge: The parts are more than was announced.
            NotServing, NotPrimary: The group takes it no longer.
            LogFull: The log has no space.
        """
        if len(part) > PART_BYTES_MAX + self._uploads.fragment_bytes:
            expected = f"parts of at most {PART_BYTES_MAX} bytes"
            raise InvalidWriteSet(value=f"a part of {len(part)} bytes", expected=expected)
        put_keys, _, delete_keys = self._reader.read(part)
        # Two messages, one after the other, are one message with the rows of both.
        self._buffer += part
        if self._reader.is_open or len(self._buffer) >= self._uploads.fragment_bytes // 2:
            await self._flush()
        return [*put_keys, *delete_keys]

    async def finish(self) -> None:
        """Waits until all fragments are in the log. Raises as `add` does."""
        self._reader.end()
        if self._buffer or not self._digest.count:
            await self._flush()
        await self._wait(1)

    @property
    def reference(self) -> bytes:
        """The payload that stands for the changes in the transaction."""
        return self._digest.reference()

    def end(self) -> None:
        """Gives back its room; the group drops fragments that no transaction needs."""
        if not self._ended:
            self._ended = True
            self._uploads.count -= 1
            self._uploads.bytes -= self.size
            self._uploads.member.publisher.end_upload(self._upload, submitted=self.is_submitted)
            self._uploads.schedule()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    async def _flush(self) -> None:
        piece, self._buffer = self._buffer, b""
        if self._digest.bytes + len(piece) > self.size:
            size = self._digest.bytes + len(piece)
            raise TransactionTooLarge(bytes=size, bytes_max=self.size)
        await self._wait(AHEAD)
        index = self._digest.count
        self._digest.add(piece)
        data = compress(piece)
        self._uploads.member.publisher.fragment(self._upload, index, data)
        self._uploads.schedule()

    async def _wait(self, undelivered: int) -> None:
        """Waits until fewer than `undelivered` fragments are on their way."""
        while not self._upload.is_refused and self._upload.undelivered >= undelivered:
            self._changed.clear()
            await self._changed.wait()
        if self._upload.is_refused:
            check_space(self._uploads.member)
            raise self._uploads.why_not()
