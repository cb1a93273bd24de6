"""The gRPC service for transactions on the embedded store.

The rule it keeps: a request that a member cannot take is refused with a status that says who must
act; a commit that lost is ABORTED, with all particulars of the conflict as its detail.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

from groupcert.v1 import store_pb2, store_pb2_grpc, transaction_pb2

from ...applier.targets.rocksdb import RowsSnapshot
from ...certifier.errors import TooManyKeys
from ...certifier.outcomes import Doubtful
from ...certifier.records import Outcome, Verdict
from ...certifier.write_set import store_key_item
from ..core.caller_shares import Shares
from ..core.publisher import Submission
from ..door.answer_budget import PAGE_BYTES, answering
from ..door.call_places import Places
from ..door.callers import CALLER
from ..host.turns import Turns
from ..large_transactions.parts_reader import PartsReader, header_of, in_time
from ..wire.requests import outcome_message, submitted, submitted_commit
from ..wire.statuses import commit_error
from .certification import Asked, outcome_messages
from .conversions import converted, weight_of
from .serving import Context, Current, Reading, Serving
from .submitting import (
    check_first,
    least_read,
    limits_of_caller,
    snapshot_of,
    submit,
    submit_uploaded,
)

GET_KEYS_MAX = 10_000
"""Keys of one call; to look up so many takes some 50 ms."""
SCAN_ROWS_MAX = 10_000
READING_PLACES = 2
"""Callers whose reads have a turn before other work has one; half of them, so one, is a caller's
share."""
ROW_BYTES = 16
"""Bytes of a row in an answer, beside key and value."""

_AFTER = (
    transaction_pb2.CONSISTENCY_AFTER,
    transaction_pb2.CONSISTENCY_BEFORE_AND_AFTER,
)
_BEFORE = (
    transaction_pb2.CONSISTENCY_BEFORE,
    transaction_pb2.CONSISTENCY_BEFORE_AND_AFTER,
)


class StoreService(store_pb2_grpc.StoreServiceServicer):
    """Transactions on the embedded store."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._reading = Places(Shares(READING_PLACES))
        self._one_by_one: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of the callers whose reads run or wait."""

    async def HoldSession(
        self, request: store_pb2.HoldSessionRequest, context: Context
    ) -> AsyncIterator[store_pb2.HoldSessionResponse]:
        """Opens a session that lasts as long as the call; then its snapshots are closed."""
        snapshots = self._current.get().snapshots
        session_id = snapshots.begin_session()
        try:
            yield store_pb2.HoldSessionResponse(session_id=session_id)
            await self._current.stopping.ended()
        finally:
            snapshots.end_session(session_id)

    async def OpenSnapshot(
        self, request: store_pb2.OpenSnapshotRequest, context: Context
    ) -> store_pb2.OpenSnapshotResponse:
        """Opens a snapshot, once the requested consistency allows it."""
        with self._current.fencing():
            runtime: Reading = self._current.get()
            self._current.stopping.check(self._current.name)
            if request.consistency in _BEFORE:
                mark = await self._current.writable().submit(())
                await runtime.committed(mark.version)
            if request.version_min:
                await runtime.committed(request.version_min)
            snapshot_id, version = runtime.open_snapshot(CALLER.get(), request.session_id)
        return store_pb2.OpenSnapshotResponse(
            snapshot_id=snapshot_id, version=version, lease_ms=runtime.snapshots.lease_ms
        )

    async def CloseSnapshot(
        self, request: store_pb2.CloseSnapshotRequest, context: Context
    ) -> store_pb2.CloseSnapshotResponse:
        """Closes a snapshot."""
        self._current.get().snapshots.close(request.snapshot_id)
        return store_pb2.CloseSnapshotResponse()

    async def Get(self, request: store_pb2.GetRequest, context: Context) -> store_pb2.GetResponse:
        """Returns rows by their keys, as many as one answer may have."""
        if len(request.keys) > GET_KEYS_MAX:
            raise TooManyKeys(keys=len(request.keys), keys_max=GET_KEYS_MAX)

        response, keys = store_pb2.GetResponse(), request.keys
        page = _Page(response.rows)

        def read(rows: RowsSnapshot, deadline: float) -> bool:
            while (number := len(response.rows)) < len(keys):
                if not page.add(keys[number], rows.get(keys[number])):
                    return page.is_empty
                if time.perf_counter() > deadline:
                    return True
            return False

        await self._read(request.snapshot_id, page, read)
        return response

    async def Scan(
        self, request: store_pb2.ScanRequest, context: Context
    ) -> store_pb2.ScanResponse:
        """Returns one page of a range."""
        limit = min(request.rows_max or SCAN_ROWS_MAX, SCAN_ROWS_MAX)
        response, start = store_pb2.ScanResponse(), request.start_key
        page = _Page(response.rows)

        def read(rows: RowsSnapshot, deadline: float) -> bool:
            nonlocal start
            left = limit + 1 - len(response.rows)
            for key, value in rows.scan(start, request.end_key or None, left):
                if len(response.rows) == limit or not page.add(key, value):
                    if page.is_empty:
                        return True
                    response.next_key = key
                    return False
                if time.perf_counter() > deadline:
                    start = key + b"\x00"
                    return True
            return False

        await self._read(request.snapshot_id, page, read)
        return response

    async def Commit(
        self, request: store_pb2.CommitRequest, context: Context
    ) -> store_pb2.CommitResponse:
        """Orders, certifies and commits; returns once the rows are visible here."""
        runtime = self._current.writable()
        snapshot_version = snapshot_of(runtime, request)
        after = request.consistency in _AFTER
        release = runtime.held.hold_all((snapshot_version,))
        try:
            limits = limits_of_caller(runtime)
            logged = await converted(
                weight_of(request),
                lambda: submitted_commit(request, snapshot_version, limits, report=after),
            )
            check_first(runtime, logged, request)
            ended = await submit(runtime, logged)
        finally:  # Until then they keep what the commit is checked against from collection.
            release()
            runtime.snapshots.close(request.snapshot_id)
        return await _committed(runtime, ended, request)

    async def CommitStream(
        self, request_iterator: AsyncIterator[store_pb2.CommitStreamRequest], context: Context
    ) -> AsyncIterator[store_pb2.CommitStreamResponse]:
        """Commits as `Commit`, or certifies as `Certify`, in parts; forgets the parts if the caller
        hangs up.
        """
        runtime = self._current.writable()
        limits = limits_of_caller(runtime)
        requests = in_time(request_iterator, runtime.config.snapshot_lease_ms)
        header = await header_of(requests, limits)
        commit, is_certified_only = header.commit, header.HasField("transaction")
        request = header.transaction if is_certified_only else commit
        version = snapshot_of(runtime, commit)
        release = runtime.held.hold_all(
            (least_read(header.transaction) if is_certified_only else version,)
        )
        try:
            with runtime.uploads.begin(header.changes_bytes) as upload:
                admitted = store_pb2.CommitAdmitted()
                yield store_pb2.CommitStreamResponse(admitted=admitted)
                after = commit.consistency in _AFTER
                logged = await converted(
                    header.ByteSize(),
                    lambda: (
                        submitted(header.transaction, limits)
                        if is_certified_only
                        else submitted_commit(commit, version, limits, report=after)
                    ),
                )
                parts = PartsReader(limits, lambda: snapshot_of(runtime, commit))
                logged = await parts.read(requests, upload, logged)
                check_first(runtime, logged, request)
                ended = await submit_uploaded(runtime, [upload], [logged])
        finally:
            release()
            runtime.snapshots.close(commit.snapshot_id)
        if is_certified_only:
            asked = Asked([header.transaction], header.ByteSize())
            (outcome,) = await outcome_messages(runtime.known.problem, ended, asked)
            yield store_pb2.CommitStreamResponse(outcome=outcome)
        else:
            response = await _committed(runtime, ended, commit)
            yield store_pb2.CommitStreamResponse(committed=response)

    async def _read(
        self, snapshot_id: int, page: "_Page", read: Callable[[RowsSnapshot, float], bool]
    ) -> None:
        """Reads rows of a snapshot into a page, once there is room for it, and the reads of its
        caller before it are done. It has turns of `TURN_SECONDS` with reads of others: `read`
        returns at its deadline, or at a row for which the page is too small, with True if it has to
        go on. Between two turns the store is not held, and may close.
        """
        caller, unsent, goes_on = CALLER.get(), answering(), True
        one_by_one = self._one_by_one.get(caller)
        if one_by_one is None:
            one_by_one = self._one_by_one[caller] = asyncio.Lock()
        with self._current.fencing():
            async with one_by_one:
                while goes_on:
                    if unsent.bytes != page.bytes_max:
                        await unsent.room(page.bytes_max)
                    goes_on = await self._turn(caller, snapshot_id, read)
        unsent.settle(page.bytes)

    async def _turn(
        self, caller: str, snapshot_id: int, read: Callable[[RowsSnapshot, float], bool]
    ) -> bool:
        """Returns whether a read goes on after its next turn."""
        await self._reading.take(caller)
        try:
            turns = Turns()
            runtime: Reading = self._current.get()
            rows = runtime.snapshots.rows(snapshot_id, runtime.now_ms())
            goes_on = read(rows, turns.deadline)
            del rows
            await turns.others()
            return goes_on
        finally:
            self._reading.give_back(caller)


class _Page:
    """The rows of one answer: as many as there is room for, but one at least."""

    def __init__(self, rows: Any) -> None:
        """Adds to the field `rows` of an answer."""
        self.bytes = 0
        self.bytes_max = PAGE_BYTES
        self._rows = rows

    @property
    def is_empty(self) -> bool:
        """Whether it has no row."""
        return not self.bytes

    def add(self, key: bytes, value: bytes | None) -> bool:
        """Adds a row, or returns False: an empty page then needs more room, and says how much."""
        size = len(key) + len(value or b"") + ROW_BYTES
        if self.bytes + size > self.bytes_max:
            if self.is_empty:
                self.bytes_max = size
            return False
        self._rows.add(key=key, value=value)
        self.bytes += size
        return True


async def _committed(
    runtime: Serving, ended: Submission, request: store_pb2.CommitRequest
) -> store_pb2.CommitResponse:
    """Returns the answer to a commit that is decided. Raises TransactionFailed if it lost, or may
    have lost to itself.
    """
    outcome, log_sequence = ended.outcomes[0], ended.log_sequence
    assert outcome is not None
    if isinstance(outcome, Doubtful) and not request.first_attempt:
        raise runtime.known.unknown(request.transaction_id)
    if outcome.verdict is not Verdict.CERTIFIED:
        key = await converted(request.ByteSize(), lambda: _lost_key(outcome, request))
        raise commit_error(outcome_message(b"", outcome, log_sequence, key))
    if request.consistency in _AFTER:
        await runtime.applied_everywhere(outcome.version)
    return store_pb2.CommitResponse(
        gtid=str(outcome.gtid), version=outcome.version, log_sequence=log_sequence
    )


def _lost_key(outcome: Outcome, request: store_pb2.CommitRequest) -> bytes:
    """Returns the key whose item a transaction lost over; empty if the request has none."""
    if outcome.conflict is None:
        return b""
    changes, item = request.changes, outcome.conflict.item
    keys = chain(changes.put_keys, changes.delete_keys, request.read_keys)
    return next((key for key in keys if store_key_item(key) == item), b"")
