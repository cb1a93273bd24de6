"""The gRPC service of a member's binary log: replicas subscribe to it, operators rotate and purge.

The rule it keeps: a replica gets what is committed here and what it lacks, or an error: what is
missing was purged, or it has transactions of the group that the group has not.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from itertools import chain

import structlog

from groupcert.v1 import binary_log_pb2, binary_log_pb2_grpc

from ...applier.errors import PurgedAtSource, ReplicaAhead
from ...applier.queue.fragment_references import is_reference
from ...applier.queue.relay_group import RelayEntry
from ...certifier.errors import CorruptStore, GroupcertError, InvalidSetting, NotServing
from ...certifier.gtid_set import GtidSet
from ..binary_log.replica_reader import BYTES_MAX, ENTRIES_MAX, BinaryLogReader
from ..binary_log.stored_log import BinaryLog
from ..core.views import MemberState
from ..door.answer_budget import PAGE_BYTES, answering
from ..wire.binary_log_entries import events_of, large_events
from ..wire.requests import check_gtid_set
from ..wire.row_changes import changed_keys
from .conversions import converted
from .current_runtime import CurrentRuntime
from .serving import Context, Followed

HEARTBEAT_SECONDS = 1.0
GTID_SET_BYTES_MAX = 128 << 10
"""Bytes of a GTID set that a replica has executed: some 20,000 gaps, more than appliers leave that
commit as they end. A thread reads it, and the event loop compares it, in up to 20 ms."""
WRITE_SECONDS = 0.001
"""Seconds until a group commit that was being written is written, about."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class BinaryLogService(binary_log_pb2_grpc.BinaryLogServiceServicer):
    """The binary log, for replicas."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current

    async def Subscribe(
        self, request: binary_log_pb2.SubscribeRequest, context: Context
    ) -> AsyncIterator[binary_log_pb2.SubscribeResponse]:
        """Yields the transactions that a replica lacks, and then those that are committed."""
        try:
            runtime: Followed = self._current.get()
            member = runtime.config.member
            check_gtid_set(request.gtid_executed, GTID_SET_BYTES_MAX, "begin with a newer copy")
            text = request.gtid_executed
            executed = await converted(len(text), lambda: GtidSet.parse(text))
            await _check_not_ahead(runtime, executed)
            reader = BinaryLogReader(
                binary_log_of(runtime),
                executed,
                source=member,
                keys_of=changed_keys,
            )
            log.info("replica_subscribed", member=member, replica=request.replica)
            limits = (
                min(request.events_max or ENTRIES_MAX, ENTRIES_MAX),
                min(request.bytes_max or BYTES_MAX, BYTES_MAX),
            )
            told, unsent = 0.0, answering()
            while True:
                if reader.is_at_end and runtime.state is MemberState.FENCED:
                    raise NotServing(member=member, state=MemberState.FENCED.name)
                room = max(PAGE_BYTES // 2, reader.needed)
                await unsent.room(2 * room)  # For entries, and for the events made of them.
                if runtime.closed:
                    self._current.get()  # Raises, unless the member has begun another run.
                    return
                entries = reader.read(*limits, room)
                unsent.settle(sum(map(_bytes, entries)))
                now = time.monotonic()
                if entries or now - told >= HEARTBEAT_SECONDS:
                    told = now
                    for events in chain.from_iterable(
                        _events(runtime, part) for part in _parts(entries)
                    ):
                        yield binary_log_pb2.SubscribeResponse(
                            events=events,
                            source=member,
                            source_version=runtime.committed_version,
                            source_us=time.time_ns() // 1000,
                        )
                    del entries, events
                elif reader.is_at_end:
                    await runtime.news(told + HEARTBEAT_SECONDS - now)
                await asyncio.sleep(0)
        except GroupcertError as error:
            log.warning("replica_refused", replica=request.replica, text=str(error))
            raise

    async def ListFiles(
        self, request: binary_log_pb2.ListFilesRequest, context: Context
    ) -> binary_log_pb2.ListFilesResponse:
        """Returns the files, oldest first."""
        await answering().room()
        files = binary_log_of(self._current.get()).files
        return binary_log_pb2.ListFilesResponse(
            files=[
                binary_log_pb2.BinaryLogFile(
                    number=file.number,
                    bytes=file.bytes,
                    previous_gtids=str(file.previous_gtids),
                    first_gtid=file.first_gtid,
                    first_version=file.version + 1,
                    created_us=file.created_us,
                )
                for file in files
            ]
        )

    async def Rotate(
        self, request: binary_log_pb2.RotateRequest, context: Context
    ) -> binary_log_pb2.RotateResponse:
        """Begins a new file."""
        runtime: Followed = self._current.get()
        binary_log = binary_log_of(runtime)
        while not await asyncio.to_thread(binary_log.rotate, runtime.committed_position):
            await asyncio.sleep(WRITE_SECONDS)
            self._current.get()
        return binary_log_pb2.RotateResponse(file=binary_log.files[-1].number)

    async def Purge(
        self, request: binary_log_pb2.PurgeRequest, context: Context
    ) -> binary_log_pb2.PurgeResponse:
        """Removes the files before the named one."""
        runtime: Followed = self._current.get()
        binary_log = binary_log_of(runtime)
        purge = partial(binary_log.purge, request.to_file)
        while (count := await asyncio.to_thread(purge, runtime.committed_position)) is None:
            await asyncio.sleep(WRITE_SECONDS)
            self._current.get()
        return binary_log_pb2.PurgeResponse(files_purged=count)


def binary_log_of(runtime: Followed) -> BinaryLog:
    """Returns a member's binary log. Raises InvalidSetting, RowsNotKept if it keeps none."""
    if runtime.binary_log is None:
        if runtime.config.rows == "none":
            runtime.check_readable()
        raise InvalidSetting(name="binary_log", value=False, expected="true, to be followed")
    return runtime.binary_log


