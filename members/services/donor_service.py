"""The gRPC service of a member as a donor.

The rule it keeps: giving a copy never stalls commits. Files are read in threads, one chunk after
the other, and no faster than `recovery_bytes_per_second_max` for all readers together.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from xxhash import xxh3_64_intdigest

from groupcert.v1 import recovery_pb2, recovery_pb2_grpc

from ...certifier.errors import InvalidSetting
from ...certifier.storage.store import ROCKSDB_FOLDER
from ..core.throttle import Throttle
from ..door.answer_budget import answering
from ..errors.recovery import CopyExpired
from ..recovery.copies import Copies, Copy, check_donor
from ..settings.member import MemberConfig
from .current_runtime import CurrentRuntime
from .serving import Context

CHUNK_BYTES = 1 << 20
CHUNKS_PER_SECOND_MIN = 10
"""Chunks a second of a slow copy, so that its reader hears of it."""


class RecoveryService(recovery_pb2_grpc.RecoveryServiceServicer):
    """Copies of the member's state."""

    def __init__(self, current: CurrentRuntime, copies: Copies, config: MemberConfig) -> None:
        self._current = current
        self._copies = copies
        rate = config.recovery_bytes_per_second_max
        self._throttle = Throttle(rate)
        self._chunk_bytes = CHUNK_BYTES
        if rate:
            self._chunk_bytes = max(1, min(CHUNK_BYTES, rate // CHUNKS_PER_SECOND_MIN))

    async def OpenCopy(
        self, request: recovery_pb2.OpenCopyRequest, context: Context
    ) -> recovery_pb2.OpenCopyResponse:
        """Makes a copy."""
        copy = await self._copies.open(
            self._current.get(), request.asker, without_rows=request.without_rows
        )
        return recovery_pb2.OpenCopyResponse(copy_id=copy.copy_id, manifest=copy.manifest.encode())

    async def ReadCopy(
        self, request: recovery_pb2.ReadCopyRequest, context: Context
    ) -> AsyncIterator[recovery_pb2.ReadCopyResponse]:
        """Yields the bytes of a copy from an offset on, while the member stays ONLINE."""
        loop = asyncio.get_running_loop()
        try:
            for name, start, end in _parts(self._copies.get(request.copy_id), request):
                path = self._copies.get(request.copy_id).folder / ROCKSDB_FOLDER / name
                for offset in range(start, end, self._chunk_bytes):
                    await answering().room(self._chunk_bytes)
                    check_donor(self._current.get())
                    size = min(self._chunk_bytes, end - offset)
                    data = await asyncio.to_thread(_read, path, offset, size)
                    await asyncio.sleep(self._throttle.delay_seconds(len(data), loop.time()))
                    self._copies.get(request.copy_id).sent(name, offset + size)
                    yield recovery_pb2.ReadCopyResponse(
                        file=name, offset=offset, data=data, checksum=xxh3_64_intdigest(data)
                    )
        except FileNotFoundError:
            raise CopyExpired(copy_id=request.copy_id, lease_seconds=0) from None

    async def CloseCopy(
        self, request: recovery_pb2.CloseCopyRequest, context: Context
    ) -> recovery_pb2.CloseCopyResponse:
        """Removes a copy."""
        await self._copies.close(request.copy_id, reads_on=request.reads_on)
        return recovery_pb2.CloseCopyResponse()


def _parts(copy: Copy, request: recovery_pb2.ReadCopyRequest) -> list[tuple[str, int, int]]:
    """Returns the parts left to read: (file, from, to) in bytes; empty files have none."""
    files = copy.manifest.files
    names = [file.name for file in files]
    first = names.index(request.file) if request.file in names else len(files)
    if first == len(files) or request.offset > files[first].bytes:
        value = f"{request.file} at {request.offset}"
        raise InvalidSetting(name="file", value=value, expected="a place in a file of the copy")
    return [
        (file.name, request.offset if index == first else 0, file.bytes)
        for index, file in enumerate(files)
        if index >= first
    ]


def _read(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), size, offset)
