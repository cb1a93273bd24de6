"""Takes a copy from one donor: chunk after chunk into files, each checked; resumes broken streams.

The rule it keeps: a byte is written after its chunk's checksum was found right, a file is done
after its own was, and what is done is on disk. A stream that breaks is requested again from the
last good offset; if a file does not match the manifest, the donor is at fault, and is given up.
"""

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import IO

import structlog
from xxhash import xxh3_64_intdigest, xxh3_128

from ...certifier.errors import DiskFull, NotServing
from ...certifier.storage.store import ROCKSDB_FOLDER
from ..core.recovery_progress import RecoveryProgress
from ..errors.calls import TooManyCalls
from ..errors.recovery import CorruptCopy
from ..host.sync import sync
from .donors import Chunk, Donor
from .manifest import CopiedFile, CopyManifest, write_manifest

RESUMES_MAX = 5
"""Breaks of a stream, one after the other without a good chunk between them, that are allowed."""
RESUME_SECONDS = 0.5
SPARE_BYTES = 64 << 20
"""Bytes of free space that a copy leaves: the store needs some to begin with."""
_FULL_DISK_NUMBERS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
log: structlog.stdlib.BoundLogger = structlog.get_logger()

OnProgress = Callable[[RecoveryProgress], None]
Check = Callable[[CopyManifest], None]


class BrokenStream(Exception):
    """A chunk that is not the one that comes next, or not whole."""


class CopyWriter:
    """Writes the files of a copy as they come in."""

    def __init__(self, folder: Path, manifest: CopyManifest) -> None:
        """Writes into `folder`, which is empty. Creates files without bytes at once."""
        self._folder = folder / ROCKSDB_FOLDER
        self._folder.mkdir(parents=True)
        self._left = [file for file in reversed(manifest.files) if file.bytes]
        self._file: IO[bytes] | None = None
        self._checksum = xxh3_128()
        self.offset = 0
        self.bytes_done = 0
        for file in manifest.files:
            if not file.bytes:
                (self._folder / file.name).touch()

    @property
    def next_file(self) -> CopiedFile | None:
        """The file whose bytes come next, from `offset` on; None: all are there."""
        return self._left[-1] if self._left else None

    def take(self, chunk: Chunk) -> None:
        """Writes the next chunk.

        Raises:
            BrokenStream: It is not the next one, or not whole; nothing was written.
            CorruptCopy: With it the file is not what the manifest says.
            DiskFull: There is no space.
        """
        file = self.next_file
        if file is None or (chunk.file, chunk.offset) != (file.name, self.offset):
            raise BrokenStream(f"{chunk.file} at {chunk.offset} came out of turn")
        if not chunk.data or xxh3_64_intdigest(chunk.data) != chunk.checksum:
            raise BrokenStream(f"the checksum of {chunk.file} at {chunk.offset} does not match")
        try:
            self._file = self._file or (self._folder / file.name).open("wb")
            self._file.write(chunk.data)
            self._checksum.update(chunk.data)
            self.offset += len(chunk.data)
            self.bytes_done += len(chunk.data)
            if self.offset >= file.bytes:
                self._end_file(file)
        except OSError as error:
            raise written_error(self._folder, error) from error

    def close(self) -> None:
        """Closes the file that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _end_file(self, file: CopiedFile) -> None:
        assert self._file is not None
        if self.offset != file.bytes or self._checksum.hexdigest() != file.checksum:
            problem = f"the checksum of file {file.name} does not match"
            raise CorruptCopy(path=str(self._folder.parent), problem=problem)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        self._checksum = xxh3_128()
        self.offset = 0
        self._left.pop()


async def download_copy(
    donor: Donor,
    folder: Path,
    asker: str,
    on_progress: OnProgress,
    check: Check,
    *,
    reads_on: bool,
    without_rows: bool = False,
) -> CopyManifest:
    """Fills an empty folder with a copy of a donor's state as of now, and returns its manifest.

    Args:
        reads_on: The asker will need the log after the copy.
        without_rows: The asker keeps no rows.
        check: Raises if this copy is of no use; called before anything is read.

    Raises:
        GroupcertError, MemberFailed: The donor failed; the folder has a part of it.
        DiskFull: There is no space here.
    """
    copy_id, encoded = await donor.open_copy(asker, without_rows=without_rows)
    is_whole = False
    try:
        manifest = CopyManifest.decode(encoded, f"{copy_id} at {donor.address}")
        check(manifest)
        check_space(folder, manifest.bytes_total)
        writer = await asyncio.to_thread(CopyWriter, folder, manifest)
        try:
            await _read_all(donor, copy_id, writer, manifest, on_progress)
        finally:
            writer.close()
        is_whole = True
    finally:
        # A reader that failed begins with another copy, and does not need the log after this one.
        await donor.close_copy(copy_id, reads_on=reads_on and is_whole)
    await asyncio.to_thread(write_manifest, folder, manifest)
    await asyncio.to_thread(sync, folder / ROCKSDB_FOLDER)
    return manifest


def written_error(folder: Path, error: OSError) -> Exception:
    """Returns the error that an OSError of writing into a folder stands for."""
    if error.errno in _FULL_DISK_NUMBERS:
        return DiskFull(path=str(folder), cause=str(error))
    return error


def check_space(folder: Path, size: int) -> None:
    """Raises DiskFull if a folder has no space for `size` bytes."""
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        cause = f"a copy of {size} bytes and {SPARE_BYTES} to spare, {free} are free"
        raise DiskFull(path=str(folder), cause=cause)


async def _read_all(
    donor: Donor,
    copy_id: str,
    writer: CopyWriter,
    manifest: CopyManifest,
    on_progress: OnProgress,
) -> None:
    """Reads stream after stream until all is there."""
    began = time.monotonic()
    breaks = 0
    while (file := writer.next_file) is not None:
        before = writer.bytes_done
        cause: Exception | None = None
        try:
            async with aclosing(donor.read_copy(copy_id, file.name, writer.offset)) as chunks:
                async for chunk in chunks:
                    await asyncio.to_thread(writer.take, chunk)
                    on_progress(
                        RecoveryProgress(
                            donor=manifest.member,
                            bytes_done=writer.bytes_done,
                            bytes_total=manifest.bytes_total,
                            bytes_per_second=writer.bytes_done
                            / max(time.monotonic() - began, 1e-3),
                        )
                    )
        except (BrokenStream, NotServing, TooManyCalls, TimeoutError) as error:
            cause = error
        # A stream that has brought something shows a donor that serves: only breaks in a row count.
        breaks = 0 if writer.bytes_done > before else breaks + 1
        if writer.next_file is not None:
            text = str(cause or "it ended early") or "no chunk came in time"
            log.warning(
                "copy_stream_broke",
                donor=donor.address,
                file=file.name,
                offset=writer.offset,
                bytes_done=writer.bytes_done,
                cause=text,
            )
            if breaks >= RESUMES_MAX:
                raise NotServing(member=donor.address, state=f"BREAKING OFF ({text})")
            await asyncio.sleep(RESUME_SECONDS)
