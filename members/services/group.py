"""The gRPC services that answer with the group, and the applier, as this member sees them."""

import asyncio
from collections.abc import AsyncIterator

from groupcert.certifier.errors import InvalidSetting, NotServing
from groupcert.members.core.caller_shares import Shares
from groupcert.members.door.answer_budget import answering
from groupcert.members.door.callers import CALLER
from groupcert.members.door.places import Places
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.services.group_status import group_applier_status, group_status
from groupcert.members.services.history_pages import READERS_MAX, history_pages, rows_of
from groupcert.members.services.serving import Context
from groupcert.v1 import applier_pb2, applier_pb2_grpc, group_pb2, group_pb2_grpc

WATCH_PERIOD_MS_MIN = 50


class GroupService(group_pb2_grpc.GroupServiceServicer):
    """Answers with the group as this member sees it."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current
        self._status_bytes = 0
        self._readers = Places(Shares(READERS_MAX))

    async def GetStatus(
        self, request: group_pb2.GetStatusRequest, context: Context
    ) -> group_pb2.GetStatusResponse:
        """Returns the status now."""
        return group_pb2.GetStatusResponse(status=await self._status())

    async def WatchStatus(
        self, request: group_pb2.WatchStatusRequest, context: Context
    ) -> AsyncIterator[group_pb2.WatchStatusResponse]:
        """Yields the status again and again."""
        period_ms = max(request.period_ms, WATCH_PERIOD_MS_MIN)
        stopping = self._current.stopping
        while True:
            yield group_pb2.WatchStatusResponse(status=await self._status())
            answering().settle(0)
            await stopping.unless(asyncio.sleep(period_ms / 1000), self._current.name)

    async def ReadHistory(
        self, request: group_pb2.ReadHistoryRequest, context: Context
    ) -> AsyncIterator[group_pb2.ReadHistoryResponse]:
        """Yields what the certification log has after a version."""
        async with self._readers.held(CALLER.get()):
            with self._current.fencing():
                runtime = self._current.get()
                writer = runtime.history_writer
                if writer is None:
                    expected = "a folder, for its history to be read"
                    raise InvalidSetting(name="certification_log", value=None, expected=expected)
                runtime.save()
                async for rows in rows_of(writer.outbox, writer.folder, runtime.committed_version):
                    for page in history_pages(rows, request.after_version):
                        yield page
                    if runtime.closed:
                        state = runtime.state.name
                        raise NotServing(member=runtime.config.member, state=state)

    async def _status(self) -> group_pb2.GroupStatus:
        """Returns the status now, once there is room for one of the last one's size."""
        await answering().room(self._status_bytes)
        status = group_status(self._current.observed())
        self._status_bytes = status.ByteSize()
        return status


class MemberApplierService(applier_pb2_grpc.ApplierServiceServicer):
    """The applier of the member's own channel."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current

    async def GetApplierStatus(
        self, request: applier_pb2.GetApplierStatusRequest, context: Context
    ) -> applier_pb2.GetApplierStatusResponse:
        """Returns the status now."""
        return group_applier_status(self._current.observed())