def _parts(entries: Sequence[RelayEntry]) -> Iterator[Sequence[RelayEntry]]:
    """Yields the entries of one response each; at least one part, which may be empty. A large
    transaction is alone: it becomes several responses.
    """
    part: list[RelayEntry] = []
    size = 0
    for entry in entries:
        more = _bytes(entry)
        was_large = bool(part) and is_reference(part[-1].payload)
        is_full = was_large or is_reference(entry.payload) or size + more > PAGE_BYTES
        if part and is_full:
            yield part
            part, size = [], 0
        part.append(entry)
        size += more
    yield part


def _bytes(entry: RelayEntry) -> int:
    """Returns the bytes of an entry and of the event that is made of it."""
    return 2 * len(entry.payload) + 8 * len(entry.header.items)


def _events(
    runtime: Followed, part: Sequence[RelayEntry]
) -> Iterator[list[binary_log_pb2.BinaryLogEvent]]:
    """Yields the events of each response for some entries.

    Raises PurgedAtSource if a large transaction is purged while it is read.
    """
    if not part or not is_reference(part[0].payload):
        yield events_of(part)
        return
    (entry,) = part
    try:
        for event in large_events(entry, runtime.fragments.pieces(entry.payload)):
            yield [event]
    except CorruptStore:
        if binary_log_of(runtime).has_fragments_of(entry.header.file):
            raise
        raise PurgedAtSource(source=runtime.config.member, missing=str(entry.gtid)) from None


async def _check_not_ahead(runtime: Followed, executed: GtidSet) -> None:
    """Raises ReplicaAhead if a replica has GTIDs of the group's source that this member has not.

    A member that is merely late reads the log to its end first. NotServing where it cannot.
    """
    if not _beyond(runtime, executed):
        return
    mark = await runtime.submit(())
    await runtime.committed(mark.version)
    if extra := _beyond(runtime, executed):
        raise ReplicaAhead(source=runtime.config.member, extra=str(extra))


def _beyond(runtime: Followed, executed: GtidSet) -> GtidSet:
    """Returns the executed GTIDs of the group's source that are not committed here."""
    source = runtime.group_source
    beyond = executed - runtime.gtid_executed()
    own = GtidSet()
    for first, last in beyond.intervals(source):
        own.add_interval(source, first, last)
    return own
