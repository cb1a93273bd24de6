"""The gRPC service of a member's binary log: replicas subscribe to it, operators rotate and purge.

The rule it keeps: a replica gets what is committed here and what it lacks, or is told that it
cannot: what is missing was purged, or it has something of the group that the group has not.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain

import structlog

from applier.errors import PurgedAtSource, ReplicaAhead
from applier.fragments import is_reference
from applier.relay_queue import RelayEntry
from certifier.errors import CorruptStore, GroupcertError, InvalidSetting, NotServing
from certifier.gtid_set import GtidSet
from groupcert.v1 import binary_log_pb2, binary_log_pb2_grpc
from members.binary_log import BinaryLog
from members.binary_log_reader import BYTES_MAX, ENTRIES_MAX, BinaryLogReader
from members.conversions import converted
from members.convert import changed_keys, check_gtid_set
from members.current_runtime import CurrentRuntime
from members.log_events import events_of, large_events
from members.member_state import MemberState
from members.runtime import MemberRuntime
from members.service import Context
from members.status import abort

HEARTBEAT_SECONDS = 1.0
RESPONSE_BYTES_MAX = 16 << 20
"""A commit group that takes more is divided: gRPC limits its messages."""
GTID_SET_BYTES_MAX = 128 << 10
"""Of what a replica has executed: some 20,000 gaps, more than appliers leave that commit as they
end. It is read by a thread, and compared by the event loop, in up to 20 ms.
"""
WRITE_SECONDS = 0.001
"""Until a commit group that was being written is written, about."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class BinaryLogService(binary_log_pb2_grpc.BinaryLogServiceServicer):
    """The binary log, for replicas."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current

    async def Subscribe(
        self, request: binary_log_pb2.SubscribeRequest, context: Context
    ) -> AsyncIterator[binary_log_pb2.SubscribeResponse]:
        """What a replica lacks, and then what is committed."""
        try:
            runtime = self._current.get()
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
                databases_max=runtime.config.binary_log_databases_max,
            )
            log.info("replica_subscribed", member=member, replica=request.replica)
            limits = (
                min(request.events_max or ENTRIES_MAX, ENTRIES_MAX),
                min(request.bytes_max or BYTES_MAX, BYTES_MAX),
            )
            told = 0.0
            while True:
                if runtime.closed:
                    self._current.get()  # Raises, but where the member has begun anew.
                    return
                if reader.is_at_end and runtime.member.state is MemberState.FENCED:
                    raise NotServing(member=member, state=MemberState.FENCED.name)
                entries = reader.read(*limits)
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
                elif reader.is_at_end:
                    await runtime.news(told + HEARTBEAT_SECONDS - now)
                await asyncio.sleep(0)
        except GroupcertError as error:
            log.warning("replica_refused", replica=request.replica, text=str(error))
            await abort(context, error)

    async def ListFiles(
        self, request: binary_log_pb2.ListFilesRequest, context: Context
    ) -> binary_log_pb2.ListFilesResponse:
        """The files, oldest first."""
        try:
            files = binary_log_of(self._current.get()).files
        except GroupcertError as error:
            await abort(context, error)
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
        try:
            runtime = self._current.get()
            binary_log = binary_log_of(runtime)
            while not binary_log.rotate(runtime.committed_position):
                await asyncio.sleep(WRITE_SECONDS)
                self._current.get()
        except GroupcertError as error:
            await abort(context, error)
        return binary_log_pb2.RotateResponse(file=binary_log.files[-1].number)

    async def Purge(
        self, request: binary_log_pb2.PurgeRequest, context: Context
    ) -> binary_log_pb2.PurgeResponse:
        """Removes the files before one."""
        try:
            runtime = self._current.get()
            binary_log = binary_log_of(runtime)
            while (count := binary_log.purge(request.to_file, runtime.committed_position)) is None:
                await asyncio.sleep(WRITE_SECONDS)
                self._current.get()
        except GroupcertError as error:
            await abort(context, error)
        return binary_log_pb2.PurgeResponse(files_purged=count)


def binary_log_of(runtime: MemberRuntime) -> BinaryLog:
    """A member's binary log. Raises InvalidSetting where it keeps none."""
    if runtime.binary_log is None:
        raise InvalidSetting(name="binary_log", value=False, expected="true, to be followed")
    return runtime.binary_log


def _parts(entries: Sequence[RelayEntry]) -> Iterator[Sequence[RelayEntry]]:
    """The entries of one response each; at least one, which may be empty. A large transaction is
    alone: it becomes several.
    """
    part: list[RelayEntry] = []
    size = 0
    for entry in entries:
        more = 2 * len(entry.payload) + 8 * len(entry.header.items)
        was_large = bool(part) and is_reference(part[-1].payload)
        is_full = was_large or is_reference(entry.payload) or size + more > RESPONSE_BYTES_MAX
        if part and is_full:
            yield part
            part, size = [], 0
        part.append(entry)
        size += more
    yield part


def _events(
    runtime: MemberRuntime, part: Sequence[RelayEntry]
) -> Iterator[list[binary_log_pb2.BinaryLogEvent]]:
    """The events of each response for some entries.

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
        if runtime.closed:
            state = runtime.member.state.name
            raise NotServing(member=runtime.config.member, state=state) from None
        if binary_log_of(runtime).files[0].number <= entry.header.file:
            raise
        raise PurgedAtSource(source=runtime.config.member, missing=str(entry.gtid)) from None


async def _check_not_ahead(runtime: MemberRuntime, executed: GtidSet) -> None:
    """Raises ReplicaAhead if a replica has GTIDs of the group's source that this member has not.

    A member that is merely late reads the log to its end first. NotServing where it cannot.
    """
    if not _beyond(runtime, executed):
        return
    mark = await runtime.submit(())
    await runtime.committed(mark.version)
    if extra := _beyond(runtime, executed):
        raise ReplicaAhead(source=runtime.config.member, extra=str(extra))


def _beyond(runtime: MemberRuntime, executed: GtidSet) -> GtidSet:
    """What is executed of the group's own GTIDs and not committed here."""
    source = runtime.member.settings.group_uuid
    beyond = executed - runtime.applier.status().checkpoint.gtid_executed
    own = GtidSet()
    for first, last in beyond.intervals(source):
        own.add_interval(source, first, last)
    return own
